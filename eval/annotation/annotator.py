"""Annotating preference records with rationales: what eval/annotate.py does, and the journal that eval/select_pairs.py reads.

Two files are written line by line: the records in this project's own format, and beside them a journal with one line for
every record that was looked at. A record counts as done once its line is in the journal, so a kill loses one record at most.
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
from mmrm.data.prompts import JudgeTemplate, ask, read
from mmrm.data.rationales import with_chosen_first
from mmrm.data.sources.project import as_row
from mmrm.data.storage.content import record_key
from mmrm.data.storage.files import digest
from mmrm.eval.judges.endpoint.client import Answer, messages
from mmrm.eval.protocol import draw

Failures = Literal["drop", "keep"]
"""What becomes of a record that no try got right: it is left out, or written without a rationale."""

Complete = Callable[[Mapping[str, Any]], Answer]
"""Sends a chat request and returns the reply; see `mmrm.eval.judges.endpoint.client.Client.answer`."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """What came of a record."""

    rationale: str | None
    """The rationale of the try that named the right response; None if no try did."""
    tries: int
    first: Literal["chosen", "rejected"] = "chosen"
    """Which response the rationale calls Response 1."""


@dataclass(frozen=True, slots=True)
class Annotator:
    """Asks a model which response is better until it says the right one, at most once for each temperature."""

    complete: Complete
    model: str
    template: JudgeTemplate = "r1_reward"
    temperatures: Sequence[float] = (0.0, 0.5, 1.0)
    max_tokens: int = 2048
    seed: int = 0

    def __call__(self, record: Preference) -> Annotation:
        """Return the first reasoning that ends with the right answer.

        Raises EndpointError as the endpoint does. A reasoning with a marker such as `<image>`
        counts as a failed try, since training refuses it.
        """
        side = draw(self.seed, record.identity, 0)
        shown = (record.chosen, record.rejected) if side == 0 else (record.rejected, record.chosen)
        asked = messages(ask(self.template, record.prompt, *shown), record.images, record.identity)
        for number, temperature in enumerate(self.temperatures, start=1):
            body = {
                "model": self.model,
                "messages": asked,
                "temperature": temperature,
                "max_tokens": self.max_tokens,
            }
            found = read(self.complete({**body, "seed": self.seed + number}).text)
            rationale = (found.reasoning or "").strip()
            can_be_learned = bool(rationale) and stray_marker(rationale) is None
            if found.answer == side + 1 and can_be_learned:
                written, first = with_chosen_first(rationale, winner=side + 1)
                return Annotation(written, number, first)
        return Annotation(None, len(self.temperatures))


def journal_of(records: Path) -> Path:
    """Return the journal of a file of records.

    It has one line a record: its index and identity, the digest of its content, that of the settings it was annotated with, the
    tries, whether it was got right, and the lines of records so far.
    """
    return records.with_suffix(".journal.jsonl")


def settings_digest(settings: Mapping[str, Any]) -> str:
    """Return a digest of everything that decides what is asked about a record and what is written of it."""
    return digest(json.dumps(settings, sort_keys=True, default=str))


def read_journal(path: Path, records: Mixture) -> list[dict[str, Any]]:
    """Return a journal's whole lines. A last line that a kill cut off does not count.

    Raises: UserError if a line is damaged, or its record is not the one that `records` has under its index. Every line is
    compared by content, images included: other records may have the same identities.
    """
    content = path.read_bytes() if path.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    lines = []
    for number, text in enumerate(whole.splitlines(), start=1):
        try:
            line = json.loads(text)
            index = line["index"]
            identity = line["identity"]
            key = line.get("record")
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise UserError(
                f"{path}, line {number}: this is no line of a journal ({type(error).__name__}: {error}). Restore the file, or "
                "move it and the annotated records away to begin again."
            ) from error
        if key is None:
            raise UserError(
                f"{path}, line {number} ({identity}): this journal was written by an earlier version, which did not note what "
                "a record holds, so that it may be of other records. Move it and the annotated records away to begin again; "
                "answers that are in the endpoint's cache are not asked for again."
            )
        if index >= len(records) or record_key(records[index]) != key:
            raise UserError(
                f"{path}, line {number}: the journal's record {index} is {identity}, which is not that record of this recipe: "
                "its texts or images differ. Use the recipe and the data that the journal was written with, or another output "
                "file."
            )
        lines.append(line)
    return lines


def cut_off_unfinished_line(path: Path) -> int:
    """Remove what a kill left of a last line from a file; return the number of bytes removed."""
    content = path.read_bytes() if path.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        path.write_bytes(whole)
    return len(content) - len(whole)


def keep_written_lines(path: Path, written: int) -> None:
    """Cut a file of records down to the lines that its journal knows; a kill may have left one more.

    Raises: UserError if the file holds fewer lines, as its records would be lost.
    """
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    if len(lines) < written:
        raise UserError(
            f"{path} holds {len(lines):,} records, and its journal {journal_of(path)} knows of {written:,} that were written "
            "there. Put the file back, or move the journal away to annotate everything again."
        )
    if path.exists():
        path.write_bytes(b"".join(lines[:written]))


def annotate(
    records: Mixture,
    indices: Iterable[int],
    annotator: Callable[[Preference], Annotation],
    path: Path,
    failures: Failures,
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> int:
    """Annotate those of `records` that are not in the journal yet, write them to `path`, and return how many were done now.

    `settings` are the model and everything else that decides the rationales. The caller holds the lock of the journal.

    Raises: UserError for a journal of other records or other settings; what the annotator raises, with all that was done kept.
    """
    journal = journal_of(path)
    asked = settings_digest({**settings, "failures": failures})
    cut_off_unfinished_line(journal)
    lines = read_journal(journal, records)
    if any(line.get("settings") != asked for line in lines):
        listed = ", ".join(f"{name} {value}" for name, value in settings.items())
        raise UserError(
            f"{journal} was written with other settings than {listed or 'these'} and failures {failures}. Rationales of two "
            "settings do not belong in one file: give the settings as they were, or another output file."
        )
    written = lines[-1]["written"] if lines else 0
    keep_written_lines(path, written)
    done = {line["index"] for line in lines}
    num_annotated = 0
    for index in indices:
        if index in done:
            continue
        record = records[index]
        found = annotator(record)
        right = found.rationale is not None
        if right or failures == "keep":
            annotated = replace(record, first_in_rationale=found.first)
            append(path, as_row(annotated, found.rationale))
            written += 1
        line = {
            "index": index,
            "identity": record.identity,
            "record": record_key(record),
            "settings": asked,
            "tries": found.tries,
            "right": right,
            "written": written,
        }
        append(journal, line)
        num_annotated += 1
    return num_annotated


def append(path: Path, row: Mapping[str, Any]) -> None:
    """Add a record to a file of JSON lines."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")
