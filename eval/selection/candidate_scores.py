"""Scoring a file of prompts with responses, chunk by chunk on all ranks, kept in a journal so that a killed run continues.

A line of the journal is what came of a record, under a digest of the record's content; the first holds the fingerprint. So a
line never goes to another record, whatever happens to the file between a kill and the next call. Within a chunk the judge's own
journal keeps what is judged.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from mmrm.data.errors import NonFiniteError, RecordError
from mmrm.data.storage.code_digest import code_digest
from mmrm.data.storage.content import shown_key
from mmrm.data.storage.files import digest, write_whole
from mmrm.eval.candidates import Candidates, Scores
from mmrm.eval.journal import Journal, showing
from mmrm.eval.judges.judge import Judge
from mmrm.eval.judges.messages import candidates_of
from mmrm.eval.protocol import journal_key
from mmrm.eval.selection.candidate_files import New
from mmrm.eval.selection.candidate_records import RecordFile
from mmrm.eval.selection.score_forms import FORMS
from mmrm.eval.suite.fingerprint import SCORES, shared_digest
from mmrm.eval.verifiers import Verifying
from mmrm.models.distributed import gather, rank, world_size

CHUNK = 128
"""Records a rank that are judged together, and lost from the journal of records by a kill."""
Line = dict[str, Any]
"""What came of a record: `scores` and what the judge wrote, or `error`."""
Read = tuple[Candidates, Line] | str
"""What is judged of a record, with what its line holds already; or why it cannot be read."""


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
        judged = Scores(tuple(scores))
        form = FORMS[self.form]
        found: dict[str, Any] = {"scores": scores, "order": judged.order, "margin": judged.margin}
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


def fingerprint(judge: Path, scoring: Scoring) -> str:
    """Return what all lines of a journal belong to: the judge, the settings and the code; all ranks must call together.

    The records are not part of it. Each line is kept under the content of its own record.
    """
    settings = [str(scoring.form == "relative"), str(scoring.verifying)]
    code = code_digest("mmrm.eval.selection.candidate_scores", *SCORES, floors=("models", "eval"))
    return digest("\n".join([shared_digest(judge), code, *settings]))


def content_key(record: Read) -> str:
    """Return a digest of a record's prompt, images and responses, and of what its line holds from other columns.

    A record that cannot be read has no content to tell it by. The message, which names its row, takes its place.
    """
    if isinstance(record, str):
        return shown_key((), (), (), record)
    candidates, line = record
    return shown_key((), (), (), journal_key(candidates), line)


def line_key(record: Read, content: str, line: Line) -> str:
    """Return the key of a record's line: its content, and its row if the line is a message, which names the row."""
    if isinstance(record, str) or "error" not in line:
        return content
    return f"{content}/{record[0].identity}"


@dataclass(slots=True)
class LineJournal:
    """The journal of a file: the fingerprint, then a line a record, under the key of its content. It is the first rank's.

    Its lines may be in any order and of more records than the file holds. The process that writes it holds the lock of OUT.
    """

    path: Path
    mark: str
    offsets: dict[str, int] = field(default_factory=dict)
    """The byte at which the line of each key begins; on the first rank alone."""

    def begin(self, console: Console) -> None:
        """Find the lines that are there, or begin the file; on the first rank."""
        head = json.dumps(self.mark).encode() + b"\n"
        if not self.path.is_file():
            write_whole(self.path, head.decode())
            return
        num_damaged = 0
        with self.path.open("rb") as file:
            if file.readline() != head:
                console.print(
                    f"{self.path} belongs to another judge, input, option or code; all is judged anew.",
                    soft_wrap=True,
                )
                write_whole(self.path, head.decode())
                return
            end = len(head)
            for text in file:
                key = _key_of(text)
                if key is None:
                    num_damaged += 1
                else:
                    self.offsets[key] = end
                if text.endswith(b"\n"):
                    end += len(text)
        os.truncate(self.path, end)  # of a last line that a kill cut off nothing is left
        if self.offsets:
            console.print(
                f"{len(self.offsets):,} records are there, judged before the command was stopped.",
                highlight=False,
            )
        if num_damaged:
            console.print(
                f"{num_damaged:,} damaged lines of {self.path} are not used.",
                soft_wrap=True,
                highlight=False,
            )

    def held_key(self, record: Read, content: str) -> str | None:
        """Return the key under which the journal holds a record's line, None if it holds none."""
        keys = [line_key(record, content, line) for line in ({}, {"error": ""})]
        return next((key for key in keys if key in self.offsets), None)

    def add(self, lines: Sequence[Line]) -> None:
        """Append lines, each of which holds its `key`, on the first rank."""
        with self.path.open("ab") as file:
            for line in lines:
                self.offsets[line["key"]] = file.tell()
                file.write(json.dumps(line).encode() + b"\n")

    def lines(self, keys: Iterable[str]) -> Iterator[Line]:
        """Yield the line of each key."""
        with self.path.open("rb") as file:
            for key in keys:
                file.seek(self.offsets[key])
                yield json.loads(file.readline())


def _key_of(text: bytes) -> str | None:
    """Return the key of a line of a journal, None for a line that is damaged or cut off."""
    if not text.endswith(b"\n"):
        return None
    try:
        line = json.loads(text)
    except ValueError:
        return None
    if not isinstance(line, dict) or not {"scores", "error"} & line.keys():
        return None
    key = line.get("key")
    return key if isinstance(key, str) else None


def score_candidates_file(
    judge: Judge, file: RecordFile, scoring: Scoring, journal: LineJournal, console: Console
) -> list[str]:
    """Judge every record whose line the journal does not hold; all ranks must call together.

    Returns the keys of the records' lines in the order of the file, on the first rank alone.
    """
    total = len(file.rows)
    chunk_size = CHUNK * world_size()
    keys: list[str] = []
    num_judged = 0
    chunk_file = journal.path.with_name(f"{journal.path.name}.chunk")
    judgements = Journal(file=chunk_file, mark=journal.mark)
    if rank() == 0:
        journal.begin(console)
    num_before = len(journal.offsets)
    with ExitStack() as stack:
        show = stack.enter_context(showing(file.path.name, console, total)) if rank() == 0 else None
        for start in range(0, total, chunk_size):
            numbers = range(start, min(start + chunk_size, total))
            records = read_chunk(file, scoring, numbers)
            content_keys = shared_content_keys(records)
            held_keys = list(map(journal.held_key, records, content_keys))
            # A chunk is judged as a whole, so that its packed rows are the same after a kill.
            # What was judged of it before is in the journal of its judgements.
            if gather(None in held_keys)[0]:
                lines = judge_chunk(judge, records, judgements)
                num_judged += len(lines)
                held_keys = list(map(line_key, records, content_keys, lines))
                if rank() == 0:
                    keyed = zip(held_keys, lines, strict=True)
                    journal.add([{"key": key, **line} for key, line in keyed])
                    judgements.remove()
            if show is not None:
                keys += filter(None, held_keys)
                show.update(numbers.stop, num_judged)
    if rank() == 0:
        judgements.remove()  # of a chunk whose lines were written when the command was killed
        report_unused(journal, num_before, keys, console)
    return keys


def report_unused(
    journal: LineJournal, num_before: int, keys: Sequence[str], console: Console
) -> None:
    """Print how many lines of an earlier call belong to records that the file does not hold."""
    num_unused = len(journal.offsets.keys() - set(keys))
    if num_unused:
        console.print(
            f"{num_unused:,} of the {num_before:,} records that were there are not in the file as it is now and are not used.",
            highlight=False,
            soft_wrap=True,
        )


def read_chunk(file: RecordFile, scoring: Scoring, numbers: Sequence[int]) -> list[Read]:
    """Return what is read of records; the ranks agree on which cannot be, as a file may be missing for one of them."""
    read: dict[int, tuple[Candidates, Line]] = {}
    faults: dict[int, str] = {}
    for number in numbers:
        try:
            read[number] = scoring.read(file, number)
        except RecordError as error:
            faults[number] = str(error)
    for faults_of_rank in reversed(gather(faults)):
        faults.update(faults_of_rank)
    return [faults[number] if number in faults else read[number] for number in numbers]


def shared_content_keys(records: Sequence[Read]) -> list[str]:
    """Return the digests of records' contents, on all ranks; each rank reads the images of a share."""
    keys = [""] * len(records)
    own = list(map(content_key, records[rank() :: world_size()]))
    for number, keys_of_rank in enumerate(gather(own)):
        keys[number :: world_size()] = keys_of_rank
    return keys


def judge_chunk(judge: Judge, records: Sequence[Read], journal: Journal) -> list[Line]:
    """Return what comes of records; all ranks must call together."""
    batch = [record[0] for record in records if not isinstance(record, str)]
    judged = iter(scores_or_faults(judge, batch, journal))
    lines: list[Line] = []
    for record in records:
        if isinstance(record, str):
            lines.append({"error": record})
        else:
            lines.append(_line(next(judged), record[1]))
    return lines


def scores_or_faults(
    judge: Judge, batch: Sequence[Candidates], journal: Journal
) -> list[Scores | str]:
    """Return the scores of each, or the reason why there are none.

    A record that cannot be judged is found by halving, and the others are judged. An error is raised
    on all ranks together, and the journal holds what was judged before it.
    """
    if not batch:
        return []
    try:
        return list(judge.score_batch(batch, journal))
    except (RecordError, NonFiniteError) as error:
        if len(batch) == 1:
            return [str(error)]
    half = len(batch) // 2
    first_half = scores_or_faults(judge, batch[:half], journal)
    second_half = scores_or_faults(judge, batch[half:], journal)
    return first_half + second_half


def _line(judged: Scores | str, line: Line) -> Line:
    """Return what the journal of a file holds of a record; `line` holds what other columns gave."""
    if isinstance(judged, str):
        return {"error": judged}
    line = {"scores": list(judged.values), **line}
    if judged.usage.judgements:
        line["judgements"] = judged.usage.judgements
        line["unread"] = judged.usage.unread
    elif judged.texts:
        line["critiques"] = list(judged.texts)
    return line


def added(journal: LineJournal, scoring: Scoring, keys: Sequence[str]) -> Iterator[New]:
    """Yield what is added to each record; None for one without scores."""
    for line in journal.lines(keys):
        yield None if "error" in line else scoring.columns(line)


def errors(journal: LineJournal, keys: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the records without scores, with the reason."""
    for number, line in enumerate(journal.lines(keys)):
        if "error" in line:
            yield {"row": number, "error": line["error"]}
