"""The list that compares stages of modalities with their mixture: the same pairs, in another order."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from mmrm.data.preparation.mixing import Mixture
from mmrm.train.studies.ablation.variants import read_ablation

LIST = Path(__file__).resolve().parents[4] / "recipes" / "ablations" / "shapes_stages.yaml"


def test_stages_and_mixture_train_on_the_same_pairs_in_as_many_steps() -> None:
    runs = read_ablation(LIST).runs
    stages = runs[0]
    assert [run.variant for run in runs] == ["stages", "mixture", "reverse"]
    assert {run.recipe.steps(0) for run in runs} == {30}
    orders = {run.variant: Mixture(run.recipe.data).order(0) for run in runs}
    for order in orders.values():
        assert Counter(order.tolist()) == Counter(range(1920))
    assert len(orders["stages"]) == 30 * stages.recipe.optim.records_per_step
    records = Mixture(stages.recipe.data)
    for number, part in enumerate(np.split(orders["stages"], 3)):
        assert {records.records.locate(index)[0] for index in part.tolist()} == {number}
    for number, part in enumerate(np.split(orders["reverse"], 3)):
        assert {records.records.locate(index)[0] for index in part.tolist()} == {2 - number}
    modalities = [bool(records[index].images) for index in orders["stages"][::320].tolist()]
    assert modalities == [False, False, False, False, True, True]
    is_mixed = {records.records.locate(index)[0] for index in orders["mixture"][:60].tolist()}
    assert is_mixed == {0, 1, 2}
