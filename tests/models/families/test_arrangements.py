"""Random arrangements of packed rows are the stock model's, for every family; `arrangements.py` is the command for more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.exactness import assert_exact
from tests.models.families.arrangements import compare, reward_model
from tests.models.families.parameters import every_family

COUNT = 4


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("family", every_family())
def test_scores_and_gradients_are_the_stock_models(tmp_path: Path, family: str) -> None:
    model = reward_model(tmp_path, family)
    for seed in range(1000, 1000 + COUNT):
        found = compare(model, seed)
        assert_exact(found.scores, found.stock_scores)
        assert_exact(found.gradients, found.stock_gradients)
