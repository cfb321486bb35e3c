"""Records that a person should look at: unusable ones, pairs that prefer nothing, labels that contradict each other.

Look at the data of a recipe: a page of samples and figures by source, and a list of suspicious records.

python data/browse.py recipes/basereward.yaml --out page.html              # 6 samples a source
python data/browse.py recipes/shapes/naive.yaml --out page.html --samples 20
python data/browse.py recipes/basereward.yaml --find                       # suspicious records, on the console
"""

from __future__ import annotations

import argparse
import base64
import io
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from jinja2 import Environment
from PIL import Image
from rich.console import Console
from rich.progress import track

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from dataclasses import dataclass

from data.errors import LeftOut, RecordError, UserError
from data.images import decode
from data.mixture import Mixture, section_of
from data.preference import Preference, validate
from data.preparation.card import SourceCard
from data.preparation.row_index import ORDER, ROW, RowIndex, check_shape, facts_of, normalised
from data.preparation.scan import BadRecordConfig
from data.preparation.split import SourceSplit


@dataclass(frozen=True)
class Suspicion:
    """What is wrong with which record."""

    kind: str
    identity: str
    detail: str


def suspicious(parts: Sequence[SourceSplit]) -> Iterator[Suspicion]:
    """Yield what is suspicious in all sources that are not generated.

    Reads every record and decodes every image, which the first reading does not do: this is the slow and thorough look.
    """
    read = [part for part in parts if part.read is not None]
    yield from contradictions(read)
    for part in read:
        console = Console(stderr=True)
        for row in track(range(len(part.source)), f"looking through {part.source.name}", console=console, transient=True):
            yield from _of_record(part, row)


def contradictions(parts: Sequence[SourceSplit]) -> Iterator[Suspicion]:
    """Yield the pairs that are preferred one way in one row and the other way in another, of any source."""
    keys, order, places = [], [], []
    for number, part in enumerate(parts):
        if part.read is not None:
            rows = np.concatenate([part.rows, part.held_out])
            facts = part.read.facts.rows[rows]
            keys.append(facts["pair_key"])
            order.append((facts["flags"] & ORDER) > 0)
            places.append(np.stack([np.full(len(rows), number), rows], axis=1))
    if not keys:
        return
    unique, group = np.unique(np.concatenate(keys), return_inverse=True)
    one_way = np.concatenate(order)
    both = (np.bincount(group[one_way], minlength=len(unique)) > 0) & (np.bincount(group[~one_way], minlength=len(unique)) > 0)
    members = np.flatnonzero(both[group])
    for group_number in np.unique(group[members]):
        found = np.concatenate(places)[members[group[members] == group_number]]
        names = [f"{parts[part].source.name}:{row}" for part, row in found]
        yield Suspicion("contradictory labels", names[0], "the same pair in " + ", ".join(names))


def _of_record(part: SourceSplit, row: int) -> Iterator[Suspicion]:
    try:
        record = validate(part.source.record(row))
        for image in record.images:
            picture = decode(image, record.identity)
            check_shape(picture.height, picture.width, record.identity)
    except LeftOut:
        return
    except RecordError as error:
        identity = f"{part.source.name}:{row}"
        yield Suspicion("cannot be used", identity, str(error).removeprefix(f"{identity}: "))
        return
    if normalised(record.chosen) == normalised(record.rejected):
        yield Suspicion("chosen equals rejected", record.identity, record.chosen[:80])


THUMBNAIL = 360
"""Longest side in pixels of a picture on the page."""
GENERATED_SAMPLE = 200
"""Items of a generated source that its distributions are computed from."""
BARS = 24
TEMPLATE = Path(__file__).parent / "browse.html"


@dataclass(frozen=True)
class Sample:
    """A record as the page shows it."""

    record: Preference
    pictures: list[str]
    """Data URIs."""


@dataclass(frozen=True)
class Bar:
    """One bar of a histogram: where it begins, and how many there are."""

    start: float
    count: int
    height: float
    """Relative to the highest bar."""


def histogram(values: npt.NDArray[np.int64], bars: int = BARS) -> list[Bar]:
    """Return a histogram of positive values on a logarithmic axis; empty for no values."""
    values = values[values > 0]
    if not len(values):
        return []
    edges = np.geomspace(values.min(), values.max() + 1, bars + 1)
    counts, _ = np.histogram(values, edges)
    return [Bar(float(start), int(count), count / counts.max()) for start, count in zip(edges[:-1], counts, strict=True)]


def duplicates(facts: RowIndex, rows: npt.NDArray[np.int32]) -> int:
    """Return how many of `rows` repeat an earlier one: the same prompt, images and pair, whichever is preferred."""
    return len(rows) - len(np.unique(facts.rows["pair_key"][rows]))


def samples(part: SourceSplit, count: int, seed: int) -> Iterator[Sample]:
    """Yield up to `count` records of a source, drawn by `seed`, with their pictures scaled down."""
    generator = np.random.default_rng(seed)
    for row in generator.choice(part.rows, min(count, len(part.rows)), replace=False):
        try:
            record = validate(part.source.record(int(row)))
            yield Sample(record, [picture(decode(image, record.identity)) for image in record.images])
        except RecordError as error:
            yield Sample(Preference(f"{part.source.name}:{row}", (), "", "", rationale=f"cannot be shown: {error}"), [])


def picture(image: Image.Image) -> str:
    """Return an image as the data URI of a small JPEG."""
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def page(mixture: Mixture, count: int, title: str) -> str:
    """Return the page as HTML that needs no other file."""
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    card = mixture.card()
    sections = [
        _section(part, source, count, mixture.config.seed) for part, source in zip(mixture.parts, card.sources, strict=True)
    ]
    return environment.from_string(TEMPLATE.read_text()).render(title=title, card=card, sections=sections)


def _section(part: SourceSplit, card: SourceCard, count: int, seed: int) -> dict[str, object]:
    facts, rows = _known(part)
    kept = facts.rows[rows]
    figures = {
        "characters of the chosen response": kept["chosen"].astype(np.int64),
        "characters of the rejected response": kept["rejected"].astype(np.int64),
        "longer side of the images, in pixels": facts.sizes.max(axis=1, initial=0).astype(np.int64),
        "text tokens, estimated": kept["text_tokens"].astype(np.int64),
    }
    return {
        "card": card,
        "histograms": {name: histogram(values) for name, values in figures.items()},
        "duplicates": duplicates(facts, rows),
        "looked_at": len(rows),
        "samples": list(samples(part, count, seed)),
    }


def _known(part: SourceSplit) -> tuple[RowIndex, npt.NDArray[np.int32]]:
    """Return facts and the rows of them that are trained on; of a generated source, those of some of its items."""
    if part.read is not None:
        return part.read.facts, part.rows
    found = [facts_of(part.source, int(row)) for row in part.rows[:GENERATED_SAMPLE]]
    sizes = np.array([size for one in found for size in one.sizes], np.uint32).reshape(-1, 2)
    return RowIndex(np.array([one.row for one in found], ROW), sizes), np.arange(len(found), dtype=np.int32)


def main() -> None:
    """Read the command line; write the page, or print what is suspicious."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--out", type=Path, help="write the page here")
    parser.add_argument("--samples", type=int, default=6, help="records shown of each source")
    parser.add_argument("--find", action="store_true", help="read everything and print suspicious records")
    options = parser.parse_args()
    if options.out is None and not options.find:
        parser.error("nothing to do: give --out FILE.html, --find or both")
    try:
        section = section_of(options.recipe)
        if options.find:  # the more of them are unusable, the more reason to look
            section = section.model_copy(update={"bad_records": BadRecordConfig(limit=1.0)})
        mixture = Mixture(section)
    except (UserError, OSError) as error:
        sys.exit(f"error: {error}")
    if options.out is not None:
        options.out.write_text(page(mixture, options.samples, options.recipe.stem), encoding="utf-8")
        print(f"wrote {options.out}")
    if options.find:
        counts: Counter[str] = Counter()
        for suspicion in suspicious(mixture.parts):
            counts[suspicion.kind] += 1
            print(f"{suspicion.kind}: {suspicion.identity}: {suspicion.detail}")
        print("in all: " + (", ".join(f"{count} {kind}" for kind, count in counts.items()) or "nothing suspicious"))


if __name__ == "__main__":
    main()
