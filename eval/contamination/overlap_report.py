"""The report of a search for overlap: records to leave out, the details of all matches, a table.

Matches of texts that are common, such as "Yes." and "No.", are no reason to leave a record out.
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
from mmrm.eval.contamination.index import KINDS, MEDIA_KINDS, OverlapIndex, table_of

MIN_COMMON_CONTEXTS = 5
"""The number of contexts from which on a text is common. The contexts of a question are the
different images and videos that it is asked about ("Describe the image."), and those of a pair of responses
the different questions that it answers ("Yes." and "No."), in the benchmarks and the training data
together. A common text does not identify the benchmark's row, and is no reason to leave a record
out."""
MAX_SHOWN_ROWS = 3
"""The most benchmark rows that the details name for a match."""
MAX_EXAMPLES = 2
"""The most matches of each kind that are printed."""
COUNTS = ("records", "unusable", *KINDS, "only_common_texts", "left_out")
"""The counts of a source: its rows, the rows that it leaves out or that are broken, the records
with a match of each kind, the records in which only common texts were found (they stay in the
mixture), and the records to leave out."""
Match = dict[str, Any]
"""A match as the search writes it. Its keys are record, source, fingerprint, kind, entry,
similarity, context and excerpt."""
Detail = dict[str, Any]
"""A match as the report writes it, with an excerpt and the names of the benchmark's rows."""
Entry = tuple[str, int]
"""A content of the benchmarks: the name of its table in the index, and its position there."""


@dataclass
class Overlap:
    """Counts and examples of the matches in all sources, and the records to leave out."""

    sources: dict[str, Counter[str]] = field(default_factory=dict)
    """The `COUNTS` of each source."""
    fingerprints: dict[str, str] = field(default_factory=dict)
    """The fingerprints of the records to leave out, each with a remark for people."""
    examples: dict[str, list[Detail]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    """The details of a few matches of each kind."""

    def table(self) -> RenderableType:
        """Return a printable table of the counts by source and kind, followed by a few examples."""
        columns = [Column(name.replace("_", " "), justify="right") for name in COUNTS]
        title = "Training records of which something occurs in a benchmark"
        table = Table(Column("source", overflow="fold"), *columns, title=title)
        counts_by_first_cell = dict(self.sources)
        if len(self.sources) > 1:
            counts_by_first_cell["all"] = sum(self.sources.values(), Counter())
        for first_cell, counts in counts_by_first_cell.items():
            table.add_row(first_cell, *(f"{counts[column]:,}" for column in COUNTS))
        example_texts: list[Text] = []
        for examples_of_kind in self.examples.values():
            example_texts += map(_example_text, examples_of_kind)
        return Group(table, *example_texts)


def _example_text(detail: Detail) -> Text:
    """Return the text that is printed for a match: kind, record, benchmark rows and excerpts."""
    text = (
        f"{detail['kind']} {detail['similarity']:.2f}: {detail['record']} is "
        f"{detail['benchmark_rows'][0]}"
    )
    num_other_rows = detail["benchmark_row_count"] - 1
    if num_other_rows > 0:
        text += f" and {num_other_rows} more"
    if detail["benchmark_excerpt"]:
        text += f"\n    {detail['excerpt']}\n    {detail['benchmark_excerpt']}"
    return Text(text)


def write_overlap_report(
    match_files: Sequence[Path], index: OverlapIndex, output: Path, remarks: Sequence[str]
) -> Overlap:
    """Write the records to leave out and the details of all matches, and return their counts.

    The fingerprints of the records to leave out go to `output`, and the details to the file of the
    same name that ends in .jsonl. Each file is written completely or not at all.

    Args:
        match_files: The files that the search wrote. Each begins with a line {source, records,
            unusable}, and the matches of a record follow one another.
        index: The index that the search used.
        output: The file of fingerprints.
        remarks: Lines for the head of that file.
    """
    overlap = Overlap()
    common_entries = _common_entries(match_files, index)
    # The generator also fills `overlap` while it is written.
    details = _all_details(match_files, index, common_entries, overlap)
    write_json_lines(output.with_suffix(".jsonl"), details)
    num_left_out = sum(counts["left_out"] for counts in overlap.sources.values())
    head = [SCHEME, *remarks, f"{num_left_out} records; for the recipe: data.filters.leave_out"]
    lines = [f"# {line}" for line in head]
    for fingerprint, remark in overlap.fingerprints.items():
        lines.append(f"{fingerprint}  # {remark}")
    write_whole(output, "\n".join(lines) + "\n")
    return overlap


def _common_entries(match_files: Sequence[Path], index: OverlapIndex) -> set[Entry]:
    """Return the texts of the index that are common, such as "Yes." and "No.".

    A text is common if it occurs in at least MIN_COMMON_CONTEXTS contexts, that is with different
    images or questions, in the benchmarks and the training records together. Records that show a
    benchmark's image or video do not count, because they are overlap themselves.
    """
    contexts_by_entry: dict[Entry, set[str]] = {}
    for table, entries in index.entries.items():
        for number, entry in enumerate(entries):
            # More contexts than MIN_COMMON_CONTEXTS would only take memory.
            contexts_by_entry[table, number] = set(list(entry.contexts)[:MIN_COMMON_CONTEXTS])
    for matches in _matches_by_record(match_files, {}):
        shows_medium = any(match["kind"] in MEDIA_KINDS for match in matches)
        if shows_medium:
            continue
        for match in matches:
            contexts = contexts_by_entry[_entry_of(match)]
            if len(contexts) < MIN_COMMON_CONTEXTS:
                contexts.add(match["context"])
    common_entries: set[Entry] = set()
    for entry_of_index, contexts in contexts_by_entry.items():
        if len(contexts) >= MIN_COMMON_CONTEXTS:
            common_entries.add(entry_of_index)
    return common_entries


def _all_details(
    match_files: Sequence[Path],
    index: OverlapIndex,
    common_entries: set[Entry],
    overlap: Overlap,
) -> Iterator[Detail]:
    """Yield the details of all matches that the search found, and count the matches.

    Args:
        match_files: The files that the search wrote.
        index: The index that the search used.
        common_entries: The texts of the index that are common.
        overlap: The counts, fingerprints and examples, to which those of all records are added.
    """
    for matches in _matches_by_record(match_files, overlap.sources):
        yield from _details(matches, index, common_entries, overlap)


def _details(
    matches: Sequence[Match],
    index: OverlapIndex,
    common_entries: set[Entry],
    overlap: Overlap,
) -> Iterator[Detail]:
    """Yield the details of each match of one record, and count the matches.

    The record is to be left out if one of its matches is not a common text. Its fingerprint is then
    added to `overlap`.

    Args:
        matches: All matches of the record; there is at least one.
        index: The index that the search used.
        common_entries: The texts of the index that are common.
        overlap: The counts, fingerprints and examples, to which those of the record are added.
    """
    first = matches[0]
    reasons = [match for match in matches if _entry_of(match) not in common_entries]
    # A record counts once for each kind, however many matches of the kind it has.
    counted = {match["kind"] for match in matches}
    counted.add("left_out" if reasons else "only_common_texts")
    overlap.sources[first["source"]].update(counted)
    if reasons:
        kinds = ", ".join(dict.fromkeys(match["kind"] for match in reasons))
        overlap.fingerprints.setdefault(first["fingerprint"], f"{first['record']}: {kinds}")
    for match in matches:
        table, number = _entry_of(match)
        entry = index.entries[table][number]
        is_common = (table, number) in common_entries
        detail = {
            "record": match["record"],
            "source": match["source"],
            "fingerprint": match["fingerprint"],
            "kind": match["kind"],
            "similarity": match["similarity"],
            "excerpt": match["excerpt"],
            "benchmark_excerpt": entry.excerpt,
            "benchmark_rows": list(entry.rows)[:MAX_SHOWN_ROWS],
            "benchmark_row_count": len(entry.rows),
            "common": is_common,
            "left_out": bool(reasons),
        }
        examples = overlap.examples[match["kind"]]
        if not is_common and len(examples) < MAX_EXAMPLES:
            examples.append(detail)
        yield detail


def _entry_of(match: Match) -> Entry:
    """Return the benchmark's image or text of a match: its table in the index, and its position."""
    return table_of(match["kind"]), match["entry"]


def _matches_by_record(
    match_files: Iterable[Path], counts_by_source: dict[str, Counter[str]]
) -> Iterator[list[Match]]:
    """Read the matches that the search wrote, and yield one list for each record with matches.

    Each file begins with the number of rows of a source and the number of unusable ones. They are
    added to `counts_by_source`.
    """
    for path in match_files:
        with path.open(encoding="utf-8") as file:
            head = json.loads(next(file))  # {"source": name, "records": count, "unusable": count}
            counts = counts_by_source.setdefault(head.pop("source"), Counter())
            counts.update(head)
            # The matches of a record follow one another in the file.
            matches = map(json.loads, file)
            for _, matches_of_record in groupby(matches, key=lambda match: match["record"]):
                yield list(matches_of_record)
