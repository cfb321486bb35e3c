"""A checkpoint that was trained on ratings is a judge of single responses, asked as it was trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrm.data.point_prompt import PointPrompt
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.judge_card import JudgeCard, judge_card
from mmrm.eval.judges.loading import load_judge
from mmrm.eval.judges.pointwise import ExpectedPointJudge
from mmrm.eval.judges.registry import judge_config
from mmrm.eval.results.run_folder import CARD
from tests.models import tiny

PROMPT = PointPrompt(
    question="{question}|{response}|?", opening="", scores={"0": 0.0, "1": 1.0, "2": 2.0}
)


def recipe(folder: Path) -> dict[str, Any]:
    """Return the parts of a resolved recipe that a judge card takes."""
    return {
        "backbone": {"path": str(folder), "dtype": "float32"},
        "method": {"type": "language_model", "template": "turns"},
        "evaluation": {"benchmarks": [], "protocol": {}, "baselines": True},
        "optim": {"token_budget": 512, "lora": None},
        "deepspeed": "none",
        "workers": 0,
    }


def test_the_card_names_the_question_and_no_template_of_pairs(tmp_path: Path) -> None:
    card = judge_card(recipe(tmp_path), "generative", None, points=PROMPT)
    assert (card.judge_type, card.template, card.points) == ("points", None, PROMPT)
    assert JudgeCard.model_validate_json(card.model_dump_json()) == card
    other = judge_card(recipe(tmp_path), "generative", None)
    assert (other.judge_type, other.template) == ("generative", "turns")
    assert "points" not in json.loads(other.model_dump_json())


@pytest.mark.parametrize("points", [PROMPT, None])
def test_the_folder_alone_says_which_judge_it_is(
    tmp_path: Path, points: PointPrompt | None
) -> None:
    folder = tmp_path / "checkpoint-1"
    tiny.checkpoint(folder)
    card = judge_card(recipe(folder), "generative", None, points=points)
    (folder / CARD).write_text(card.model_dump_json())
    if points is None:
        assert judge_config(folder).type == "generative"
        return
    assert judge_config(folder).type == "points"
    judging: Any = load_judge(folder, Runtime(torch.device("cpu"))).judge
    assert isinstance(judging, ExpectedPointJudge)
    assert judging.packed.token_budget == 512
    assert list(judging.place.value_by_text) == ["0", "1", "2"]
    [score] = load_judge(folder, Runtime(torch.device("cpu"))).score("What?", ["this"])
    assert 0 < score < 2
