"""What is made of the matches: which records to leave out, the file of fingerprints, the details, the table."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import IO, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from data.preparation.filters import SCHEME
from data.storage.files import whole_file, write_whole
from eval.contamination.index import IMAGE_KINDS, KINDS, OverlapIndex, table_of

COMMON = 5
"""Different pictures that a question is asked of, or different questions that a pair of responses answers (in the benchmarks
and the training data together), from which on it is common ("Describe the image.", "Yes." and "No."): it says nothing
about the benchmark's row, and is no reason to leave a record out."""
SHOWN_ROWS, EXAMPLES = 3, 2
"""Benchmark rows that the details name for a match; matches of each kind that are printed."""
Line = dict[str, Any]
"""A match as the search writes it: record, source, fingerprint, kind, entry, similarity, context, excerpt."""


@dataclass
class SourceCount:
    """What was found in a source."""

    records: int = 0
    unusable: int = 0
    """Rows that the source leaves out by its own rules, and bad ones."""
    kinds: Counter[str] = field(default_factory=Counter)
    """Records with a match of each kind."""
    only_common: int = 0
    """Records of which nothing but common texts was found; they stay in the mixture."""
    left_out: int = 0


@dataclass
class Overlap:
    """What was found in all sources."""

    sources: dict[str, SourceCount]
    fingerprints: dict[str, str] = field(default_factory=dict)
    """Of the records to leave out, with a remark for people."""
    examples: dict[str, list[Line]] = field(default_factory=lambda: {kind: [] for kind in KINDS})

    def table(self) -> RenderableType:
        """Return the counts by source and kind, and a few examples of each kind."""
        table = Table(title="Training records of which something occurs in a benchmark")
        table.add_column("source", overflow="fold")
        for name in ("records", "unusable", *KINDS, "only common texts", "left out"):
            table.add_column(name.replace("_", " "), justify="right")
        for name, count in [*self.sources.items(), *([("all", self._total())] if len(self.sources) > 1 else [])]:
            kinds = [count.kinds[kind] for kind in KINDS]
            table.add_row(name, *(f"{n:,}" for n in (count.records, count.unusable, *kinds, count.only_common, count.left_out)))
        return Group(table, *(_shown(line) for lines in self.examples.values() for line in lines))

    def _total(self) -> SourceCount:
        counts = self.sources.values()
        return SourceCount(
            sum(count.records for count in counts),
            sum(count.unusable for count in counts),
            sum((count.kinds for count in counts), Counter()),
            sum(count.only_common for count in counts),
            sum(count.left_out for count in counts),
        )


def report(parts: Sequence[Path], index: OverlapIndex, output: Path, about: Sequence[str]) -> Overlap:
    """Write the fingerprints to `output` and the details beside it (.jsonl), from the files that the search wrote.

    Each of `parts` begins with a line {source, records, unusable}; the lines of a record stand together. `about` goes into
    the head of the file. Both files appear whole or not at all.
    """
    common = _common(parts, index)
    overlap = Overlap({})
    with whole_file(output.with_suffix(".jsonl")) as file:
        for found in _records(parts, overlap.sources):
            reasons = [line for line in found if _place(line) not in common]
            _count(overlap, found, reasons)
            for line in found:
                _write_detail(file, line, index, overlap, is_common=line not in reasons, left_out=bool(reasons))
    left_out = sum(count.left_out for count in overlap.sources.values())
    head = [SCHEME, *about, f"{left_out} records; for the recipe: data.filters.leave_out"]
    lines = [*(f"# {line}" for line in head), *(f"{found}  # {remark}" for found, remark in overlap.fingerprints.items())]
    write_whole(output, "\n".join(lines) + "\n")
    return overlap


def _common(parts: Sequence[Path], index: OverlapIndex) -> set[tuple[str, int]]:
    """Return the entries that are common. Records that show a benchmark's picture do not count: that is overlap."""
    contexts = {
        (table, number): set(list(entry.contexts)[:COMMON])
        for table, entries in index.entries.items()
        for number, entry in enumerate(entries)
    }
    for lines in _records(parts, {}):
        if any(line["kind"] in IMAGE_KINDS for line in lines):
            continue
        for line in lines:
            found = contexts[_place(line)]
            if len(found) < COMMON:
                found.add(line["context"])
    return {place for place, found in contexts.items() if len(found) >= COMMON}


def _count(overlap: Overlap, lines: Sequence[Line], reasons: Sequence[Line]) -> None:
    count = overlap.sources[lines[0]["source"]]
    count.kinds.update({line["kind"] for line in lines})
    if reasons:
        count.left_out += 1
        kinds = ", ".join(dict.fromkeys(line["kind"] for line in reasons))
        overlap.fingerprints.setdefault(lines[0]["fingerprint"], f"{lines[0]['record']}: {kinds}")
    else:
        count.only_common += 1


def _write_detail(file: IO[str], line: Line, index: OverlapIndex, overlap: Overlap, *, is_common: bool, left_out: bool) -> None:
    entry = index.entries[table_of(line["kind"])][line["entry"]]
    detail = {name: line[name] for name in ("record", "source", "fingerprint", "kind", "similarity", "excerpt")}
    detail |= {"benchmark_excerpt": entry.excerpt, "benchmark_rows": entry.rows[:SHOWN_ROWS]}
    detail |= {"benchmark_row_count": len(entry.rows), "common": is_common, "left_out": left_out}
    file.write(json.dumps(detail, ensure_ascii=False) + "\n")
    if not is_common and len(overlap.examples[line["kind"]]) < EXAMPLES:
        overlap.examples[line["kind"]].append(detail)


def _place(line: Line) -> tuple[str, int]:
    return table_of(line["kind"]), line["entry"]


def _records(parts: Iterable[Path], sources: dict[str, SourceCount]) -> Iterator[list[Line]]:
    """Yield the matches of each record that has any; count the rows that were looked at into `sources`."""
    for part in parts:
        with part.open(encoding="utf-8") as file:
            head = json.loads(next(file))
            count = sources.setdefault(head["source"], SourceCount())
            count.records += head["records"]
            count.unusable += head["unusable"]
            for _, lines in groupby(map(json.loads, file), key=lambda line: line["record"]):
                yield list(lines)


def _shown(line: Mapping[str, Any]) -> Text:
    more = f" and {line['benchmark_row_count'] - 1} more" if line["benchmark_row_count"] > 1 else ""
    found = f"{line['kind']} {line['similarity']:.2f}: {line['record']} is {line['benchmark_rows'][0]}{more}"
    texts = f"\n    {line['excerpt']}\n    {line['benchmark_excerpt']}" if line["benchmark_excerpt"] else ""
    return Text(found + texts)
