"""Random arrangements of packed rows are the stock model's, for every family; `arrangements.py` is the command for more."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.families.table import FAMILIES
from tests.models.families.arrangements import differences, reward_model

COUNT, CLOSE = 4, 1e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_and_gradients_are_the_stock_models(tmp_path: Path, family: str) -> None:
    model = reward_model(tmp_path, family)
    for seed in range(1000, 1000 + COUNT):
        score, gradient, name = differences(model, seed)
        assert score <= CLOSE, seed
        assert gradient <= CLOSE, (seed, name)
