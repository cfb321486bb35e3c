"""What goes to the hub: the best checkpoint, without what only a resume needs."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from tests.train.worker import ended
from train.runs.callbacks import point_link
from train.runs.model_card import FOR_RESUME, claim, push
from train.supervised.checkpoints import COMPLETE

KEPT = {
    "README.md",
    "judge.json",
    "config.json",
    "model.safetensors",
    "reward.py",
    "decoding.py",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "preprocessor_config.json",
    "eval",
}


class Notes:
    """A hub that only notes what it is asked."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def create_repo(self, repo_id: str, **named: Any) -> None:
        """Note it."""
        self.calls.append({"repo_id": repo_id, **named})

    def upload_folder(self, **named: Any) -> None:
        """Note it."""
        self.calls.append(named)


def test_a_repository_is_made_once_and_private() -> None:
    hub = Notes()
    claim("me/model", hub)
    assert hub.calls == [{"repo_id": "me/model", "private": True, "exist_ok": True}]


def test_the_best_checkpoint_is_uploaded(tmp_path: Path) -> None:
    for step in (2, 4):
        (tmp_path / "run" / f"checkpoint-{step}").mkdir(parents=True)
        (tmp_path / "run" / f"checkpoint-{step}" / COMPLETE).touch()
    hub = Notes()
    assert push(tmp_path / "run", "me/model", hub).name == "checkpoint-4"
    point_link(tmp_path / "run" / "best", tmp_path / "run" / "checkpoint-2")
    assert push(tmp_path / "run", "me/model", hub).name == "checkpoint-2"
    assert [call["folder_path"].name for call in hub.calls] == ["checkpoint-4", "checkpoint-2"]
    assert hub.calls[0]["commit_message"] == "checkpoint-4 of run"


def test_only_what_a_user_of_the_model_wants_is_uploaded(runs: Path) -> None:
    for stage in ("none", "zero2", "zero3"):
        found = {path.name for path in ended(runs / f"2-{stage}").iterdir()}
        assert {name for name in found if not any(fnmatch(name, pattern) for pattern in FOR_RESUME)} == KEPT
