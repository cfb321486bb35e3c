"""What a benchmark is: a way to load its rows, its own judge prompt, its official predictions files and its scoring rules.

At the end stands what the official predictions files and scorers of several benchmarks have in common.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from pydantic import model_validator

from mmrm.data.config.section import Count, Section
from mmrm.data.preference import Message
from mmrm.eval.benchmarks.editions import EMBEDDED
from mmrm.eval.candidates import Example, Side, Verdict
from mmrm.eval.protocol import draw

Record = dict[str, Any]
"""One line of an official predictions file."""
Records = Sequence[Record | None]
"""A whole file; None is a line that holds null."""
RowName = tuple[str, tuple[str, ...]]
"""A row's id, which several may share; with it the better response and the other one, or the row's identity, or nothing."""


BUILT_IN = ("hub", *EMBEDDED)
"""Locations that are no paths."""


class Location(Section):
    """Where a benchmark's rows and images lie."""

    location: str = "hub"
    """`hub` (downloaded by its public id), `embedded`, `embedded-medium` or `embedded-hard` (this project's own small
    editions, by the level of their scenes), or the path of the official file or of a folder that holds it."""
    revision: str | None = None
    """Commit, tag or branch on the hub; null takes the current one."""
    image_root: str | None = None
    """Folder that the image paths of an official local file are relative to; null takes the folder of that file."""
    type: str | None = None
    """The type of source, as in `data.sources`, that reads a preference_folder; null recognises it by the columns."""
    limit: Count | None = None
    """Only this many rows, drawn once by a fixed seed and kept in file order: for a quick look, never for a table."""
    frames: Count | None = None
    """At most this many frames of a video, evenly spaced, for mm_rlhf_rewardbench; null takes as many as its own script, 32."""

    @model_validator(mode="after")
    def _check_settings(self) -> Location:
        if self.revision is not None and self.location != "hub":
            raise ValueError(
                f"`revision` is for the hub; the location is {self.location!r}, which has none"
            )
        if self.image_root is not None and self.location in BUILT_IN:
            raise ValueError(
                f"`image_root` is for local files; the location is {self.location!r}, which has its images"
            )
        return self


@dataclass(frozen=True, slots=True)
class Known:
    """Row counts of a published edition of a benchmark."""

    name: str
    rows: int
    groups: Mapping[str, int] = field(default_factory=dict)
    """Rows by group; empty where only the total is known."""
    items: int | None = None
    """Distinct ids, where several rows may share one."""
    ids: str = ""
    """File beside this one with the id of each row, one a line (`#` and a digest where the ids are not ours to give away)."""
    repeats: bool = False
    """Whether rows may be equal in id and responses."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What a result says of the rows it was computed from."""

    location: str
    unavailable: tuple[str, ...] = ()
    """Rows that cannot be shown, by identity and reason."""
    notes: tuple[str, ...] = ()
    """Differences between these rows and the published benchmark."""


@dataclass(frozen=True, slots=True)
class LoadedBenchmark:
    """The rows of a benchmark and where they came from."""

    examples: tuple[Example, ...]
    origin: Origin


@dataclass(frozen=True, slots=True)
class PairwisePrompt:
    """A benchmark's own judge prompt and the settings that its own script generates with."""

    ask: Callable[[Example, Side], tuple[Message, ...]]
    """The conversation that shows an example with the given response first; one image part for each image."""
    read: Callable[[str], Side | None]
    """The position (0 first, 1 second) that a judgement names; None where it cannot be read."""
    temperature: float | None
    """None: the official script leaves the API's default."""
    top_p: float | None
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class FileFormat:
    """A predictions file that can be scored."""

    about: str
    """What a line holds, for `--help`."""
    marks: tuple[str, ...]
    """Columns by which a line is recognised."""
    rules: str = ""
    """The rules that a file of this format is scored by if none are named; empty where several published ones read it."""
    becomes: str = ""
    """The format that `convert` makes of a line, whose rules then score it too."""
    convert: Callable[[Record], Record] | None = None
    row: Callable[[Record], RowName] | None = None
    """The benchmark's row that a line is of; None reads the columns of the official files and of R1-Reward's."""
    votes: bool = False
    """Whether each line is a vote, of which a row may have several."""
    group: Callable[[Record], str] | None = None
    """Returns the category that a line states itself, in the names of `Known.groups`.

    None if no line states one, because the rules derive the category from the id."""


@dataclass(frozen=True, slots=True)
class ScoringRule:
    """A published way to make figures of a predictions file."""

    about: str
    """Whose rule it is and how it differs from the official one; printed beside its figures."""
    reads: str
    """Which of the benchmark's predictions formats it scores."""
    score: Callable[[Records], dict[str, Any]]
    """Figures: `micro`, `macro`, `groups` (n, right, accuracy), and under `detail` whatever the script computes besides."""
    differs: str = "nothing"
    """What differs from the released script, for `--help`."""
    at_votes: Callable[[dict[str, Any], int], dict[str, Any]] | None = None
    """Makes of the figures those with K votes an item, where the script has a choice of K."""

    def figures(self, name: str, records: Records) -> dict[str, Any]:
        """Return the figures, labelled with the rule's name; raises PredictionsError if it cannot read the records."""
        return {"rules": name, "about": self.about, **self.score(records)}


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A row of the table of benchmarks."""

    name: str
    load: Callable[[Location], LoadedBenchmark]
    """Raises UserError or RecordError for files that are not there, not in a known schema, or without their images."""
    look: Callable[[Location], object]
    """Raises UserError where the local files that `load` would read are not there; reads nothing and asks no hub."""
    formats: Mapping[str, Callable[[Sequence[Example], Sequence[Verdict]], list[Record]]]
    """Name of a predictions format to the function that makes its records; `official` is the benchmark's own."""
    rules: Mapping[str, ScoringRule]
    """The official scorer's rules under `official`, then other published rules."""
    known: tuple[Known, ...] = ()
    prompt: PairwisePrompt | None = None
    """None where the benchmark publishes no prompt that shows both responses."""
    item: Callable[[Example], str] | None = None
    """The item a row belongs to, where an accuracy over items with all rows right (Acc+) is defined."""
    files: Mapping[str, FileFormat] = field(default_factory=dict)
    """The predictions files that are recognised, by the names that rules read; looked through in this order."""
    read: Callable[[Location], Sequence[Example]] | None = None
    """Returns the rows without looking at their images; None where `load` alone can."""
    official_note: str = ""
    """A note that stands beside a result in official order."""


def differences(examples: Sequence[Example], known: Sequence[Known]) -> list[str]:
    """Return how the rows differ in number from the published edition of the nearest size; nothing where they agree."""
    rows, found = len(examples), Counter(example.group for example in examples)
    nearest = min(known, key=lambda edition: abs(edition.rows - rows))
    counts = [("", rows, "rows", nearest.rows)]
    for group in dict.fromkeys([*nearest.groups, *found]) if nearest.groups else ():
        counts.append((f"Group {group}: ", found[group], "rows", nearest.groups.get(group, 0)))
    if nearest.items is not None:
        counts.append(
            ("", len({example.row["id"] for example in examples}), "items", nearest.items)
        )
    return [
        f"{of}{here} {what}; {nearest.name} has {there}."
        for of, here, what, there in counts
        if here != there
    ]


def in_drawn_order(prompt: str, chosen: str, rejected: str) -> tuple[tuple[str, str], Side]:
    """Return the two responses in an order drawn from their content, and the index of the chosen one.

    For files that always list the winner first: whoever judges by position must not profit.
    """
    if draw(0, f"{prompt}\n{chosen}\n{rejected}", "order") == 0:
        return (chosen, rejected), 0
    return (rejected, chosen), 1


def preferred(verdict: Verdict) -> Side | None:
    """Return the response of the higher score, or which more than half of the votes name; else None."""
    if verdict.scores is not None:
        one, two = verdict.scores
        return 0 if one > two else 1 if two > one else None
    names, sides = [vote.names for vote in verdict.votes], get_args(Side)
    return next((side for side in sides if 2 * names.count(side) > len(names)), None)


def rewards(example: Example, verdict: Verdict) -> list[float]:
    """Return [reward of the better response, reward of the other]: the scores, or the votes for and not for the better one.

    Scores that are no finite numbers become [0, 1], the rewards that R1-Reward's scripts give to what they cannot read.
    """
    if verdict.scores is None:
        right = sum(vote.names == example.better for vote in verdict.votes)
        return [right, len(verdict.votes) - right]
    better, other = verdict.scores[example.better], verdict.scores[1 - example.better]
    return [better, other] if math.isfinite(better) and math.isfinite(other) else [0, 1]


def reward_records(examples: Sequence[Example], verdicts: Sequence[Verdict]) -> list[Record]:
    """Return the predictions as R1-Reward writes them: the row and its rewards, the winner's first."""
    return [
        {**example.row, "rewards": rewards(example, verdict)}
        for example, verdict in zip(examples, verdicts, strict=True)
    ]


def figures_by_group(
    rows: Iterable[tuple[str, bool]], groups: Sequence[str] = ()
) -> dict[str, Any]:
    """Return `micro`, `macro` and `groups` of rows that are given by their group and whether they are right.

    Groups stand in the order of `groups`, then as they are first seen.
    """
    right, total = Counter(dict.fromkeys(groups, 0)), Counter(dict.fromkeys(groups, 0))
    for group, hit in rows:
        right[group] += hit
        total[group] += 1
    found = group_figures(right, total)
    micro = right.total() / total.total() if total.total() else None
    return {
        "micro": micro,
        "macro": macro([group["accuracy"] for group in found.values()]),
        "groups": found,
    }


def group_figures(right: Mapping[str, int], total: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """Return n, right and accuracy for each group of `total`; the accuracy of an empty group is None."""
    return {
        name: {"n": n, "right": right[name], "accuracy": right[name] / n if n else None}
        for name, n in total.items()
    }


def macro(accuracies: Sequence[float | None]) -> float | None:
    """Return the plain mean of group accuracies; None if a group is empty or there is none."""
    known = [accuracy for accuracy in accuracies if accuracy is not None]
    return sum(known) / len(known) if known and len(known) == len(accuracies) else None
