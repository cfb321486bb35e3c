"""The reader of rubrics: what it sees, what it names, and what a judgement earns by it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from mmrm.data.preference import Preference, text, text_responses
from mmrm.data.prompts import RUBRIC_FORM, Answer, Judgement
from mmrm.data.rubric import Check, Rubric, write_rubric
from mmrm.models.backbone import load_language_model
from mmrm.models.config import BackboneConfig
from mmrm.train.reinforce.stable_reinforce.config import StableReinforceConfig
from mmrm.train.reinforce.stable_reinforce.judgement_reward import JudgementReward
from mmrm.train.reinforce.stable_reinforce.rubric_reader import ReaderReward, RubricReader
from tests.models import tiny
from tests.train.reinforce.stable_reinforce.settings import setting_of

RECORD = Preference(
    "set:1",
    (text("user", "Which colour?", 1),),
    text_responses("Red indeed.", "Blue perhaps."),
    images=(b"an image that nobody may open",),
)


def judgement(*meets: tuple[bool, bool], answer: Answer = 1) -> str:
    rubric = Rubric(("It is red.",) * len(meets), tuple(Check(one) for one in meets))
    return RUBRIC_FORM.write(write_rubric(rubric), answer)


def prompt(winner: Answer = 1) -> Any:
    return SimpleNamespace(question=RECORD, record="set:1", winner=winner)


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("budget", [4096, 1])
def test_the_reader_names_the_likelier_verdict_of_the_stock_model(
    tmp_path: Any, budget: int
) -> None:
    folder = str(tiny.checkpoint(tmp_path))
    model = load_language_model(BackboneConfig(path=folder, dtype="float32")).eval()
    reader = RubricReader(model, tiny.encoder(), budget, "rubric_turns")
    texts = [judgement((True, False)), "no rubric", judgement((False, True), (True, True))]
    judgements = [RUBRIC_FORM.read(written) for written in texts]
    verdicts = reader.verdicts([prompt()] * 3, judgements)
    tokenizer = tiny.tokenizer()
    [one] = tokenizer.encode("1")
    [two] = tokenizer.encode("2")
    stock = tiny.language_model()
    for verdict, found in zip(verdicts, judgements, strict=True):
        if found.reasoning is None:
            assert verdict is None
            continue
        turn = f"Which colour?\n{found.reasoning}\nWhich of the two is better?"
        shown = tokenizer.apply_chat_template(
            [{"role": "user", "content": turn}], tokenize=False, add_generation_prompt=True
        )
        assert "Red indeed" not in shown
        ids = torch.tensor([tokenizer.encode(shown + "<answer>")])
        with torch.no_grad():
            logits = stock(input_ids=ids).logits[0, -1]
        assert verdict == (1 if logits[one] > logits[two] else 2)


def test_a_reader_without_rubrics_to_read_is_run_all_the_same(tmp_path: Any) -> None:
    folder = str(tiny.checkpoint(tmp_path))
    model = load_language_model(BackboneConfig(path=folder, dtype="float32")).eval()
    reader = RubricReader(model, tiny.encoder(), 4096, "rubric")
    assert reader.verdicts([prompt()], [Judgement(None, None, False)]) == [None]


class CheckReader:
    """Names the response that meets more criteria, as a perfect reader would."""

    def verdicts(self, prompts: Any, judgements: Any) -> list[Answer | None]:
        """Return the conclusion of each rubric."""
        return [
            None if found.reasoning is None else RUBRIC_FORM.conclusion(found.reasoning)
            for found in judgements
        ]


FORMULA = {"reader": {"weight": 2.0}}
LISTED = [
    {"type": "result"},
    {"type": "consistency"},
    {"type": "format"},
    {"type": "reader", "weight": 2.0},
]


def config_of(rewards: Any, template: str = "rubric") -> StableReinforceConfig:
    settings = {"type": "stable_reinforce", "template": template, "rewards": rewards}
    return StableReinforceConfig.model_validate(settings)


@pytest.mark.parametrize("rewards", [FORMULA, LISTED])
def test_a_rubric_from_which_the_right_verdict_cannot_be_read_earns_nothing_of_the_reader(
    rewards: Any, tmp_path: Path
) -> None:
    right = judgement((True, False))
    texts = {
        1: right,  # right, and the rubric shows it: 1 (1 + 0.5) + 0.5 + 2
        2: judgement((True, True)),  # right, and the rubric does not show it: 1 + 0.5
        3: judgement((False, True)),  # right against its own rubric: 1 + 0.5
        4: judgement((True, False), answer=2),  # wrong after a right rubric: 0.5 + 2
        5: "<answer>1</answer>",  # no rubric
        6: right,  # cut off after its last letter
    }
    tokenizer = SimpleNamespace(decode=lambda ids: texts[ids[0]])
    encoder: Any = SimpleNamespace(tokenizer=tokenizer, end_of_turn=0)
    setting = setting_of(encoder, "rubric", str(tiny.checkpoint(tmp_path)))
    reward = JudgementReward(config_of(rewards), setting)
    reading = reward.terms[-1]
    assert isinstance(reading, ReaderReward)
    assert reading.reader.model is reward.model
    reading.reader = cast(RubricReader, CheckReader())
    metrics: dict[str, float] = {}
    columns: dict[str, list[Any]] = {}
    ids = [[1, 0], [2, 0], [3, 0], [4, 0], [5, 0], [6, 9]]
    reads: list[Any] = [None] * 6
    found = reward(ids, [prompt()] * 6, reads, metrics.__setitem__, columns.__setitem__)
    assert found == [4.0, 1.5, 1.5, 2.5, 0.0, 0.0]
    assert columns["reader"] == [1.0, 0.0, 0.0, 1.0, 0.0, 0.0]
    assert metrics["rewards/reader"] == pytest.approx(2 / 6)
    assert columns["consistency"] == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("lora", [True, False])
def test_the_plan_counts_a_reader_that_is_a_copy_of_the_start_and_names_any_other(
    lora: bool,
) -> None:
    for rewards in (FORMULA, LISTED):
        config = config_of(rewards)
        assert config.frozen_copies(lora=lora) == 1
        assert list(config.model_paths()) == []
    formula = config_of({"reader": {"path": "a"}})
    listed = config_of([{"type": "reader", "path": "a"}])
    assert formula.frozen_copies(lora=lora) == listed.frozen_copies(lora=lora) == 0
    assert list(formula.model_paths()) == [("method.rewards.reader.path", "a")]
    assert list(listed.model_paths()) == [("method.rewards.0.path", "a")]
