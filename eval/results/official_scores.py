"""Predictions files made elsewhere: which format one is in, its figures by published rules, and whether it holds every row.

The rows are compared with those at a place that the caller names; else with the ids of the published edition, as far as this
project knows them. What was compared, and what was not, always stands beside the figures.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
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
"""An id that occurred twice in an older edition; newer ones number the two."""
NAMED = 5
"""Rows that a message names; the others it counts."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """How the rows of a predictions file compare with those of its benchmark."""

    rows: int
    """Rows in the file; several votes on a row count once."""
    expected: int | None
    """Rows of the benchmark; None if nothing is known of them."""
    compared: str
    """With what the rows were compared, and how."""
    missing: tuple[str, ...] = ()
    duplicated: tuple[str, ...] = ()
    invented: tuple[str, ...] = ()
    """Rows that the benchmark does not have."""
    miscounted: tuple[str, ...] = ()
    """Sentences on categories of the file that are not the benchmark's, or have another size."""
    notes: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """Return True if the file holds every row once, in its category, and no other row."""
        return not (self.missing or self.duplicated or self.invented or self.miscounted)

    def lines(self) -> list[str]:
        """Return all that must be printed beside the figures."""
        of = "" if self.expected is None else f" of {self.expected:,}"
        found = [f"{self.rows:,}{of} rows; {self.compared}"]
        for what, rows in (
            ("missing", self.missing),
            ("duplicated", self.duplicated),
            ("not in the benchmark", self.invented),
        ):
            if rows:
                more = " …" if len(rows) > NAMED else ""
                found.append(f"{len(rows):,} {what}: {', '.join(map(ascii, rows[:NAMED]))}{more}")
        return [*found, *self.miscounted, *self.notes]


def score_file(
    path: Path,
    benchmark: Benchmark,
    rules: str | None = None,
    votes: int | None = None,
    where: Location | None = None,
) -> tuple[dict[str, Any], Coverage]:
    """Return the figures of a predictions file under published rules, and how complete it is.

    Args:
        path: the predictions file.
        benchmark: the benchmark whose rules and rows are meant.
        rules: name of the rules; None takes those that belong to the file's format.
        votes: the K of rules that have one.
        where: place of the benchmark's rows; None compares with the ids of the known editions.

    Raises:
        PredictionsError: for unknown rules, or a file that they cannot score.
    """
    if rules is not None and rules not in benchmark.rules:
        raise PredictionsError(
            f"{benchmark.name} has no rules {rules!r}; there are {', '.join(benchmark.rules)}."
        )
    try:
        records = read_json_lines(path)
        form = format_of(records, benchmark)
        about = benchmark.files[form]
        name = chosen_rules(form, benchmark, rules)
        rule = benchmark.rules[name]

        lines = records
        if about.convert is not None and rule.reads != form:
            lines = parse_records(records, about.convert, about.about)
        found = {**rule.figures(name, lines), "format": form}

        unwrapped = _unwrapped(records)
        rows = parse_records(unwrapped, about.row or row_name, about.about)
        groups = None
        if about.group is not None:
            groups = parse_records(unwrapped, about.group, about.about)
        protocol = protocol_of(path, unwrapped) if form == "predictions" else None
    except UserError as error:
        under = f", under the rules {rules!r}" if rules else ""
        raise PredictionsError(f"{path}{under}: {error}") from error
    if votes is not None:
        if rule.at_votes is None:
            raise PredictionsError(f"the rules {name} have no choice of K; leave --k out.")
        found = rule.at_votes(found, votes)

    compared = coverage(rows, benchmark, where, about.votes, groups)
    notes = list(compared.notes)
    num_null = len(records) - len(unwrapped)
    if num_null:
        notes.append(f"{num_null:,} lines hold null and were skipped, as {name} does")
    if protocol is not None:
        found["protocol"] = protocol.label
        notes.extend(protocol.lines())
    compared = replace(compared, notes=tuple(notes))
    return {**found, "whole": compared.whole, "coverage": asdict(compared)}, compared


def _unwrapped(records: PredictionRecords) -> list[Record]:
    """Return the records that are not null, without the `{"0": record}` that inference_hf.py may put around each.

    Raises:
        PredictionsError: if only some of the lines are wrapped.
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
    """Return the name of a file's format, told by the columns of its first record; raises PredictionsError."""
    first = next((record for record in records if record is not None), None)
    if first is None:
        raise PredictionsError(
            "the file holds no record, so that there is nothing to score; required is a line for each row."
        )
    columns = set(first["0"]) if isinstance(first.get("0"), dict) else set(first)
    for name, form in benchmark.files.items():
        if columns.issuperset(form.marks):
            return name
    forms = "".join(f"\n  {name}: {form.about}" for name, form in benchmark.files.items())
    raise PredictionsError(
        f"the first record has the columns {', '.join(sorted(map(ascii, columns))) or '(none)'}, by which it is in none of the "
        f"formats that {benchmark.name} is scored from:{forms}"
    )


def readers(form: str, benchmark: Benchmark) -> list[str]:
    """Return the names of the rules that score a file of this format."""
    reads = {form, benchmark.files[form].becomes}
    return [name for name, rule in benchmark.rules.items() if rule.reads in reads]


def chosen_rules(form: str, benchmark: Benchmark, rules: str | None) -> str:
    """Return the rules to score a file of this format by; raises PredictionsError naming those that can."""
    able, about = readers(form, benchmark), benchmark.files[form]
    if rules in able:
        return str(rules)
    words = (
        f"the file is in the format {form} ({about.about}), which the rules {', '.join(able)} read"
    )
    if rules is not None:
        reads = benchmark.rules[rules].reads
        raise PredictionsError(
            f"{words}; {rules} reads {reads} ({benchmark.files[reads].about}). Give --rules {able[0]}."
        )
    if not about.rules:
        raise PredictionsError(
            f"{words}. They give different figures: name the ones you mean, for example --rules {able[0]}."
        )
    return about.rules


def coverage(
    rows: Sequence[RowName],
    benchmark: Benchmark,
    where: Location | None,
    votes: bool,
    groups: Sequence[str] | None = None,
) -> Coverage:
    """Compare the rows of a file with the benchmark's.

    Args:
        rows: name of the row of each line.
        benchmark: the benchmark that the rows should be of.
        where: place of the benchmark's rows; None compares with the ids of the known editions.
        votes: True if each line is a vote, of which a row may have several.
        groups: the category that each line states; None if the lines state none.
    """
    have = Counter(rows)
    duplicated: list[str] = []
    notes: list[str] = []
    if votes:
        usual = Counter(have.values()).most_common(1)[0][0]
        duplicated = [identity for (identity, _), count in have.items() if count > usual]
        num_fewer = sum(count < usual for count in have.values())
        fewer = f", on {num_fewer:,} rows fewer" if num_fewer else ""
        notes = [f"votes on a row: {usual}{fewer}"]
        have = Counter(have.keys())
    if where is not None:
        try:
            found, expected_groups = _against_rows(have, duplicated, notes, benchmark, where)
        except HubError as error:
            notes.append(
                "THE HUB COULD NOT BE READ, so that nothing was compared with its rows: "
                + str(error).splitlines()[0]
            )
        else:
            if groups is None:
                return found
            return replace(found, miscounted=_in_other_groups(rows, groups, expected_groups))
    edition = next((known for known in benchmark.known if known.ids), None)
    if edition is not None:
        found, fits = _against_ids(have, duplicated, notes, benchmark, edition)
        if groups is None:
            return found
        return replace(found, miscounted=_other_sizes(groups, fits, found.whole))
    compared = (
        "compared with nothing, for only the user has these rows: name their place, "
        f"--benchmark {benchmark.name}=PATH"
    )
    for (identity, _), count in have.items():
        duplicated += [identity] * (count - 1)
    return Coverage(have.total(), None, compared, duplicated=tuple(duplicated), notes=tuple(notes))


def _other_sizes(
    groups: Sequence[str], edition: PublishedEdition, is_whole: bool
) -> tuple[str, ...]:
    """Return a sentence for each category whose number of lines is not that of the edition.

    If rows are missing or too many (`is_whole` is False), only categories that the edition does not
    have, and those with more lines than it has, are named: the others are short for that reason.
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
    """Return a sentence on the lines that state another category than the benchmark's rows of their id have.

    Args:
        rows: name of the row of each line.
        groups: the category that each line states.
        expected: the categories of the benchmark's rows of each id.
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
    have: Counter[RowName],
    often: list[str],
    notes: list[str],
    benchmark: Benchmark,
    where: Location,
) -> tuple[Coverage, dict[str, set[str]]]:
    """Compare with rows that are at hand, and return the categories that the rows of each id have.

    Rows are compared by their ids, and by responses and label if the file has them.
    """
    want, told = Counter[RowName](), {len(content) for _, content in have}
    groups: dict[str, set[str]] = {}
    for example in benchmark.read(where) if benchmark.read else benchmark.load(where).examples:
        identity = str(example.row["ID"] if "ID" in example.row else example.row["id"])
        pair = example.responses[example.better], example.responses[1 - example.better]
        want[identity, pair if told == {2} else (example.identity,) if told == {1} else ()] += 1
        groups.setdefault(identity, set()).add(example.group)
    what = "by ids, responses and labels" if told == {2} else "by the number and id of each row"
    if told not in ({1}, {2}):
        have = Counter((identity, ()) for identity, _ in have.elements())
        what = "by ids alone, for the file does not hold the responses"
    known, extra = {identity for identity, _ in want}, have - want
    double = [identity for identity, content in extra.elements() if (identity, content) in want]
    invented = [
        identity for identity, content in extra.elements() if (identity, content) not in want
    ]
    if changed := sum(identity in known for identity in invented):
        notes = [
            *notes,
            f"{changed:,} rows have an id of the benchmark, but other responses, another label or another place",
        ]
    found = Coverage(
        have.total(),
        want.total(),
        f"compared with those at {where.location}, {what}",
        tuple(identity for identity, _ in (want - have).elements()),
        (*often, *double),
        tuple(invented),
        notes=tuple(notes),
    )
    return found, groups


def _against_ids(
    have: Counter[RowName],
    often: list[str],
    notes: list[str],
    benchmark: Benchmark,
    edition: PublishedEdition,
) -> tuple[Coverage, PublishedEdition]:
    """Compare with the ids of a published edition, and return the edition that the file is of.

    Newer editions put a number behind an id that was double; ids are compared with or without it.
    Another edition, whose ids are not known here, fits if it has as many rows as are left and some ids are numbered.
    """
    want, found = (
        Counter((IDS / edition.ids).read_text(encoding="utf-8").splitlines()),
        Counter[str](),
    )
    double, invented, numbered = list[str](), list[str](), False
    lines = list[str]()
    for (identity, content), count in have.items():
        exact = len(content) == 1 or (len(content) == 2 and not edition.repeats)
        lines += [identity] * (1 if exact else count)
        double += [identity] * (count - 1 if exact else 0)
    for identity in lines:
        plain = NUMBERED.fullmatch(identity)
        spellings = [
            identity,
            digested(identity),
            *([plain[1], digested(plain[1])] if plain else []),
        ]
        name = next((name for name in spellings if name in want), None)
        if name is None:
            invented.append(identity)
            continue
        numbered |= name not in spellings[:2]
        found[name] += 1
        if found[name] > want[name]:
            double.append(identity)
    missing, fits = want - found, edition
    if numbered and not (double or invented):
        fits = next((known for known in benchmark.known if known.rows == found.total()), edition)
    compared = (
        f"compared with the ids of {edition.name}{'' if fits is edition else f', of which {fits.name} lacks some'}. Responses, "
        f"labels and images were not compared: name the place of the rows for that, --benchmark {benchmark.name}=hub or =PATH"
    )
    lost = [
        f"{name} (a digest: such an id)" if name[0] == "#" else name for name in missing.elements()
    ]
    lost = lost if fits is edition else []
    coverage = Coverage(
        have.total(),
        fits.rows,
        compared,
        tuple(lost),
        (*often, *double),
        tuple(invented),
        notes=tuple(notes),
    )
    return coverage, fits


def digested(identity: str) -> str:
    """Return what stands for an id where a list of ids may not be given away."""
    return f"#{hashlib.sha256(identity.encode()).hexdigest()[:10]}"
