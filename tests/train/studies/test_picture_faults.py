"""The study of known faults: points of pairs, ties by their threshold, controls, and refusals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest
import torch

from mmrm.data.errors import UserError
from mmrm.data.preference import Preference
from mmrm.data.synthetic.rated_pictures import ATTRIBUTES
from mmrm.eval.candidates import Candidates, Scores
from mmrm.train.objectives.ties.tie_losses import log_probabilities
from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.studies.ablation.variants import Run
from mmrm.train.studies.compare_objectives import records_of_source
from mmrm.train.studies.picture_faults import (
    CONDITIONS,
    GREY,
    GREY_BEFORE,
    REAL,
    SHUFFLED,
    figures_of_variant,
    measured_model,
    points_alone,
    refuse_unsuited_recipe,
    rows_under,
    share_of_right_results,
    share_untied,
    shuffled_row,
    tie_threshold,
)

RECIPES = Path(__file__).resolve().parents[3] / "recipes" / "shapes"
EDITS = "{type: shapes_edited, level: demo, split: benchmark, rows: 60}"


@cache
def edit_records() -> list[Preference]:
    """Return the records of EDITS."""
    return records_of_source(EDITS, ATTRIBUTES, "shapes_edited")


def run_of(recipe: str, *overrides: str) -> Run:
    """Return a run of a shipped recipe that is not trained."""
    return Run(recipe, 0, read_recipe(RECIPES / f"{recipe}.yaml", overrides))


@dataclass
class KnowingJudge:
    """A judge that knows the ratings of pictures that it has seen, and states 0 for others."""

    records: Sequence[Preference]
    shown: list[Candidates] = field(default_factory=list)

    def score_batch(self, batch: Sequence[Candidates]) -> list[Scores]:
        """Return the known ratings, ten times as large, so that only equal ones are tied."""
        self.shown += batch
        ratings = {}
        for record in self.records:
            for index, response in enumerate(record.responses):
                numbers = [record.attributes[name][index] for name in ATTRIBUTES]
                ratings[record.images, response] = dict(zip(ATTRIBUTES, numbers, strict=True))
        unknown = dict.fromkeys(ATTRIBUTES, 0.0)
        scores = []
        for row in batch:
            found = [ratings.get((row.images, response), unknown) for response in row.responses]
            numbers_by_name = {}
            for name in ATTRIBUTES:
                numbers_by_name[name] = tuple(10 * numbers[name] for numbers in found)
            scores.append(Scores(numbers_by_name["content"], numbers_by_name))
        return scores


def test_only_pairs_that_differ_in_one_attribute_alone_count() -> None:
    ratings = {"content": (0.0, -1.0, -1.0), "quality": (0.0, 0.0, -2.0)}
    numbers = {"content": (1.0, 2.0, 0.0), "quality": (0.0, 5.0, 5.0)}
    assert points_alone(ratings, numbers, "content") == 0.0  # responses 1 and 2
    assert points_alone(ratings, numbers, "quality") == 0.5  # responses 2 and 3, which are equal
    assert points_alone(dict.fromkeys(ATTRIBUTES, (0.0, 0.0)), numbers, "content") is None


def test_a_tie_counts_only_if_it_is_predicted() -> None:
    ratings = (0.0, 0.0, -1.0)
    numbers = (3.0, 2.5, 0.0)
    assert share_of_right_results(ratings, numbers, 1.0) == 1.0
    assert share_of_right_results(ratings, numbers, None) == pytest.approx(2 / 3)
    assert share_of_right_results(ratings, numbers, 2.6) == pytest.approx(2 / 3)


@pytest.mark.parametrize("factor", [1.2, 2.0, 2.5, 5.0, 40.0])
def test_below_the_threshold_a_tie_is_the_most_probable_result(factor: float) -> None:
    threshold = tie_threshold(run_of("drawn", f"method.objective.tie_factor={factor}"))
    if factor <= 2:
        assert threshold == 0
    for difference in (threshold * 0.99, threshold * 1.01 + 1e-3):
        first, second, tie = log_probabilities(torch.tensor(difference), factor)
        assert bool(tie > max(first, second)) == (difference < threshold)


def test_a_model_that_knows_the_ratings_is_right_and_the_controls_are_at_chance() -> None:
    records = edit_records()
    judge = KnowingJudge(records)
    model = measured_model(run_of("edited"), judge, records)  # type: ignore[arg-type]
    figures = figures_of_variant("edited", [model], records)
    for attribute in ATTRIBUTES:
        means = {name: plain["mean"] for name, plain in figures["alone"][attribute].items()}
        shuffled = means.pop(SHUFFLED)
        assert means == {REAL: 1.0, GREY: 0.5, GREY_BEFORE: 0.5}
        # 0.85 if the pictures of a record were exchanged in the order of their ranks
        assert abs(shuffled - 0.5) < 0.2
        ties = figures["ties"][attribute]
        assert ties["predicted"]["mean"] == 1.0
        assert ties["not_predicted"]["mean"] == ties["best_without"] < 1.0
        assert ties["best_without"] == share_untied(records, attribute)


def test_the_controls_replace_what_they_name() -> None:
    records = edit_records()
    rows = [shuffled_row(record) for record in records]
    rows_by_condition = {condition: rows_under(condition, rows) for condition in CONDITIONS}
    for index, row in enumerate(rows):
        assert rows_by_condition[REAL][index] == row
        assert not set(rows_by_condition[GREY][index].all_images) & set(row.all_images)
        assert rows_by_condition[SHUFFLED][index].all_images != row.all_images
        grey_before = rows_by_condition[GREY_BEFORE][index]
        assert grey_before.images != row.images
        assert grey_before.responses == row.responses


@pytest.mark.parametrize(
    ("recipe", "overrides", "questions", "message"),
    [
        ("ties", (), EDITS, "head.names lacks content, quality"),
        ("drawn", ("method.objective={type: bradley_terry}",), EDITS, "probability of a tie"),
        ("edited", (), EDITS.replace("benchmark", "train"), "trained on the split train"),
        ("edited", (), "{type: nothing}", "--questions"),
    ],
)
def test_runs_that_cannot_be_measured_are_refused(
    recipe: str, overrides: tuple[str, ...], questions: str, message: str
) -> None:
    if overrides:
        overrides = (*overrides, "data.sources.0.ties=false")
    with pytest.raises(UserError, match=message):
        refuse_unsuited_recipe(run_of(recipe, *overrides), questions)


def test_the_recipes_can_be_measured_on_the_questions_of_their_lists() -> None:
    refuse_unsuited_recipe(run_of("edited"), EDITS)
    refuse_unsuited_recipe(run_of("drawn"), EDITS.replace("edited", "drawn"))
