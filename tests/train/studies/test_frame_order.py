"""The study of frame orders: points, groups, what each way to play shows, and refusals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from mmrm.data.errors import UserError
from mmrm.data.synthetic.film_questions import FILM_QUESTION_TYPES
from mmrm.data.synthetic.films import WAYS_TO_PLAY
from mmrm.eval.candidates import Candidates, Scores
from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.studies.ablation.variants import Run
from mmrm.train.studies.frame_order import (
    RecordsByPlayed,
    category_table,
    figures_of_model,
    figures_of_variant,
    kind_table,
    measured_model,
    point,
    records_by_way_to_play,
    refuse_split_of_training,
    source_of_questions,
)

pytest.importorskip("av")

RECIPES = Path(__file__).resolve().parents[3] / "recipes" / "shapes"
QUESTIONS = "{type: shapes_motion, level: demo, split: benchmark, rows: 120}"


@cache
def records() -> RecordsByPlayed:
    """Return the records of QUESTIONS by the way in which their films are played."""
    return records_by_way_to_play(source_of_questions(QUESTIONS))


def run_of(recipe: str, *overrides: str) -> Run:
    """Return a run of a shipped recipe that is not trained."""
    return Run(recipe, 0, read_recipe(RECIPES / f"{recipe}.yaml", overrides))


@dataclass
class KnowingJudge:
    """A judge that knows which answer is right if a film is played forwards.

    It scores an answer by the video and the text alone. It recognises reversed films, for which it
    knows the opposite answers, and it scores answers about other videos equally.
    """

    by_record: RecordsByPlayed
    order_of_responses: list[bool] = field(default_factory=list)

    def score_batch(self, batch: Sequence[Candidates]) -> list[Scores]:
        """Return 1 for answers that are known to be right, -1 for wrong ones, and else 0."""
        known = {}
        for record, backwards in zip(
            self.by_record["forwards"], self.by_record["reversed"], strict=True
        ):
            is_order = FILM_QUESTION_TYPES[record.category].category == "order"
            for sign, response in zip((1.0, -1.0), record.responses, strict=True):
                known[record.identity, record.videos, response] = sign
                # What is right about a reversed film is wrong about the film.
                reversed_sign = -sign if is_order else sign
                known[record.identity, backwards.videos, response] = reversed_sign
        scores = []
        for row in batch:
            found = [known.get((row.identity, row.videos, one), 0.0) for one in row.responses]
            self.order_of_responses.append(found[0] > found[1])
            scores.append(Scores(tuple(found)))
        return scores


def test_a_model_that_knows_the_order_is_wrong_about_reversed_films() -> None:
    judge = KnowingJudge(records())
    model = measured_model(run_of("motion"), judge, records())  # type: ignore[arg-type]
    figures = figures_of_model(model, records()["forwards"])
    order = {played: found["mean"] for played, found in figures["order"]["accuracy"].items()}
    frame = {played: found["mean"] for played, found in figures["frame"]["accuracy"].items()}
    assert order["forwards"] == 1.0
    assert order["reversed"] == 0.0
    assert order["grey"] == 0.5
    assert frame["forwards"] == 1.0
    assert frame["reversed"] == 1.0
    assert frame["grey"] == 0.5
    assert figures["order"]["questions"] + figures["frame"]["questions"] == 120
    by_kind = figures_of_variant("motion", [model, model], records()["forwards"])
    assert by_kind["drift"]["accuracy"]["reversed"] == 0.0
    assert by_kind["number"]["accuracy"]["reversed"] == 1.0
    assert "100.0" in category_table([figures]).markdown()
    assert "drift" in kind_table([by_kind]).markdown()


def test_the_right_answer_is_first_in_about_half_of_the_rows() -> None:
    judge = KnowingJudge(records())
    measured_model(run_of("motion"), judge, {"forwards": records()["forwards"]})  # type: ignore[arg-type]
    assert 40 < sum(judge.order_of_responses) < 80


def test_all_ways_to_play_ask_the_same_questions() -> None:
    assert tuple(records()) == WAYS_TO_PLAY
    for other in records().values():
        for record, same in zip(records()["forwards"], other, strict=True):
            assert same.identity == record.identity
            assert same.prompt == record.prompt
            assert same.responses == record.responses


def test_equal_scores_are_half_a_point() -> None:
    assert point((0, 1), (2.0, 1.0)) == 1.0
    assert point((1, 0), (2.0, 1.0)) == 0.0
    assert point((1, 0), (1.0, 2.0)) == 1.0
    assert point((0, 1), (1.0, 1.0)) == 0.5


@pytest.mark.parametrize(
    ("questions", "message"),
    [
        ("{type: shapes, level: demo, split: benchmark, rows: 4}", "the type is shapes"),
        (QUESTIONS.replace("rows", "played: grey, rows"), "played is grey"),
        ("{type: nothing}", "--questions"),
    ],
)
def test_other_questions_are_refused(questions: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        source_of_questions(questions)


def test_questions_of_the_split_of_training_are_refused() -> None:
    questions = source_of_questions(QUESTIONS.replace("benchmark", "train"))
    with pytest.raises(UserError, match="trained on the split train"):
        refuse_split_of_training(run_of("motion"), questions)
    refuse_split_of_training(run_of("motion"), source_of_questions(QUESTIONS))
