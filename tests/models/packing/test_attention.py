"""The plan's kernels against attention written out, one conversation at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mmrm.models import compatibility
from mmrm.models.packing.attention import AttentionPlan, flash_windows, shared_prefix
from mmrm.models.packing.vision import map_tensors
from tests.models.exactness import assert_exact
from tests.models.families.parameters import every_family
from tests.models.varlen_reference import attend, put_in_place

HEADS, KEY_HEADS, WIDTH = 4, 2, 8


def wanted(q: Tensor, k: Tensor, v: Tensor, row: list[list[int]]) -> Tensor:
    out, start = [], 0
    for prompt, *continuations in row:
        shared = list(range(start, start + prompt))
        out.append(attend(q[shared], k[shared], v[shared], 0.5, True))
        start += prompt
        for length in continuations:
            own = list(range(start, start + length))
            out.append(attend(q[own], k[shared + own], v[shared + own], 0.5, True))
            start += length
    return torch.cat(out)


def tensors(length: int, key_heads: int = KEY_HEADS) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(length)
    q, k, v = (
        torch.randn(1, heads, length, WIDTH, generator=generator)
        for heads in (HEADS, key_heads, key_heads)
    )
    return q, k, v


def rows(x: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (t[0].transpose(0, 1) for t in x)
    return q, k, v


@pytest.fixture
def varlen(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place(monkeypatch)


LENGTHS = st.lists(
    st.lists(st.sampled_from([1, 2, 3, 5, 9, 40]), min_size=1, max_size=5), min_size=1, max_size=4
)


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
@settings(max_examples=40, deadline=None)
@given(LENGTHS)
def test_every_segment_sees_its_prompt_and_itself(row: list[list[int]]) -> None:
    x = tensors(sum(map(sum, row)))
    out, weights = shared_prefix(
        torch.nn.Module(), *x, AttentionPlan.of(row), scaling=0.5, kernel="sdpa"
    )
    assert weights is None
    assert_exact(out[0], wanted(*rows(x), row))


@pytest.mark.numerics
@pytest.mark.usefixtures("float64", "varlen")
def test_the_varlen_call_gets_the_same_segments() -> None:
    row = [[7, 3, 1, 12], [2], [5, 5]]
    x = tensors(sum(map(sum, row)))
    out, _ = shared_prefix(torch.nn.Module(), *x, AttentionPlan.of(row), scaling=0.5, kernel="auto")
    assert_exact(out[0], wanted(*rows(x), row))


WINDOWS = [16, 16, 8, 16, 4, 8]


def windows(kernel: Any) -> tuple[Tensor, Tensor]:
    ends = torch.tensor([0, *torch.tensor(WINDOWS).cumsum(0).tolist()], dtype=torch.int32)
    x = tensors(sum(WINDOWS), HEADS)
    out, _ = flash_windows(
        torch.nn.Module(), *x, scaling=0.5, cu_seq_lens_q=ends, max_length_q=16, kernel=kernel
    )
    parts = zip(*(torch.split(t, WINDOWS) for t in rows(x)), strict=True)
    return out[0], torch.cat([attend(q, k, v, 0.5, False) for q, k, v in parts])


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
def test_windows_see_themselves() -> None:
    found, expected = windows("auto")
    assert_exact(found, expected)


@pytest.mark.numerics
@pytest.mark.usefixtures("float64", "varlen")
def test_the_varlen_call_gets_the_same_windows() -> None:
    found, expected = windows("auto")
    assert_exact(found, expected)


def test_uneven_lengths_are_padded_to_their_own_bucket_only() -> None:
    row = [[900, 3, 4, 2, 3], [5, 800], [6, 5, 7]]
    calls, _ = AttentionPlan.of(row).calls(torch.float32)
    pairs = sum(
        call.queries.shape[0] * call.queries.shape[1] * call.keys.shape[1] for call in calls
    )
    real = sum(
        q * k
        for q, k in zip(
            AttentionPlan.of(row).query_lengths, AttentionPlan.of(row).key_lengths, strict=True
        )
    )
    assert pairs < 1.3 * real


def test_indices_are_built_once_for_all_layers() -> None:
    plan = AttentionPlan.of([[3, 2]])
    assert plan.calls(torch.float32) is plan.calls(torch.float32)
    assert map_tensors(plan, Tensor.clone).calls(torch.float32) is not plan.calls(torch.float32)


def test_varlen_on_a_cpu_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"attention=varlen needs CUDA.*Found cpu.*Set backbone\.attention=auto"
    ):
        shared_prefix(
            torch.nn.Module(), *tensors(5), AttentionPlan.of([[3, 2]]), scaling=0.5, kernel="varlen"
        )


@pytest.mark.parametrize("family", every_family())
def test_the_installed_transformers_is_recognised(family: str) -> None:
    compatibility.check_transformers(family)


@pytest.mark.parametrize("hook", ["_plan_reaches_attention", "_row_of_patches_is_one_call"])
def test_a_transformers_without_the_hooks_is_refused(
    monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    monkeypatch.setattr(compatibility, hook, lambda family: False)
    with pytest.raises(RuntimeError, match=r"tested with transformers 5\.17"):
        compatibility.check_transformers.__wrapped__("qwen2_5_vl")
