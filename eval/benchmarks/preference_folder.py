"""A benchmark of the user's own preference records, in a file or a folder.

The records may be in any format that training reads (docs/data_formats.md). The `category` of a
record is its group. The files always name the winner, so the two responses are shown in an order
drawn from their content.
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmrm.data.errors import LeftOut, RecordError, UserError
from mmrm.data.preference import Preference, validate
from mmrm.data.preparation.recognition import (
    files_config,
    format_advice,
    recognise,
    types_with_files,
)
from mmrm.data.sources.shared.file_source import FilesConfig, shards_problem
from mmrm.data.sources.shared.source import Source
from mmrm.data.storage.files import content_digest
from mmrm.eval.benchmarks.benchmark import (
    BUILT_IN,
    Benchmark,
    FileFormat,
    LoadedBenchmark,
    Location,
    PredictionRecords,
    Record,
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
"""The group of records without a category. It is not `all`, which would look like the total."""


def look(where: Location) -> None:
    """Raise UserError unless the location is a path with files that can be read."""
    if where.location in BUILT_IN:
        raise UserError(
            f"{NAME}: the location is {where.location!r}; required is the path of a file or folder "
            "of preference records, because this benchmark is the user's own."
        )
    if where.type is not None:
        _source_config(where, {"type": where.type, "path": where.location}).check_local_files()
    elif not any(types_with_files(where.location, where.image_root)):
        # No format fits. The project's own format raises an error that names what is missing.
        _source_config(where, {"type": "project", "path": where.location}).check_local_files()
    file = Path(where.location).expanduser()
    problem = shards_problem([file]) if file.is_file() else None
    if problem:
        raise UserError(f"{NAME}: {problem} The location of a set is its folder.")


def load(where: Location) -> LoadedBenchmark:
    """Return the records at `where.location`, which must be a path.

    Notes count the rows that the format's own rule leaves out (ties), and name columns that are not
    read.

    Raises:
        UserError: If files are missing, or records cannot be used. It lists them.
    """
    look(where)
    notes = []
    with tempfile.TemporaryDirectory() as cache:
        if where.type is None:
            recognised = recognise(where.location, Path(cache), where.image_root)
            settings = recognised.settings
            if recognised.type != "project":
                note = f"Read as {recognised.line}."
                if recognised.unread:
                    note += f" Columns that are not read: {', '.join(recognised.unread)}."
                notes.append(note)
        else:
            settings = {"type": where.type, "path": where.location}
        config = _source_config(where, settings)
        source = config.open(Path(cache))
        examples, num_left_out, problems = _read_examples(source, where.limit)
        if problems:
            raise UserError(
                f"{NAME}: {len(problems)} of {len(source)} records cannot be used:"
                f"{listed(problems)}{format_advice(config, Path(cache))}"
            )
    if num_left_out:
        notes.append(
            f"{num_left_out} of {num_left_out + len(examples)} records are left out by the rules "
            f"of `{config.type}`."
        )
    notes += repeated(examples)
    benchmark = loaded(NAME, examples, where, where.location)
    origin = replace(benchmark.origin, notes=(*benchmark.origin.notes, *notes))
    return replace(benchmark, origin=origin)


def _read_examples(source: Source, limit: int | None) -> tuple[list[Example], int, list[str]]:
    """Return the rows, the number of records left out by rule, and the problems of all others."""
    examples: list[Example] = []
    problems: list[str] = []
    num_left_out = 0
    for index in limited(len(source), limit):
        try:
            record = distinct(validate(source.record(index), tokens=()))
        except LeftOut:
            num_left_out += 1
        except RecordError as error:
            problems.append(str(error))
        else:
            examples.append(example_from_record(record))
    return examples, num_left_out, problems


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
            f"{num_repeated:,} of {len(examples):,} records repeat the images, prompt and "
            "responses of an earlier one; each counts."
        )
    if num_contradicted:
        notes.append(
            f"{num_contradicted:,} contents occur with both labels, so that no judge can be right "
            "on all their records."
        )
    return notes


def _source_config(where: Location, settings: Mapping[str, str]) -> FilesConfig:
    """Return the source with these settings, with the image folder of the location."""
    return files_config(**{"images": where.image_root, **settings, "name": NAME})


def distinct(record: Preference) -> Preference:
    """Return the record; raise RecordError if its responses are equal."""
    if record.chosen == record.rejected:
        raise RecordError(
            f"{record.identity}: both responses are the same text, and no judge can tell them "
            "apart. Remove the record."
        )
    return record


def example_from_record(record: Preference) -> Example:
    """Return a record as a row of a benchmark."""
    responses, better = in_drawn_order(
        json.dumps(list(record.prompt)), record.chosen, record.rejected
    )
    references = [content_digest(image) for image in record.images]
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


def score(records: PredictionRecords) -> dict[str, Any]:
    """Return accuracies over all rows from `category` and `rewards`; ties are wrong."""
    return figures_by_group(parse_rewards(records, _group, "category"))


def _group(record: Record) -> str:
    """Return the category of a line."""
    return text(record, "category")


PREFERENCE_FOLDER = Benchmark(
    name=NAME,
    load=load,
    look=look,
    formats={"rewards": reward_records},
    rules={
        "plain": ScoringRule(
            about="no official scorer: accuracy over all rows, ties wrong",
            reads="rewards",
            score=score,
            differs="no script",
        )
    },
    files={
        "predictions": own_format("plain"),
        "rewards": FileFormat(
            about="id, category and rewards, [of the better response, of the other]",
            marks=("rewards",),
            rules="plain",
            group=_group,
        ),
    },
)
