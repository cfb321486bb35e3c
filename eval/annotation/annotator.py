"""Annotate preference records with rationales, for eval/annotate.py.

A rationale is a text that compares both responses and names the right one. Two files are written
line by line: the annotated records in this project's own format, and next to them a journal with
one line for every record that was tried, which eval/select_pairs.py reads. A record is finished
once its line is in the journal, so a kill loses one record at most.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from mmrm.data.errors import UserError
from mmrm.data.markers import stray_marker
from mmrm.data.preference import Preference
from mmrm.data.preparation.mixing import Mixture
from mmrm.data.prompts import TEMPLATES, JudgeTemplate, judge_conversation
from mmrm.data.rationales import with_chosen_first
from mmrm.data.sources.project import project_row
from mmrm.data.storage.content import record_key
from mmrm.data.storage.files import digest
from mmrm.eval.judges.endpoint.client import Answer, messages
from mmrm.eval.protocol import draw_side

Failures = Literal["drop", "keep"]
"""The treatment of a record for which no try was right: `drop` leaves it out of the file, and
`keep` writes it without a rationale."""

Complete = Callable[[Mapping[str, Any]], Answer]
"""Sends a chat request and returns the reply, as `Client.answer` in
`mmrm.eval.judges.endpoint.client` does."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """The outcome of asking a model which response of a record is better."""

    rationale: str | None
    """The rationale of the try that named the right response; None if no try did."""
    tries: int
    """The number of tries that were made."""
    first: Literal["chosen", "rejected"] = "chosen"
    """The response that the rationale calls Response 1."""


@dataclass(frozen=True, slots=True)
class Annotator:
    """Asks a model which response of a record is better, until its answer is right.

    It makes at most one try for each temperature.
    """

    complete: Complete
    """The function that sends a request to the model."""
    model: str
    template: JudgeTemplate = "r1_reward"
    temperatures: Sequence[float] = (0.0, 0.5, 1.0)
    max_tokens: int = 2048
    seed: int = 0

    def __call__(self, record: Preference) -> Annotation:
        """Ask the model about a record, and return the first reasoning with the right answer.

        The order of the responses is drawn at random, the same in every run. A reasoning with a
        marker such as `<image>` counts as a failed try, because training refuses such texts.

        Raises:
            EndpointError: If the endpoint does not reply.
        """
        chosen_position = draw_side(self.seed, record.identity, 0)  # 0 or 1
        right_answer = chosen_position + 1  # the model numbers the responses 1 and 2
        responses = [record.chosen, record.rejected]
        if chosen_position == 1:
            responses.reverse()
        question = judge_conversation(self.template, record.prompt, *responses)
        images = list(record.images)
        videos = list(record.videos)
        for response in responses:
            images += response.images
            videos += response.videos
        chat = messages(question, images, videos, record.identity)
        for try_number, temperature in enumerate(self.temperatures, start=1):
            body = {
                "model": self.model,
                "messages": chat,
                "temperature": temperature,
                "max_tokens": self.max_tokens,
                "seed": self.seed + try_number,
            }
            reply = self.complete(body)
            judgement = TEMPLATES[self.template].form.read(reply.text)
            rationale = (judgement.reasoning or "").strip()
            can_be_learned = bool(rationale) and stray_marker(rationale) is None
            if judgement.answer == right_answer and can_be_learned:
                # Training shows the chosen response first if the texts can be rewritten so.
                rewritten, first_in_rationale = with_chosen_first(rationale, winner=right_answer)
                return Annotation(rewritten, try_number, first_in_rationale)
        return Annotation(None, len(self.temperatures))


def journal_file_of(records: Path) -> Path:
    """Return the path of the journal of a file of annotated records.

    The journal is a file of JSON lines with one line for each record that was tried: its index and
    identity, the digests of its content and of the settings, the number of tries, whether a try was
    right, and the number of records that were written to the file of records so far.

    Raises:
        UserError: If the path has no name, as `.`.
    """
    if not records.name:
        raise UserError(f"the file of annotated records {str(records)!r} has no name. Name a file.")
    return records.with_suffix(".journal.jsonl")


def settings_digest(settings: Mapping[str, Any]) -> str:
    """Return a digest of the settings that decide the requests and the written records."""
    return digest(json.dumps(settings, sort_keys=True, default=str))


def read_journal(path: Path, records: Mixture) -> list[dict[str, Any]]:
    """Return the complete lines of a journal; empty if there is no journal.

    A last line that a kill cut off is left out. Every line has the index of a record, and is
    compared with this record of `records`: by content, images included, because other records may
    have the same identities.

    Raises:
        UserError: If a line is damaged, or belongs to another record.
    """
    lines = []
    for number, line_bytes in enumerate(_complete_lines(path), start=1):
        try:
            line = json.loads(line_bytes)
            index = line["index"]
            identity = line["identity"]
            key = line.get("record")
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise UserError(
                f"{path}, line {number}: this is no line of a journal ({type(error).__name__}: "
                f"{error}). Restore the file, or move it and the annotated records away to begin "
                "again."
            ) from error
        if key is None:
            raise UserError(
                f"{path}, line {number} ({identity}): this journal was written by an earlier "
                "version, which did not note what a record holds, so that it may be of other "
                "records. Move it and the annotated records away to begin again; answers that are "
                "in the endpoint's cache are not asked for again."
            )
        if index >= len(records) or record_key(records[index]) != key:
            raise UserError(
                f"{path}, line {number}: the journal's record {index} is {identity}, which is not "
                "that record of this recipe: its texts or images differ. Use the recipe and the "
                "data that the journal was written with, or another output file."
            )
        lines.append(line)
    return lines


def _complete_lines(path: Path) -> list[bytes]:
    """Return the complete lines of a file, without a last line that a kill cut off.

    Returns an empty list if there is no file.
    """
    content = path.read_bytes() if path.exists() else b""
    end = content.rfind(b"\n") + 1
    return content[:end].splitlines()


def _cut_off_incomplete_line(path: Path) -> None:
    """Remove a last line that a kill cut off from a file; the file may not exist."""
    content = path.read_bytes() if path.exists() else b""
    end = content.rfind(b"\n") + 1
    if end < len(content):
        path.write_bytes(content[:end])


def _keep_counted_lines(path: Path, num_written: int) -> None:
    """Cut a file of records after its first `num_written` lines.

    A kill may have left one line more than its journal counts.

    Args:
        path: The file of records, which may not exist yet.
        num_written: The number of records in the file according to its journal.

    Raises:
        UserError: If the file holds fewer lines, because the missing records would be lost.
    """
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    if len(lines) < num_written:
        raise UserError(
            f"{path} holds {len(lines):,} records, and its journal {journal_file_of(path)} knows of "
            f"{num_written:,} that were written there. Put the file back, or move the journal away "
            "to annotate everything again."
        )
    if path.exists():
        path.write_bytes(b"".join(lines[:num_written]))


def annotate(
    records: Mixture,
    indices: Iterable[int],
    annotator: Callable[[Preference], Annotation],
    path: Path,
    failures: Failures,
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> int:
    """Annotate the records that are not in the journal yet, and return their number.

    The annotated records are appended to `path`, and a line for each record to its journal. The
    caller holds the lock of the journal. If the annotator raises an error, the records that were
    annotated before it are kept.

    Args:
        records: The records of the recipe.
        indices: The indices of the records to annotate.
        annotator: The function that asks a model about a record.
        path: The file for the annotated records.
        failures: The treatment of a record for which no try was right.
        settings: The model and all other settings that decide the rationales.

    Raises:
        UserError: If the journal belongs to other records or other settings.
    """
    journal = journal_file_of(path)
    digest_of_settings = settings_digest({**settings, "failures": failures})
    _cut_off_incomplete_line(journal)
    lines = read_journal(journal, records)
    if any(line.get("settings") != digest_of_settings for line in lines):
        settings_text = ", ".join(f"{name} {value}" for name, value in settings.items())
        raise UserError(
            f"{journal} was written with other settings than {settings_text or 'these'} and "
            f"failures {failures}. Rationales of two settings do not belong in one file: give the "
            "settings as they were, or another output file."
        )
    num_written = lines[-1]["written"] if lines else 0
    _keep_counted_lines(path, num_written)
    indices_in_journal = {line["index"] for line in lines}
    num_annotated = 0
    for index in indices:
        if index in indices_in_journal:
            continue
        record = records[index]
        annotation = annotator(record)
        is_right = annotation.rationale is not None
        if is_right or failures == "keep":
            annotated = replace(record, first_in_rationale=annotation.first)
            append_json_line(path, project_row(annotated, annotation.rationale))
            num_written += 1
        journal_line = {
            "index": index,
            "identity": record.identity,
            "record": record_key(record),
            "settings": digest_of_settings,
            "tries": annotation.tries,
            "right": is_right,
            "written": num_written,
        }
        append_json_line(journal, journal_line)
        num_annotated += 1
    return num_annotated


def append_json_line(path: Path, row: Mapping[str, Any]) -> None:
    """Append a row to a file of JSON lines; the file is made if it does not exist."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")
