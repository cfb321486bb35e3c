"""The data card of a mixture: the rows of each source that are used, and the rows left out.

`python data/mixture.py RECIPE --plan` prints it and saves it as JSON.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.table import Table

from mmrm.data.errors import RecordError
from mmrm.data.images import ImageTokens
from mmrm.data.preparation.curriculum import UNKNOWN_DIFFICULTY
from mmrm.data.preparation.faults import fault_messages
from mmrm.data.preparation.row_index import KEEPS_ORDER, RATIONALE, REJECTED_FIRST, RowIndex
from mmrm.data.preparation.sharing import LeftToCompute
from mmrm.data.preparation.shortcut_card import ShortcutCard, shortcut_card
from mmrm.data.preparation.split import SourceSplit
from mmrm.data.rationales import obstacle
from mmrm.data.storage.files import write_whole

SAMPLE_SIZE = 64
"""Number of records drawn from a generated source, from which its counts are estimated."""
UNITS = ((10**9, "G"), (10**6, "M"), (10**3, "k"))
"""Sizes of numbers with their units, from the largest to the smallest."""
HEADINGS = (
    *("source", "rows", "left out", "held out", "kept", "drawn", "image : text", "tokens"),
    *("pairs a prompt", "images a prompt", "longer"),
)
"""Columns of the table. The last three are empty in the row of totals."""
SHARING_HEADINGS = ("tokens", "patches", "tokens, all shared", "patches, all shared")
"""Columns of the table of what is left to compute, after the name of the source."""
NUM_ORDER_EXAMPLES = 3
"""Number of records of a source that the card shows as examples of rationales that can be used in
one order of the responses only."""
MAX_SHOWN_ATTRIBUTES = 20
"""The most attributes of a source that are printed. The saved card has all of them."""
MAX_EXAMPLE_LENGTH = 100
"""The most characters that are shown of the words in such a rationale."""


@dataclass(frozen=True)
class RationaleCounts:
    """Counts of the rationales of a source: all, and those for one order of the responses only.

    A rationale compares two responses by their numbers. To show the responses in the other order,
    it has to be rewritten, and not every rationale can be.
    """

    rationales: int
    """Number of records with a rationale."""
    one_order: int
    """Number of rationales that cannot be rewritten for the other order of the responses."""
    winner_first: int
    """Number of those among them that call the better response Response 1."""
    examples: list[str]
    """Some records with such rationales, each with the words that prevent the rewriting."""

    def lines(self, source: str) -> list[str]:
        """Return lines for the console about rationales that can be used in one order only.

        There are no lines if all rationales can be used in both orders.

        Args:
            source: The name of the source.
        """
        if not self.one_order:
            return []
        summary = (
            f"{source}: {self.one_order:,} of {self.rationales:,} rationales are shown only in the "
            f"order in which they were written, {self.winner_first:,} of them with the better "
            "response first. The other records are shown with it first and second equally often. "
            "Words that could be references and are not recognised:"
        )
        return [summary, *(f"  {example}" for example in self.examples)]


@dataclass(frozen=True)
class AttributeCard:
    """The range of one attribute of a source, and the share of responses that have it."""

    name: str
    lowest: float
    highest: float
    known: float
    """Share of the responses for which the attribute is known."""

    @property
    def text(self) -> str:
        """The range and the share in words."""
        return f"{self.name} {self.lowest:g} to {self.highest:g}, known of {self.known:.0%}"


@dataclass(frozen=True)
class ResponseCounts:
    """Counts of the responses of a source whose records are not all pairs without attributes."""

    records_by_size: dict[int, int]
    """Number of kept records by their number of responses."""
    lists: int
    """Number of kept records with more than two responses."""
    ties: int
    """Number of kept records of which some responses have equal ranks."""
    all_tied: int
    """Number of those among them whose responses all have the same rank."""
    attributes: list[AttributeCard]
    """The attributes in all records that can be used, before filters and held-out records."""

    def lines(self, source: str) -> list[str]:
        """Return the counts as lines for the console.

        Args:
            source: The name of the source.
        """
        sizes = []
        for num_responses, num_records in self.records_by_size.items():
            sizes.append(f"{num_records:,} of {num_responses}")
        lines = [
            f"{source}: records by their number of responses: {', '.join(sizes)}; {self.ties:,} have "
            f"responses of equal rank, and in {self.all_tied:,} all responses are tied"
        ]
        shown = [attribute.text for attribute in self.attributes[:MAX_SHOWN_ATTRIBUTES]]
        num_hidden = len(self.attributes) - len(shown)
        if num_hidden:
            shown.append(f"{num_hidden:,} more in the saved card")
        if shown:
            lines.append(f"  attributes of the responses: {'; '.join(shown)}")
        return lines


@dataclass(frozen=True)
class DifficultyCounts:
    """Counts of the kept records of a source by the number of tries that an annotator needed."""

    records_by_difficulty: dict[int, int]
    """Number of kept records by their difficulty, in ascending order of the difficulties."""
    unknown: int
    """Number of kept records without a difficulty."""

    def line(self, source: str) -> str:
        """Return the counts of the source named `source` as a line for the console."""
        counts = []
        for difficulty, num_records in self.records_by_difficulty.items():
            counts.append(f"{num_records:,} of {difficulty}")
        known = ", ".join(counts) or "none"
        return f"{source}: records by difficulty: {known}; {self.unknown:,} without one"


@dataclass(frozen=True)
class Sharing:
    """The shares of a source's tokens and patches that are left to compute.

    100 % is what is computed if every pair is computed by itself.
    """

    as_trained: LeftToCompute
    """With the recipe's `pairs_together` and `images_together`, in the first epoch."""
    at_most: LeftToCompute
    """If all pairs of one prompt, and all prompts with one first image, were computed together."""


@dataclass(frozen=True)
class SourceCard:
    """The data card of one source: its origin, and counts of its rows and of their contents.

    `rows` is the sum of the counts in `left_out`, `held_out` and `kept`.
    """

    name: str
    type: str
    licence: str
    revision: str
    content: str
    """A text that changes when the records change."""
    rows: int
    left_out: dict[str, int]
    """Number of rows that are neither trained on nor held out, by reason."""
    held_out: int
    """Number of rows that are held out for validation."""
    kept: int
    """Number of rows that are trained on."""
    drawn: int
    """Number of records that one epoch draws from the kept rows."""
    drawn_by_tenth: list[int]
    """Number of records in each tenth of the first epoch, in order; they sum to `drawn`."""
    multimodal: int
    """Number of kept records with images or videos."""
    images: int
    """Number of images in the kept records."""
    videos: int
    """Number of videos in the kept records."""
    image_tokens: int
    text_tokens: int
    """Tokens of prompts and all responses, estimated at four bytes a token."""
    pairs_a_prompt: float
    """Number of kept records for each different prompt with its images."""
    images_a_prompt: float
    chosen_longer: float
    """Share of the records whose best response has more characters than the worst one; equal
    lengths count half. Records whose responses are all tied do not count."""
    estimated: bool
    """True if the source is generated. The figures from `multimodal` to `chosen_longer` and those of
    `shortcuts` are then computed from a sample, and counts of all records are scaled up."""
    messages: list[str]
    """Messages about the skipped records, one for each fault."""
    rationales: RationaleCounts
    sharing: Sharing
    shortcuts: ShortcutCard
    responses: ResponseCounts | None = None
    """None if all kept records are pairs without ties, and no record has attributes."""
    difficulties: DifficultyCounts | None = None
    """None if no kept record of any source has a difficulty, and the recipe has no curriculum."""

    @property
    def difficulty_lines(self) -> list[str]:
        """A line for people about the difficulties; none if they do not matter."""
        if self.difficulties is None:
            return []
        return [self.difficulties.line(self.name)]

    @property
    def shortcut_lines(self) -> list[str]:
        """Lines for people about how far shortcuts predict the labels."""
        name = f"{self.name} (estimated)" if self.estimated else self.name
        return self.shortcuts.lines(name)

    @property
    def video_lines(self) -> list[str]:
        """A line for people about the number of videos; none for a source without videos."""
        if self.videos == 0:
            return []
        about = "about " if self.estimated else ""
        return [f"{self.name}: {about}{self.videos:,} videos"]

    @property
    def response_lines(self) -> list[str]:
        """Lines for people about lists, ties and attributes; none for a source of pairs alone."""
        if self.responses is None:
            return []
        name = f"{self.name} (estimated)" if self.estimated else self.name
        return self.responses.lines(name)

    @property
    def counts(self) -> dict[str, int]:
        """The counts of the source, by name. Shares and means are not among them."""
        return {
            "rows": self.rows,
            "held_out": self.held_out,
            "kept": self.kept,
            "drawn": self.drawn,
            "multimodal": self.multimodal,
            "images": self.images,
            "videos": self.videos,
            "image_tokens": self.image_tokens,
            "text_tokens": self.text_tokens,
        }


@dataclass(frozen=True)
class DataCard:
    """The data card of a mixture: an account of the rows that a recipe trains on and leaves out."""

    sources: list[SourceCard]
    epoch_size: int
    """Number of records of an epoch."""
    section: str
    """A digest of the recipe's `data` section."""
    pairs_together: int
    """Largest number of pairs of one prompt that are trained together."""
    images_together: int
    """Largest number of pairs with one first image that are trained together."""
    difficulty_by_tenth: list[float | None] | None = None
    """Mean difficulty of the records in each tenth of the first epoch, None for a tenth without a
    known one. None in place of the list if no record has a difficulty."""
    decisions: list[str] = field(default_factory=list)
    """Lines with the decisions about labels that were applied; empty for a recipe without any."""

    @property
    def total(self) -> dict[str, int]:
        """The sums of `SourceCard.counts` over the sources, by name."""
        total: dict[str, int] = {}
        for source in self.sources:
            for name, count in source.counts.items():
                total[name] = total.get(name, 0) + count
        return total

    @property
    def shares_by_tenth(self) -> list[list[str]]:
        """Each source's share of the records in each tenth of the first epoch, as text.

        There is a list of ten texts for each source.
        """
        sizes_of_tenths = np.sum([source.drawn_by_tenth for source in self.sources], axis=0)
        shares_by_source = []
        for source in self.sources:
            shares = []
            for drawn, size in zip(source.drawn_by_tenth, sizes_of_tenths.tolist(), strict=True):
                shares.append(_share_of_tenth(drawn, size))
            shares_by_source.append(shares)
        return shares_by_source

    def save(self, path: Path) -> None:
        """Write the card to the file `path` as JSON."""
        card = asdict(self) | {"total": self.total}
        for source in card["sources"]:
            if source["responses"] is None:
                del source["responses"]  # cards of pairs are as before there were other records
            if source["difficulties"] is None:
                del source["difficulties"]  # likewise
        if self.difficulty_by_tenth is None:
            del card["difficulty_by_tenth"]
        if not self.decisions:
            del card["decisions"]  # likewise
        write_whole(path, json.dumps(card, indent=2) + "\n")

    def table(self) -> Table:
        """Return the counts of all sources and their totals as a table for the console."""
        caption = (
            "drawn: in an epoch; tokens: of the kept records; longer: share whose chosen response "
            "is the longer one"
        )
        table = Table(title="Data card", caption=caption)
        for heading in HEADINGS:
            is_text = heading in ("source", "left out")
            table.add_column(
                heading,
                justify="left" if is_text else "right",
                no_wrap=heading == "left out",  # a name of a reason must not be cut off
            )
        for source in self.sources:
            table.add_row(*_source_cells(source))
        table.add_section()
        num_left_out = sum(sum(source.left_out.values()) for source in self.sources)
        table.add_row(*_cells("total", self.total, f"{num_left_out:,}"))
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

    @property
    def difficulty_lines(self) -> list[str]:
        """A line for people about the difficulties in an epoch; none if no record has one."""
        if self.difficulty_by_tenth is None:
            return []
        means = ["-" if mean is None else f"{mean:.2f}" for mean in self.difficulty_by_tenth]
        return [f"mean difficulty in each tenth of the first epoch: {', '.join(means)}"]

    @property
    def sharing_note(self) -> str:
        """A sentence about the figures of `sharing`."""
        return (
            f"Share of tokens and patches left to compute with pairs_together {self.pairs_together}"
            f" and images_together {self.images_together}, and if all pairs with one prompt or one "
            "first image were computed together. 100% is every pair by itself."
        )

    def sharing(self) -> Table:
        """Return what is left to compute of each source as a table for the console."""
        table = Table(title="Left to compute", caption=self.sharing_note)
        table.add_column("source", overflow="fold")
        for heading in SHARING_HEADINGS:
            table.add_column(heading, justify="right")
        for source in self.sources:
            sharing = source.sharing
            table.add_row(source.name, *sharing.as_trained.cells, *sharing.at_most.cells)
        return table

    def origins(self) -> Table:
        """Return the licence, revision and content of each source as a table for the console."""
        table = Table("source", "type", "licence", "revision", "content", title="Origins")
        for source in self.sources:
            table.add_row(
                source.name, source.type, source.licence, source.revision[:12], source.content[:16]
            )
        return table


def _share_of_tenth(num_drawn: int, size: int) -> str:
    """Return a source's share of a tenth of an epoch in whole percent, such as "25%".

    It is "-" if no record is from the source, and "<1%" if few are.

    Args:
        num_drawn: Number of records from the source in the tenth.
        size: Number of all records in the tenth.
    """
    if num_drawn == 0:
        return "-"
    share = num_drawn / size
    return "<1%" if share < 0.01 else f"{share:.0%}"


def _source_cells(source: SourceCard) -> list[str]:
    """Return the row of one source in the table: its cells in the order of HEADINGS."""
    left_out = "\n".join(f"{reason} {count:,}" for reason, count in source.left_out.items())
    repeats = ""
    if source.kept and source.drawn != source.kept:
        repeats = f" ({source.drawn / source.kept:.2f}x)"
    about = "about " if source.estimated else ""
    return [
        *_cells(source.name, source.counts, left_out or "-", repeats, about),
        f"{about}{source.pairs_a_prompt:.2f}",
        f"{about}{source.images_a_prompt:.2f}",
        f"{about}{source.chosen_longer:.0%}",
    ]


def _cells(
    name: str, counts: Mapping[str, int], left_out: str, repeats: str = "", about: str = ""
) -> list[str]:
    """Return the first cells of a row of the table, from "source" to "tokens" in HEADINGS.

    Args:
        name: The name of the source, or "total".
        counts: The counts of `SourceCard.counts`.
        left_out: The text about rows left out.
        repeats: How often an epoch draws each record, such as " (2.00x)", or empty for once.
        about: "about " if the numbers of images and tokens are estimated, otherwise empty.
    """
    kept = counts["kept"]
    multimodal = counts["multimodal"]
    num_tokens = counts["image_tokens"] + counts["text_tokens"]
    return [
        name,
        f"{counts['rows']:,}",
        left_out,
        f"{counts['held_out']:,}",
        f"{kept:,}",
        f"{counts['drawn']:,}{repeats}",
        f"{about}{multimodal:,} : {kept - multimodal:,}",
        about + _with_unit(num_tokens),
    ]


def _with_unit(number: int) -> str:
    """Return a number with three digits and a unit, such as "1.23 M", if it is 1,000 or more."""
    for size, unit in UNITS:
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return str(number)


def card_of(
    split: SourceSplit,
    drawn_by_tenth: list[int],
    count_image_tokens: ImageTokens,
    sharing: Sharing,
    has_difficulties: bool = False,
) -> SourceCard:
    """Return the data card of one source: its origin, and counts of its rows and their contents.

    Args:
        split: The source with its training and held-out rows.
        drawn_by_tenth: Number of its records in each tenth of an epoch.
        count_image_tokens: Counts the tokens of images in the backbone.
        sharing: What is left to compute of the source.
        has_difficulties: Whether the card counts the records by their difficulty.
    """
    # The sample is only used for a generated source, which has no row index.
    sample_size = min(SAMPLE_SIZE, len(split.rows))
    sample_positions = np.linspace(0, len(split.rows) - 1, sample_size).astype(np.int64)
    index, positions = split.indexed_rows(split.rows[sample_positions])
    rows = index.rows[positions]
    scale = len(split.rows) / max(1, len(rows))  # 1 unless `rows` is a sample
    image_tokens = index.image_tokens(count_image_tokens)[positions]

    _, first_row_of_prompt = np.unique(rows["prompt_key"], return_index=True)
    images_a_prompt = 0.0
    chosen_longer = 0.0
    if len(rows):
        images_a_prompt = float(rows["images"][first_row_of_prompt].mean())
    compared_rows = rows[rows["ranks"] != 1]
    if len(compared_rows):
        is_longer = compared_rows["chosen"] > compared_rows["rejected"]
        is_equal = compared_rows["chosen"] == compared_rows["rejected"]
        chosen_longer = float((is_longer + 0.5 * is_equal).mean())
    return SourceCard(
        name=split.config.label,
        type=split.config.type,
        licence=split.source.licence,
        revision=split.source.revision,
        content=split.content,
        rows=len(split.source),
        left_out=split.left_out,
        held_out=len(split.held_out),
        kept=len(split.rows),
        drawn=sum(drawn_by_tenth),
        drawn_by_tenth=drawn_by_tenth,
        multimodal=round(scale * int((~index.is_text_only[positions]).sum())),
        images=round(scale * int(rows["images"].sum())),
        videos=round(scale * int(rows["videos"].sum())),
        image_tokens=round(scale * int(image_tokens.sum())),
        text_tokens=round(scale * int(rows["text_tokens"].sum())),
        pairs_a_prompt=len(rows) / max(1, len(first_row_of_prompt)),
        images_a_prompt=images_a_prompt,
        chosen_longer=chosen_longer,
        estimated=split.row_index is None,
        messages=fault_messages(index.faults),
        rationales=_rationale_counts(split, rows["flags"], scale),
        sharing=sharing,
        shortcuts=shortcut_card(index.shortcuts[positions], rows["image_key"], rows["prompt_key"]),
        responses=_response_counts(rows, index, scale),
        difficulties=difficulty_counts(split.difficulties()) if has_difficulties else None,
    )


def difficulty_counts(difficulties: npt.NDArray[np.integer]) -> DifficultyCounts:
    """Return the counts of records by their difficulty.

    Args:
        difficulties: The difficulty of each record, UNKNOWN_DIFFICULTY if it has none, (records,).
    """
    is_known = difficulties != UNKNOWN_DIFFICULTY
    values, counts = np.unique(difficulties[is_known], return_counts=True)
    records_by_difficulty = dict(zip(values.tolist(), counts.tolist(), strict=True))
    return DifficultyCounts(records_by_difficulty, unknown=int((~is_known).sum()))


def mean_difficulties(
    difficulties: npt.NDArray[np.integer],
) -> list[float | None]:
    """Return the mean difficulty in each tenth of an epoch, None without a known difficulty.

    Args:
        difficulties: The difficulties of the records of an epoch in their order,
            UNKNOWN_DIFFICULTY for a record without one, (records,).
    """
    means: list[float | None] = []
    for tenth in np.array_split(difficulties, 10):
        known = tenth[tenth != UNKNOWN_DIFFICULTY]
        means.append(float(known.mean()) if len(known) else None)
    return means


def _response_counts(
    rows: npt.NDArray[np.void], index: RowIndex, scale: float
) -> ResponseCounts | None:
    """Return the counts of responses, ties and attributes; None for pairs without attributes.

    Args:
        rows: The entries of the training rows in the row index, or of a sample, (rows,).
        index: The row index.
        scale: Number of training rows that each entry of `rows` stands for.
    """
    num_responses = rows["responses"]
    has_tie = rows["ranks"] < num_responses
    all_pairs = bool((num_responses == 2).all())
    if all_pairs and not has_tie.any() and not index.attributes:
        return None
    sizes, counts = np.unique(num_responses, return_counts=True)
    records_by_size = {}
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        records_by_size[size] = round(scale * count)
    num_responses_of_index = int(index.rows["responses"].sum())
    attributes = []
    for name, attribute in index.attributes.items():
        known = attribute.known / num_responses_of_index
        attributes.append(AttributeCard(name, attribute.lowest, attribute.highest, known))
    return ResponseCounts(
        records_by_size=records_by_size,
        lists=round(scale * int((num_responses > 2).sum())),
        ties=round(scale * int(has_tie.sum())),
        all_tied=round(scale * int((rows["ranks"] == 1).sum())),
        attributes=attributes,
    )


def _rationale_counts(
    split: SourceSplit, flags: npt.NDArray[np.uint8], scale: float
) -> RationaleCounts:
    """Return the counts of the rationales of a source.

    Args:
        split: The source.
        flags: The field `flags` in the row index of its training rows, or of a sample, (rows,).
        scale: Number of training rows that each entry of `flags` stands for.
    """
    has_rationale = (flags & RATIONALE) > 0
    has_one_order = (flags & KEEPS_ORDER) > 0
    is_winner_first = has_one_order & ((flags & REJECTED_FIRST) == 0)
    return RationaleCounts(
        rationales=round(scale * int(has_rationale.sum())),
        one_order=round(scale * int(has_one_order.sum())),
        winner_first=round(scale * int(is_winner_first.sum())),
        examples=_order_examples(split),
    )


def _order_examples(split: SourceSplit) -> list[str]:
    """Return a line for some records whose rationales can be used in one order only.

    A line has the identity of the record, and the words that keep its rationale from being
    rewritten for the other order of the responses.
    """
    examples = []
    has_one_order = split.rationale_sides() >= 0
    rows = split.rows[has_one_order]
    for row in rows[:NUM_ORDER_EXAMPLES].tolist():
        try:
            record = split.source.record(row)
        except RecordError:
            continue  # its file was removed since the first reading; training reports that
        if record.rationale is None:
            continue
        words = obstacle(record.rationale)
        if words is not None:
            examples.append(f"{record.identity}: {shortened(words)}")
    return examples


def shortened(words: str) -> str:
    """Return words on one line, cut to MAX_EXAMPLE_LENGTH characters with "…" at the end."""
    line = " ".join(words.split())
    if len(line) <= MAX_EXAMPLE_LENGTH:
        return line
    return f"{line[: MAX_EXAMPLE_LENGTH - 1]}…"
