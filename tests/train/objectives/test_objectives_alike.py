"""What every objective promises, on a tiny model with each head that it trains.

A step has the same loss, figures and gradients in any rows and on any number of ranks, and a list
of responses has those of its parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from mmrm.data.preference import Preference, text, text_responses
from mmrm.models.backbone import load_scalar
from mmrm.models.config import BackboneConfig, HeadConfig
from mmrm.models.heads.attributes_head import AttributesHeadConfig
from mmrm.models.heads.gaussian_head import GaussianHeadConfig
from mmrm.models.heads.score_head import ScoreHeadConfig
from mmrm.train.methods.naive.config import NaiveConfig
from mmrm.train.methods.naive.objective import make_objective
from mmrm.train.objectives.response_objective import ResponseObjective
from mmrm.train.supervised.budget import split
from mmrm.train.supervised.steps import (
    PackedRow,
    ResponseEncoder,
    StepDataset,
    TrainingExample,
    make_row,
)
from tests.models import tiny
from tests.models.exactness import assert_exact, float64

pytestmark = [pytest.mark.numerics, pytest.mark.usefixtures("float64")]
SCORE = ScoreHeadConfig(layers=2, width=8)
ATTRIBUTES = AttributesHeadConfig(
    type="attributes", layers=2, width=8, names=["right", "short"], weights=None
)
GAUSSIAN = GaussianHeadConfig(type="gaussian", layers=2, width=8)


class Case(NamedTuple):
    """An objective and the head that it trains."""

    objective: dict[str, Any]
    head: HeadConfig
    method: dict[str, Any]


CASES = {
    "bradley_terry": Case({"type": "bradley_terry"}, SCORE, {}),
    "bradley_terry, scaled": Case({"scaled": True, "constant_margin": 0.57}, SCORE, {}),
    "bradley_terry, attributes": Case({"scaled": True}, ATTRIBUTES, {"margin": True}),
    "ties": Case({"type": "ties"}, SCORE, {"zero_coefficient": 0.1}),
    "ties, attributes": Case({"type": "ties", "tie_factor": 2.0}, ATTRIBUTES, {}),
    "regression": Case({"type": "regression", "attribute": "right", "centre": 3.0}, SCORE, {}),
    "regression, attributes": Case({"type": "regression", "scale": 2.0}, ATTRIBUTES, {}),
    "gaussian": Case({"type": "gaussian"}, GAUSSIAN, {"zero_coefficient": 0.1}),
    "gaussian, expected": Case(
        {"type": "gaussian", "loss": "expected"}, GAUSSIAN, {"margin": True}
    ),
    "listwise": Case({"type": "listwise"}, SCORE, {}),
    "listwise, best": Case(
        {"type": "listwise", "likelihood": "best"}, SCORE, {"length_normalisation": True}
    ),
}

WHAT = (text("user", "What is in the picture?"),)
WHERE = (text("user", "Where is the red square? Say it in one word."),)
LISTS = (
    Preference(
        "four",
        WHAT,
        text_responses("A red square.", "A square.", "Red.", "A blue circle and more."),
        ranks=(0, 1, 1, 2),
        attributes={"right": (5.0, 4.0, nan, 1.0), "short": (2.0, 3.0, 3.0, 1.0)},
    ),
    Preference(
        "pair",
        WHAT,
        text_responses("A red square.", "No picture."),
        margin=0.4,
        attributes={"right": (5.0, 2.0)},
    ),
    Preference(
        "tie",
        WHERE,
        text_responses("Left.", "Left!"),
        ranks=(0, 0),
        attributes={"short": (3.0, 3.0)},
    ),
    Preference(
        "three",
        WHERE,
        text_responses("Left.", "On the left side.", "Right, I think."),
        margin=1.5,
        ranks=(0, 1, 2),
        attributes={"right": (4.0, 4.0, 2.0), "short": (5.0, nan, 1.0)},
    ),
    Preference("no numbers", WHERE, text_responses("Above.", "Below.")),
)


class Encoded:
    """Preferences as the records of a run, in their order."""

    def __init__(self, records: Sequence[Preference], encode: ResponseEncoder) -> None:
        self.records = records
        self.encode = encode

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> TrainingExample:
        return self.encode(self.records[index])

    def order(self, epoch: int) -> npt.NDArray[np.int64]:
        """Keep the order of the records."""
        return np.arange(len(self.records))


class Learner(NamedTuple):
    """A model, its objective and its encoder."""

    model: Any
    objective: ResponseObjective
    encode: ResponseEncoder

    def learn(self, rows: Sequence[PackedRow]) -> tuple[dict[str, float], dict[str, Tensor]]:
        """Return the sums of a step's rows, its loss among them, and the gradients."""
        totals = torch.stack([row.totals() for row in rows]).sum(0)
        figures: dict[str, float] = {}
        self.model.zero_grad()
        for row in rows:
            loss, sums = self.objective.loss(self.model, row, totals)
            torch.autograd.backward(loss)
            for name, value in {"step loss": loss, **sums}.items():
                figures[name] = figures.get(name, 0.0) + float(value.detach())
        gradients = {
            name: parameter.grad.clone()
            for name, parameter in self.model.named_parameters()
            if parameter.grad is not None
        }
        return figures, gradients

    def row(self, records: Sequence[Preference]) -> PackedRow:
        """Return records as one packed row."""
        return make_row([self.encode(record) for record in records], tiny.encoder().pack)


def make_learner(case: Case, folder: Path) -> Learner:
    """Return a tiny model with a stirred head, and the objective of a case."""
    config = NaiveConfig.model_validate(
        {"type": "naive", "objective": case.objective, **case.method}
    )
    with float64():
        backbone = BackboneConfig(path=str(tiny.checkpoint(folder)), dtype="float32")
        model = load_scalar(backbone, case.head)
        torch.manual_seed(0)
        tiny.stir(model.head, 0.3)
    objective = make_objective(config, case.head)
    names = objective.settings.attribute_names
    return Learner(model, objective, ResponseEncoder(tiny.encoder(), "end_of_turn", True, names))


@pytest.fixture(scope="module", params=CASES)
def learner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Learner:
    """Return the learner of each case."""
    return make_learner(CASES[request.param], tmp_path_factory.mktemp("backbone"))


@pytest.mark.parametrize(("ranks", "budget"), [(1, 1), (2, 60), (3, 1)])
def test_a_step_is_the_same_in_any_rows_and_on_any_ranks(
    learner: Learner, ranks: int, budget: int
) -> None:
    records = Encoded([*LISTS, LISTS[0]], learner.encode)
    rows: list[PackedRow] = []
    for rank in range(ranks):
        steps = StepDataset(
            records,
            tiny.encoder().pack,
            records_per_step=6,
            steps=1,
            token_budget=budget,
            rank=rank,
            world_size=ranks,
        )
        rows += steps[0]["rows"]
    figures, gradients = learner.learn(rows)
    expected_figures, expected_gradients = learner.learn([learner.row([*LISTS, LISTS[0]])])
    assert len(rows) > 1
    assert expected_figures["step loss"] > 0
    assert_exact(figures, expected_figures)
    assert_exact(gradients, expected_gradients)


def test_a_row_that_is_cut_for_a_lack_of_memory_is_the_same_records(learner: Learner) -> None:
    whole = learner.row(LISTS)
    parts = split(whole, tiny.encoder().pack, 1)
    assert len(parts) > 1
    figures, gradients = learner.learn(parts)
    expected_figures, expected_gradients = learner.learn([whole])
    assert_exact(figures, expected_figures)
    assert_exact(gradients, expected_gradients)


def test_a_record_weighs_the_same_however_many_responses_it_has(learner: Learner) -> None:
    losses = []
    for record in LISTS:
        figures, _ = learner.learn([learner.row([record])])
        losses.append(figures["step loss"])
    figures, _ = learner.learn([learner.row(LISTS)])
    assert figures["step loss"] == pytest.approx(sum(losses) / len(LISTS), rel=1e-9)


def test_the_report_has_finite_figures(learner: Learner) -> None:
    figures, _ = learner.learn([learner.row(LISTS)])
    report = learner.objective.report(figures)
    assert {"accuracy", "ties", "margin", "reward_mean", "reward_spread"} <= report.keys()
    assert np.isfinite(list(report.values())).all()
    assert report["num_rewards"] == sum(len(record.responses) for record in LISTS)


def test_a_prompt_and_each_response_are_computed_once(learner: Learner) -> None:
    four, pair = LISTS[:2]
    together = learner.row([four, pair])
    texts = {response.text for response in (*four.responses, *pair.responses)}
    # The best response of both is the same text, and both have the same prompt.
    once = replace(
        four, responses=text_responses(*sorted(texts)), ranks=(0, 1, 2, 3, 4), attributes={}
    )
    examples = [replace(learner.encode(record), prompt="the same") for record in (four, pair)]
    together = make_row(examples, tiny.encoder().pack)
    assert together.batch.tokens == learner.row([once]).batch.tokens


@pytest.mark.parametrize("name", ["bradley_terry", "ties", "gaussian"])
def test_a_list_has_the_mean_loss_of_its_pairs(name: str, tmp_path: Path) -> None:
    learner = make_learner(CASES[name], tmp_path)
    record = LISTS[0]
    figures, gradients = learner.learn([learner.row([record])])
    pairs = []
    for first in range(4):
        for second in range(first + 1, 4):
            ranks = (0, int(record.ranks[first] < record.ranks[second]))
            if ranks == (0, 0) and not learner.objective.config.uses_ties:
                continue
            responses = (record.responses[first], record.responses[second])
            pairs.append(replace(record, responses=responses, ranks=ranks, attributes={}))
    expected_figures, expected_gradients = learner.learn([learner.row(pairs)])
    assert figures["step loss"] == pytest.approx(expected_figures["step loss"], rel=1e-9)
    assert_exact(gradients, expected_gradients)
