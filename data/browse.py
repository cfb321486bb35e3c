"""Write an HTML page about the records of a recipe, or list its suspicious records.

python data/browse.py recipes/basereward.yaml --out page.html              # 6 samples of each source
python data/browse.py recipes/shapes/naive.yaml --out page.html --samples 20
python data/browse.py recipes/basereward.yaml --find                       # suspicious records

The page has samples and histograms of each source. Suspicious records are records that cannot be
used, pairs with equal responses, and pairs with contradictory labels.
"""

import argparse
import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image
from rich.markup import escape
from rich.progress import track

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # imports work without installation

from mmrm.data.display.axis import Axis
from mmrm.data.display.chart import Bar, Chart, Series
from mmrm.data.display.command import command
from mmrm.data.display.console import plain_console
from mmrm.data.display.html import TINY, render, thumbnail
from mmrm.data.errors import LeftOut, RecordError
from mmrm.data.images import decode, image_size
from mmrm.data.preference import Preference, validate
from mmrm.data.preparation.mixing import Mixture
from mmrm.data.preparation.recipe_section import pairs_together_of, section_of
from mmrm.data.preparation.row_index import ORDER, ROW, RowIndex, normalised
from mmrm.data.preparation.scan import BadRecordConfig
from mmrm.data.preparation.split import SourceSplit
from mmrm.data.storage.files import write_whole

THUMBNAIL = 360
"""Longest side in pixels of an image on the page."""
GENERATED_SAMPLE = 200
"""Number of items of a generated source from which its distributions are computed."""
BARS = 24
"""Number of bars of a histogram; fewer if it covers fewer whole numbers."""
SHOWN = 80
"""Characters of a response in the list of suspicious records."""
TEMPLATE = Path(__file__).parent / "browse.html"


class Suspicion(NamedTuple):
    """A record that is suspicious, and the reason."""

    kind: str
    """The kind of fault, such as "cannot be used"; suspicions are counted by it."""
    identity: str
    """The name of the record in messages, such as `source:12`."""
    detail: str
    """The fault in words, or the text that shows it."""


def suspicious(splits: Sequence[SourceSplit]) -> Iterator[Suspicion]:
    """Yield the suspicious records of all sources that are not generated.

    This reads every record and decodes every image. It takes longer than preparing the data, which
    does not decode images.
    """
    yield from contradictions(splits)
    for split in splits:
        if split.row_index is None:
            continue
        for row in track(
            range(len(split.source)),
            escape(f"looking through {split.source.name}"),
            console=plain_console(stderr=True),
            transient=True,
        ):
            suspicion = _suspicion_about(split, row)
            if suspicion is not None:
                yield suspicion


def _suspicion_about(split: SourceSplit, row: int) -> Suspicion | None:
    """Return a suspicion if a record cannot be used or has equal responses, else None."""
    identity = f"{split.source.name}:{row}"
    try:
        record = validate(split.source.record(row))
        for image in record.images:
            image_size(image, record.identity)
            decode(image, record.identity)
    except LeftOut:
        return None
    except RecordError as error:
        return Suspicion("cannot be used", identity, str(error).removeprefix(f"{identity}: "))
    if normalised(record.chosen) == normalised(record.rejected):
        return Suspicion("chosen equals rejected", record.identity, record.chosen[:SHOWN])
    return None


def contradictions(splits: Sequence[SourceSplit]) -> Iterator[Suspicion]:
    """Yield a suspicion for every pair of responses whose records disagree on the better one.

    Records have the same pair if prompt, images and both responses are the same. They may be of
    different sources.
    """
    identities: list[str] = []
    entries = [np.empty(0, ROW)]
    for split in splits:
        if split.row_index is not None:
            rows = np.concatenate([split.rows, split.held_out])
            identities += [f"{split.source.name}:{row}" for row in rows]
            entries.append(split.row_index.rows[rows])
    pairs = np.concatenate(entries)
    keys = pairs["pair_key"]
    is_first_chosen = (pairs["flags"] & ORDER) > 0
    contradictory_keys = np.intersect1d(keys[is_first_chosen], keys[~is_first_chosen])
    identities_by_key: dict[int, list[str]] = {}
    for position in np.flatnonzero(np.isin(keys, contradictory_keys)):
        identities_by_key.setdefault(int(keys[position]), []).append(identities[position])
    for _, same_pair in sorted(identities_by_key.items()):
        detail = f"the same pair in {', '.join(same_pair)}"
        yield Suspicion("contradictory labels", same_pair[0], detail)


def histogram(title: str, unit: str, of: str, values: npt.NDArray[np.integer]) -> Chart | str:
    """Return a histogram of positive values on a logarithmic axis.

    If all values are equal, or none is positive, the result is a sentence instead.

    Args:
        title: The title of the histogram.
        unit: The unit of the values.
        of: What the values belong to, such as "records". The vertical axis counts them.
        values: The values, integers of shape (values,). Zeros are left out.
    """
    values = values[values > 0]
    if not len(values):
        return f"{title}: there are no {of}."
    low = int(values.min())
    high = int(values.max())
    if low == high:
        return f"{title}: {low:,} {unit} in all {len(values):,} {of}."
    # Edges are whole numbers: most bars that are narrower than 1 would be empty.
    edges = np.unique(np.geomspace(low, high + 1, BARS + 1).round().astype(np.int64))
    counts, _ = np.histogram(values, edges)
    round_numbers = [factor * 10**power for power in range(10) for factor in (1, 2, 5)]
    ticks = [
        (math.log10(number), f"{number:,}")
        for number in round_numbers
        if edges[0] <= number <= edges[-1]
    ]
    ends = [(math.log10(number), f"{number:,}") for number in (low, high)]
    x = Axis(
        math.log10(edges[0]),
        math.log10(edges[-1]),
        f"{unit}, logarithmic",
        ticks if len(ticks) > 1 else ends,
    )
    bars = []
    for start, end, count in zip(
        edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True
    ):
        value_range = f"{start:,}"
        if end > start + 1:
            value_range = f"{start:,} to {end - 1:,}"
        fact = f"{value_range}: {count:,}" if count else ""
        bars.append(Bar(math.log10(start), math.log10(end), count, fact))
    y = Axis.counts(int(counts.max()), of)
    series = Series("right", bars=tuple(bars))
    return Chart(title, x, y, (series,), value=f"median {np.median(values):,.0f}")


def duplicates(index: RowIndex, rows: npt.NDArray[np.int32]) -> int:
    """Return the number of rows that repeat an earlier row.

    A row repeats another one if prompt, images and both responses are the same. The labels may
    differ.

    Args:
        index: The index of a source.
        rows: Positions in the index, shape (rows,).
    """
    return len(rows) - len(np.unique(index.rows["pair_key"][rows]))


def page(mixture: Mixture, count: int, title: str, together: int = 1) -> str:
    """Return the page as HTML that needs no other file.

    Args:
        mixture: The sources.
        count: The largest number of records that are shown of each source.
        title: The title of the page.
        together: The number of pairs with one prompt that training puts next to each other, as
            `Mixture.order` takes it.
    """
    card = mixture.card(together)
    sections = []
    for split, source_card in zip(mixture.splits, card.sources, strict=True):
        index, positions = split.indexed_rows(split.rows[:GENERATED_SAMPLE])
        rows = index.rows[positions]
        longer_sides = index.sizes.max(axis=1, initial=0)
        figures = [
            histogram("Chosen response", "characters", "records", rows["chosen"]),
            histogram("Rejected response", "characters", "records", rows["rejected"]),
            histogram("Text, estimated", "tokens", "records", rows["text_tokens"]),
            histogram("Longer side of an image", "pixels", "images", longer_sides),
        ]
        sections.append(
            {
                "card": source_card,
                "charts": [figure for figure in figures if isinstance(figure, Chart)],
                "constants": [figure for figure in figures if isinstance(figure, str)],
                "duplicates": duplicates(index, positions),
                "looked_at": len(positions),
                "samples": list(samples(split, count, mixture.config.seed)),
            }
        )
    return render(TEMPLATE, title=title, card=card, sections=sections)


def samples(split: SourceSplit, count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield up to `count` records of a source, drawn by `seed`, with small copies of their images.

    In the yielded mapping, `record` is the Preference, and `images` has a tuple for each image: True
    if it is so small that the page enlarges it, and its data URI. `problem` is a sentence if the
    record cannot be shown, else an empty text.
    """
    generator = np.random.default_rng(seed)
    for row in generator.choice(split.rows, min(count, len(split.rows)), replace=False):
        record = Preference(f"{split.source.name}:{row}", (), "", "")
        images: list[Image.Image] = []
        problem = ""
        try:
            record = validate(split.source.record(int(row)))
            images = [decode(image, record.identity) for image in record.images]
        except RecordError as error:
            problem = f"It cannot be shown: {error}"
        thumbnails = [(max(image.size) <= TINY, thumbnail(image, THUMBNAIL)) for image in images]
        yield {"record": record, "images": thumbnails, "problem": problem}


def main() -> None:
    """Write the page of a recipe with --out, and print its suspicious records with --find."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", type=Path, help="The YAML file of a recipe.")
    parser.add_argument("--out", type=Path, help="Write the page to this HTML file.")
    parser.add_argument(
        "--samples", type=int, default=6, help="The number of records of each source on the page."
    )
    parser.add_argument(
        "--find",
        action="store_true",
        help="Read every record and image, and print the suspicious records.",
    )
    options = parser.parse_args()
    if options.out is None and not options.find:
        parser.error("nothing to do: give --out FILE.html, --find or both")
    with command():
        section = section_of(options.recipe)
        if options.find:
            # Many records that cannot be used are a reason to list them, not to stop.
            section = section.model_copy(update={"bad_records": BadRecordConfig(limit=1.0)})
        mixture = Mixture(section)
        if options.out is not None:
            html = page(
                mixture,
                count=options.samples,
                title=options.recipe.stem,
                together=pairs_together_of(options.recipe),
            )
            write_whole(options.out, html)
            print(f"wrote {options.out}")
        if options.find:
            print_suspicious(mixture)


def print_suspicious(mixture: Mixture) -> None:
    """Print every suspicious record of a mixture, and the number of records of each kind."""
    counts: Counter[str] = Counter()
    for suspicion in suspicious(mixture.splits):
        counts[suspicion.kind] += 1
        print(*suspicion, sep=": ")
    totals = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    print(f"in all: {totals or 'nothing suspicious'}")


if __name__ == "__main__":
    main()
