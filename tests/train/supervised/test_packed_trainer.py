"""What the trainer keeps to itself: its dice."""

from __future__ import annotations

from itertools import product

from mmrm.train.supervised.packed_trainer import step_seed


def test_dropout_differs_by_seed_step_and_rank_and_is_the_same_every_time() -> None:
    found = {key: step_seed(*key) for key in product(range(4), range(20), range(4))}
    assert len(set(found.values())) == len(found)
    assert all(step_seed(*key) == value for key, value in found.items())
    assert all(0 <= value < 2**63 for value in found.values())
