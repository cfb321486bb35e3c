"""What a benchmark is: a way to load its rows, its own judge prompt, its official predictions files and its scoring rules.

What the official predictions files of the benchmarks have in common.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field, model_validator

from data.config.section import Section
from data.preference import Message
from eval.protocol import Example, Side, Verdict, draw


def macro(accuracies: Sequence[float | None]) -> float | None:
    """Return the plain mean of group accuracies; None if a group is empty or there is none."""
    known = [accuracy for accuracy in accuracies if accuracy is not None]
    return sum(known) / len(known) if known and len(known) == len(accuracies) else None


Record = dict[str, Any]
"""One line of an official predictions file."""
Writer = Callable[[Sequence[Example], Sequence[Verdict]], list[Record]]


class Location(Section):
    """Where a benchmark's rows and images lie."""

    location: str = "hub"
    """`hub` (downloaded by its public id), `embedded` (this project's own small edition), or the path of the official
    file or of a folder that holds it."""
    revision: str | None = None
    """Commit, tag or branch on the hub; None takes the current one."""
    image_root: str | None = None
    """Folder that the image paths of an official local file are relative to; None takes the folder of that file."""
    limit: int | None = Field(default=None, ge=1)
    """Only this many rows, drawn once by a fixed seed and kept in file order: for a quick look, never for a table."""

    @model_validator(mode="after")
    def _settings_of_the_place(self) -> Location:
        if self.revision is not None and self.location != "hub":
            raise ValueError(f"`revision` is for the hub; the location is {self.location!r}, which has none")
        if self.image_root is not None and self.location in ("hub", "embedded"):
            raise ValueError(f"`image_root` is for local files; the location is {self.location!r}, which has its images")
        return self


@dataclass(frozen=True, slots=True)
class Known:
    """Row counts of a published edition of a benchmark."""

    name: str
    rows: int
    groups: Mapping[str, int] = field(default_factory=dict)
    """Rows by group; empty where only the total is known."""


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
class ScoringRule:
    """A published way to make figures of a predictions file."""

    about: str
    """Whose rule it is and how it differs from the official one; printed beside its figures."""
    reads: str
    """Which of the benchmark's predictions formats it scores."""
    score: Callable[[Sequence[Record | None]], dict[str, Any]]
    """Figures: `micro`, `macro`, `groups` (n, right, accuracy), and under `detail` whatever the script computes besides."""

    def figures(self, name: str, records: Sequence[Record | None]) -> dict[str, Any]:
        """Return the figures, labelled with the rule's name; raises PredictionsError if it cannot read the records."""
        return {"rules": name, "about": self.about, **self.score(records)}


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A row of the table of benchmarks."""

    name: str
    load: Callable[[Location], LoadedBenchmark]
    """Raises UserError or RecordError for files that are not there, not in a known schema, or without their images."""
    formats: Mapping[str, Writer]
    """Name of a predictions format to the function that makes its records; `official` is the benchmark's own."""
    rules: Mapping[str, ScoringRule]
    """The official scorer's rules under `official`, then other published rules."""
    known: tuple[Known, ...] = ()
    prompt: PairwisePrompt | None = None
    """None where the benchmark publishes no prompt that shows both responses."""
    item: Callable[[Example], str] | None = None
    """The item a row belongs to, where an accuracy over items with all rows right (Acc+) is defined."""
    official_note: str = ""
    """What must be said beside a result in official order."""


def group_figures(right: Mapping[str, int], total: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """Return n, right and accuracy for each group of `total`; the accuracy of an empty group is None."""
    return {
        name: {"n": n, "right": right.get(name, 0), "accuracy": right.get(name, 0) / n if n else None}
        for name, n in total.items()
    }


def differences(found: Mapping[str, int], known: Sequence[Known]) -> list[str]:
    """Return how the rows by group differ from the published edition of the nearest size; nothing where they agree."""
    rows = sum(found.values())
    nearest = min(known, key=lambda edition: abs(edition.rows - rows))
    notes = [] if rows == nearest.rows else [f"{rows} rows; {nearest.name} has {nearest.rows}."]
    if not nearest.groups:
        return notes
    for group in dict.fromkeys([*nearest.groups, *found]):
        here, there = found.get(group, 0), nearest.groups.get(group, 0)
        if here != there:
            notes.append(f"Group {group}: {here} rows; {nearest.name} has {there}.")
    return notes


SIDES: tuple[Side, Side] = (0, 1)


def in_drawn_order(prompt: str, chosen: str, rejected: str) -> tuple[tuple[str, str], Side]:
    """Return the two responses in an order drawn from their content, and the index of the chosen one.

    For files that always list the winner first: whoever judges by position must not profit.
    """
    if draw(0, f"{prompt}\n{chosen}\n{rejected}", "order") == 0:
        return (chosen, rejected), 0
    return (rejected, chosen), 1


def rewards(example: Example, verdict: Verdict) -> list[float]:
    """Return [reward of the better response, reward of the other]: the scores, or the votes for and not for the better one.

    Scores that are no finite numbers become [0, 1], the rewards that R1-Reward's scripts give to what they cannot read.
    """
    if verdict.scores is None:
        right = sum(vote.names == example.better for vote in verdict.votes)
        return [right, len(verdict.votes) - right]
    better, other = verdict.scores[example.better], verdict.scores[1 - example.better]
    return [better, other] if math.isfinite(better) and math.isfinite(other) else [0, 1]


def named(verdict: Verdict) -> Side | None:
    """Return the response of the higher score, or which more than half of the votes name; else None."""
    if verdict.scores is not None:
        one, two = verdict.scores
        return 0 if one > two else 1 if two > one else None
    for side in SIDES:
        if 2 * sum(vote.names == side for vote in verdict.votes) > len(verdict.votes):
            return side
    return None
