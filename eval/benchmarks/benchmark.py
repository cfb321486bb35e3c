"""The parts of a benchmark: its rows, its judge prompt, its official files and its scoring rules.

A benchmark is a `Benchmark` in `BENCHMARKS` (registry.py). The functions at the end compute what
the official predictions files and scorers of several benchmarks have in common.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import model_validator

from mmrm.data.config.section import Count, GrowingSection
from mmrm.data.preference import Message
from mmrm.eval.benchmarks.editions import EMBEDDED
from mmrm.eval.candidates import BenchmarkRow, Example, Scores, Side
from mmrm.eval.protocol import draw_side
from mmrm.eval.verdict_form import VerdictForm

Record = dict[str, Any]
"""One line of an official predictions file."""
PredictionRecords = Sequence[Record | None]
"""The lines of a predictions file. None is a line that holds null."""
RowName = tuple[str, tuple[str, ...]]
"""The name of a row: its id, which several rows may share, and texts that tell them apart. The
texts are the better response and the other one, or the row's identity, or there are none."""

BUILT_IN = ("hub", *EMBEDDED)
"""Locations that are not paths."""


class Location(GrowingSection):
    """The location of a benchmark's rows and images."""

    LATER_KEYS = frozenset({"videos"})

    location: str = "hub"
    """`hub` (downloaded by its public id), `embedded`, `embedded-medium` or `embedded-hard` (this
    project's own small editions, by the level of their scenes), or the path of the official file or
    of a folder that holds it."""
    revision: str | None = None
    """Commit, tag or branch on the hub; null takes the current one."""
    image_root: str | None = None
    """Folder that the image paths of an official local file are relative to; null takes the folder
    of that file."""
    type: str | None = None
    """The type of source, as in `data.sources`, that reads a preference_folder; null recognises it
    by the columns."""
    limit: Count | None = None
    """Only this many rows, drawn once by a fixed seed and kept in file order: for a quick look,
    never for a table."""
    frames: Count | None = None
    """Largest number of frames of a video, evenly spaced, for benchmarks with videos. null takes the
    number of the authors' script: 32 for mm_rlhf_rewardbench and mm_rlhf_rankings, 8 for
    genai_bench, two a second for videogen_rewardbench."""
    videos: Literal["frames", "video"] = "frames"
    """Show the frames of a video, which `data/frames.py` has cut, as images, or give the judge the
    video itself, whose frames are chosen by `backbone.videos` of the judge's recipe."""

    @model_validator(mode="after")
    def _check_settings(self) -> Location:
        if self.revision is not None and self.location != "hub":
            raise ValueError(
                f"`revision` is {self.revision!r}, and the location {self.location!r} has no "
                "revisions. Remove `revision`, or set the location to `hub`."
            )
        if self.image_root is not None and self.location in BUILT_IN:
            raise ValueError(
                f"`image_root` is {self.image_root!r}, and the location {self.location!r} has its "
                "own images. Remove `image_root`, or set the location to a local path."
            )
        if self.videos == "video" and self.frames is not None:
            raise ValueError(
                f"`frames` is {self.frames} and `videos` is 'video', but the frames of a video that "
                "is shown itself are chosen by `backbone.videos` of the judge's recipe. Remove one."
            )
        return self


@dataclass(frozen=True, slots=True)
class PublishedEdition:
    """Row counts of a published edition of a benchmark."""

    name: str
    rows: int
    groups: Mapping[str, int] = field(default_factory=dict)
    """Rows by group; empty if only the total is known."""
    items: int | None = None
    """Distinct ids, if several rows may share one."""
    ids: str = ""
    """A file in the folder ids/ with the id of each row, one a line. It holds `#` and a digest if
    the licence of the ids does not allow us to publish them."""
    repeats: bool = False
    """True if rows may be equal in id and responses."""


@dataclass(frozen=True, slots=True)
class Origin:
    """A result's information about the rows that it was computed from."""

    location: str
    unavailable: tuple[str, ...] = ()
    """Rows that cannot be shown, by identity and reason."""
    notes: tuple[str, ...] = ()
    """Differences between these rows and the published benchmark."""


@dataclass(frozen=True, slots=True)
class LoadedBenchmark:
    """The rows of a benchmark, and where they came from."""

    examples: tuple[Any, ...]
    """The rows, all of one class: `Example`, or `RankedExample` for a benchmark of rankings."""
    origin: Origin


@dataclass(frozen=True, slots=True)
class PairwisePrompt:
    """A benchmark's own judge prompt, and the settings with which its own script generates."""

    ask: Callable[[Example, Side], tuple[Message, ...]]
    """Returns the conversation that shows an example with the given response first. It has one
    image part for each image."""
    read: Callable[[str], Side | None]
    """Returns the position (0 first, 1 second) that a judgement names; None if it cannot be
    read."""
    form: VerdictForm
    """The place of the verdict in a judgement."""
    temperature: float | None
    """None: the official script keeps the API's default."""
    top_p: float | None
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class FileFormat:
    """A format of predictions files that can be scored."""

    about: str
    """The contents of a line, for `--help`."""
    marks: tuple[str, ...]
    """Columns by which a line is recognised."""
    rules: str = ""
    """The rules that score a file of this format if the user names none. Empty if several published
    rules read the format."""
    becomes: str = ""
    """The format into which `convert` turns a line. Rules for that format then score it too."""
    convert: Callable[[Record], Record] | None = None
    row: Callable[[Record], RowName] | None = None
    """Returns the name of the row that a line is about. None reads the columns of the official
    files and of R1-Reward's."""
    votes: bool = False
    """True if each line is one vote, and a row may have several."""
    group: Callable[[Record], str] | None = None
    """Returns the category that a line itself states, by the names of `PublishedEdition.groups`.

    None if no line states one, because the rules derive the category from the id."""
    with_labels: Callable[[PredictionRecords, Sequence[Any]], list[Record]] | None = None
    """Returns the lines with the labels of the benchmark's rows, which are the second argument.

    None if the lines hold the labels themselves. Otherwise a file of this format is scored only
    together with the location of the rows."""


@dataclass(frozen=True, slots=True)
class ScoringRule:
    """A published way to compute figures from a predictions file."""

    about: str
    """The authors of the rule, and how it differs from the official one. It is printed with the
    figures."""
    reads: str
    """The predictions format that the rule scores, by its name in the benchmark's `files`."""
    score: Callable[[PredictionRecords], dict[str, Any]]
    """Returns figures: `micro`, `macro`, `groups` (n, right, accuracy), and under `detail`
    everything else that the script computes."""
    differs: str = "nothing"
    """The differences from the released script, for `--help`."""
    at_votes: Callable[[dict[str, Any], int], dict[str, Any]] | None = None
    """Returns the figures with K votes an item, if the script has a choice of K."""

    def figures(self, name: str, records: PredictionRecords) -> dict[str, Any]:
        """Return the figures, labelled with the rule's name.

        Raises:
            PredictionsError: If the rule cannot read the records.
        """
        return {"rules": name, "about": self.about, **self.score(records)}


@dataclass(frozen=True, slots=True)
class Benchmark:
    """The functions that load a benchmark's rows, write its predictions files and score them."""

    name: str
    load: Callable[[Location], LoadedBenchmark]
    """Raises UserError or RecordError if files are missing, in an unknown schema, or without their
    images."""
    check_location: Callable[[Location], object]
    """Raises UserError if the local files that `load` would read are missing. The function
    neither reads files nor connects to the hub."""
    formats: Mapping[str, Callable[[Sequence[Any], Sequence[Scores]], list[Record]]]
    """The functions that make the records of a predictions file, by the name of its format. Their
    arguments are the benchmark's rows (`Example` or `RankedExample`) and the scores of each.
    `official` is the benchmark's own format."""
    rules: Mapping[str, ScoringRule]
    """The official scorer's rules under `official`, then other published rules."""
    known: tuple[PublishedEdition, ...] = ()
    """Published editions, with whose numbers of rows the loaded rows are compared."""
    prompt: PairwisePrompt | None = None
    """None if the benchmark publishes no prompt that shows both responses."""
    item: Callable[[Any], str] | None = None
    """Returns the item of a row, if an accuracy over items with all rows right (Acc+) is
    defined."""
    files: Mapping[str, FileFormat] = field(default_factory=dict)
    """The formats of predictions files that are recognised, by the names that rules read. They are
    tried in this order."""
    ranked: bool = False
    """True if the rows are `RankedExample`s, False if they are `Example`s."""
    read: Callable[[Location], Sequence[Any]] | None = None
    """Returns the rows without looking at their images. None if only `load` can return them."""
    official_note: str = ""
    """A note on every result in official order."""
    read_predictions: Callable[[Path], PredictionRecords] | None = None
    """Returns the lines of a predictions file, or of the files of a folder. None if every file of
    the benchmark has a JSON object on each line."""
    script_files: Callable[[Sequence[Record]], Mapping[str, object]] | None = None
    """Returns the JSON files that the official script reads, by their names, for the records of the
    format `official`. None if the script reads `official.jsonl` itself."""


def row_count_notes(
    examples: Sequence[BenchmarkRow], editions: Sequence[PublishedEdition]
) -> list[str]:
    """Return a sentence on every number of rows or items that differs from a published edition.

    The examples are compared with the edition whose number of rows is nearest to theirs.
    """
    num_rows = len(examples)
    rows_by_group = Counter(example.group for example in examples)
    nearest = min(editions, key=lambda edition: abs(edition.rows - num_rows))
    notes = []
    if num_rows != nearest.rows:
        notes.append(f"{num_rows} rows; {nearest.name} has {nearest.rows}.")
    if nearest.groups:
        for group in dict.fromkeys([*nearest.groups, *rows_by_group]):
            num_here = rows_by_group[group]
            num_published = nearest.groups.get(group, 0)
            if num_here != num_published:
                notes.append(f"Group {group}: {num_here} rows; {nearest.name} has {num_published}.")
    if nearest.items is not None:
        num_items = len({example.row["id"] for example in examples})
        if num_items != nearest.items:
            notes.append(f"{num_items} items; {nearest.name} has {nearest.items}.")
    return notes


def editions_with_groups(
    editions: Sequence[PublishedEdition], examples: Sequence[BenchmarkRow]
) -> list[PublishedEdition]:
    """Return the editions that have the groups of all examples.

    This is for benchmarks whose parts may be evaluated alone: `editions` holds the whole edition
    and its parts.
    """
    groups = {example.group for example in examples}
    return [edition for edition in editions if edition.groups.keys() >= groups]


def in_drawn_order(prompt: str, chosen: str, rejected: str) -> tuple[tuple[str, str], Side]:
    """Return the responses in an order drawn from their content, and the index of the chosen one.

    This is for files that always list the winner first. Without a drawn order, a judge that always
    names the first response would be right on every row.
    """
    position_of_chosen = draw_side(0, f"{prompt}\n{chosen}\n{rejected}", "order")
    if position_of_chosen == 0:
        return (chosen, rejected), 0
    return (rejected, chosen), 1


def drawn_order(prompt: str, responses: Sequence[str]) -> list[int]:
    """Return the indices of the responses in an order drawn from their content.

    This is for files that list the best responses first, as `in_drawn_order` is for pairs.
    """
    order = list(range(len(responses)))
    content = "\n".join((prompt, *responses))
    random.Random(f"0/{content}/order").shuffle(order)
    return order


def preferred(scores: Scores) -> Side | None:
    """Return the index of the response that a judge prefers; None for a tie.

    If the judge cast votes, it is the response that more than half of the votes name, and None if
    neither response has this majority. Otherwise it is the response with the higher score.
    """
    if scores.votes:
        names = [vote.named for vote in scores.votes]
        if 2 * names.count(0) > len(names):
            return 0
        if 2 * names.count(1) > len(names):
            return 1
        return None
    first_score, second_score = scores.values
    if first_score > second_score:
        return 0
    if second_score > first_score:
        return 1
    return None


def rewards(example: Example, scores: Scores) -> list[float]:
    """Return the reward of the example's better response, and the reward of the other response.

    If the judge cast votes, the rewards are the number of votes for the better response and the
    number of all other votes. Otherwise they are the scores. Scores that are not finite numbers
    become [0, 1], the rewards that R1-Reward's scripts give to a judgement that they cannot read.
    """
    if scores.votes:
        num_right = sum(vote.named == example.better for vote in scores.votes)
        return [num_right, len(scores.votes) - num_right]
    better = scores.values[example.better]
    other = scores.values[1 - example.better]
    if math.isfinite(better) and math.isfinite(other):
        return [better, other]
    return [0, 1]


def reward_records(examples: Sequence[Example], scores: Sequence[Scores]) -> list[Record]:
    """Return the predictions in R1-Reward's format.

    A record has the columns of its row, and `rewards` with the better response's reward first.
    """
    return [
        {**example.row, "rewards": rewards(example, row_scores)}
        for example, row_scores in zip(examples, scores, strict=True)
    ]


def figures_by_group(
    rows: Iterable[tuple[str, bool]], groups: Sequence[str] = ()
) -> dict[str, Any]:
    """Return accuracies: `micro` over all rows, `macro` over groups, and `groups` with their counts.

    Args:
        rows: The group of each row, and True if the judge was right on the row.
        groups: Names of groups that come first in the result, even if they have no rows. Other
            groups follow in the order in which they first occur.
    """
    right = Counter(dict.fromkeys(groups, 0))
    total = Counter(dict.fromkeys(groups, 0))
    for group, is_right in rows:
        right[group] += is_right
        total[group] += 1
    figures = group_figures(right, total)
    num_rows = total.total()
    micro = right.total() / num_rows if num_rows else None
    accuracies = [group["accuracy"] for group in figures.values()]
    return {"micro": micro, "macro": macro(accuracies), "groups": figures}


def group_figures(right: Mapping[str, int], total: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """Return `n`, `right` and `accuracy` of each group; the accuracy of an empty group is None.

    Args:
        right: The number of rows that the judge was right on, by group.
        total: The number of rows by group.
    """
    figures: dict[str, dict[str, Any]] = {}
    for name, num_rows in total.items():
        accuracy = right[name] / num_rows if num_rows else None
        figures[name] = {"n": num_rows, "right": right[name], "accuracy": accuracy}
    return figures


def macro(accuracies: Sequence[float | None]) -> float | None:
    """Return the plain mean of group accuracies; None if a group is empty or there is no group."""
    numbers = [accuracy for accuracy in accuracies if accuracy is not None]
    if not numbers or len(numbers) < len(accuracies):
        return None
    return sum(numbers) / len(numbers)
