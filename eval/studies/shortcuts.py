"""The shortcuts of a trained judge: what its verdicts go along with on training pairs and benchmarks.

A shortcut is a property of responses that says nothing about their quality, such as their length
(`mmrm.data.text_shortcuts`). For each source and each benchmark, the study compares how often the
labels and how often the judge prefer the response with more of it. It also measures how much of the
judge's accuracy is left without the images.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from mmrm.data.config.layers import option_value
from mmrm.data.config.validation import format_validation_error
from mmrm.data.display.format import MISSING, with_minus_signs
from mmrm.data.display.study_result import StudyResult
from mmrm.data.display.table import Column, Table
from mmrm.data.errors import UserError
from mmrm.data.preference import validate
from mmrm.data.preparation.mixing import Mixture, MixtureConfig
from mmrm.data.preparation.recipe_section import read_data_section
from mmrm.data.preparation.split import SourceSplit
from mmrm.data.sources.shared.ratings import best_and_worst
from mmrm.data.storage.files import write_json
from mmrm.eval.benchmarks.benchmark import Benchmark
from mmrm.eval.benchmarks.preference_folder import PREFERENCE_FOLDER, example_from_record
from mmrm.eval.benchmarks.registry import BENCHMARKS, BenchmarkConfig, load
from mmrm.eval.candidates import BenchmarkRow, Example, is_tied
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.judge import Judge
from mmrm.eval.judges.judge_card import judge_card_of
from mmrm.eval.judges.loading import load_judge
from mmrm.eval.protocol import Images, ProtocolConfig, with_presentations
from mmrm.eval.results.intervals import accuracy_interval, paired_difference
from mmrm.eval.results.result import Outcomes, items_of, outcomes
from mmrm.eval.results.run_folder import RECIPE
from mmrm.eval.results.shortcut_figures import shortcut_figures, shortcuts_table
from mmrm.eval.results.summary_table import ABLATIONS
from mmrm.eval.suite.image_ablation import with_ablated_images

REPLACEMENTS: tuple[Images, ...] = ("none", "grey")
"""The replacements of the images under which the accuracy is measured once more."""


@dataclass(frozen=True, slots=True)
class JudgedPairs:
    """Rows whose shortcuts are measured: pairs of a source, or a benchmark."""

    name: str
    """The name in tables, such as "source shapes"."""
    benchmark: Benchmark
    rows: Sequence[BenchmarkRow]
    """The rows that have a better and another response."""
    num_tied: int
    """Number of rows of the place that were left out because all their responses are tied."""


def run(options: argparse.Namespace, runtime: Runtime) -> StudyResult:
    """Measure the shortcuts of a judge. All ranks must call together.

    Args:
        options: The `judge`; its `recipe`, or None for the recipe of its run; `source`, the YAML
            texts of sources in place of the recipe's; `records`, the largest number of pairs of a
            source; `benchmarks` in place of those of the recipe.
        runtime: The device and the token budget.

    Raises:
        UserError: If there is no recipe, or the data or the judge cannot be read.
    """
    card = judge_card_of(options.judge) if options.judge.is_dir() else None
    protocol = ProtocolConfig()
    benchmarks: tuple[BenchmarkConfig, ...] = tuple(options.benchmarks)
    if card is not None:
        protocol = card.protocol.model_copy(update={"images": "real"})
        benchmarks = benchmarks or card.benchmarks
    places = places_of_sources(data_section(options), options.records)
    places += [place_of_benchmark(config) for config in benchmarks]
    judge = load_judge(options.judge, runtime).judge
    figures = {place.name: place_figures(judge, place, protocol) for place in places}
    tables = [accuracy_table(str(options.judge), figures)]
    for name, figures_of_place in figures.items():
        title = f"{name}: preferred response has more of it, in percent of the pairs"
        tables.append(shortcuts_table(title, figures_of_place["shortcuts"]))
    return StudyResult({"judge": str(options.judge), "places": figures}, tuple(tables))


def write(result: StudyResult, file: Path) -> None:
    """Write the study's figures to a JSON file."""
    write_json(file, to_jsonable_python(result.figures))


def data_section(options: argparse.Namespace) -> MixtureConfig:
    """Return the `data` section with the sources whose pairs are judged.

    Raises: UserError if there is no recipe, or a source has faults.
    """
    if options.source:
        sources = [option_value("--source", text) for text in options.source]
        try:
            return MixtureConfig.model_validate({"sources": sources})
        except ValidationError as error:
            raise UserError(f"--source: {format_validation_error(error)}") from error
    recipe = options.recipe or options.judge.resolve().parent / RECIPE
    if not recipe.is_file():
        raise UserError(
            f"{recipe}: there is no such file. Required is a recipe, whose sources are judged. Name "
            "one after the checkpoint, or give sources: --source '{type: …}'."
        )
    return read_data_section(recipe)


def places_of_sources(config: MixtureConfig, count: int) -> list[JudgedPairs]:
    """Return up to `count` training records of each source as rows.

    The rows are drawn by the seed of the recipe. Records with more than two responses are judged by
    their best and worst one.

    Args:
        config: The `data` section of a recipe.
        count: The largest number of records of a source.

    Raises: UserError if the data cannot be read.
    """
    mixture = Mixture(config)
    return [_place_of_source(split, count, config.seed) for split in mixture.splits]


def _place_of_source(split: SourceSplit, count: int, seed: int) -> JudgedPairs:
    """Return up to `count` training records of one source as rows, drawn by `seed`."""
    generator = np.random.default_rng(seed)
    drawn = generator.choice(split.rows, min(count, len(split.rows)), replace=False)
    rows: list[Example] = []
    num_tied = 0
    for index in np.sort(drawn).tolist():
        record = best_and_worst(validate(split.source.record(index)))
        if record.is_pair:
            rows.append(example_from_record(record))
        else:
            num_tied += 1
    return JudgedPairs(f"source {split.config.label}", PREFERENCE_FOLDER, rows, num_tied)


def place_of_benchmark(config: BenchmarkConfig) -> JudgedPairs:
    """Return the rows of a benchmark.

    Raises: UserError if the benchmark cannot be loaded.
    """
    all_rows = load(config).examples
    rows = [row for row in all_rows if not is_tied(row)]
    num_tied = len(all_rows) - len(rows)
    return JudgedPairs(f"benchmark {config.name}", BENCHMARKS[config.name], rows, num_tied)


def place_figures(judge: Judge, place: JudgedPairs, protocol: ProtocolConfig) -> dict[str, Any]:
    """Return the figures of a judge on the rows of a place, as they are written to JSON.

    `accuracy` has the estimates of all rows, with half a point for a tie. `images` has the estimates
    of the rows with images or videos: with the real ones, with none, and with grey ones; and under
    `none minus real` and `grey minus real` the differences, paired by row. `shortcuts` are those of
    `shortcut_figures`, of the verdicts with the real images. `unread` counts rows without a readable
    verdict, and `tied` rows without a better response. Both are in no other figure.

    Args:
        judge: The judge, as it was loaded.
        place: The rows.
        protocol: The protocol of the judgements, with real images.
    """
    if not place.rows:
        raise UserError(
            f"{place.name}: there is no row with a better and another response. Required is at "
            "least one. Name another recipe or benchmark."
        )
    judge = judge.under(protocol, place.benchmark)
    outcome_by_images: dict[Images, Outcomes] = {"real": judged(judge, place.rows, protocol)}
    for images in REPLACEMENTS:
        ablated_rows = with_ablated_images(place.rows, images, protocol.seed)
        outcome_by_images[images] = judged(judge, ablated_rows, protocol)
    items = items_of(place.rows, place.benchmark.item)
    is_read = np.ones(len(place.rows), dtype=np.bool_)
    for outcome in outcome_by_images.values():
        is_read &= ~outcome.unparsable
    num_read = int(is_read.sum())
    figures: dict[str, Any] = {
        "rows": num_read,
        "tied": place.num_tied,
        "unread": len(place.rows) - num_read,
        "accuracy": None,
        "images": {},
        "shortcuts": (),
    }
    if num_read == 0:
        return figures

    credits = {images: outcome.credit("half") for images, outcome in outcome_by_images.items()}
    read_rows = np.flatnonzero(is_read)
    figures["accuracy"] = accuracy_interval(credits["real"][read_rows], items[read_rows])
    figures["shortcuts"] = shortcut_figures(
        [place.rows[row] for row in read_rows.tolist()],
        credits["real"][read_rows],
        items[read_rows],
    )
    has_images = np.array([bool(row.all_images or row.all_videos) for row in place.rows])
    rows_with_images = np.flatnonzero(is_read & has_images)
    if not len(rows_with_images):
        return figures
    items_with_images = items[rows_with_images]
    figures["images"]["rows"] = len(rows_with_images)
    for images, credit in credits.items():
        estimate = accuracy_interval(credit[rows_with_images], items_with_images)
        figures["images"][images] = estimate
        if images != "real":
            figures["images"][f"{images} minus real"] = paired_difference(
                credit[rows_with_images],
                credits["real"][rows_with_images],
                items_with_images,
                comparisons=len(REPLACEMENTS),
            )
    return figures


def judged(judge: Judge, rows: Sequence[BenchmarkRow], protocol: ProtocolConfig) -> Outcomes:
    """Return the outcomes of a judge's verdicts on some rows."""
    scores = judge.score_batch(with_presentations(rows, protocol))
    return outcomes(rows, scores, protocol)


def accuracy_table(title: str, figures: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return a table of the accuracy of a judge in each place, with and without the images.

    Args:
        title: The title of the table.
        figures: The figures of `place_figures` by the name of the place.
    """
    heads = ["accuracy [95 %]", "rows", "with images", "real images"]
    for images in REPLACEMENTS:
        heads += [ABLATIONS[images], "difference"]
    columns = (Column("place"), *(Column(head, is_number=True) for head in heads))
    rows = []
    notes = ["a tie of scores counts half; differences are paired by row"]
    for name, figures_of_place in figures.items():
        accuracy = figures_of_place["accuracy"]
        of_images = figures_of_place["images"]
        cells = [name, MISSING, f"{figures_of_place['rows']:,}"]
        if accuracy is not None:
            cells[1] = accuracy.percent
        if of_images:
            cells += [f"{of_images['rows']:,}", of_images["real"].percent]
            for images in REPLACEMENTS:
                difference = with_minus_signs(of_images[f"{images} minus real"].points)
                cells += [of_images[images].percent, difference]
        rows.append(tuple(cells))
        num_left_out = figures_of_place["tied"] + figures_of_place["unread"]
        if num_left_out:
            notes.append(
                f"{name}: {figures_of_place['tied']:,} rows without a better response and "
                f"{figures_of_place['unread']:,} without a readable verdict are left out"
            )
    return Table(title, columns, tuple(rows), tuple(notes))
