"""What each mode of activation checkpointing computes a second time, and how much memory it keeps."""

from __future__ import annotations

from collections import Counter
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, SelectiveCheckpointContext

from mmrm.data.preference import text
from mmrm.models.activations import (
    ATTENTION_OPERATIONS,
    LINEAR_OPERATIONS,
    keep_results,
    set_checkpointing,
)
from mmrm.models.backbone import load_scalar
from mmrm.models.config import BackboneConfig, CheckpointingMode
from mmrm.models.heads.score_head import ScoreHeadConfig
from mmrm.models.portable.reward import ScalarReward
from tests.models import stock, tiny


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations that are computed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.name()] += 1
        return func(*args, **(kwargs or {}))

    def of(self, names: frozenset[str]) -> int:
        """Return how often operations of these names were computed."""
        return sum(self.counts[name] for name in names)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ScalarReward:
    folder = tiny.checkpoint(tmp_path_factory.mktemp("backbone"))
    loaded: ScalarReward = load_scalar(
        BackboneConfig(path=str(folder), dtype="float32"), ScoreHeadConfig()
    )
    tiny.stir(loaded.head, 0.5)
    return loaded


def backward(model: ScalarReward, mode: CheckpointingMode) -> tuple[Operations, dict[str, Tensor]]:
    """Run forward and backward on two conversations; return the operations and the gradients."""
    encoder = tiny.encoder()
    question: Any = [{"type": "image"}, {"type": "text", "text": "What is it?"}]
    conversations = [
        encoder.render([{"role": "user", "content": question}, text("assistant", answer)])
        for answer in ("A red circle.", "No.")
    ]
    tree = encoder.encode([tiny.picture(60, 90, 1)], conversations, "end_of_turn")
    batch = encoder.pack([tree])
    set_checkpointing(model, mode)
    model.train()
    model.zero_grad()
    with Operations() as operations:
        torch.autograd.backward(model(**batch.score_inputs()).square().sum())
    set_checkpointing(model, "none")
    return operations, stock.gradients(model)


@pytest.mark.parametrize("mode", get_args(CheckpointingMode))
def test_only_what_is_not_kept_is_computed_again(
    model: ScalarReward, mode: CheckpointingMode
) -> None:
    wanted, wanted_gradients = backward(model, "none")

    found, gradients = backward(model, mode)

    for name, gradient in gradients.items():
        assert torch.equal(gradient, wanted_gradients[name]), name
    text_layers = model.config.text_config.num_hidden_layers
    layers = text_layers + model.config.vision_config.depth
    attention_again = found.of(ATTENTION_OPERATIONS) - wanted.of(ATTENTION_OPERATIONS)
    # A layer may call the kernel several times, for segments of different lengths.
    assert (attention_again >= layers) == (mode == "full")
    assert (attention_again == 0) == (mode != "full")
    linear_again = found.of(LINEAR_OPERATIONS) - wanted.of(LINEAR_OPERATIONS)
    # All but the last linear layer of a layer, which nothing in the backward pass depends on.
    assert linear_again == (
        0 if mode in ("none", "linear") else 6 * text_layers + 4 * (layers - text_layers)
    )
    silu_again = found.counts["aten::silu"] - wanted.counts["aten::silu"]
    assert silu_again == (0 if mode == "none" else layers)


def test_an_operation_is_kept_by_its_name() -> None:
    context = SelectiveCheckpointContext(is_recompute=False)
    kept = frozenset({"aten::mm"})
    saved = keep_results(kept, context, torch.ops.aten.mm.default)
    assert saved == CheckpointPolicy.MUST_SAVE
    computed_again = keep_results(kept, context, torch.ops.aten.silu.default)
    assert computed_again == CheckpointPolicy.PREFER_RECOMPUTE


def test_linear_refuses_a_function_that_may_change_what_is_kept(
    model: ScalarReward, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.nn.functional.linear", lambda *inputs: None)
    with pytest.raises(RuntimeError, match="activation_checkpointing=linear keeps"):
        set_checkpointing(model, "linear")
    set_checkpointing(model, "attention")
    set_checkpointing(model, "none")
