"""Where wandb writes: what is set stays, and without a login nothing is sent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from train.runs import arguments as tracking


@pytest.mark.parametrize(("login", "mode"), [(False, "offline"), (True, None)])
def test_the_mode_follows_the_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, login: bool, mode: str | None) -> None:
    for name in ("WANDB_MODE", "WANDB_DIR", "WANDB_PROJECT"):
        monkeypatch.setenv(name, "to be forgotten")  # so that monkeypatch takes back what is set below
        monkeypatch.delenv(name)
    monkeypatch.setattr("train.runs.arguments.wandb.login", lambda **asked: login)
    tracking.prepare_wandb("shapes", tmp_path / "run")
    assert os.environ.get("WANDB_MODE") == mode
    assert os.environ["WANDB_PROJECT"] == "shapes"
    assert Path(os.environ["WANDB_DIR"]) == tmp_path / "run"
    assert (tmp_path / "run").is_dir()


def test_what_is_set_stays_and_nobody_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(**keywords: object) -> bool:
        raise AssertionError("wandb was asked")

    monkeypatch.setattr("train.runs.arguments.wandb.login", asked)
    for name in ("WANDB_MODE", "WANDB_DIR", "WANDB_PROJECT"):
        monkeypatch.setenv(name, "mine")
    tracking.prepare_wandb("shapes", tmp_path)
    assert {os.environ[name] for name in ("WANDB_MODE", "WANDB_DIR", "WANDB_PROJECT")} == {"mine"}
