"""The check of trl's hooks: silent for the version we stand on, loud for another shape."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("trl")

from trl import GRPOTrainer

from mmrm.train.reinforce.trl_hooks import check_trl


def test_the_installed_version_fits() -> None:
    check_trl(GRPOTrainer)


def test_a_hook_that_is_gone_or_takes_something_else_is_named() -> None:
    class Changed:
        def _compute_loss(self, inputs: Any) -> None:
            """Lack the model."""

    with pytest.raises(RuntimeError, match=r"tested with trl 1\.16") as error:
        check_trl(Changed)
    assert "_compute_loss takes (self, inputs), expected (self, model, inputs)" in str(error.value)
    assert "_save_checkpoint takes (), expected (self, model, trial)" in str(error.value)
    assert "_generate does not mention 'rollout_func'" in str(error.value)
