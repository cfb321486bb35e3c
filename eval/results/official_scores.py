"""Scores of predictions files that other programs made, by the rules that benchmarks publish.

The format of a file is recognised by its columns. Its rows are compared with the rows at a location
that the caller gives, or else with the ids of the published editions that this project knows. The
result of this comparison is printed and stored together with the figures.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mmrm.data.errors import HubError, PredictionsError, UserError
from mmrm.eval.benchmarks.benchmark import (
    Benchmark,
    Location,
    PredictionRecords,
    PublishedEdition,
    Record,
    RowName,
)
from mmrm.eval.benchmarks.prediction_records import parse_records, row_name
from mmrm.eval.benchmarks.rows import read_json_lines
from mmrm.eval.candidates import Example
from mmrm.eval.results.predictions_protocol import protocol_of

IDS = Path(__file__).resolve().parents[1] / "benchmarks" / "ids"
NUMBERED = re.compile(r"(.+)-[0-9]")
"""An id of a newer edition that occurred twice in an older edition: that id, `-` and a digit."""
MAX_NAMED = 5
"""Number of rows that a message names; further rows are counted."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """The comparison of a predictions file's rows with the rows of its benchmark."""

    rows: int
    """Number of rows in the file; several votes on a row count once."""
    expected: int | None
    """Number of rows of the benchmark; None if they are unknown."""
    compared: str
    """A sentence for people on the rows that the file was compared with, and on the comparison."""
    missing: tuple[str, ...] = ()
    duplicated: tuple[str, ...] = ()
    invented: tuple[str, ...] = ()
    """Rows that the benchmark does not have."""
    miscounted: tuple[str, ...] = ()
    """Sentences about categories that the benchmark does not have, or that have another size."""
    notes: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """True if the file holds every row once, in its category, and no other row."""
        return not (self.missing or self.duplicated or self.invented or self.miscounted)

    def lines(self) -> list[str]:
        """Return the lines to print with the figures.

        The first line holds the number of rows and the sentence about the comparison. The others
        are faults, such as missing rows, and notes.
        """
        # `compared` and the entries of `miscounted` and `notes` are sentences, the others are ids.
        of_expected = "" if self.expected is None else f" of {self.expected:,}"
        lines = [f"{self.rows:,}{of_expected} rows; {self.compared}"]
        identities_by_fault = {
            "missing": self.missing,
            "duplicated": self.duplicated,
            "not in the benchmark": self.invented,
        }
        for fault, identities in identities_by_fault.items():
            if identities:
                examples = ", ".join(map(ascii, identities[:MAX_NAMED]))
                ellipsis = " …" if len(identities) > MAX_NAMED else ""
                lines.append(f"{len(identities):,} {fault}: {examples}{ellipsis}")
        return [*lines, *self.miscounted, *self.notes]


def score_predictions_file(
    path: Path,
    benchmark: Benchmark,
    rules: str | None = None,
    votes: int | None = None,
    where: Location | None = None,
) -> tuple[dict[str, Any], Coverage]:
    """Score a predictions file by published rules, and compare its rows with the benchmark's.

    Returns the figures of the rules as a mapping for JSON (`micro`, `macro`, `groups` and others),
    and the comparison of the rows, which the mapping also holds under `coverage`.

    Args:
        path: The predictions file.
        benchmark: The benchmark whose rules and rows are used.
        rules: Name of the rules; None takes the rules that belong to the file's format.
        votes: Number of votes on an item that count, for rules that have a choice (`--k`). None
            leaves the choice to the rules.
        where: Location of the benchmark's rows; None compares with the ids of the known editions.

    Raises:
        PredictionsError: If the rules are unknown, or cannot score the file.
    """
    if rules is not None and rules not in benchmark.rules:
        raise PredictionsError(
            f"{benchmark.name} has no rules {rules!r}; there are {', '.join(benchmark.rules)}."
        )
    try:
        read_records = benchmark.read_predictions or read_json_lines
        records = read_records(path)
        format_name = format_of(records, benchmark)
        file_format = benchmark.files[format_name]
        rules_name = chosen_rules(format_name, benchmark, rules)
        rule = benchmark.rules[rules_name]

        records_for_rule = records
        if file_format.with_labels is not None:
            rows = _rows_with_labels(format_name, benchmark, where)
            records_for_rule = file_format.with_labels(records, rows)
        if file_format.convert is not None and rule.reads != format_name:
            records_for_rule = parse_records(records, file_format.convert, file_format.about)
        figures = {**rule.figures(rules_name, records_for_rule), "format": format_name}

        unwrapped = _unwrapped(records)
        row_names = parse_records(unwrapped, file_format.row or row_name, file_format.about)
        groups = None
        if file_format.group is not None:
            groups = parse_records(unwrapped, file_format.group, file_format.about)
        protocol = None
        if format_name == "predictions":  # a file of this project, which has a protocol
            protocol = protocol_of(path, unwrapped)
    except UserError as error:
        requested_rules = f", under the rules {rules!r}" if rules else ""
        raise PredictionsError(f"{path}{requested_rules}: {error}") from error
    if votes is not None:
        if rule.at_votes is None:
            raise PredictionsError(
                f"--k is {votes}, and the rules {rules_name} have no choice of K. Remove --k."
            )
        figures = rule.at_votes(figures, votes)

    compared = coverage(row_names, benchmark, where, file_format.votes, groups)
    notes = list(compared.notes)
    num_null = len(records) - len(unwrapped)
    if num_null:
        notes.append(f"{num_null:,} lines hold null and were skipped, as {rules_name} does")
    if protocol is not None:
        figures["protocol"] = protocol.label
        notes.extend(protocol.lines())
    compared = replace(compared, notes=tuple(notes))
    return {**figures, "whole": compared.whole, "coverage": asdict(compared)}, compared


def _rows_with_labels(
    format_name: str, benchmark: Benchmark, where: Location | None
) -> Sequence[Any]:
    """Return the rows at a location, whose labels a predictions file without labels needs.

    Raises:
        PredictionsError: If no location is given.
    """
    if where is None:
        raise PredictionsError(
            f"the file is in the format {format_name}, whose lines do not hold the labels of the "
            f"rows. Name the place of the rows: --benchmark {benchmark.name}=PATH."
        )
    return _rows_at(benchmark, where)


def _rows_at(benchmark: Benchmark, where: Location) -> Sequence[Any]:
    """Return the rows of a benchmark at a location, if possible without looking at their images."""
    if benchmark.read is not None:
        return benchmark.read(where)
    return benchmark.load(where).examples


def _unwrapped(records: PredictionRecords) -> list[Record]:
    """Return the records that are not null, each without the object that may wrap it.

    VL-RewardBench's inference_hf.py may write each record as `{"0": record}`.

    Args:
        records: The lines of a file, at least one of which is not null.

    Raises:
        PredictionsError: If only some of the lines are wrapped.
    """
    numbered_records = [
        (number, record) for number, record in enumerate(records, start=1) if record is not None
    ]
    first_number, first_record = numbered_records[0]
    if not isinstance(first_record.get("0"), dict):
        return [record for _, record in numbered_records]
    unwrapped = []
    for number, record in numbered_records:
        inner = record.get("0")
        if not isinstance(inner, dict):
            raise PredictionsError(
                f'line {first_number} is wrapped as {{"0": …}} and line {number} is not. '
                "Required is one form for all lines."
            )
        unwrapped.append(inner)
    return unwrapped


def format_of(records: PredictionRecords, benchmark: Benchmark) -> str:
    """Return the name of a file's format, which the columns of its first record show.

    Args:
        records: The lines of the file.
        benchmark: The benchmark, in whose formats the file may be.

    Raises:
        PredictionsError: If the file has no record, or is in none of the formats.
    """
    first_record = next((record for record in records if record is not None), None)
    if first_record is None:
        raise PredictionsError(
            "the file holds no record, so that there is nothing to score. Required is a line for "
            "each row."
        )
    # VL-RewardBench's inference_hf.py may wrap each record as {"0": record}.
    inner = first_record.get("0")
    columns = set(inner if isinstance(inner, dict) else first_record)
    for name, file_format in benchmark.files.items():
        if columns.issuperset(file_format.marks):
            return name
    column_names = ", ".join(sorted(map(ascii, columns))) or "(none)"
    formats = "".join(
        f"\n  {name}: {file_format.about}" for name, file_format in benchmark.files.items()
    )
    raise PredictionsError(
        f"the first record has the columns {column_names}, by which it is in none of the formats "
        f"that {benchmark.name} is scored from:{formats}"
    )


def rules_for_format(format_name: str, benchmark: Benchmark) -> list[str]:
    """Return the names of the rules that can score a file of this format.

    They read the format itself, or the format into which its lines are converted.
    """
    readable_formats = {format_name, benchmark.files[format_name].becomes}
    return [name for name, rule in benchmark.rules.items() if rule.reads in readable_formats]


def chosen_rules(format_name: str, benchmark: Benchmark, rules: str | None) -> str:
    """Return the name of the rules by which a file of this format is scored.

    Args:
        format_name: Name of the format.
        benchmark: The benchmark.
        rules: The requested rules; None takes the rules that belong to the format.

    Raises:
        PredictionsError: If the requested rules cannot score the format, or none are requested and
            none belong to it.
    """
    able_rules = rules_for_format(format_name, benchmark)
    file_format = benchmark.files[format_name]
    if rules is not None and rules in able_rules:
        return rules
    description = (
        f"the file is in the format {format_name} ({file_format.about}), which the rules "
        f"{', '.join(able_rules)} read"
    )
    if rules is not None:
        required = benchmark.rules[rules].reads
        raise PredictionsError(
            f"{description}; {rules} reads {required} ({benchmark.files[required].about}). Give "
            f"--rules {able_rules[0]}."
        )
    if not file_format.rules:
        raise PredictionsError(
            f"{description}. They give different figures, so name the rules that you mean, for "
            f"example --rules {able_rules[0]}."
        )
    return file_format.rules


@dataclass(slots=True)
class _FileRows:
    """The rows of a predictions file, and the faults that were found so far."""

    counts: Counter[RowName]
    """Number of times that each row is in the file; several votes on a row count once."""
    duplicated: list[str]
    """Ids of rows that are in the file too often."""
    notes: list[str]


def coverage(
    rows: Sequence[RowName],
    benchmark: Benchmark,
    where: Location | None,
    votes: bool,
    groups: Sequence[str] | None = None,
) -> Coverage:
    """Compare the rows of a predictions file with the rows of its benchmark.

    Args:
        rows: Name of the row of each line.
        benchmark: The benchmark to which the rows should belong.
        where: Location of the benchmark's rows; None compares with the ids of the known editions.
        votes: True if each line is a vote, of which a row may have several.
        groups: The category in each line; None if lines have none.
    """
    file_rows = _FileRows(Counter(rows), duplicated=[], notes=[])
    if votes:
        file_rows = _rows_of_votes(file_rows.counts)
    if where is not None:
        try:
            compared, groups_by_id = _compare_with_rows(file_rows, benchmark, where)
        except HubError as error:
            # The ids of a known edition are compared below instead.
            file_rows.notes.append(
                "THE HUB COULD NOT BE READ, so that nothing was compared with its rows: "
                + str(error).splitlines()[0]
            )
        else:
            if groups is None:
                return compared
            return replace(compared, miscounted=_wrong_categories(rows, groups, groups_by_id))
    edition = next((known for known in benchmark.known if known.ids), None)
    if edition is not None:
        compared, recognised_edition = _compare_with_ids(file_rows, benchmark, edition)
        if groups is None:
            return compared
        return replace(
            compared, miscounted=_wrong_category_sizes(groups, recognised_edition, compared.whole)
        )
    for (identity, _), count in file_rows.counts.items():
        file_rows.duplicated += [identity] * (count - 1)
    compared_sentence = "compared with nothing, because this project does not have these rows"
    miscounted: tuple[str, ...] = ()
    part = _part_with_groups(benchmark.known, groups or ())
    if part is not None:
        compared_sentence = f"only the numbers of rows were compared, with {part.name}"
        miscounted = _wrong_category_sizes(groups or (), part, is_whole=True)
    return Coverage(
        rows=file_rows.counts.total(),
        expected=None,
        compared=f"{compared_sentence}: name their place, --benchmark {benchmark.name}=PATH",
        duplicated=tuple(file_rows.duplicated),
        miscounted=miscounted,
        notes=tuple(file_rows.notes),
    )


def _part_with_groups(
    editions: Sequence[PublishedEdition], groups: Sequence[str]
) -> PublishedEdition | None:
    """Return the part of the newest edition that has the categories of a file.

    The official scripts of some benchmarks write a file for each category. Returns None if the
    edition has none of the categories, or its categories are not known.

    Args:
        editions: The editions of the benchmark, the newest one last.
        groups: The category in each line of the file.
    """
    if not editions:
        return None
    in_file = set(groups)
    newest = editions[-1]
    sizes = {group: size for group, size in newest.groups.items() if group in in_file}
    if not sizes:
        return None
    return replace(newest, rows=sum(sizes.values()), groups=sizes)


def _rows_of_votes(counts: Counter[RowName]) -> _FileRows:
    """Return the rows of a file in which each line is a vote.

    A row with more votes than most rows have is duplicated.

    Args:
        counts: Number of votes on each row.
    """
    usual_count, _ = Counter(counts.values()).most_common(1)[0]
    duplicated = [identity for (identity, _), count in counts.items() if count > usual_count]
    num_fewer = sum(count < usual_count for count in counts.values())
    fewer = f", on {num_fewer:,} rows fewer" if num_fewer else ""
    row_counts = Counter(counts.keys())  # each row once
    return _FileRows(row_counts, duplicated, [f"votes on a row: {usual_count}{fewer}"])


def _wrong_category_sizes(
    groups: Sequence[str], edition: PublishedEdition, is_whole: bool
) -> tuple[str, ...]:
    """Return a sentence for each category that has more or fewer lines than the edition has rows.

    Args:
        groups: The category of each line.
        edition: The edition. If its categories are not known, the result is empty.
        is_whole: False if the file lacks rows or has too many. Categories with fewer lines are then
            not named, because they are too small because of the missing rows.
    """
    if not edition.groups:
        return ()
    sentences = []
    num_lines_by_group = Counter(groups)
    for group in dict.fromkeys([*edition.groups, *num_lines_by_group]):
        num_lines = num_lines_by_group[group]
        num_rows = edition.groups.get(group, 0)
        has_too_few = num_lines < num_rows
        if num_lines > num_rows or (has_too_few and is_whole):
            sentences.append(
                f"category {group!r}: {num_lines:,} lines; {edition.name} has {num_rows:,} rows of "
                "it"
            )
    return tuple(sentences)


def _wrong_categories(
    rows: Sequence[RowName], groups: Sequence[str], groups_by_id: Mapping[str, set[str]]
) -> tuple[str, ...]:
    """Return a sentence about the lines that state another category than the benchmark's rows.

    The result is empty if there are no such lines.

    Args:
        rows: Name of the row of each line.
        groups: The category of each line.
        groups_by_id: The categories of the benchmark's rows with each id.
    """
    faults = []
    for (identity, _), group in zip(rows, groups, strict=True):
        if identity in groups_by_id and group not in groups_by_id[identity]:
            right_groups = " or ".join(map(repr, sorted(groups_by_id[identity])))
            faults.append(f"{identity!a} is in {group!r}, not in {right_groups}")
    if not faults:
        return ()
    ellipsis = " …" if len(faults) > MAX_NAMED else ""
    examples = ", ".join(faults[:MAX_NAMED])
    return (f"{len(faults):,} in another category: {examples}{ellipsis}",)


def _compare_with_rows(
    file_rows: _FileRows, benchmark: Benchmark, where: Location
) -> tuple[Coverage, dict[str, set[str]]]:
    """Compare the rows of a file with the benchmark's rows at a location.

    Rows are compared by their ids. If the file holds responses and labels, or the number of each
    row in the benchmark, these are compared as well. Returns the comparison, and the categories of
    the benchmark's rows with each id.

    Raises:
        HubError: If the rows are on the hub, which cannot be read.
    """
    # The texts of a row's name besides its id: two responses, the row's number and id, or nothing.
    num_texts_of_names = {len(texts) for _, texts in file_rows.counts}
    has_responses = num_texts_of_names == {2}
    has_positions = num_texts_of_names == {1}
    counts = file_rows.counts
    how = "by ids, responses and labels" if has_responses else "by the number and id of each row"
    if not has_responses and not has_positions:
        counts = Counter((identity, ()) for identity, _ in counts.elements())
        how = "by ids alone, because the file does not hold the responses"

    examples = _rows_at(benchmark, where)
    expected_counts = Counter[RowName]()
    groups_by_id: dict[str, set[str]] = {}
    for example in examples:
        identity = str(example.row["ID"] if "ID" in example.row else example.row["id"])
        texts: tuple[str, ...] = ()
        if has_responses and isinstance(example, Example):
            better = example.responses[example.better]
            other = example.responses[1 - example.better]
            texts = (better.text, other.text)
        elif has_positions:
            texts = (example.identity,)
        expected_counts[identity, texts] += 1
        groups_by_id.setdefault(identity, set()).add(example.group)

    duplicated = list(file_rows.duplicated)
    invented = []
    surplus = counts - expected_counts
    for name in surplus.elements():
        identity, _ = name
        if name in expected_counts:
            duplicated.append(identity)
        else:
            invented.append(identity)
    notes = list(file_rows.notes)
    num_changed = sum(identity in groups_by_id for identity in invented)
    if num_changed:
        notes.append(
            f"{num_changed:,} rows have an id of the benchmark, but other responses, another label "
            "or another place"
        )
    missing = expected_counts - counts
    compared = Coverage(
        rows=counts.total(),
        expected=expected_counts.total(),
        compared=f"compared with those at {where.location}, {how}",
        missing=tuple(identity for identity, _ in missing.elements()),
        duplicated=tuple(duplicated),
        invented=tuple(invented),
        notes=tuple(notes),
    )
    return compared, groups_by_id


def _compare_with_ids(
    file_rows: _FileRows, benchmark: Benchmark, edition: PublishedEdition
) -> tuple[Coverage, PublishedEdition]:
    """Compare the rows of a file with the ids of a published edition.

    Returns the comparison, and the edition to which the file belongs. It is another edition than
    the given one if ids in the file have numbers at their end, with which newer editions tell equal
    ids apart. The ids of such an edition are not known here. It is recognised by its number of
    rows, and its ids are compared without the numbers.
    """
    # Number of rows with each id, or with its digest if the id may not be published.
    expected_counts = Counter((IDS / edition.ids).read_text(encoding="utf-8").splitlines())
    identities, duplicated = _ids_in_file(file_rows.counts, edition)

    matched_counts = Counter[str]()
    invented: list[str] = []
    has_numbered_ids = False
    for identity in identities:
        listed_id = _listed_id(identity, expected_counts)
        numbered = NUMBERED.fullmatch(identity)
        if listed_id is None and numbered is not None:
            listed_id = _listed_id(numbered[1], expected_counts)
            has_numbered_ids = has_numbered_ids or listed_id is not None
        if listed_id is None:
            invented.append(identity)
            continue
        matched_counts[listed_id] += 1
        if matched_counts[listed_id] > expected_counts[listed_id]:
            duplicated.append(identity)

    recognised_edition = edition
    if has_numbered_ids and not duplicated and not invented:
        for known in benchmark.known:
            if known.rows == matched_counts.total():
                recognised_edition = known
                break
    # The ids of another edition are not known, so its missing rows cannot be named.
    missing: list[str] = []
    lacking = f", of which {recognised_edition.name} lacks some"
    if recognised_edition is edition:
        lacking = ""
        for listed_id in (expected_counts - matched_counts).elements():
            is_digest = listed_id.startswith("#")
            missing.append(f"{listed_id} (a digest: such an id)" if is_digest else listed_id)
    compared = Coverage(
        rows=file_rows.counts.total(),
        expected=recognised_edition.rows,
        compared=f"compared with the ids of {edition.name}{lacking}. Responses, labels and images "
        "were not compared: name the place of the rows for that, "
        f"--benchmark {benchmark.name}=hub or =PATH",
        missing=tuple(missing),
        duplicated=(*file_rows.duplicated, *duplicated),
        invented=tuple(invented),
        notes=tuple(file_rows.notes),
    )
    return compared, recognised_edition


def _ids_in_file(
    counts: Counter[RowName], edition: PublishedEdition
) -> tuple[list[str], list[str]]:
    """Return the ids of a file's rows, and the ids of rows that are in the file more than once.

    The first list has a repeated row once. Rows of a benchmark may share an id, so a row counts as
    repeated only if its name has more than the id to tell rows apart: its number in the benchmark,
    or its responses.

    Args:
        counts: Number of times that each row is in the file.
        edition: The edition of the benchmark, whose rows may be equal in id and responses.
    """
    identities: list[str] = []
    duplicated: list[str] = []
    for (identity, texts), count in counts.items():
        has_position = len(texts) == 1
        has_unique_responses = len(texts) == 2 and not edition.repeats
        if has_position or has_unique_responses:
            identities.append(identity)
            duplicated += [identity] * (count - 1)
        else:
            identities += [identity] * count
    return identities, duplicated


def _listed_id(identity: str, listed_ids: Container[str]) -> str | None:
    """Return the id or its digest, whichever is in a list of ids; None if neither is."""
    for name in (identity, digested(identity)):
        if name in listed_ids:
            return name
    return None


def digested(identity: str) -> str:
    """Return the digest that represents an id in lists of ids that may not be published."""
    return f"#{hashlib.sha256(identity.encode()).hexdigest()[:10]}"
