"""Look at the data of a recipe: a page of samples and figures by source, and a list of suspicious records.

python data/browse.py recipes/basereward.yaml --out page.html              # 6 samples a source
python data/browse.py recipes/shapes/naive.yaml --out page.html --samples 20
python data/browse.py recipes/basereward.yaml --find                       # suspicious records, on the console

Suspicious are unusable records, pairs that prefer nothing, and labels that contradict each other.
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
"""Items of a generated source that its distributions are computed from."""
BARS = 24
"""Bars of a histogram, fewer where there are not as many whole numbers."""
TEMPLATE = Path(__file__).parent / "browse.html"


class Suspicion(NamedTuple):
    """What is wrong with which record."""

    kind: str
    identity: str
    detail: str


def suspicious(parts: Sequence[SourceSplit]) -> Iterator[Suspicion]:
    """Yield what is suspicious in all sources that are not generated.

    Reads every record and decodes every image, which the first reading does not do: this is the slow and thorough look.
    """
    yield from contradictions(parts)
    for part in parts:
        rows = [] if part.row_index is None else range(len(part.source))
        for row in track(
            rows,
            escape(f"looking through {part.source.name}"),
            console=plain_console(stderr=True),
            transient=True,
        ):
            identity = f"{part.source.name}:{row}"
            try:
                record = validate(part.source.record(row))
                for encoded in record.images:
                    image_size(encoded, record.identity)
                    decode(encoded, record.identity)
                if normalised(record.chosen) == normalised(record.rejected):
                    yield Suspicion("chosen equals rejected", record.identity, record.chosen[:80])
            except LeftOut:
                continue
            except RecordError as error:
                yield Suspicion(
                    "cannot be used", identity, str(error).removeprefix(f"{identity}: ")
                )


def contradictions(parts: Sequence[SourceSplit]) -> Iterator[Suspicion]:
    """Yield the pairs that are preferred one way in one row and the other way in another, of any source."""
    names: list[str] = []
    noted = [np.empty(0, ROW)]
    for part in parts:
        if part.row_index is not None:
            rows = np.concatenate([part.rows, part.held_out])
            names += [f"{part.source.name}:{row}" for row in rows]
            noted.append(part.row_index.rows[rows])
    pairs = np.concatenate(noted)
    keys, one_way = pairs["pair_key"], (pairs["flags"] & ORDER) > 0
    seen: dict[int, list[str]] = {}
    for place in np.flatnonzero(np.isin(keys, np.intersect1d(keys[one_way], keys[~one_way]))):
        seen.setdefault(int(keys[place]), []).append(names[place])
    for key in sorted(seen):
        yield Suspicion(
            "contradictory labels", seen[key][0], "the same pair in " + ", ".join(seen[key])
        )


def histogram(title: str, unit: str, of: str, values: npt.NDArray[np.integer]) -> Chart | str:
    """Return how many `of` something have which size in a unit, on a logarithmic axis; in words if all have one size, or none."""
    values = values[values > 0]
    if not len(values):
        return f"{title}: there are no {of}."
    low, high = int(values.min()), int(values.max())
    if low == high:
        return f"{title}: {low:,} {unit} in all {len(values):,} {of}."
    # Edges are whole numbers: narrower bars than one would be empty ones between full ones.
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
    """Return how many of `rows` repeat an earlier one: the same prompt, images and pair, whichever is preferred."""
    return len(rows) - len(np.unique(index.rows["pair_key"][rows]))


def page(mixture: Mixture, count: int, title: str, together: int = 1) -> str:
    """Return the page, with up to `count` records of each source, as HTML that needs no other file.

    `together` is that of `Mixture.order`.
    """
    card = mixture.card(together)
    sections = []
    for part, source in zip(mixture.parts, card.sources, strict=True):
        index, rows = part.known(part.rows[:GENERATED_SAMPLE])
        kept = index.rows[rows]
        figures = [
            histogram("Chosen response", "characters", "records", kept["chosen"]),
            histogram("Rejected response", "characters", "records", kept["rejected"]),
            histogram("Text, estimated", "tokens", "records", kept["text_tokens"]),
            histogram(
                "Longer side of an image", "pixels", "images", index.sizes.max(axis=1, initial=0)
            ),
        ]
        sections.append(
            {
                "card": source,
                "charts": [figure for figure in figures if isinstance(figure, Chart)],
                "constants": [figure for figure in figures if isinstance(figure, str)],
                "duplicates": duplicates(index, rows),
                "looked_at": len(rows),
                "samples": list(samples(part, count, mixture.config.seed)),
            }
        )
    return render(TEMPLATE, title=title, card=card, sections=sections)


def samples(part: SourceSplit, count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield up to `count` records of a source, drawn by `seed`, with small copies of their images, tiny ones marked."""
    generator = np.random.default_rng(seed)
    for row in generator.choice(part.rows, min(count, len(part.rows)), replace=False):
        record, images, problem = (
            Preference(f"{part.source.name}:{row}", (), "", ""),
            list[Image.Image](),
            "",
        )
        try:
            record = validate(part.source.record(int(row)))
            images = [decode(image, record.identity) for image in record.images]
        except RecordError as error:
            problem = f"It cannot be shown: {error}"
        tiny = [max(image.size) <= TINY for image in images]
        shown = [*zip(tiny, (thumbnail(image, THUMBNAIL) for image in images), strict=True)]
        yield {"record": record, "images": shown, "problem": problem}


def main() -> None:
    """Read the command line; write the page, or print what is suspicious."""
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
        if options.find:  # the more of them are unusable, the more reason to look
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
    for suspicion in suspicious(mixture.parts):
        counts[suspicion.kind] += 1
        print(*suspicion, sep=": ")
    totals = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    print(f"in all: {totals or 'nothing suspicious'}")


if __name__ == "__main__":
    main()
