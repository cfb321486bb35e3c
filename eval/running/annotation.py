"""Annotating preference records with rationales, and picking the hard ones: what eval/annotate.py and eval/select_pairs.py do.

Two files are written line by line: the records in this project's own format, and beside them a journal with one line for
every record that was looked at. A record counts as done once its line is in the journal, so a kill loses one record at most.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from data.errors import UserError
from data.images import data_uri
from data.markers import stray_marker
from data.mixture import Mixture
from data.preference import Preference
from data.prompts import JudgeTemplate, ask, read
from data.rationales import with_chosen_first
from eval.judges.endpoint import Answer, messages
from eval.protocol import draw

Failures = Literal["drop", "keep"]
"""What becomes of a record that no try got right: it is left out, or written without a rationale."""
Complete = Callable[[Mapping[str, Any]], Answer]
"""Sends a chat request and returns the reply; see `eval.judges.endpoint.Client.answer`."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """What came of a record."""

    rationale: str | None
    """What the model wrote about the right response; None if no try named it."""
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

    It has one line a record: its index and identity, the tries, whether it was got right, and the lines of records so far.
    """
    return records.with_suffix(".journal.jsonl")


def read_journal(path: Path, records: Mixture) -> list[dict[str, Any]]:
    """Return a journal's whole lines; a last one that was cut off is removed from the file.

    Raises: UserError unless the first and the last line name records of `records`.
    """
    content = path.read_bytes() if path.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        path.write_bytes(whole)
    lines = [json.loads(line) for line in whole.splitlines()]
    for line in (*lines[:1], *lines[-1:]):
        if line["index"] >= len(records) or records[line["index"]].identity != line["identity"]:
            raise UserError(
                f"the journal's record {line['index']} is {line['identity']}, which is not that record of this recipe. Use the "
                "recipe that the journal was written with, or another output file."
            )
    return lines


def annotate(
    records: Mixture,
    indices: Iterable[int],
    annotator: Callable[[Preference], Annotation],
    path: Path,
    failures: Failures,
) -> int:
    """Annotate those of `records` that are not in the journal yet, write them to `path`, and return how many were done now.

    Raises: UserError for a journal of other records; what the annotator raises, with all that was done kept.
    """
    journal = journal_of(path)
    lines = read_journal(journal, records)
    written = lines[-1]["written"] if lines else 0
    if path.exists():  # what a kill left behind the lines that the journal knows is written again
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:written]))
    done, count = {line["index"] for line in lines}, 0
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
            "tries": found.tries,
            "right": right,
            "written": written,
        }
        append(journal, line)
        count += 1
    return count


def append(path: Path, row: Mapping[str, Any]) -> None:
    """Add a record to a file of JSON lines."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")


def as_row(record: Preference, rationale: str | None) -> dict[str, Any]:
    """Return a record in this project's own format, its images inside, with `rationale` instead of its own."""
    images = [data_uri(image, record.identity) for image in record.images]
    row = asdict(record) | {"images": images, "rationale": rationale}
    if rationale is None or record.first_in_rationale == "chosen":
        del row["first_in_rationale"]
    return {
        name: value
        for name, value in row.items()
        if name not in ("identity", "truth") and value not in (None, "")
    }
