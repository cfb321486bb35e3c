"""Score a file of prompts with responses on all ranks, with a journal from which a killed run continues.

The records are judged chunk by chunk. The first line of the journal is the fingerprint of judge, settings
and code. Each further line is the result of one record, with a digest of the record's content as its
key, so that a line is never used for another record, even if the file changes between two calls. The
judgements of an unfinished chunk are kept in the judge's own journal.
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
from mmrm.eval.suite.fingerprint import SCORING_MODULES, shared_digest
from mmrm.eval.verifiers import Verifying
from mmrm.models.distributed import gather, rank, world_size

CHUNK = 128
"""Number of records for each rank that are judged together and written to the journal together."""
Line = dict[str, Any]
"""The result of a record: `scores` with what the judge wrote, or the message `error`."""
Read = tuple[Candidates, Line] | str
"""The responses to judge and the values for the record's line that need no judge; or an error message."""


@dataclass(frozen=True, slots=True)
class Scoring:
    """The settings by which columns are made of the scores of a record's responses."""

    form: str
    verifying: Verifying | None
    reference: Mapping[str, Any] | None
    """`mean` and `std` of the checkpoint's scores (`reference_scores` in its config.json)."""
    clip: float | None

    def read(self, file: RecordFile, number: int) -> tuple[Candidates, Line]:
        """Return the responses of a record to judge, and the verdicts on them for the record's line.

        Raises:
            RecordError: If the record cannot be judged.
        """
        row = file.row(number)
        answered = file.answered(row)
        line: Line = {}
        try:
            if self.verifying is not None:
                line["right"] = self.verifying.right(row.columns, answered.responses)
            reference_answer = [row.text("reference")] if self.form == "relative" else []
        except RecordError as error:
            raise RecordError(f"{row.identity}: {error}") from error
        responses = [*answered.responses, *reference_answer]
        return candidates_of(answered.turns, responses, answered.images, row.identity), line

    def columns(self, line: Line) -> dict[str, Any]:
        """Return the columns to add to a record whose line in the journal is `line`."""
        scores = list(line["scores"])
        context = {"right": line.get("right"), "clip": self.clip, **(self.reference or {})}
        if self.form == "relative":
            context["reference"] = scores.pop()
        judged = Scores(tuple(scores))
        form = FORMS[self.form]
        columns: dict[str, Any] = {
            "scores": scores,
            "order": judged.order,
            "margin": judged.margin,
        }
        if self.reference is not None:
            columns["normalised"] = FORMS["standardised"].of(
                scores, self.reference["mean"], self.reference["std"]
            )
        if self.form != "raw":
            needed = {name: context[name] for name in form.needs}
            columns["rewards"] = form.of(scores, **needed)
        for name in ("right", "judgements", "unread"):
            if name in line:
                columns[name] = line[name]
        if "critiques" in line:
            columns["critiques"] = line["critiques"][: len(scores)]
        return columns


def fingerprint(judge: Path, scoring: Scoring) -> str:
    """Return a digest of the judge, the settings and the code; all ranks must call together.

    The lines of a journal are used again only if the digest is the same. The records are not part of
    it, because each line is stored under the content of its own record.
    """
    settings = [str(scoring.form == "relative"), str(scoring.verifying)]
    code = code_digest(
        "mmrm.eval.selection.candidate_scores", *SCORING_MODULES, floors=("models", "eval")
    )
    return digest("\n".join([shared_digest(judge), code, *settings]))


def content_key(record: Read) -> str:
    """Return a digest of a record's prompt, images, responses and verdicts.

    For a record that cannot be read it is a digest of the error message, which names the row.
    """
    if isinstance(record, str):
        return shown_key((), (), (), record)
    candidates, line = record
    return shown_key((), (), (), journal_key(candidates), line)


def line_key(record: Read, content: str, line: Line) -> str:
    """Return the key of a record's line: the digest `content`, and the row's name if the line is an error.

    The message of an error names the row, so it must not be used for an equal record in another row.
    """
    if isinstance(record, str) or "error" not in line:
        return content
    return f"{content}/{record[0].identity}"


@dataclass(slots=True)
class LineJournal:
    """The journal of a scored file: a line with the fingerprint, then one line for each judged record.

    Only the first rank reads and writes it, while it holds the lock of the output. The lines may be in
    any order, and there may be lines of records that the file no longer holds.
    """

    path: Path
    mark: str
    offsets: dict[str, int] = field(default_factory=dict)
    """The byte at which the line of each key begins. It is filled on the first rank only."""

    def begin(self, console: Console) -> None:
        """Read the keys of an existing journal, or begin a new one. Called on the first rank only."""
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
        os.truncate(self.path, end)  # removes a last line that a kill cut off
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
        """Return the key of the line that the journal has for a record, or None if it has none."""
        empty_lines: tuple[Line, Line] = ({}, {"error": ""})
        for line in empty_lines:
            key = line_key(record, content, line)
            if key in self.offsets:
                return key
        return None

    def add(self, lines: Sequence[Line]) -> None:
        """Append lines, each of which holds its `key`. Called on the first rank only."""
        with self.path.open("ab") as file:
            for line in lines:
                self.offsets[line["key"]] = file.tell()
                file.write(json.dumps(line).encode() + b"\n")

    def lines(self, keys: Iterable[str]) -> Iterator[Line]:
        """Yield the line of each key, in the order of the keys."""
        with self.path.open("rb") as file:
            for key in keys:
                file.seek(self.offsets[key])
                yield json.loads(file.readline())


def _key_of(text: bytes) -> str | None:
    """Return the key of a line of a journal, or None if the line is damaged or cut off."""
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
    """Judge every record of a file that has no line in the journal yet; all ranks must call together.

    Returns the keys of the records' lines in the order of the file. On ranks other than the first the
    list is empty.
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
            # All records of a chunk are judged again if one line is missing, so that the packed rows
            # are the same as in an uninterrupted run. Finished judgements are read from `judgements`.
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
        judgements.remove()  # those of a chunk whose lines were written when the command was killed
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
    """Read the records with these row numbers, on all ranks.

    A record that one rank cannot read, for example because an image is missing there, is an error
    message on all ranks.
    """
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
    """Return the content key of each record, on all ranks. Each rank computes a share of the keys."""
    keys = [""] * len(records)
    own = list(map(content_key, records[rank() :: world_size()]))
    for number, keys_of_rank in enumerate(gather(own)):
        keys[number :: world_size()] = keys_of_rank
    return keys


def judge_chunk(judge: Judge, records: Sequence[Read], journal: Journal) -> list[Line]:
    """Judge records, and return the line of each for the journal; all ranks must call together."""
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
    """Return for each record of a batch its scores, or the error message if it cannot be judged.

    If the batch fails, its halves are judged separately, and so on, until the failing records are
    alone. Other errors than RecordError and NonFiniteError are raised. An error occurs on all ranks
    together, and `journal` holds the judgements that were made before it.
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
    """Return the line of a record for the journal, from its scores or its error message.

    `line` holds the values that need no judge, such as the verdicts of a verifier.
    """
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
    """Yield the columns to add to each record, or None for a record without scores."""
    for line in journal.lines(keys):
        yield None if "error" in line else scoring.columns(line)


def errors(journal: LineJournal, keys: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the row number and the error message of each record without scores."""
    for number, line in enumerate(journal.lines(keys)):
        if "error" in line:
            yield {"row": number, "error": line["error"]}
