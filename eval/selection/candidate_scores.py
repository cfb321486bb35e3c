"""Score a file of prompts with responses on all ranks, and continue after a kill.

The results go to a journal, a JSON-lines file, from which a killed command continues. The records
are judged chunk by chunk. The first line of the journal is the fingerprint of judge, settings and
code. Each further line is the result of one record, with a digest of the record's content as its
key, so that a line is never used for another record, even if the file changes between two calls.
The judgements of an unfinished chunk are kept in a journal of the judge.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from mmrm.data.errors import NonFiniteError, RecordError
from mmrm.data.preference import Response
from mmrm.data.storage.code_digest import code_digest
from mmrm.data.storage.content import shown_key
from mmrm.data.storage.files import digest, write_whole
from mmrm.eval.candidates import Candidates, Scores, Vote
from mmrm.eval.journal import Journal, ProgressBar, progress_bar
from mmrm.eval.judges.judge import Judge
from mmrm.eval.judges.messages import candidates_of
from mmrm.eval.protocol import journal_key
from mmrm.eval.selection.candidate_files import ATTRIBUTE_PREFIX, AddedColumns
from mmrm.eval.selection.candidate_records import RecordFile
from mmrm.eval.selection.score_forms import FORMS
from mmrm.eval.suite.fingerprint import SCORING_MODULES, shared_digest
from mmrm.eval.verifiers import ResponseVerifier
from mmrm.models.distributed import gather, rank, world_size

CHUNK = 128
"""Number of records for each rank that are judged together and written to the journal together."""
ResultLine = dict[str, Any]
"""The result of a record as the journal holds it: `scores` with the judge's further numbers, texts
and counts, and the verdicts of a verifier, or only the message `error`."""


@dataclass(frozen=True, slots=True)
class JudgeableRecord:
    """A record that can be judged: a prompt with responses, and the verdicts of a verifier."""

    candidates: Candidates
    verdicts: ResultLine
    """The part of the record's result that needs no judge: `right`, or nothing without a
    verifier."""


ReadRecord = JudgeableRecord | str
"""A record that can be judged, or the message of the error that occurred when it was read."""
ReadByNumber = Callable[[int], JudgeableRecord]
"""Returns the record with a number, or raises RecordError if it cannot be judged."""


@dataclass(frozen=True, slots=True)
class Scoring:
    """The settings by which columns are made of the scores of a record's responses."""

    form: str
    """A key of FORMS: the form of the column `rewards`."""
    verifier: ResponseVerifier | None
    reference: Mapping[str, Any] | None
    """`mean` and `std` of the checkpoint's scores (`reference_scores` in its config.json)."""
    clip: float | None
    """The largest size of a standardised reward; None does not clip."""

    def read_record(self, file: RecordFile, number: int) -> JudgeableRecord:
        """Return the record in the row `number` of a file, with the verdicts on its responses.

        For the form `relative`, the last of its responses is the reference answer.

        Raises:
            RecordError: If the record cannot be judged.
        """
        row = file.row(number)
        answered = file.answered_prompt(row)
        verdicts: ResultLine = {}
        try:
            if self.verifier is not None:
                verdicts["right"] = self.verifier.right(row.columns, answered.response_texts)
            reference_answer: list[Response] = []
            if self.form == "relative":
                reference_answer.append(Response.of_text(row.text("reference")))
        except RecordError as error:
            raise RecordError(f"{row.identity}: {error}") from error
        responses = [*answered.responses, *reference_answer]
        candidates = candidates_of(
            answered.turns,
            responses,
            answered.images,
            row.identity,
            [video.content for video in answered.videos],
        )
        return JudgeableRecord(candidates, verdicts)

    def columns(self, line: ResultLine) -> dict[str, Any]:
        """Return the columns to add to a record, by name, from its result `line` in the journal."""
        scores = list(line["scores"])
        arguments = {"right": line.get("right"), "clip": self.clip, **(self.reference or {})}
        if self.form == "relative":
            # `read_record` appended the reference answer, so the last score is that answer's.
            arguments["reference"] = scores.pop()
        judged = Scores(tuple(scores))
        form = FORMS[self.form]
        columns: dict[str, Any] = {
            "scores": scores,
            "order": judged.order,
            "margin": judged.margin,
        }
        for name, numbers in line.get("attributes", {}).items():
            # Without the number of a reference answer, which is the last one.
            columns[f"{ATTRIBUTE_PREFIX}{name}"] = numbers[: len(scores)]
        if self.reference is not None:
            mean = self.reference["mean"]
            std = self.reference["std"]
            columns["normalised"] = FORMS["standardised"].rewards(scores, mean, std)
        if self.form != "raw":
            needed_arguments = {name: arguments[name] for name in form.needs}
            columns["rewards"] = form.rewards(scores, **needed_arguments)
        for name in ("right", "judgements", "unread", "tokens", "comparisons"):
            if name in line:
                columns[name] = line[name]
        if "critiques" in line:
            # Without the critique of a reference answer, which is the last one.
            columns["critiques"] = line["critiques"][: len(scores)]
        return columns


def scoring_fingerprint(judge: Path, scoring: Scoring) -> str:
    """Return a digest of the judge, the settings and the code; all ranks must call together.

    The lines of a journal (the results of an earlier call) are used again only if the digest is the
    same. The digest does not depend on the records, because each line is stored under the content
    of its own record.

    Args:
        judge: A checkpoint folder or the YAML file of a judge.
        scoring: The settings of the command.
    """
    # The form `relative` judges the reference answer too. The other forms do not change the results.
    settings = [str(scoring.form == "relative"), str(scoring.verifier)]
    digest_of_code = code_digest(
        "mmrm.eval.selection.candidate_scores", *SCORING_MODULES, floors=("models", "eval")
    )
    return digest("\n".join([shared_digest(judge), digest_of_code, *settings]))


def content_key(record: ReadRecord) -> str:
    """Return a digest of a record's prompt, images, videos, responses and verdicts.

    For a record that cannot be read it is a digest of the error message, which names the row.
    """
    if isinstance(record, str):
        return shown_key((), (), (), record)
    return shown_key((), (), (), journal_key(record.candidates), record.verdicts)


def line_key(record: ReadRecord, digest_of_content: str, line: ResultLine) -> str:
    """Return the key under which a record's result `line` is stored in the journal.

    The key is the digest of the record's content. If the result is an error, the name of the row is
    appended: the error's message names the row, so it must not be used for an equal record in
    another row.
    """
    if isinstance(record, str) or "error" not in line:
        return digest_of_content
    return f"{digest_of_content}/{record.candidates.identity}"


@dataclass(slots=True)
class LineJournal:
    """The journal of a scored file: a JSON-lines file with the results of the records so far.

    Its first line is a fingerprint, and each further line is the result of one record. Only the
    first rank reads and writes it, while it holds the lock of the output. The lines may be in any
    order, and there may be lines of records that the scored file no longer holds.
    """

    path: Path
    fingerprint: str
    """The digest of judge, settings and code, as `scoring_fingerprint` returns it."""
    offsets: dict[str, int] = field(default_factory=dict)
    """The byte at which the line of each key begins. It is filled on the first rank only."""

    def begin(self, console: Console) -> None:
        """Read the keys of an existing journal, or begin a new one.

        A journal with another fingerprint is replaced by a new one. Only the first rank may call
        this.
        """
        head = json.dumps(self.fingerprint).encode() + b"\n"
        if not self.path.is_file():
            write_whole(self.path, head.decode())
            return
        num_damaged = 0
        with self.path.open("rb") as file:
            if file.readline() != head:
                console.print(
                    f"{self.path} belongs to another judge, input, option or code; all is judged "
                    "anew.",
                    soft_wrap=True,
                )
                write_whole(self.path, head.decode())
                return
            end_of_lines = len(head)
            for text in file:
                key = _key_of_line(text)
                if key is None:
                    num_damaged += 1
                else:
                    self.offsets[key] = end_of_lines
                if text.endswith(b"\n"):
                    end_of_lines += len(text)
        os.truncate(self.path, end_of_lines)  # removes a last line that a kill cut off
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

    def held_key(self, record: ReadRecord, digest_of_content: str) -> str | None:
        """Return the key of the line that the journal has for a record, or None if it has none.

        Args:
            record: The record.
            digest_of_content: The digest that `content_key` returns for the record.
        """
        # The key depends on whether the line is a result or an error, so both are looked up.
        possible_lines: tuple[ResultLine, ResultLine] = ({}, {"error": ""})
        for line in possible_lines:
            key = line_key(record, digest_of_content, line)
            if key in self.offsets:
                return key
        return None

    def add(self, lines: Sequence[ResultLine]) -> None:
        """Append the results of records, each with its `key`. Only the first rank may call this."""
        with self.path.open("ab") as file:
            for line in lines:
                self.offsets[line["key"]] = file.tell()
                file.write(json.dumps(line).encode() + b"\n")

    def lines(self, keys: Iterable[str]) -> Iterator[ResultLine]:
        """Yield the record's result that is stored under each key, in the order of the keys."""
        with self.path.open("rb") as file:
            for key in keys:
                file.seek(self.offsets[key])
                yield json.loads(file.readline())


def _key_of_line(text: bytes) -> str | None:
    """Return the key of a line of the journal, or None if the line is damaged or cut off."""
    if not text.endswith(b"\n"):
        return None
    try:
        line = json.loads(text)
    except ValueError:
        return None
    is_result = isinstance(line, dict) and ("scores" in line or "error" in line)
    if not is_result:
        return None
    key = line.get("key")
    return key if isinstance(key, str) else None


def score_candidates_file(
    judge: Judge, file: RecordFile, scoring: Scoring, journal: LineJournal, console: Console
) -> list[str]:
    """Judge the records of a file that have no result in the journal yet, and add their results.

    All ranks must call together. The result is that of `score_records`.
    """
    read = partial(scoring.read_record, file)
    return score_records(judge, len(file.rows), read, file.path.name, journal, console)


def score_records(
    judge: Judge,
    num_records: int,
    read: ReadByNumber,
    title: str,
    journal: LineJournal,
    console: Console,
) -> list[str]:
    """Judge records that have no result in the journal yet, and add their results to it.

    All ranks must call together.

    Args:
        judge: The judge.
        num_records: The number of records.
        read: Returns the record with a number from 0 on, or raises RecordError.
        title: The text before the figures of the progress.
        journal: The journal.
        console: The console for the progress and for remarks.

    Returns:
        The keys of the results in the journal, in the order of the records. On ranks other than the
        first the list is empty.
    """
    chunk_size = CHUNK * world_size()
    keys: list[str] = []
    num_judged = 0
    chunk_file = journal.path.with_name(f"{journal.path.name}.chunk")
    chunk_journal = Journal(file=chunk_file, fingerprint=journal.fingerprint)
    is_first_rank = rank() == 0
    if is_first_rank:
        journal.begin(console)
    num_before = len(journal.offsets)
    with ExitStack() as stack:
        progress: ProgressBar | None = None
        if is_first_rank:
            progress = stack.enter_context(progress_bar(title, console, num_records))
        for start in range(0, num_records, chunk_size):
            numbers = range(start, min(start + chunk_size, num_records))
            records = read_chunk(read, numbers)
            content_keys = shared_content_keys(records)
            held_keys = list(map(journal.held_key, records, content_keys))
            # Only the first rank knows the journal, so it decides for all ranks. All records of a
            # chunk are judged again if one result is missing, so that the packed rows are the same
            # as in an uninterrupted run. Finished judgements are read from the chunk's journal.
            is_incomplete = gather(None in held_keys)[0]
            if is_incomplete:
                lines = judge_chunk(judge, records, chunk_journal)
                num_judged += len(lines)
                held_keys = list(map(line_key, records, content_keys, lines))
                if is_first_rank:
                    keyed_lines = zip(held_keys, lines, strict=True)
                    journal.add([{"key": key, **line} for key, line in keyed_lines])
                    chunk_journal.remove()
            if progress is not None:
                keys += filter(None, held_keys)
                progress.update(numbers.stop, num_judged)
    if is_first_rank:
        # A kill between `add` and `remove` leaves the journal of a finished chunk.
        chunk_journal.remove()
        print_number_of_unused_lines(journal, num_before, keys, console)
    return keys


def print_number_of_unused_lines(
    journal: LineJournal, num_before: int, keys: Sequence[str], console: Console
) -> None:
    """Print how many of the journal's results belong to records that the scored file does not hold.

    Args:
        journal: The journal, after the file was judged.
        num_before: The number of results in the journal before the file was judged.
        keys: The keys of the results of the file's records.
        console: The console. Nothing is printed if all results are used.
    """
    num_unused = len(journal.offsets.keys() - set(keys))
    if num_unused:
        console.print(
            f"{num_unused:,} of the {num_before:,} records that were there are not in the file as "
            "it is now and are not used.",
            highlight=False,
            soft_wrap=True,
        )


def read_chunk(read: ReadByNumber, numbers: Sequence[int]) -> list[ReadRecord]:
    """Return the records with some numbers, as `read` reads them; all ranks must call together.

    A record that one rank cannot read, for example because an image is missing there, is an error
    message on all ranks.
    """
    record_by_number: dict[int, JudgeableRecord] = {}
    message_by_number: dict[int, str] = {}
    for number in numbers:
        try:
            record_by_number[number] = read(number)
        except RecordError as error:
            message_by_number[number] = str(error)
    # The first rank is merged last: of several messages about a record, all ranks take its message.
    for messages_of_rank in reversed(gather(message_by_number)):
        message_by_number.update(messages_of_rank)
    records: list[ReadRecord] = []
    for number in numbers:
        if number in message_by_number:
            records.append(message_by_number[number])
        else:
            records.append(record_by_number[number])
    return records


def shared_content_keys(records: Sequence[ReadRecord]) -> list[str]:
    """Return the `content_key` of each record on all ranks, which must call together.

    Each rank computes a share of the keys, because the images have to be read for them.
    """
    keys = [""] * len(records)
    keys_of_this_rank = list(map(content_key, records[rank() :: world_size()]))
    for number, keys_of_rank in enumerate(gather(keys_of_this_rank)):
        keys[number :: world_size()] = keys_of_rank
    return keys


def judge_chunk(judge: Judge, records: Sequence[ReadRecord], journal: Journal) -> list[ResultLine]:
    """Judge records, and return the result of each; all ranks must call together.

    A record that could not be read has its error message as result. `journal` keeps the judgements
    that are finished if the command is killed.
    """
    batch = [record.candidates for record in records if not isinstance(record, str)]
    remaining_scores = iter(scores_or_messages(judge, batch, journal))
    lines: list[ResultLine] = []
    for record in records:
        if isinstance(record, str):
            lines.append({"error": record})
        else:
            lines.append(_result_line(next(remaining_scores), record.verdicts))
    return lines


def scores_or_messages(
    judge: Judge, batch: Sequence[Candidates], journal: Journal
) -> list[Scores | str]:
    """Return for each prompt of a batch the scores, or an error message if it cannot be judged.

    If the batch fails, its halves are judged separately, and so on, until each failing prompt is
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
    first_half = scores_or_messages(judge, batch[:half], journal)
    second_half = scores_or_messages(judge, batch[half:], journal)
    return first_half + second_half


def _result_line(scores_or_message: Scores | str, verdicts: ResultLine) -> ResultLine:
    """Return the result of a record for the journal, from its scores or an error message.

    `verdicts` is the part of the result that needs no judge: `right`, or nothing without a
    verifier.
    """
    if isinstance(scores_or_message, str):
        return {"error": scores_or_message}
    scores = scores_or_message
    line: ResultLine = {"scores": list(scores.values), **verdicts}
    if scores.attributes:
        line["attributes"] = {name: list(values) for name, values in scores.attributes.items()}
    # A judge that compares makes judgements. A critic's texts are critiques of each response.
    if scores.usage.judgements:
        line["judgements"] = scores.usage.judgements
        line["unread"] = scores.usage.unread
        line["tokens"] = scores.usage.tokens
        if scores.votes:
            line["comparisons"] = [comparison_columns(vote) for vote in scores.votes]
    elif scores.texts:
        line["critiques"] = list(scores.texts)
    return line


def comparison_columns(vote: Vote) -> dict[str, Any]:
    """Return a vote as an element of the column `comparisons`.

    It is {shown, named, probability}: the indices of the two responses in the order in which the
    judge saw them, the index of the one that it named (null if it named none), and the probability
    that the first one is better (null unless verdicts are read as probabilities).
    """
    probability = None if vote.soft is None else vote.soft.first
    return {"shown": list(vote.shown), "named": vote.named, "probability": probability}


def columns_to_add(
    journal: LineJournal, scoring: Scoring, keys: Sequence[str]
) -> Iterator[AddedColumns]:
    """Yield the columns to add to each record, or None for a record without scores.

    Args:
        journal: The journal with the results of the records.
        scoring: The settings by which the columns are made.
        keys: The keys of the results, in the order of the records.
    """
    for line in journal.lines(keys):
        yield None if "error" in line else scoring.columns(line)


def record_errors(journal: LineJournal, keys: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the row number and the error message of each record without scores.

    `keys` are the keys of the results in the journal, in the order of the records.
    """
    for number, line in enumerate(journal.lines(keys)):
        if "error" in line:
            yield {"row": number, "error": line["error"]}
