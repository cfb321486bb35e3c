"""The report of a search for overlap: records to leave out, the details of all matches, a table.

A match of the search is a `Line`. Matches of texts that are common, such as "Yes." and "No.", are
no reason to leave a record out.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from mmrm.data.preparation.filters import SCHEME
from mmrm.data.storage.files import write_json_lines, write_whole
from mmrm.eval.contamination.index import IMAGE_KINDS, KINDS, OverlapIndex, table_of

COMMON = 5
"""The number of contexts from which on a text is common. The contexts of a question are the
different images that it is asked about ("Describe the image."), and those of a pair of responses
the different questions that it answers ("Yes." and "No."), in the benchmarks and the training data
together. A common text does not identify the benchmark's row, and is no reason to leave a record
out."""
SHOWN_ROWS = 3
"""The most benchmark rows that the details name for a match."""
EXAMPLES = 2
"""The most matches of each kind that are printed."""
COUNTS = ("records", "unusable", *KINDS, "only_common_texts", "left_out")
"""The counts of a source: its rows, the rows that it leaves out or that are broken, the records
with a match of each kind, the records in which only common texts were found (they stay in the
mixture), and the records to leave out."""
Line = dict[str, Any]
"""A match as the search writes it. Its keys are record, source, fingerprint, kind, entry,
similarity, context and excerpt."""
Entry = tuple[str, int]
"""An entry of the index: the name of its table, and its index there."""


@dataclass
class Overlap:
    """The matches in all sources."""

    sources: dict[str, Counter[str]] = field(default_factory=dict)
    """The `COUNTS` of each source."""
    fingerprints: dict[str, str] = field(default_factory=dict)
    """The fingerprints of the records to leave out, each with a remark for people."""
    examples: dict[str, list[Line]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    """The details of a few matches of each kind."""

    def table(self) -> RenderableType:
        """Return the counts by source and kind, and a few examples of each kind."""
        columns = [Column(name.replace("_", " "), justify="right") for name in COUNTS]
        title = "Training records of which something occurs in a benchmark"
        table = Table(Column("source", overflow="fold"), *columns, title=title)
        counts_by_row = dict(self.sources)
        if len(self.sources) > 1:
            counts_by_row["all"] = sum(self.sources.values(), Counter())
        for name, counts in counts_by_row.items():
            table.add_row(name, *(f"{counts[column]:,}" for column in COUNTS))
        examples = []
        for details in self.examples.values():
            examples += [_example_text(detail) for detail in details]
        return Group(table, *examples)


def _example_text(detail: Line) -> Text:
    """Return a match for people: its kind, its record, its rows, and both texts."""
    text = (
        f"{detail['kind']} {detail['similarity']:.2f}: {detail['record']} is "
        f"{detail['benchmark_rows'][0]}"
    )
    num_more = detail["benchmark_row_count"] - 1
    if num_more > 0:
        text += f" and {num_more} more"
    if detail["benchmark_excerpt"]:
        text += f"\n    {detail['excerpt']}\n    {detail['benchmark_excerpt']}"
    return Text(text)


def report(
    parts: Sequence[Path], index: OverlapIndex, output: Path, about: Sequence[str]
) -> Overlap:
    """Write the fingerprints to `output`, and the details next to it (.jsonl).

    Both files are complete, or do not exist.

    Args:
        parts: The files that the search wrote. Each begins with a line {source, records, unusable},
            and the lines of a record follow one another.
        index: The index that the search used.
        output: The file of fingerprints.
        about: Lines for the head of that file.
    """
    overlap = Overlap()
    common = _common_entries(parts, index)
    details = _all_details(parts, index, common, overlap)
    write_json_lines(output.with_suffix(".jsonl"), details)
    num_left_out = sum(counts["left_out"] for counts in overlap.sources.values())
    head = [SCHEME, *about, f"{num_left_out} records; for the recipe: data.filters.leave_out"]
    lines = [f"# {line}" for line in head]
    for fingerprint, remark in overlap.fingerprints.items():
        lines.append(f"{fingerprint}  # {remark}")
    write_whole(output, "\n".join(lines) + "\n")
    return overlap


def _common_entries(parts: Sequence[Path], index: OverlapIndex) -> set[Entry]:
    """Return the entries that are common.

    Records that show a benchmark's image do not count, because they are overlap themselves.
    """
    contexts_by_entry: dict[Entry, set[str]] = {}
    for table, entries in index.entries.items():
        for number, entry in enumerate(entries):
            contexts_by_entry[table, number] = set(list(entry.contexts)[:COMMON])
    for lines in _records(parts, {}):
        if any(line["kind"] in IMAGE_KINDS for line in lines):
            continue
        for line in lines:
            contexts = contexts_by_entry[_entry_of(line)]
            if len(contexts) < COMMON:
                contexts.add(line["context"])
    return {entry for entry, contexts in contexts_by_entry.items() if len(contexts) >= COMMON}


def _all_details(
    parts: Sequence[Path], index: OverlapIndex, common: set[Entry], overlap: Overlap
) -> Iterator[Line]:
    """Count all matches into `overlap`, and yield the details of each."""
    for lines in _records(parts, overlap.sources):
        yield from _details(lines, index, common, overlap)


def _details(
    lines: Sequence[Line], index: OverlapIndex, common: set[Entry], overlap: Overlap
) -> Iterator[Line]:
    """Count the matches of one record into `overlap`, and yield the details of each."""
    first = lines[0]
    reasons = [line for line in lines if _entry_of(line) not in common]
    counted = {line["kind"] for line in lines}
    counted.add("left_out" if reasons else "only_common_texts")
    overlap.sources[first["source"]].update(counted)
    if reasons:
        kinds = ", ".join(dict.fromkeys(line["kind"] for line in reasons))
        overlap.fingerprints.setdefault(first["fingerprint"], f"{first['record']}: {kinds}")
    for line in lines:
        table, number = _entry_of(line)
        entry = index.entries[table][number]
        is_common = (table, number) in common
        detail = {
            "record": line["record"],
            "source": line["source"],
            "fingerprint": line["fingerprint"],
            "kind": line["kind"],
            "similarity": line["similarity"],
            "excerpt": line["excerpt"],
            "benchmark_excerpt": entry.excerpt,
            "benchmark_rows": list(entry.rows)[:SHOWN_ROWS],
            "benchmark_row_count": len(entry.rows),
            "common": is_common,
            "left_out": bool(reasons),
        }
        examples = overlap.examples[line["kind"]]
        if not is_common and len(examples) < EXAMPLES:
            examples.append(detail)
        yield detail


def _entry_of(line: Line) -> Entry:
    """Return the entry of the index that a match is about."""
    return table_of(line["kind"]), line["entry"]


def _records(parts: Iterable[Path], sources: dict[str, Counter[str]]) -> Iterator[list[Line]]:
    """Yield the matches of each record that has any, and count all rows into `sources`."""
    for part in parts:
        with part.open(encoding="utf-8") as file:
            head = json.loads(next(file))
            counts = sources.setdefault(head.pop("source"), Counter())
            counts.update(head)
            for _, lines in groupby(map(json.loads, file), key=lambda line: line["record"]):
                yield list(lines)
