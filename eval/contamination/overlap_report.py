"""What is made of the matches: which records to leave out, the file of fingerprints, the details, the table."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from mmrm.data.preparation.filters import SCHEME
from mmrm.data.storage.files import write_json_lines, write_whole
from mmrm.eval.contamination.index import IMAGE_KINDS, KINDS, OverlapIndex, table_of

COMMON = 5
"""Different images that a question is asked of, or different questions that a pair of responses answers (in the benchmarks
and the training data together), from which on it is common ("Describe the image.", "Yes." and "No."): it says nothing
about the benchmark's row, and is no reason to leave a record out."""
SHOWN_ROWS, EXAMPLES = 3, 2
"""Benchmark rows that the details name for a match; matches of each kind that are printed."""
COUNTS = ("records", "unusable", *KINDS, "only_common_texts", "left_out")
"""What is counted of a source: its rows, those that it leaves out or that are broken, records with a match of each kind,
records of which only common texts were found (they stay in the mixture), and records to leave out."""
Line = dict[str, Any]
"""A match as the search writes it: record, source, fingerprint, kind, entry, similarity, context, excerpt."""


@dataclass
class Overlap:
    """What was found in all sources."""

    sources: dict[str, Counter[str]] = field(default_factory=dict)
    """Source to its `COUNTS`."""
    fingerprints: dict[str, str] = field(default_factory=dict)
    """Of the records to leave out, with a remark for people."""
    examples: dict[str, list[Line]] = field(default_factory=lambda: {kind: [] for kind in KINDS})

    def table(self) -> RenderableType:
        """Return the counts by source and kind, and a few examples of each kind."""
        columns = [Column(name.replace("_", " "), justify="right") for name in COUNTS]
        title = "Training records of which something occurs in a benchmark"
        table = Table(Column("source", overflow="fold"), *columns, title=title)
        whole = {"all": sum(self.sources.values(), Counter())} if len(self.sources) > 1 else {}
        for name, count in {**self.sources, **whole}.items():
            table.add_row(name, *(f"{count[what]:,}" for what in COUNTS))
        shown = []
        for line in chain.from_iterable(self.examples.values()):
            more = (
                f" and {line['benchmark_row_count'] - 1} more"
                if line["benchmark_row_count"] > 1
                else ""
            )
            texts = (
                f"\n    {line['excerpt']}\n    {line['benchmark_excerpt']}"
                if line["benchmark_excerpt"]
                else ""
            )
            found = f"{line['kind']} {line['similarity']:.2f}: {line['record']} is {line['benchmark_rows'][0]}"
            shown.append(Text(found + more + texts))
        return Group(table, *shown)


def report(
    parts: Sequence[Path], index: OverlapIndex, output: Path, about: Sequence[str]
) -> Overlap:
    """Write the fingerprints to `output` and the details beside it (.jsonl), from the files that the search wrote.

    Each of `parts` begins with a line {source, records, unusable}; the lines of a record stand together. `about` goes into
    the head of the file. Both files appear whole or not at all.
    """
    overlap, common = Overlap(), _common(parts, index)
    details = (
        one
        for found in _records(parts, overlap.sources)
        for one in _details(found, index, common, overlap)
    )
    write_json_lines(output.with_suffix(".jsonl"), details)
    left_out = sum(count["left_out"] for count in overlap.sources.values())
    head = [SCHEME, *about, f"{left_out} records; for the recipe: data.filters.leave_out"]
    lines = [
        *(f"# {line}" for line in head),
        *(f"{found}  # {remark}" for found, remark in overlap.fingerprints.items()),
    ]
    write_whole(output, "\n".join(lines) + "\n")
    return overlap


def _common(parts: Sequence[Path], index: OverlapIndex) -> set[tuple[str, int]]:
    """Return the entries that are common. Records that show a benchmark's image do not count: that is overlap."""
    contexts = {
        (table, number): set(list(entry.contexts)[:COMMON])
        for table, entries in index.entries.items()
        for number, entry in enumerate(entries)
    }
    for lines in _records(parts, {}):
        if not any(line["kind"] in IMAGE_KINDS for line in lines):
            for line in lines:
                found = contexts[_place(line)]
                if len(found) < COMMON:
                    found.add(line["context"])
    return {place for place, found in contexts.items() if len(found) >= COMMON}


def _details(
    lines: Sequence[Line], index: OverlapIndex, common: set[tuple[str, int]], overlap: Overlap
) -> Iterator[Line]:
    """Count the matches of one record into `overlap`, and yield what is written of each."""
    first, reasons = lines[0], [line for line in lines if _place(line) not in common]
    overlap.sources[first["source"]].update(
        {line["kind"] for line in lines} | {"left_out" if reasons else "only_common_texts"}
    )
    if reasons:
        kinds = ", ".join(dict.fromkeys(line["kind"] for line in reasons))
        overlap.fingerprints.setdefault(first["fingerprint"], f"{first['record']}: {kinds}")
    for line in lines:
        table, number = _place(line)
        entry = index.entries[table][number]
        detail = {
            name: line[name]
            for name in ("record", "source", "fingerprint", "kind", "similarity", "excerpt")
        }
        detail |= {
            "benchmark_excerpt": entry.excerpt,
            "benchmark_rows": list(entry.rows)[:SHOWN_ROWS],
        }
        detail |= {
            "benchmark_row_count": len(entry.rows),
            "common": line not in reasons,
            "left_out": bool(reasons),
        }
        examples = overlap.examples[line["kind"]]
        if line in reasons and len(examples) < EXAMPLES:
            examples.append(detail)
        yield detail


def _place(line: Line) -> tuple[str, int]:
    return table_of(line["kind"]), line["entry"]


def _records(parts: Iterable[Path], sources: dict[str, Counter[str]]) -> Iterator[list[Line]]:
    """Yield the matches of each record that has any; count the rows that were looked at into `sources`."""
    for part in parts:
        with part.open(encoding="utf-8") as file:
            head = json.loads(next(file))
            counts = sources.setdefault(head.pop("source"), Counter())
            counts.update(head)
            for _, lines in groupby(map(json.loads, file), key=lambda line: line["record"]):
                yield list(lines)
