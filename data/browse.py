"""Write a page of samples and figures of each source of a recipe, or list suspicious records.

python data/browse.py recipes/basereward.yaml --out page.html              # 6 samples a source
python data/browse.py recipes/shapes/naive.yaml --out page.html --samples 20
python data/browse.py recipes/basereward.yaml --find                       # suspicious records

Suspicious records are records that cannot be used, pairs with equal responses, and pairs with
contradictory labels.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

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
    identity: str
    detail: str


def suspicious(splits: Sequence[SourceSplit]) -> Iterator[Suspicion]:
    """Yield the suspicious records of all sources that are not generated.

    This reads every record and decodes every image, which the first reading does not do, and takes
    long.
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
    """Return a suspicion if a record cannot be used or has equal responses."""
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
    """Yield the pairs of which one record prefers one response, and another record the other.

    The records may be of different sources.
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
        of: The name of the things that have the values.
        values: Whole numbers, (things,); zeros are left out.
    """
    values = values[values > 0]
    if not len(values):
        return f"{title}: there are no {of}."
    low = int(values.min())
    high = int(values.max())
    if low == high:
        return f"{title}: {low:,} {unit} in all {len(values):,} {of}."
    # Edges are whole numbers, because of bars that are narrower than one most would be empty.
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
        which = f"{start:,}" if end == start + 1 else f"{start:,} to {end - 1:,}"
        fact = f"{which}: {count:,}" if count else ""
        bars.append(Bar(math.log10(start), math.log10(end), count, fact))
    y = Axis.counts(int(counts.max()), of)
    series = Series("right", bars=tuple(bars))
    return Chart(title, x, y, (series,), value=f"median {np.median(values):,.0f}")


def duplicates(index: RowIndex, rows: npt.NDArray[np.int32]) -> int:
    """Return the number of `rows` that repeat an earlier one.

    They have the same prompt, images and pair of responses, whichever is preferred.
    """
    return len(rows) - len(np.unique(index.rows["pair_key"][rows]))


def page(mixture: Mixture, count: int, title: str, together: int = 1) -> str:
    """Return the page as HTML that needs no other file.

    Args:
        mixture: The sources.
        count: The largest number of records that are shown of a source.
        title: The title of the page.
        together: The argument of `Mixture.order`.
    """
    card = mixture.card(together)
    sections = []
    for split, source_card in zip(mixture.splits, card.sources, strict=True):
        index, positions = split.known(split.rows[:GENERATED_SAMPLE])
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

    Each image is a pair: True if it is so small that the page enlarges it, and its address.
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
    """Read the command line; write the page, or print the suspicious records."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--out", type=Path, help="write the page here")
    parser.add_argument("--samples", type=int, default=6, help="records shown of each source")
    parser.add_argument(
        "--find", action="store_true", help="read everything and print suspicious records"
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
            together = pairs_together_of(options.recipe)
            html = page(mixture, options.samples, options.recipe.stem, together)
            write_whole(options.out, html)
            print(f"wrote {options.out}")
        if options.find:
            print_suspicious(mixture)


def print_suspicious(mixture: Mixture) -> None:
    """Print every suspicious record, and how many there are of each kind."""
    counts: Counter[str] = Counter()
    for suspicion in suspicious(mixture.splits):
        counts[suspicion.kind] += 1
        print(*suspicion, sep=": ")
    totals = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    print(f"in all: {totals or 'nothing suspicious'}")


if __name__ == "__main__":
    main()
