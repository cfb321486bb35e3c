"""The data card: what went into a mixture and what was left out, by source; printed, and saved as JSON."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.table import Table

from mmrm.data.errors import RecordError
from mmrm.data.images import ImageTokens
from mmrm.data.preparation.faults import told
from mmrm.data.preparation.row_index import KEEPS_ORDER, RATIONALE, REJECTED_FIRST
from mmrm.data.preparation.split import SourceSplit
from mmrm.data.rationales import obstacle
from mmrm.data.storage.files import write_whole

SAMPLE = 64
"""Records drawn from a generated source to estimate what is counted elsewhere."""


ORDER_EXAMPLES = 3
"""Records of a source that are named because their rationales keep the order in which they were
written."""


@dataclass(frozen=True)
class RationaleCounts:
    """Counts of a source's rationales, by the orders in which they can be shown."""

    rationales: int
    one_order: int
    """Rationales that are not proven to be right for the other order of the responses once it is
    rewritten."""
    winner_first: int
    """Rationales of one order in which the better response is Response 1."""
    examples: list[str]
    """Some records with rationales of one order, and the words that stand in the way."""

    def lines(self, source: str) -> list[str]:
        """Return lines for the console; none if all rationales can be shown in both orders."""
        if not self.one_order:
            return []
        return [
            f"{source}: {self.one_order:,} of {self.rationales:,} rationales are shown only in the "
            f"order in which they were written, {self.winner_first:,} of them with the better response "
            "first. The other records are shown with it first and second equally often. Words that "
            "could be references and are not recognised:",
            *(f"  {example}" for example in self.examples),
        ]


@dataclass(frozen=True)
class SourceCard:
    """One source. `rows` = sum of `left_out` + `held_out` + `kept`."""

    name: str
    type: str
    licence: str
    revision: str
    content: str
    """Fingerprint of the records."""
    rows: int
    left_out: dict[str, int]
    """Rows by the reason for which they are neither trained on nor held out."""
    held_out: int
    kept: int
    drawn: int
    """Records of one epoch."""
    drawn_by_tenth: list[int]
    """Records in each tenth of the first epoch, in order; they sum to `drawn`."""
    multimodal: int
    images: int
    image_tokens: int
    text_tokens: int
    """Estimated at four bytes a token: prompt and both responses."""
    pairs_a_prompt: float
    """Kept records for each different prompt with its images."""
    images_a_prompt: float
    chosen_longer: float
    """Share of the pairs whose chosen response has more characters; ties count half."""
    estimated: bool
    """The seven figures before are those of a sample, counts scaled up, because the source is generated."""
    messages: list[str]
    """About the skipped records, one for each kind of fault."""
    rationales: RationaleCounts


@dataclass(frozen=True)
class DataCard:
    """All sources of a mixture."""

    sources: list[SourceCard]
    epoch_size: int
    section: str
    """A digest of the recipe's `data` section."""

    @property
    def total(self) -> dict[str, int]:
        """The sums of the counts over the sources."""
        counts = (
            "rows",
            "held_out",
            "kept",
            "drawn",
            "multimodal",
            "images",
            "image_tokens",
            "text_tokens",
        )
        return {name: sum(getattr(source, name) for source in self.sources) for name in counts}

    @property
    def shares_by_tenth(self) -> list[list[str]]:
        """Each source's share of the records in each tenth of the first epoch, as text."""
        records_by_tenth = np.sum([source.drawn_by_tenth for source in self.sources], axis=0)
        shares = []
        for source in self.sources:
            cells = map(_share_of_tenth, source.drawn_by_tenth, records_by_tenth.tolist())
            shares.append(list(cells))
        return shares

    def save(self, path: Path) -> None:
        """Write the card as JSON."""
        write_whole(path, json.dumps(asdict(self) | {"total": self.total}, indent=2) + "\n")

    def table(self) -> Table:
        """Return the card as a table for the console."""
        caption = "drawn: in an epoch; tokens: of the kept records; longer: share whose chosen response is the longer one"
        table = Table(title="Data card", caption=caption)
        headings = (
            "source",
            "rows",
            "left out",
            "held out",
            "kept",
            "drawn",
            "image : text",
            "tokens",
        )
        for heading in (*headings, "pairs a prompt", "images a prompt", "longer"):
            table.add_column(
                heading, justify="left" if heading in ("source", "left out") else "right"
            )
        for source in self.sources:
            left_out = (
                "\n".join(f"{name} {count:,}" for name, count in source.left_out.items()) or "-"
            )
            repeats = (
                f" ({source.drawn / source.kept:.2f}x)"
                if source.kept and source.drawn != source.kept
                else ""
            )
            mark = "about " if source.estimated else ""
            shares = (
                f"{source.pairs_a_prompt:.2f}",
                f"{source.images_a_prompt:.2f}",
                f"{source.chosen_longer:.0%}",
            )
            table.add_row(
                *_cells(source.name, vars(source), left_out, repeats, mark),
                *(mark + share for share in shares),
            )
        left_out = f"{sum(sum(source.left_out.values()) for source in self.sources):,}"
        table.add_section()
        table.add_row(*_cells("total", self.total, left_out))
        return table

    def tenths(self) -> Table:
        """Return the share of each source in each tenth of an epoch as a table for the console."""
        caption = "share of each source in each tenth of the first epoch"
        table = Table(title="An epoch by tenths", caption=caption)
        table.add_column("source", overflow="fold")
        for tenth in range(1, 11):
            table.add_column(str(tenth), justify="right")
        for source, cells in zip(self.sources, self.shares_by_tenth, strict=True):
            table.add_row(source.name, *cells)
        return table

    def origins(self) -> Table:
        """Return where each source comes from as a table for the console."""
        table = Table("source", "type", "licence", "revision", "content", title="Origins")
        for source in self.sources:
            table.add_row(
                source.name, source.type, source.licence, source.revision[:12], source.content[:16]
            )
        return table


def _share_of_tenth(records: int, all_records: int) -> str:
    """Return a whole percentage, in which a source with few records differs from one with none."""
    if records == 0:
        return "-"
    share = records / all_records
    return "<1%" if share < 0.01 else f"{share:.0%}"


def _cells(
    name: str, counts: Mapping[str, Any], left_out: str, repeats: str = "", mark: str = ""
) -> list[str]:
    kept, multimodal, tokens = (
        counts["kept"],
        counts["multimodal"],
        counts["image_tokens"] + counts["text_tokens"],
    )
    units = ((10**9, "G"), (10**6, "M"), (10**3, "k"))
    short = next(
        (f"{tokens / size:.3g} {unit}" for size, unit in units if tokens >= size), str(tokens)
    )
    return [
        name,
        f"{counts['rows']:,}",
        left_out,
        f"{counts['held_out']:,}",
        f"{kept:,}",
        f"{counts['drawn']:,}{repeats}",
        f"{mark}{multimodal:,} : {kept - multimodal:,}",
        mark + short,
    ]


def card_of(part: SourceSplit, drawn_by_tenth: list[int], count: ImageTokens) -> SourceCard:
    """Return the card of one source; `count` counts the tokens of images.

    `drawn_by_tenth` are its records in each tenth of an epoch.
    """
    sample = part.rows[
        np.linspace(0, len(part.rows) - 1, min(SAMPLE, len(part.rows))).astype(np.int64)
    ]
    index, places = part.known(sample)
    rows, scale = index.rows[places], len(part.rows) / max(1, len(places))
    first = np.unique(rows["prompt_key"], return_index=True)[1]
    longer = (rows["chosen"] > rows["rejected"]) + 0.5 * (rows["chosen"] == rows["rejected"])
    counts = {
        "multimodal": rows["images"] > 0,
        "images": rows["images"],
        "image_tokens": index.image_tokens(count)[places],
        "text_tokens": rows["text_tokens"],
    }
    return SourceCard(
        name=part.config.label,
        type=part.config.type,
        licence=part.source.licence,
        revision=part.source.revision,
        content=part.content,
        rows=len(part.source),
        left_out=part.left_out,
        held_out=len(part.held_out),
        kept=len(part.rows),
        drawn=sum(drawn_by_tenth),
        drawn_by_tenth=drawn_by_tenth,
        **{name: round(scale * int(count.sum())) for name, count in counts.items()},
        pairs_a_prompt=len(rows) / max(1, len(first)),
        images_a_prompt=float(rows["images"][first].mean()) if len(rows) else 0.0,
        chosen_longer=float(longer.mean()) if len(rows) else 0.0,
        estimated=part.row_index is None,
        messages=told(index.faults),
        rationales=_rationale_counts(part, rows["flags"], scale),
    )


def _rationale_counts(
    part: SourceSplit, flags: npt.NDArray[np.uint8], scale: float
) -> RationaleCounts:
    """Return the counts of a source from its rows' flags, or from those of 1 in `scale`."""
    has_rationale = (flags & RATIONALE) > 0
    one_order = (flags & KEEPS_ORDER) > 0
    winner_first = one_order & ((flags & REJECTED_FIRST) == 0)
    return RationaleCounts(
        rationales=round(scale * int(has_rationale.sum())),
        one_order=round(scale * int(one_order.sum())),
        winner_first=round(scale * int(winner_first.sum())),
        examples=_order_examples(part),
    )


def _order_examples(part: SourceSplit) -> list[str]:
    """Return records whose rationales keep their order, with the words that stand in the way."""
    examples = []
    for row in part.rows[part.rationale_sides() >= 0][:ORDER_EXAMPLES].tolist():
        try:
            record = part.source.record(row)
        except RecordError:
            continue  # its file went away since the first reading; training says so
        words = None if record.rationale is None else obstacle(record.rationale)
        if words is not None:
            examples.append(f"{record.identity}: {shortened(words)}")
    return examples


def shortened(words: str) -> str:
    """Return words on one line, of at most 100 characters."""
    line = " ".join(words.split())
    return line if len(line) <= 100 else f"{line[:99]}…"
