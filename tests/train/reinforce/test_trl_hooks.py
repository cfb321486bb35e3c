"""The check of trl's hooks: silent for the version we stand on, loud for another shape."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("trl")

from trl import GRPOTrainer

from train.reinforce.trl_hooks import HOOKS, check_trl, missing_hooks, unread


def test_the_installed_version_fits() -> None:
    check_trl(GRPOTrainer)


def test_a_hook_that_is_gone_or_takes_something_else_is_named() -> None:
    class Changed:
        def _compute_loss(self, inputs: Any) -> None:
            """Lack the model."""

    problems = missing_hooks(Changed)
    assert len(problems) == len(HOOKS)
    assert any("_compute_loss takes (self, inputs), expected (self, model, inputs)" in problem for problem in problems)
    assert unread(Changed)
    with pytest.raises(RuntimeError, match=r"tested with trl 1\.16"):
        check_trl(Changed)
