"""Annotating preference records with rationales, and picking the hard ones: what eval/annotate.py and eval/select_pairs.py do.

Two files are written line by line: the records in this project's own format, and beside them a journal with one line for
every record that was looked at. A record counts as done once its line is in the journal, so a kill loses one record at most.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from data.errors import UserError
from data.mixture import Mixture
from data.preference import Preference
from data.prompts import Answer, JudgeTemplate, ask, read, swapped
from eval.judges.endpoint import Answer as Reply
from eval.judges.endpoint import data_uri, messages
from eval.protocol import draw

Failures = Literal["drop", "keep"]
"""What becomes of a record that no try got right: it is left out, or written without a rationale."""
Complete = Callable[[Mapping[str, Any]], Reply]
"""Sends a chat request and returns the reply; see `eval.judges.endpoint.Client.answer`."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """What came of a record."""

    rationale: str | None
    """Response 1 is the chosen one; None if no try named it."""
    tries: int


@dataclass(frozen=True, slots=True)
class Annotator:
    """Asks a model which response is better until it says the right one, at most once for each temperature."""

    complete: Complete
    model: str
    template: JudgeTemplate = "r1_reward"
    temperatures: tuple[float, ...] = (0.0, 0.5, 1.0)
    max_tokens: int = 2048
    seed: int = 0

    def __call__(self, record: Preference) -> Annotation:
        """Return the first reasoning that ends with the right answer; raises EndpointError as the endpoint does."""
        answer: Answer = 1 if draw(self.seed, record.identity, 0) == 0 else 2
        shown = (record.chosen, record.rejected) if answer == 1 else (record.rejected, record.chosen)
        asked = messages(ask(self.template, record.prompt, *shown), record.images, record.identity)
        for number, temperature in enumerate(self.temperatures, start=1):
            body = {"model": self.model, "messages": asked, "temperature": temperature, "max_tokens": self.max_tokens}
            found = read(self.complete({**body, "seed": self.seed + number}).text)
            if found.answer == answer and found.reasoning is not None and found.reasoning.strip():
                rationale = found.reasoning.strip()
                return Annotation(rationale if answer == 1 else swapped(rationale), number)
        return Annotation(None, len(self.temperatures))


@dataclass(frozen=True, slots=True)
class Journal:
    """One line a record: its index and identity, the tries, whether it was got right, and the lines of records so far."""

    path: Path

    @classmethod
    def beside(cls, records: Path) -> Journal:
        """Return the journal of a file of records."""
        return cls(records.with_suffix(".journal.jsonl"))

    def lines(self) -> list[dict[str, Any]]:
        """Return the whole lines; a last one that was cut off is removed from the file."""
        if not self.path.exists():
            return []
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            self.path.write_bytes(whole)
        return [json.loads(line) for line in whole.splitlines()]

    def append(self, index: int, record: Preference, found: Annotation, written: int) -> None:
        """Add a line."""
        line = {"index": index, "identity": record.identity, "tries": found.tries, "right": found.rationale is not None}
        append(self.path, {**line, "written": written})


def annotate(
    records: Mixture, indices: Iterable[int], annotator: Callable[[Preference], Annotation], path: Path, failures: Failures
) -> int:
    """Annotate those of `records` that are not in the journal yet, write them to `path`, and return how many were done now.

    Raises: UserError for a journal of other records; what the annotator raises, with all that was done kept.
    """
    journal = Journal.beside(path)
    lines = journal.lines()
    check(lines, records)
    written = lines[-1]["written"] if lines else 0
    if path.exists():  # what a kill left behind the lines that the journal knows is written again
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:written]))
    done, count = {line["index"] for line in lines}, 0
    for index in indices:
        if index in done:
            continue
        record = records[index]
        found = annotator(record)
        if found.rationale is not None or failures == "keep":
            append(path, as_row(record, found.rationale))
            written += 1
        journal.append(index, record, found, written)
        count += 1
    return count


def check(lines: Sequence[Mapping[str, Any]], records: Mixture) -> None:
    """Raise UserError unless the journal's first and last line name records of `records`."""
    for line in (*lines[:1], *lines[-1:]):
        if line["index"] >= len(records) or records[line["index"]].identity != line["identity"]:
            raise UserError(
                f"the journal's record {line['index']} is {line['identity']}, which is not that record of this recipe. Use the "
                "recipe that the journal was written with, or another output file."
            )


def append(path: Path, row: Mapping[str, Any]) -> None:
    """Add a record to a file of JSON lines."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")


def as_row(record: Preference, rationale: str | None) -> dict[str, Any]:
    """Return a record in this project's own format, its images inside, with `rationale` instead of its own."""
    row = {
        "images": [data_uri(image, record.identity) for image in record.images],
        "prompt": [dict(message) for message in record.prompt],
        "chosen": record.chosen,
        "rejected": record.rejected,
        "margin": record.margin,
        "chosen_critique": record.chosen_critique,
        "rejected_critique": record.rejected_critique,
        "rationale": rationale,
        "source": record.source,
        "category": record.category,
    }
    return {name: value for name, value in row.items() if value not in (None, "")}


def hard(lines: Sequence[Mapping[str, Any]], least_tries: int) -> Iterator[int]:
    """Yield the indices of records that needed `least_tries` tries or more, or were never got right (R1-Reward: 2)."""
    for line in lines:
        if line["tries"] >= least_tries or not line["right"]:
            yield line["index"]
