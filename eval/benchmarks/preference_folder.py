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

import numpy as np

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
from mmrm.data.storage.content import written_response
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
from mmrm.eval.benchmarks.prediction_records import parse_rewards, predictions_format, text
from mmrm.eval.benchmarks.rows import content_key, limited_indices, loaded_benchmark, problem_lines
from mmrm.eval.candidates import Example, Side

NAME = "preference_folder"
UNSORTED = "uncategorised"
"""The group of records without a category. It is not `all`, which would look like the total."""


def check_location(where: Location) -> None:
    """Raise UserError unless the location is a path with files that can be read."""
    if where.location in BUILT_IN:
        raise UserError(
            f"{NAME}: the location is {where.location!r}; required is the path of a file or folder "
            "of preference records, because this benchmark is the user's own."
        )
    # `check_local_files` raises UserError if the source cannot read the files.
    if where.type is not None:
        _source_config(where, {"type": where.type, "path": where.location}).check_local_files()
    elif not any(types_with_files(where.location, where.image_root)):
        # No format fits. The project's own format raises an error that names what is missing.
        _source_config(where, {"type": "project", "path": where.location}).check_local_files()
    file = Path(where.location).expanduser()
    # A path to one shard of a numbered set would leave out the other shards.
    problem = shards_problem([file]) if file.is_file() else None
    if problem:
        raise UserError(f"{NAME}: {problem} The location of a set is its folder.")


def load(where: Location) -> LoadedBenchmark:
    """Return the records at `where.location`, which must be a path, as rows of a benchmark.

    The notes of the result count the records that the rules of their format leave out, such as
    ties. They also name the columns that are not read.

    Raises:
        UserError: If files are missing, or records cannot be used. It lists them.
    """
    check_location(where)
    notes = []
    with tempfile.TemporaryDirectory() as cache:
        if where.type is None:
            recognised = recognise(where.location, Path(cache), where.image_root)
            settings = recognised.settings
            if recognised.type != "project":
                # The user did not name this format, so a note tells how the files were read.
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
                f"{problem_lines(problems)}{format_advice(config, Path(cache))}"
            )
    if num_left_out:
        notes.append(
            f"{num_left_out} of {num_left_out + len(examples)} records are left out by the rules "
            f"of `{config.type}`."
        )
    notes += repetition_notes(examples)
    benchmark = loaded_benchmark(NAME, examples, where, where.location)
    origin = replace(benchmark.origin, notes=(*benchmark.origin.notes, *notes))
    return replace(benchmark, origin=origin)


def _read_examples(source: Source, limit: int | None) -> tuple[list[Example], int, list[str]]:
    """Return the rows, the number of left-out records, and a message about each broken record.

    The rules of a format leave records out, such as ties. At most `limit` records are read, or all
    if it is None.
    """
    examples: list[Example] = []
    problems: list[str] = []
    num_left_out = 0
    for index in limited_indices(len(source), limit):
        try:
            # Control tokens are not refused here. `loaded_benchmark` leaves out rows with one.
            record = validate(source.record(index), tokens=())
            record = require_distinct_responses(record)
        except LeftOut:
            num_left_out += 1
        except RecordError as error:
            problems.append(str(error))
        else:
            examples.append(example_from_record(record))
    return examples, num_left_out, problems


def repetition_notes(examples: Sequence[Example]) -> list[str]:
    """Return notes on repeated and on contradictory records; an empty list if there are none.

    A record is repeated if an earlier one has the same images, prompt and responses. Two records
    are contradictory if they have the same content and each prefers another response.
    """
    winners_by_content: dict[str, list[str]] = {}
    for example in examples:
        winner = written_response(example.responses[example.better])
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
    """Return the configuration of a source with these settings.

    The images are in the location's image folder unless the settings name another one.
    """
    return files_config(**{"images": where.image_root, **settings, "name": NAME})


def require_distinct_responses(record: Preference) -> Preference:
    """Return `record` unchanged; raise RecordError if its responses are equal."""
    if record.chosen == record.rejected:
        raise RecordError(
            f"{record.identity}: both responses are the same, and no judge can tell them apart. "
            "Remove the record."
        )
    return record


def example_from_record(record: Preference) -> Example:
    """Return a record as a row of a benchmark."""
    chosen = written_response(record.chosen)
    rejected = written_response(record.rejected)
    _, better = in_drawn_order(json.dumps(list(record.prompt)), chosen, rejected)
    responses = (record.chosen, record.rejected)
    if better == 1:
        responses = (record.rejected, record.chosen)
    references = [content_digest(image) for image in record.images]
    references += [content_digest(video.content) for video in record.videos]
    group = record.category or UNSORTED
    return Example(
        key=content_key(record.prompt, sorted([chosen, rejected]), references),
        images=record.images,
        videos=record.videos,
        prompt=record.prompt,
        responses=responses,
        better=better,
        group=group,
        source=record.source or NAME,
        identity=record.identity,
        row={
            "id": record.identity,
            "category": group,
            "chosen": chosen,
            "rejected": rejected,
        },
        true_scores=true_scores(record, better),
    )


def true_scores(record: Preference, better: Side) -> tuple[float, float] | None:
    """Return the known scores of a row's two responses, or None if its record has no attributes.

    A score is the plain mean of the response's attributes, such as its ratings, in their own unit.
    It is NaN if one of them is unknown.

    Args:
        record: The record, whose responses are the better one and the other one.
        better: The index of the better response in the row.
    """
    if not record.attributes:
        return None
    values = np.array(list(record.attributes.values()), dtype=np.float64)  # (attributes, responses)
    score_of_better, score_of_other = values.mean(axis=0).tolist()
    if better == 0:
        return score_of_better, score_of_other
    return score_of_other, score_of_better


def score(records: PredictionRecords) -> dict[str, Any]:
    """Return the accuracies of a predictions file from its columns `category` and `rewards`.

    Equal rewards are wrong.
    """
    return figures_by_group(parse_rewards(records, _group, "category"))


def _group(record: Record) -> str:
    """Return the category of a line."""
    return text(record, "category")


PREFERENCE_FOLDER = Benchmark(
    name=NAME,
    load=load,
    check_location=check_location,
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
        "predictions": predictions_format("plain"),
        "rewards": FileFormat(
            about="id, category and rewards, [of the better response, of the other]",
            marks=("rewards",),
            rules="plain",
            group=_group,
        ),
    },
)
