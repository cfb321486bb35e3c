"""Annotate preference records with rationales, for eval/annotate.py.

A rationale is a text that compares both responses and names the right one. Two files are written
line by line: the annotated records in this project's own format, and next to them a journal with
one line for every record that was tried, which eval/select_pairs.py reads. A record is finished
once its line is in the journal, so a kill loses only the records that are judged together with the
one in progress. Replies of an endpoint are in its cache besides, so that none is asked for again.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from mmrm.data.errors import UserError
from mmrm.data.markers import stray_marker
from mmrm.data.preference import Preference
from mmrm.data.preparation.mixing import Mixture
from mmrm.data.prompts import read_judgement, write_judgement
from mmrm.data.rationales import with_chosen_first
from mmrm.data.sources.project import project_row
from mmrm.data.storage.content import record_key
from mmrm.data.storage.files import digest
from mmrm.eval.annotation.pair_annotator import PairAnnotator, PairJudgement, ShownPair
from mmrm.eval.candidates import Side
from mmrm.eval.journal import ProgressBar
from mmrm.eval.protocol import draw_side

Failures = Literal["drop", "keep"]
"""The treatment of a record for which no try was right: `drop` leaves it out of the file, and
`keep` writes it without a rationale."""


def difficulty_of(tries: int, *, right: bool) -> int:
    """Return the difficulty of a pair: the tries that were made, and one more if none was right."""
    return tries if right else tries + 1


@dataclass(frozen=True, slots=True)
class Annotation:
    """The outcome of asking a model which response of a record is better."""

    rationale: str | None
    """The rationale of the try that named the right response; None if no try did."""
    tries: int
    """The number of tries that were made."""
    first: Literal["chosen", "rejected"] = "chosen"
    """The response that the rationale calls Response 1."""
    disagreeing: int = 0
    """The number of tries whose two orders name different responses."""
    unreadable: int = 0
    """The number of judgements without a readable verdict."""
    unusable: int = 0
    """The number of tries that were right, but without a reasoning that can be learned."""

    @property
    def difficulty(self) -> int:
        """The difficulty of the pair."""
        return difficulty_of(self.tries, right=self.rationale is not None)


@dataclass(frozen=True, slots=True)
class Annotator:
    """Asks a model which response of a record is better, until its judgement is right.

    It makes at most one try for each temperature.
    """

    model: PairAnnotator
    temperatures: Sequence[float] = (0.0, 0.5, 1.0)
    agree: bool = False
    """Every try shows the responses in both orders, and is right only if both judgements are."""
    seed: int = 0

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that decide the annotations."""
        settings = {**self.model.settings, "temperatures": list(self.temperatures)}
        if self.agree:
            settings["agree"] = True
        return settings

    def __call__(self, records: Sequence[Preference]) -> list[Annotation]:
        """Ask the model about some records, and return an annotation for each.

        The order of the responses of a record is drawn at random, the same in every run. With
        `agree`, the rationale is that of the drawn order if it can be learned. The model is not
        asked again about a record that it has judged rightly.

        Raises:
            EndpointError: If an endpoint does not reply.
        """
        annotations = [Annotation(rationale=None, tries=0)] * len(records)
        orders = [self._orders(record) for record in records]
        for try_number, temperature in enumerate(self.temperatures, start=1):
            pending = [
                index
                for index, annotation in enumerate(annotations)
                if annotation.rationale is None
            ]
            if not pending:
                break
            pairs = [ShownPair(records[index], orders[index]) for index in pending]
            judgements_by_pair = self.model.judge(pairs, temperature, self.seed + try_number)
            for index, judgements in zip(pending, judgements_by_pair, strict=True):
                annotations[index] = after_try(annotations[index], orders[index], judgements)
        return annotations

    def _orders(self, record: Preference) -> tuple[Side, ...]:
        """Return the position of the chosen response in each judgement of a try on a record."""
        drawn = draw_side(self.seed, record.identity, 0)
        if not self.agree:
            return (drawn,)
        return (0, 1) if drawn == 0 else (1, 0)


def after_try(
    annotation: Annotation, sides: Sequence[Side], judgements: Sequence[PairJudgement]
) -> Annotation:
    """Return an annotation with one more try.

    The try is right if every judgement names the chosen response, and one of them has a reasoning
    that can be learned.

    Args:
        annotation: The annotation after the tries before.
        sides: The position of the chosen response in each judgement of the try.
        judgements: The judgements of the try.
    """
    num_unreadable = sum(judgement.named is None for judgement in judgements)
    is_right_by_order = [
        judgement.named == side for side, judgement in zip(sides, judgements, strict=True)
    ]
    is_readable = num_unreadable == 0
    is_disagreeing = is_readable and len(set(is_right_by_order)) > 1
    tried = replace(
        annotation,
        tries=annotation.tries + 1,
        disagreeing=annotation.disagreeing + is_disagreeing,
        unreadable=annotation.unreadable + num_unreadable,
    )
    if not all(is_right_by_order):
        return tried
    for side, judgement in zip(sides, judgements, strict=True):
        if can_be_learned(judgement.rationale):
            # Training shows the chosen response first if the texts can be rewritten so.
            rationale, first = with_chosen_first(judgement.rationale, winner=side + 1)
            return replace(tried, rationale=rationale, first=first)
    return replace(tried, unusable=annotation.unusable + 1)


def can_be_learned(rationale: str) -> bool:
    """Return True if a cold start can learn a judgement with this rationale.

    Training refuses texts with a marker such as `<image>`, and a judgement whose rationale holds
    think or answer tags could not be read.
    """
    if not rationale or stray_marker(rationale) is not None:
        return False
    return read_judgement(write_judgement(rationale, 1)).answer == 1


def journal_file_of(records: Path) -> Path:
    """Return the path of the journal of a file of annotated records.

    The journal is a file of JSON lines with one line for each record that was tried: its index,
    identity and source, the digests of its content and of the settings, the number of tries,
    whether a try was right, the counts of `Annotation`, and the number of records that were written
    to the file of records so far.

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
            is_of_earlier_version = key is None or "disagreeing" not in line
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise UserError(
                f"{path}, line {number}: this is no line of a journal ({type(error).__name__}: "
                f"{error}). Restore the file, or move it and the annotated records away to begin "
                "again."
            ) from error
        if is_of_earlier_version:
            raise UserError(
                f"{path}, line {number} ({identity}): this journal was written by an earlier "
                "version, which did not note the content of a record, or why tries failed. Move it "
                "and the annotated records away to begin again; answers that are in the endpoint's "
                "cache are not asked for again."
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
    indices: Sequence[int],
    annotator: Callable[[Sequence[Preference]], list[Annotation]],
    path: Path,
    failures: Failures,
    settings: Mapping[str, Any] = MappingProxyType({}),
    records_together: int = 1,
    progress: ProgressBar | None = None,
) -> int:
    """Annotate the records that are not in the journal yet, and return their number.

    The annotated records are appended to `path`, and a line for each record to its journal. The
    caller holds the lock of the journal. If the annotator raises an error, the records that were
    annotated before it are kept.

    Args:
        records: The records of the recipe.
        indices: The indices of the records to annotate.
        annotator: The function that asks a model about some records.
        path: The file for the annotated records.
        failures: The treatment of a record for which no try was right.
        settings: The model and all other settings that decide the rationales.
        records_together: The number of records that the model is asked about in one call.
        progress: Shows how many of `indices` are done.

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
    pending = [index for index in indices if index not in indices_in_journal]
    num_before = len(indices) - len(pending)
    for start in range(0, len(pending), records_together):
        chunk = pending[start : start + records_together]
        chunk_records = [records[index] for index in chunk]
        annotations = annotator(chunk_records)
        for index, record, annotation in zip(chunk, chunk_records, annotations, strict=True):
            is_right = annotation.rationale is not None
            if is_right or failures == "keep":
                annotated = replace(
                    record,
                    first_in_rationale=annotation.first,
                    difficulty=annotation.difficulty,
                )
                append_json_line(path, project_row(annotated, annotation.rationale))
                num_written += 1
            journal_line = {
                "index": index,
                "identity": record.identity,
                "source": record.source,
                "record": record_key(record),
                "settings": digest_of_settings,
                "tries": annotation.tries,
                "right": is_right,
                "disagreeing": annotation.disagreeing,
                "unreadable": annotation.unreadable,
                "unusable": annotation.unusable,
                "written": num_written,
            }
            append_json_line(journal, journal_line)
        if progress is not None:
            num_now = start + len(chunk)
            progress.update(num_before + num_now, num_now)
    return len(pending)


def append_json_line(path: Path, row: Mapping[str, Any]) -> None:
    """Append a row to a file of JSON lines; the file is made if it does not exist."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")
