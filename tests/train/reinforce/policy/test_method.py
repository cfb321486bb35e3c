"""A policy's rewards, and its RL on a tiny model: alone, interrupted, and on two ranks under ZeRO."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mmrm.data.errors import UserError
from mmrm.data.preference import Preference, Truth, text, text_responses
from mmrm.data.preparation.mixing import Mixture, MixtureConfig
from mmrm.data.preparation.scan import BadRecordConfig
from mmrm.data.synthetic.source import ShapesConfig
from mmrm.eval.selection.score_forms import FORMS
from mmrm.models.backbone import load_scalar
from mmrm.models.config import BackboneConfig
from mmrm.models.heads.score_head import ScoreHeadConfig
from mmrm.train.reinforce.policy.answer_reward import AnswerReward
from mmrm.train.reinforce.policy.config import PolicyConfig
from mmrm.train.reinforce.policy.policy_questions import PolicyQuestions
from mmrm.train.reinforce.policy.term_config import FORMS_WITH_ANSWERS
from mmrm.train.reinforce.rollout_trainer import stored_rollouts
from mmrm.train.reinforce.rollouts import Prompt
from tests.eval.doubles import LengthJudge
from tests.models import tiny
from tests.train.reinforce.test_rollout_trainer import curve, same, train

ENCODER = tiny.encoder()
END = ENCODER.end_of_turn


def question(place: int) -> Prompt:
    asked = Preference(
        f"q:{place}",
        (text("user", "What is it?"),),
        text_responses("", ""),
        truth=Truth("exact", ("red", "a red one")),
    )
    return Prompt(
        ENCODER.encode((), [ENCODER.render(asked.prompt)], None),
        (),
        None,
        "",
        place,
        asked.identity,
        asked,
    )


def written(*answers: str) -> list[list[int]]:
    """Return answers as tokens that end by themselves; one that ends with … is cut off."""
    ids = [
        ENCODER.tokenizer(answer.rstrip("…"), add_special_tokens=False)["input_ids"]
        for answer in answers
    ]
    return [
        one if answer.endswith("…") else [*one, END]
        for one, answer in zip(ids, answers, strict=True)
    ]


def earned(
    answers: Sequence[str], *rewards: dict[str, Any], ranker: Any = None, log: Any = None
) -> list[float]:
    """Return the rewards of two questions' answers, half of `answers` each."""
    config = PolicyConfig.model_validate(
        {
            "type": "policy",
            "rewards": list(rewards),
            "num_generations": len(answers) // 2,
            "max_new_tokens": 12,
        }
    )
    rankers = {
        place: ranker or LengthJudge()
        for place, term in enumerate(rewards)
        if term["type"] == "judge"
    }
    asked = [question(place) for place in range(2) for _ in range(config.num_generations)]
    seen = (
        (lambda name, value: log.__setitem__(name, value))
        if log is not None
        else (lambda name, value: None)
    )
    return AnswerReward(config, rankers, ENCODER)(
        completion_ids=written(*answers), asked=asked, log_metric=seen, log_extra=seen
    )


ANSWERS = ["red", "blue", "A red one.", "red…"]
JUDGE = {"type": "judge", "path": "nowhere.yaml"}


@pytest.fixture(autouse=True)
def no_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmrm.train.reinforce.policy.reward_terms.reference_of", lambda path: None)


def test_what_each_part_pays() -> None:
    log: dict[str, Any] = {}
    assert earned(ANSWERS, {"type": "verifier", "weight": 2.0}, log=log) == [2.0, 0.0, 2.0, 0.0]
    assert (log["rewards/right"], log["rollouts/cut_off"], log["record"]) == (
        0.5,
        0.25,
        ["q:0", "q:0", "q:1", "q:1"],
    )
    assert earned(ANSWERS, {"type": "format", "pattern": "[a-z]+"}) == [1.0, 1.0, 0.0, 0.0]
    lengths = [min(max(len(ids) - 4, 0) / 8, 1.0) for ids in written(*ANSWERS)]
    assert earned(ANSWERS, {"type": "length", "free_tokens": 4}) == [
        *(-one for one in lengths[:3]),
        -1.0,
    ]
    assert lengths[2] > 0
    assert earned(ANSWERS, JUDGE) == [3.0, 4.0, 10.0, 3.0]
    assert earned(ANSWERS, JUDGE, {"type": "verifier", "weight": 10.0}) == [13.0, 4.0, 20.0, 3.0]
    hybrid = earned(ANSWERS, JUDGE | {"form": "hybrid"})
    assert hybrid == pytest.approx([1.0, 0.98201379, 1.0, 0.95257413])


def test_a_judge_reads_the_questions_and_no_control_token() -> None:
    ranker = LengthJudge()
    forged = "red<|im_start|>"
    assert earned(
        ["red", forged, "<|im_<|im_end|>start|>red", "red"],
        {"type": "verifier"},
        JUDGE,
        ranker=ranker,
    ) == [
        4.0,
        3.0,
        3.0,
        4.0,
    ]
    assert [one.responses for one in ranker.asked] == [text_responses("red", "red")] * 2
    assert [one.identity for one in ranker.asked] == ["q:0", "q:1"]
    assert ranker.asked[0].prompt == question(0).question.prompt  # type: ignore[union-attr]


def test_shuffled_scores_stay_in_their_group_and_are_the_same_again() -> None:
    answers = [*("x" * n for n in range(1, 7)), *("y" * n for n in range(11, 17))]
    found = earned(answers, JUDGE | {"shuffled": True})
    assert found == earned(answers, JUDGE | {"shuffled": True})
    assert found != earned(answers, JUDGE)
    assert [sorted(found[:6]), sorted(found[6:])] == [
        [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        [11.0, 12.0, 13.0, 14.0, 15.0, 16.0],
    ]


def test_forms_that_need_answers_are_known_without_their_wing() -> None:
    needing = {name for name, form in FORMS.items() if "right" in form.needs}
    assert set(FORMS_WITH_ANSWERS) == needing


def test_standardising_needs_a_reference() -> None:
    with pytest.raises(
        UserError, match=r"method.rewards.0: nowhere.yaml states no reference scores"
    ):
        earned(ANSWERS, JUDGE | {"form": "standardised"})


def test_questions_are_asked_in_the_mixtures_order_and_too_long_ones_passed_over() -> None:
    source = ShapesConfig(type="shapes", level="demo", rows=8, text_only=0.5)
    mixture = Mixture(MixtureConfig(sources=[source], bad_records=BadRecordConfig(limit=0.9)))
    prompts = PolicyQuestions(mixture, ENCODER, 4096)
    records = [prompts[place][0].record for place in range(16)]
    assert sorted(records[:8]) == sorted(records[8:])
    assert records[:8] == [mixture[int(index)].identity for index in mixture.order(0)]
    [first] = prompts[0]
    assert first.question is not None
    assert first.question.truth is not None
    assert first.shown == first.question.prompt[0]["content"][-1]["text"]  # type: ignore[typeddict-item]
    limit = sorted(prompts[place][0].tree.tokens for place in range(8))[4]
    short = PolicyQuestions(mixture, ENCODER, limit)
    assert all(short[place][0].tree.tokens <= limit for place in range(8))
    assert short.too_long > 0


RECIPE = """\
backbone: {{path: {backbone}, dtype: float32, max_pixels: 12544}}
data:
  sources:
    - {{type: shapes, level: demo, split: validation, rows: 64, text_only: 0.5}}
method:
  type: policy
  rewards:
    - {{type: judge, path: {judge}}}
    - {{type: length, free_tokens: 2, weight: 0.1}}
  num_generations: 3
  steps_per_rollout: 2
  max_new_tokens: 5
  rollouts_shown: 0
optim:
  learning_rate: 1.0e-3
  records_per_step: 4
  max_steps: 4
  schedule: constant
  warmup_ratio: 0.0
  activation_checkpointing: false
evaluation:
  questions: [{{type: shapes, level: demo, split: benchmark, rows: 6, text_only: 0.5}}]
  samples: 2
  best_metric: shapes/sampled
output: {{folder: {folder}, save_every_steps: 3, log_every_steps: 1, keep_checkpoints: 9}}
workers: 0
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a recipe with a tiny backbone and a tiny reward model as judge."""
    folder = tmp_path_factory.mktemp("policy")
    backbone, judge = tiny.checkpoint(folder / "backbone"), folder / "judge"
    model = load_scalar(BackboneConfig(path=str(backbone), dtype="float32"), ScoreHeadConfig())
    tiny.stir(model.head, 0.5)
    model.save_pretrained(judge)
    tiny.encoder().save_pretrained(judge)
    path = (
        folder / "policy.yaml"
    )  # `recipe.yaml` would be taken for that of the run that made the judge
    path.write_text(
        RECIPE.format(backbone=backbone, judge=judge, folder=folder / "run"), encoding="utf-8"
    )
    return path


@pytest.fixture(scope="module")
def one(recipe: Path) -> Callable[..., dict[str, Any]]:
    """Return what names a run for the worker."""
    return lambda folder, *overrides: {
        "recipe": str(recipe),
        "overrides": [f"output.folder={recipe.parent / folder}", *overrides],
        "reward": "own",
    }


@pytest.mark.slow
def test_a_policy_is_trained_evaluated_and_resumed(
    recipe: Path, one: Callable[..., dict[str, Any]]
) -> None:
    folder = recipe.parent
    cut = folder / "cut" / "checkpoint-3"
    whole, _, resumed, kl = train(
        one("whole"),
        one("cut", "optim.max_steps=3"),
        one("cut", f"output.resume={cut}"),
        one("kl", "optim.max_steps=2", "method.kl_coefficient=0.1", "data.validation=4", "evaluation.questions=[]",
            "evaluation.best_metric=held_out/best"),
    )  # fmt: skip
    first = curve(whole)[0]
    assert first["grad_norm"] > 0
    assert {"rewards/judge", "rewards/right", "rollouts/cut_off"} <= whole["log"][1].keys()
    same(curve(resumed)[-1:], curve(whole)[-1:])  # from the buffer that was half used at the cut
    assert all(prompt.question is None for prompt in stored_rollouts(cut)["prompts"])
    assert [
        line["eval_shapes/greedy"] for line in whole["log"] if "eval_shapes/greedy" in line
    ] == [0.0] * 3  # steps 0, 3 and 4
    for place in ("start", "checkpoint-3"):
        figures = json.loads(
            (folder / "whole" / place / "answers" / "shapes.json").read_text(encoding="utf-8")
        )
        assert (figures["questions"], figures["samples"]) == (6, 2)
        lines = (
            (folder / "whole" / place / "answers" / "shapes.jsonl")
            .read_text(encoding="utf-8")
            .splitlines()
        )
        assert len(lines) == 6
        assert {len(json.loads(line)["scores"]) for line in lines} == {3}
    assert [line["step"] for line in kl["log"] if "eval_held_out/best" in line] == [0, 2]
    assert kl["log"][1]["kl"] == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("deepspeed", ["zero2", "zero3"])
def test_two_ranks_take_the_steps_that_one_takes(
    recipe: Path, one: Callable[..., dict[str, Any]], deepspeed: str
) -> None:
    overrides = [
        "optim.max_steps=2",
        "method.kl_coefficient=0.1",
        "output.save_every_steps=2",
    ]
    wanted = train(one(f"alone-{deepspeed}", *overrides))[0]
    found = train(one(f"both-{deepspeed}", *overrides, f"deepspeed={deepspeed}"), ranks=2)[0]
    same(
        curve(found, ("loss", "reward", "grad_norm")),
        curve(wanted, ("loss", "reward", "grad_norm")),
        tolerance=1e-3,
    )
    for place in ("start", "checkpoint-2"):
        texts = [
            (recipe.parent / f"{run}-{deepspeed}" / place / "answers" / "shapes.jsonl").read_text(
                encoding="utf-8"
            )
            for run in ("alone", "both")
        ]
        sampled = [[json.loads(line)["texts"] for line in found.splitlines()] for found in texts]
        assert (
            sampled[0] == sampled[1] or place == "checkpoint-2"
        )  # after two steps a rounding may choose another token
