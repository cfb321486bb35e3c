"""Scoring a file of prompts with responses, chunk by chunk on all ranks, kept in a journal so that a killed run continues.

A line of the journal is what came of a record, in the order of the file; the first holds the fingerprint. Within a chunk the
judge's own journal keeps what is judged.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from data.errors import NonFiniteError, RecordError
from data.storage.code import code_digest
from data.storage.files import digest, read_json, write_whole
from eval.candidates.records import RecordFile
from eval.candidates.tables import New
from eval.journal import Journal, showing
from eval.judges.config import CriticJudgeConfig, GenerativeJudgeConfig, ScalarJudgeConfig
from eval.judges.loading import judge_config
from eval.judges.ranking import Ranker, candidates_of
from eval.protocol import Candidates, Ranking
from eval.running.fingerprint import shared_digest
from eval.score_forms import FORMS
from eval.verifiers import Verifying
from models.distributed import gather, rank, world_size

CHUNK = 128
"""Records a rank that are judged together, and lost from the journal of records by a kill."""
Line = dict[str, Any]
"""What came of a record: `scores` and what the judge wrote, or `error`."""


@dataclass(frozen=True, slots=True)
class Scoring:
    """What is done with the scores of a record's responses."""

    form: str
    verifying: Verifying | None
    reference: Mapping[str, Any] | None
    """Mean and standard deviation of the checkpoint's scores."""
    clip: float | None

    def read(self, file: RecordFile, number: int) -> tuple[Candidates, Line]:
        """Return what is judged of a record, and what its line holds already; raise RecordError for what cannot be judged."""
        row = file.row(number)
        found = file.answered(row)
        line: Line = {}
        try:
            if self.verifying is not None:
                line["right"] = self.verifying.right(row.columns, found.responses)
            more = [row.text("reference")] if self.form == "relative" else []
        except RecordError as error:
            raise RecordError(f"{row.identity}: {error}") from error
        return candidates_of(
            found.turns, [*found.responses, *more], found.images, row.identity
        ), line

    def columns(self, line: Line) -> dict[str, Any]:
        """Return what is added to a record."""
        scores = list(line["scores"])
        context = {"right": line.get("right"), "clip": self.clip, **(self.reference or {})}
        if self.form == "relative":
            context["reference"] = scores.pop()
        ranking, form = Ranking(tuple(scores)), FORMS[self.form]
        found: dict[str, Any] = {"scores": scores, "order": ranking.order, "margin": ranking.margin}
        if self.reference is not None:
            found["normalised"] = FORMS["standardised"].of(
                scores, self.reference["mean"], self.reference["std"]
            )
        if self.form != "raw":
            found["rewards"] = form.of(scores, **{name: context[name] for name in form.needs})
        found |= {name: line[name] for name in ("right", "judgements", "unread") if name in line}
        if "critiques" in line:
            found["critiques"] = line["critiques"][: len(scores)]
        return found


def reference_of(judge: Path) -> Mapping[str, Any] | None:
    """Return mean and standard deviation of a checkpoint's scores, as its config.json states them."""
    config = judge_config(judge)
    if not isinstance(config, ScalarJudgeConfig | CriticJudgeConfig | GenerativeJudgeConfig):
        return None
    file = Path(config.checkpoint).expanduser() / "config.json"
    found: Mapping[str, Any] | None = (
        read_json(file).get("reference_scores") if file.is_file() else None
    )
    return found


def fingerprint(judge: Path, file: RecordFile, scoring: Scoring) -> str:
    """Return what the lines of a journal belong to; all ranks must call together."""
    root = str(file.images.root.resolve())
    settings = [str(scoring.form == "relative"), str(scoring.verifying), root]
    code = code_digest("eval.candidates.scoring", floors=("models", "eval"))
    return digest("\n".join([shared_digest(judge), file.rows.fingerprint(), code, *settings]))


@dataclass(frozen=True, slots=True)
class LineJournal:
    """The journal of a file: the fingerprint, then a line a record in the order of the file. It is the first rank's."""

    path: Path
    mark: str

    def begin(self, console: Console) -> int:
        """Return how many records are done; leave whole lines under the fingerprint. All ranks must call together."""
        return gather(0 if rank() else self._begin(console))[0]

    def _begin(self, console: Console) -> int:
        head, done, end = json.dumps(self.mark).encode() + b"\n", 0, 0
        if self.path.is_file():
            with self.path.open("rb") as file:
                end = len(head) if file.readline() == head else 0
                for line in file:
                    if end and line.endswith(b"\n"):
                        done, end = done + 1, end + len(line)
            if not end:
                console.print(
                    f"{self.path} belongs to another judge, input, option or code; all is judged anew.",
                    soft_wrap=True,
                )
        if end:
            os.truncate(self.path, end)
        else:
            write_whole(self.path, head.decode())
        if done:
            console.print(
                f"{done:,} records are there, judged before the command was stopped.",
                highlight=False,
            )
        return done

    def add(self, lines: Sequence[Line]) -> None:
        """Append lines, on the first rank."""
        if rank() == 0:
            with self.path.open("a", encoding="ascii") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)

    def lines(self) -> Iterator[Line]:
        """Yield the lines."""
        with self.path.open(encoding="ascii") as file:
            next(file)
            yield from map(json.loads, file)


def score_file(
    ranker: Ranker, file: RecordFile, scoring: Scoring, journal: LineJournal, console: Console
) -> None:
    """Judge every record that the journal does not hold; all ranks must call together."""
    done, total = journal.begin(console), len(file.rows)
    inside = Journal(file=journal.path.with_name(f"{journal.path.name}.chunk"), mark=journal.mark)
    chunk = CHUNK * world_size()
    with ExitStack() as stack:
        show = stack.enter_context(showing(file.path.name, console, total)) if rank() == 0 else None
        for start in range(done, total, chunk):
            stop = min(start + chunk, total)
            journal.add(judge_chunk(ranker, file, scoring, range(start, stop), inside))
            if show is not None:
                inside.remove()
                show.update(stop, stop - done)
    if rank() == 0:
        inside.remove()  # of a chunk whose lines were written when the command was killed


def judge_chunk(
    ranker: Ranker, file: RecordFile, scoring: Scoring, numbers: Sequence[int], journal: Journal
) -> list[Line]:
    """Return what comes of records; the ranks agree on which cannot be read, as a file may be missing for one of them."""
    read: dict[int, tuple[Candidates, Line]] = {}
    faults: dict[int, str] = {}
    for number in numbers:
        try:
            read[number] = scoring.read(file, number)
        except RecordError as error:
            faults[number] = str(error)
    faults = {number: said for part in reversed(gather(faults)) for number, said in part.items()}
    good = [number for number in numbers if number not in faults]
    found = dict(
        zip(good, rankings(ranker, [read[number][0] for number in good], journal), strict=True)
    )
    return [
        {"error": faults[number]} if number in faults else _line(found[number], read[number][1])
        for number in numbers
    ]


def rankings(
    ranker: Ranker, candidates: Sequence[Candidates], journal: Journal
) -> list[Ranking | str]:
    """Return the ranking of each, or why it has none: what cannot be judged is found by halving, and the rest is judged.

    What raises does so on all ranks together; the journal holds what was judged before.
    """
    if not candidates:
        return []
    try:
        return list(ranker.rank(candidates, journal))
    except (RecordError, NonFiniteError) as error:
        if len(candidates) == 1:
            return [str(error)]
    half = len(candidates) // 2
    return [
        *rankings(ranker, candidates[:half], journal),
        *rankings(ranker, candidates[half:], journal),
    ]


def _line(found: Ranking | str, line: Line) -> Line:
    if isinstance(found, str):
        return {"error": found}
    line = {"scores": list(found.scores), **line}
    if found.judgements:
        return line | {"judgements": found.judgements, "unread": found.unread}
    return line | ({"critiques": list(found.texts)} if found.texts else {})


def added(journal: LineJournal, scoring: Scoring) -> Iterator[New]:
    """Yield what is added to each record; None for one without scores."""
    for line in journal.lines():
        yield None if "error" in line else scoring.columns(line)


def errors(journal: LineJournal) -> Iterator[dict[str, Any]]:
    """Yield the records without scores, with the reason."""
    for number, line in enumerate(journal.lines()):
        if "error" in line:
            yield {"row": number, "error": line["error"]}
