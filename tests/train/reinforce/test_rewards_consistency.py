"""A model on this machine as consistency judge: every judgement gets its own opinion, and silence never pays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from data.prompts import read, write_judgement
from models.backbone import load_language_model
from models.config import BackboneConfig
from tests.models import tiny
from train.reinforce.rewards import ByCheckpoint


def judge(tmp_path: Path, budget: int = 4096) -> ByCheckpoint:
    model = load_language_model(BackboneConfig(path=str(tiny.checkpoint(tmp_path)), dtype="float32")).eval()
    return ByCheckpoint(model, tiny.encoder(), budget)


def test_a_model_that_babbles_is_unclear(tmp_path: Path) -> None:
    judgements = [read(write_judgement("Response 1 is better.", 1)), read("nothing"), read(write_judgement("a\nb", 2))]
    assert judge(tmp_path)(judgements) == [0, 0, 0]
    assert judge(tmp_path, budget=1)(judgements) == [0, 0, 0]
    assert judge(tmp_path)([]) == []


def test_replies_go_to_the_judgements_they_were_asked_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def replies(self: Any, questions: list[str]) -> list[str]:
        asked.extend(questions)
        return ["1" if "first" in question else "0" for question in questions]

    monkeypatch.setattr(ByCheckpoint, "replies", replies)
    judgements = [read("nothing"), read(write_judgement("first", 1)), read(write_judgement("second", 2))]
    assert judge(tmp_path)(judgements) == [0, 1, -1]
    assert len(asked) == 2
