"""A user's own benchmark: a file or folder of preference records in any format that training reads (docs/data_formats.md).

The record's `category` is the group, its `source` the source. The two responses are shown in an order drawn from their
content, since these files always name the winner.
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmrm.data.errors import LeftOut, RecordError, UserError
from mmrm.data.preference import Preference, validate
from mmrm.data.preparation.recognition import advice, candidates, configured, recognise
from mmrm.data.sources.shared.file_source import FilesConfig, shards_problem
from mmrm.data.storage.files import content_digest
from mmrm.eval.benchmarks.benchmark import (
    BUILT_IN,
    Benchmark,
    FileFormat,
    LoadedBenchmark,
    Location,
    Record,
    Records,
    ScoringRule,
    figures_by_group,
    in_drawn_order,
    reward_records,
)
from mmrm.eval.benchmarks.prediction_records import own_format, parse_rewards, text
from mmrm.eval.benchmarks.rows import content_key, limited, listed, loaded
from mmrm.eval.candidates import Example

NAME = "preference_folder"
UNSORTED = "uncategorised"
"""The group of records without a category; not `all`, which would look like the total."""


def look(where: Location) -> None:
    """Raise UserError unless the location is a path with files that are read."""
    if where.location in BUILT_IN:
        raise UserError(
            f"{NAME}: the location is {where.location!r}; required is the path of a file or folder of preference records: this "
            "benchmark is the user's own."
        )
    if where.type is not None:
        _source(where, {"type": where.type, "path": where.location}).look()
    elif not any(candidates(where.location, where.image_root)):
        _source(where, {"type": "project", "path": where.location}).look()  # says what is not there
    if problem := shards_problem(
        [path for path in [Path(where.location).expanduser()] if path.is_file()]
    ):
        raise UserError(f"{NAME}: {problem} (The location of a set is its folder.)")


def load(where: Location) -> LoadedBenchmark:
    """Return the records at `where.location`, which must be a path; a UserError lists those that cannot be used.

    Rows that the format's own rule leaves out (ties) are counted in a note; so are columns that are not read.
    """
    look(where)
    examples, problems, notes, left_out = [], [], [], 0
    with tempfile.TemporaryDirectory() as cache:
        if where.type is None:
            found = recognise(where.location, Path(cache), where.image_root)
            settings = found.settings
            if found.type != "project":
                unread = (
                    f" Columns that are not read: {', '.join(found.unread)}."
                    if found.unread
                    else ""
                )
                notes.append(f"Read as {found.line}.{unread}")
        else:
            settings = {"type": where.type, "path": where.location}
        config = _source(where, settings)
        source = config.open(Path(cache))
        for number in limited(len(source), where.limit):
            try:
                examples.append(
                    example_from_record(distinct(validate(source.record(number), tokens=())))
                )
            except LeftOut:
                left_out += 1
            except RecordError as error:
                problems.append(str(error))
        if problems:
            told = f"{NAME}: {len(problems)} of {len(source)} records cannot be used:{listed(problems)}"
            raise UserError(told + advice(config, Path(cache)))
    if left_out:
        notes.append(
            f"{left_out} of {left_out + len(examples)} records are left out by the rules of `{config.type}`."
        )
    notes += repeated(examples)
    benchmark = loaded(NAME, examples, where, where.location)
    return replace(
        benchmark, origin=replace(benchmark.origin, notes=(*benchmark.origin.notes, *notes))
    )


def repeated(examples: Sequence[Example]) -> list[str]:
    """Return a note on the records that repeat an earlier one, and on those that contradict one.

    A repeated record has the same images, prompt and responses; it counts as often as it occurs. A
    record contradicts another one if it has the same content and prefers the other response.
    """
    winners_by_content: dict[str, list[str]] = {}
    for example in examples:
        winner = example.responses[example.better]
        winners_by_content.setdefault(example.key, []).append(winner)
    num_repeated = sum(len(winners) - 1 for winners in winners_by_content.values())
    num_contradicted = sum(len(set(winners)) > 1 for winners in winners_by_content.values())
    notes = []
    if num_repeated:
        notes.append(
            f"{num_repeated:,} of {len(examples):,} records repeat the images, prompt and responses of an earlier "
            "one; each counts."
        )
    if num_contradicted:
        notes.append(
            f"{num_contradicted:,} contents occur with both labels, so that no judge can be right on all their records."
        )
    return notes


def _source(where: Location, settings: Mapping[str, str]) -> FilesConfig:
    return configured(**{"images": where.image_root, **settings, "name": NAME})


def distinct(record: Preference) -> Preference:
    """Return the record; raise RecordError if its responses are equal."""
    if record.chosen == record.rejected:
        raise RecordError(
            f"{record.identity}: both responses are the same text, and no judge can tell them apart"
        )
    return record


def example_from_record(record: Preference) -> Example:
    """Return a record as a row of a benchmark."""
    responses, better = in_drawn_order(
        json.dumps(list(record.prompt)), record.chosen, record.rejected
    )
    references = list(map(content_digest, record.images))
    group = record.category or UNSORTED
    return Example(
        key=content_key(record.prompt, sorted(responses), references),
        images=record.images,
        prompt=record.prompt,
        responses=responses,
        better=better,
        group=group,
        source=record.source or NAME,
        identity=record.identity,
        row={
            "id": record.identity,
            "category": group,
            "chosen": record.chosen,
            "rejected": record.rejected,
        },
    )


def score(records: Records) -> dict[str, Any]:
    """Return accuracies over all rows from `category` and `rewards`; ties are wrong."""
    return figures_by_group(parse_rewards(records, _group, "category"))


def _group(record: Record) -> str:
    return text(record, "category")


PREFERENCE_FOLDER = Benchmark(
    name=NAME,
    load=load,
    look=look,
    formats={"rewards": reward_records},
    rules={
        "plain": ScoringRule(
            "no official scorer: accuracy over all rows, ties wrong", "rewards", score, "no script"
        )
    },
    files={
        "predictions": own_format("plain"),
        "rewards": FileFormat(
            "id, category and rewards, [of the better response, of the other]",
            ("rewards",),
            "plain",
            group=_group,
        ),
    },
)
