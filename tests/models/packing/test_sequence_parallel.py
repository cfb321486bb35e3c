"""Rows that several ranks compute together give the scores and gradients of one rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedConfig

from mmrm.data.errors import UserError
from mmrm.models.config import CheckpointingMode
from mmrm.models.packing.sequence_group import SequenceGroup, make_group, owners_of_images
from mmrm.models.packing.sequence_parallel import divide_sequences
from tests.models import tiny
from tests.models.families import divided_rows
from tests.train.ranks import run_ranks

ROWS = 6
"""Rows of every family; `python -m tests.models.families.divided_rows 50` compares more."""


@pytest.fixture(scope="module")
def differences(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """Return the largest differences of scores and of gradients, relative to the largest, by family."""
    folder = tmp_path_factory.mktemp("divided")
    families = divided_rows.DIVIDED
    modes = get_args(CheckpointingMode)
    run_ranks(folder, divided_rows.compare, folder, families, ROWS, modes, in_float64=True)
    found = {}
    for family in families:
        of_ranks = [json.loads((folder / f"{family}-{rank}.json").read_text()) for rank in range(2)]
        # Both ranks have the scores and, after the sum over ranks, the gradients.
        found[family] = [max(pair) for pair in zip(*of_ranks, strict=True)]
    return found


@pytest.mark.slow
@pytest.mark.numerics
@pytest.mark.parametrize("family", divided_rows.DIVIDED)
def test_two_ranks_compute_a_row_as_one_does(
    differences: dict[str, list[float]], family: str
) -> None:
    scores, gradients = differences[family]
    assert scores < 1e-11
    assert gradients < 1e-12


def three_ranks(folder: Path) -> None:
    """Send tokens to heads and back on this rank of three, and gather stretches, in exact numbers."""
    torch.distributed.init_process_group("gloo")
    group = make_group(3)
    assert group is not None
    for num_tokens, num_heads in ((9, 3), (10, 6), (1, 3), (7, 1), (8, 2)):
        whole = torch.arange(num_tokens * num_heads * 2.0).view(1, num_tokens, num_heads, 2)
        start, end = group.stretch(num_tokens)
        padded = torch.cat([whole, torch.zeros(1, 3 * (end - start) - num_tokens, num_heads, 2)], 1)
        stretch = padded[:, start:end]
        heads = group.tokens_to_heads(stretch.transpose(1, 2), num_tokens)
        # Heads that do not divide by 3 are repeated.
        repeats = 1 if num_heads % 3 == 0 else 3
        repeated = whole.repeat_interleave(repeats, dim=2)
        num_own = repeated.shape[2] // 3
        own_heads = repeated[:, :, group.rank * num_own : (group.rank + 1) * num_own]
        assert torch.equal(heads, own_heads.transpose(1, 2)), (num_tokens, num_heads)

        tokens = group.heads_to_tokens(heads.transpose(1, 2))
        own_stretch = stretch.repeat_interleave(repeats, dim=2)
        num_own_tokens = max(0, min(end, num_tokens) - start)
        assert torch.equal(tokens[:, :num_own_tokens], own_stretch[:, :num_own_tokens])
        assert torch.equal(group.gather_stretches(stretch[0], num_tokens), whole[0])
    torch.distributed.destroy_process_group()
    (folder / f"done-{group.rank}").touch()


def test_tokens_are_exchanged_for_heads_and_back(tmp_path: Path) -> None:
    run_ranks(tmp_path, three_ranks, tmp_path, ranks=3)
    assert len(list(tmp_path.glob("done-*"))) == 3


@given(st.lists(st.integers(1, 10**6), max_size=40), st.integers(1, 8))
def test_every_image_has_one_owner_and_no_rank_has_much_more_than_its_share(
    num_patches: list[int], size: int
) -> None:
    owners = owners_of_images(num_patches, size)
    assert len(owners) == len(num_patches)
    patches_of_ranks = [0] * size
    for owner, patches in zip(owners, num_patches, strict=True):
        patches_of_ranks[owner] += patches
    assert sum(patches_of_ranks) == sum(num_patches)
    # A rank got its last image when it had the fewest patches.
    largest_image = max(num_patches, default=0)
    assert max(patches_of_ranks) <= sum(num_patches) / size + largest_image


def test_the_owners_in_the_documentation() -> None:
    assert owners_of_images([4, 9, 4], 2) == (1, 0, 1)


def test_stretches_cover_a_row() -> None:
    group: Any = None
    stretches = [SequenceGroup(rank, 4, group).stretch(10) for rank in range(4)]
    assert stretches == [(0, 3), (3, 6), (6, 9), (9, 12)]


def test_a_group_of_one_rank_is_none() -> None:
    assert make_group(1) is None


class Unloaded:
    """A model of which only the configuration is looked at."""

    def __init__(self, config: PreTrainedConfig) -> None:
        """Keep the configuration."""
        self.config = config


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(UserError, match=r"4 attention heads.* one of 1, 2, 4\."):
        divide_sequences(Unloaded(tiny.config()), 3)


def test_recurrent_layers_are_refused() -> None:
    with pytest.raises(UserError, match="recurrent layers"):
        divide_sequences(Unloaded(tiny.config("qwen3_5")), 2)
