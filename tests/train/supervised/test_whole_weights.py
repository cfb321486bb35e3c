"""Writing under ZeRO-3: whole weights are gathered only where there is memory; tests/train/test_critic_runs.py sees them used."""

from __future__ import annotations

import psutil
import pytest
import torch

from mmrm.train.supervised import whole_weights


def test_whole_weights_must_leave_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert whole_weights.fits_everywhere(1000, cpu)
    assert not whole_weights.fits_everywhere(2**60, cpu)
    free = psutil.virtual_memory().available
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1000")
    assert not whole_weights.fits_everywhere(free // 100, cpu)
