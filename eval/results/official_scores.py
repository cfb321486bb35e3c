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
from mmrm.eval.results.predictions_protocol import protocol_of

IDS = Path(__file__).resolve().parents[1] / "benchmarks" / "ids"
NUMBERED = re.compile(r"(.+)-[0-9]")
"""An id that occurred twice in an older edition; newer editions number the two."""
NAMED = 5
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
        """Return the lines to print with the figures: the numbers of rows and their faults."""
        of_expected = "" if self.expected is None else f" of {self.expected:,}"
        lines = [f"{self.rows:,}{of_expected} rows; {self.compared}"]
        identities_by_fault = {
            "missing": self.missing,
            "duplicated": self.duplicated,
            "not in the benchmark": self.invented,
        }
        for fault, identities in identities_by_fault.items():
            if identities:
                examples = ", ".join(map(ascii, identities[:NAMED]))
                ellipsis = " …" if len(identities) > NAMED else ""
                lines.append(f"{len(identities):,} {fault}: {examples}{ellipsis}")
        return [*lines, *self.miscounted, *self.notes]


def score_predictions_file(
    path: Path,
    benchmark: Benchmark,
    rules: str | None = None,
    votes: int | None = None,
    where: Location | None = None,
) -> tuple[dict[str, Any], Coverage]:
    """Return the figures of a predictions file under published rules, and its coverage.

    Args:
        path: The predictions file.
        benchmark: The benchmark whose rules and rows are used.
        rules: Name of the rules; None takes the rules that belong to the file's format.
        votes: The number K of votes an item, for rules that depend on K.
        where: Place of the benchmark's rows; None compares with the ids of the known editions.

    Raises:
        PredictionsError: The rules are unknown, or cannot score the file.
    """
    if rules is not None and rules not in benchmark.rules:
        raise PredictionsError(
            f"{benchmark.name} has no rules {rules!r}; there are {', '.join(benchmark.rules)}."
        )
    try:
        records = read_json_lines(path)
        form_name = format_of(records, benchmark)
        form = benchmark.files[form_name]
        rules_name = chosen_rules(form_name, benchmark, rules)
        rule = benchmark.rules[rules_name]

        lines = records
        if form.convert is not None and rule.reads != form_name:
            lines = parse_records(records, form.convert, form.about)
        figures = {**rule.figures(rules_name, lines), "format": form_name}

        unwrapped = _unwrapped(records)
        rows = parse_records(unwrapped, form.row or row_name, form.about)
        groups = None
        if form.group is not None:
            groups = parse_records(unwrapped, form.group, form.about)
        protocol = protocol_of(path, unwrapped) if form_name == "predictions" else None
    except UserError as error:
        under = f", under the rules {rules!r}" if rules else ""
        raise PredictionsError(f"{path}{under}: {error}") from error
    if votes is not None:
        if rule.at_votes is None:
            raise PredictionsError(
                f"--k is {votes}, and the rules {rules_name} have no choice of K. Remove --k."
            )
        figures = rule.at_votes(figures, votes)

    compared = coverage(rows, benchmark, where, form.votes, groups)
    notes = list(compared.notes)
    num_null = len(records) - len(unwrapped)
    if num_null:
        notes.append(f"{num_null:,} lines hold null and were skipped, as {rules_name} does")
    if protocol is not None:
        figures["protocol"] = protocol.label
        notes.extend(protocol.lines())
    compared = replace(compared, notes=tuple(notes))
    return {**figures, "whole": compared.whole, "coverage": asdict(compared)}, compared


def _unwrapped(records: PredictionRecords) -> list[Record]:
    """Return the records that are not null, without a wrapping `{"0": record}`.

    inference_hf.py may wrap each record in this way.

    Raises:
        PredictionsError: Only some of the lines are wrapped.
    """
    lines = [(number, record) for number, record in enumerate(records, 1) if record is not None]
    first_number, first = lines[0]
    if not isinstance(first.get("0"), dict):
        return [record for _, record in lines]
    unwrapped = []
    for number, record in lines:
        inner = record.get("0")
        if not isinstance(inner, dict):
            raise PredictionsError(
                f'line {first_number} is wrapped as {{"0": …}} and line {number} is not. '
                "Required is one form for all lines."
            )
        unwrapped.append(inner)
    return unwrapped


def format_of(records: PredictionRecords, benchmark: Benchmark) -> str:
    """Return the name of a file's format, recognised by the columns of its first record.

    Raises: PredictionsError if the file has no record, or the benchmark has no such format.
    """
    first = next((record for record in records if record is not None), None)
    if first is None:
        raise PredictionsError(
            "the file holds no record, so that there is nothing to score. Required is a line for "
            "each row."
        )
    inner = first.get("0")
    columns = set(inner if isinstance(inner, dict) else first)
    for name, form in benchmark.files.items():
        if columns.issuperset(form.marks):
            return name
    names = ", ".join(sorted(map(ascii, columns))) or "(none)"
    forms = "".join(f"\n  {name}: {form.about}" for name, form in benchmark.files.items())
    raise PredictionsError(
        f"the first record has the columns {names}, by which it is in none of the formats that "
        f"{benchmark.name} is scored from:{forms}"
    )


def readers(form: str, benchmark: Benchmark) -> list[str]:
    """Return the names of the rules that score a file of this format."""
    readable = {form, benchmark.files[form].becomes}
    return [name for name, rule in benchmark.rules.items() if rule.reads in readable]


def chosen_rules(form: str, benchmark: Benchmark, rules: str | None) -> str:
    """Return the name of the rules that score a file of this format.

    Args:
        form: Name of the format.
        benchmark: The benchmark.
        rules: The requested rules; None takes the rules that belong to the format.

    Raises:
        PredictionsError: The requested rules cannot score it, or none belong to the format.
    """
    able = readers(form, benchmark)
    file_format = benchmark.files[form]
    if rules is not None and rules in able:
        return rules
    description = (
        f"the file is in the format {form} ({file_format.about}), which the rules "
        f"{', '.join(able)} read"
    )
    if rules is not None:
        required = benchmark.rules[rules].reads
        raise PredictionsError(
            f"{description}; {rules} reads {required} ({benchmark.files[required].about}). Give "
            f"--rules {able[0]}."
        )
    if not file_format.rules:
        raise PredictionsError(
            f"{description}. They give different figures, so name the rules that you mean, for "
            f"example --rules {able[0]}."
        )
    return file_format.rules


@dataclass(slots=True)
class _FileRows:
    """The rows of a predictions file, and the findings about them so far."""

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
    """Compare the rows of a file with the benchmark's.

    Args:
        rows: Name of the row of each line.
        benchmark: The benchmark to which the rows should belong.
        where: Place of the benchmark's rows; None compares with the ids of the known editions.
        votes: True if each line is a vote, of which a row may have several.
        groups: The category in each line; None if lines have none.
    """
    have = _FileRows(Counter(rows), duplicated=[], notes=[])
    if votes:
        have = _rows_of_votes(have.counts)
    if where is not None:
        try:
            compared, expected_groups = _against_rows(have, benchmark, where)
        except HubError as error:
            have.notes.append(
                "THE HUB COULD NOT BE READ, so that nothing was compared with its rows: "
                + str(error).splitlines()[0]
            )
        else:
            if groups is None:
                return compared
            return replace(compared, miscounted=_in_other_groups(rows, groups, expected_groups))
    edition = next((known for known in benchmark.known if known.ids), None)
    if edition is not None:
        compared, fitting = _against_ids(have, benchmark, edition)
        if groups is None:
            return compared
        return replace(compared, miscounted=_other_sizes(groups, fitting, compared.whole))
    for (identity, _), count in have.counts.items():
        have.duplicated += [identity] * (count - 1)
    return Coverage(
        rows=have.counts.total(),
        expected=None,
        compared="compared with nothing, because this project does not have these rows: name their "
        f"place, --benchmark {benchmark.name}=PATH",
        duplicated=tuple(have.duplicated),
        notes=tuple(have.notes),
    )


def _rows_of_votes(counts: Counter[RowName]) -> _FileRows:
    """Return the rows of a file in which each line is a vote; `counts` are the votes on each row.

    A row with more votes than most rows have is duplicated.
    """
    usual_count, _ = Counter(counts.values()).most_common(1)[0]
    duplicated = [identity for (identity, _), count in counts.items() if count > usual_count]
    num_fewer = sum(count < usual_count for count in counts.values())
    fewer = f", on {num_fewer:,} rows fewer" if num_fewer else ""
    return _FileRows(Counter(counts.keys()), duplicated, [f"votes on a row: {usual_count}{fewer}"])


def _other_sizes(
    groups: Sequence[str], edition: PublishedEdition, is_whole: bool
) -> tuple[str, ...]:
    """Return a sentence for each category that has more or fewer lines than the edition has rows.

    If rows are missing or too many (`is_whole` is False), only categories with more lines are
    named: the others are too small because of the missing rows.
    """
    if not edition.groups:
        return ()
    sentences = []
    sizes = Counter(groups)
    for group in dict.fromkeys([*edition.groups, *sizes]):
        size = sizes[group]
        expected = edition.groups.get(group, 0)
        if size > expected or (is_whole and size != expected):
            sentences.append(
                f"category {group!r}: {size:,} lines; {edition.name} has {expected:,} rows of it"
            )
    return tuple(sentences)


def _in_other_groups(
    rows: Sequence[RowName], groups: Sequence[str], expected: Mapping[str, set[str]]
) -> tuple[str, ...]:
    """Return a sentence about the lines that have another category than the benchmark's rows.

    The result has no sentence if there are no such lines.

    Args:
        rows: Name of the row of each line.
        groups: The category of each line.
        expected: The categories of the benchmark's rows of each id.
    """
    others = []
    for (identity, _), group in zip(rows, groups, strict=True):
        if identity in expected and group not in expected[identity]:
            right = " or ".join(map(repr, sorted(expected[identity])))
            others.append(f"{identity!a} is in {group!r}, not in {right}")
    if not others:
        return ()
    more = " …" if len(others) > NAMED else ""
    return (f"{len(others):,} in another category: {', '.join(others[:NAMED])}{more}",)


def _against_rows(
    have: _FileRows, benchmark: Benchmark, where: Location
) -> tuple[Coverage, dict[str, set[str]]]:
    """Compare with the benchmark's rows, and return also the categories of the rows of each id.

    Rows are compared by their ids, and by responses and label if the file has them.

    Raises: HubError if the rows are on the hub, which cannot be read.
    """
    content_lengths = {len(content) for _, content in have.counts}
    has_responses = content_lengths == {2}
    has_positions = content_lengths == {1}
    counts = have.counts
    how = "by ids, responses and labels" if has_responses else "by the number and id of each row"
    if not has_responses and not has_positions:
        counts = Counter((identity, ()) for identity, _ in counts.elements())
        how = "by ids alone, because the file does not hold the responses"

    examples = benchmark.read(where) if benchmark.read else benchmark.load(where).examples
    expected = Counter[RowName]()
    groups: dict[str, set[str]] = {}
    for example in examples:
        identity = str(example.row["ID"] if "ID" in example.row else example.row["id"])
        content: tuple[str, ...] = ()
        if has_responses:
            content = (example.responses[example.better], example.responses[1 - example.better])
        elif has_positions:
            content = (example.identity,)
        expected[identity, content] += 1
        groups.setdefault(identity, set()).add(example.group)

    duplicated = list(have.duplicated)
    invented = []
    for name in (counts - expected).elements():
        if name in expected:
            duplicated.append(name[0])
        else:
            invented.append(name[0])
    notes = list(have.notes)
    num_changed = sum(identity in groups for identity in invented)
    if num_changed:
        notes.append(
            f"{num_changed:,} rows have an id of the benchmark, but other responses, another label "
            "or another place"
        )
    compared = Coverage(
        rows=counts.total(),
        expected=expected.total(),
        compared=f"compared with those at {where.location}, {how}",
        missing=tuple(identity for identity, _ in (expected - counts).elements()),
        duplicated=tuple(duplicated),
        invented=tuple(invented),
        notes=tuple(notes),
    )
    return compared, groups


def _against_ids(
    have: _FileRows, benchmark: Benchmark, edition: PublishedEdition
) -> tuple[Coverage, PublishedEdition]:
    """Compare with the ids of a published edition, and return the edition that the file is of.

    Newer editions put a number behind an id that occurred twice, so ids are compared with and
    without such a number. If some ids are numbered, the file may be of another edition, whose ids
    are not known here. This edition is recognised by its number of rows.
    """
    expected = Counter((IDS / edition.ids).read_text(encoding="utf-8").splitlines())
    identities: list[str] = []
    duplicated: list[str] = []
    for (identity, content), count in have.counts.items():
        is_unique = len(content) == 1 or (len(content) == 2 and not edition.repeats)
        if is_unique:
            identities.append(identity)
            duplicated += [identity] * (count - 1)
        else:
            identities += [identity] * count

    matched = Counter[str]()
    invented: list[str] = []
    has_numbered = False
    for identity in identities:
        without_number = NUMBERED.fullmatch(identity)
        name = _listed_name(identity, expected)
        if name is None and without_number is not None:
            name = _listed_name(without_number[1], expected)
            has_numbered = has_numbered or name is not None
        if name is None:
            invented.append(identity)
            continue
        matched[name] += 1
        if matched[name] > expected[name]:
            duplicated.append(identity)

    fitting = edition
    if has_numbered and not duplicated and not invented:
        for known in benchmark.known:
            if known.rows == matched.total():
                fitting = known
                break
    missing: list[str] = []
    lacking = f", of which {fitting.name} lacks some"
    if fitting is edition:
        lacking = ""
        for name in (expected - matched).elements():
            missing.append(f"{name} (a digest: such an id)" if name[0] == "#" else name)
    compared = Coverage(
        rows=have.counts.total(),
        expected=fitting.rows,
        compared=f"compared with the ids of {edition.name}{lacking}. Responses, labels and images "
        "were not compared: name the place of the rows for that, "
        f"--benchmark {benchmark.name}=hub or =PATH",
        missing=tuple(missing),
        duplicated=(*have.duplicated, *duplicated),
        invented=tuple(invented),
        notes=tuple(have.notes),
    )
    return compared, fitting


def _listed_name(identity: str, names: Container[str]) -> str | None:
    """Return the id or its digest, whichever is in a list of ids; None if neither is."""
    for name in (identity, digested(identity)):
        if name in names:
            return name
    return None


def digested(identity: str) -> str:
    """Return the digest that represents an id in lists of ids that may not be published."""
    return f"#{hashlib.sha256(identity.encode()).hexdigest()[:10]}"
