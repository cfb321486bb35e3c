"""What each mode of activation checkpointing computes a second time, and how much memory it keeps."""

from __future__ import annotations

from collections import Counter
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, SelectiveCheckpointContext
from transformers.modeling_layers import GradientCheckpointingLayer

from mmrm.data.preference import text
from mmrm.models import activations
from mmrm.models.activations import (
    ATTENTION_OPERATIONS,
    LINEAR_OPERATIONS,
    keep_results,
    offload_inputs,
    set_checkpointing,
    to_device,
    to_host,
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
    is_whole_layer = mode in ("full", "offloaded")
    assert (attention_again >= layers) == is_whole_layer
    assert (attention_again == 0) == (not is_whole_layer)
    linear_again = found.of(LINEAR_OPERATIONS) - wanted.of(LINEAR_OPERATIONS)
    # All but the last linear layer of a layer, which nothing in the backward pass depends on. The
    # last layer of the language model puts its results at their positions, so it needs that one.
    in_layers = 6 * text_layers + 1 + 4 * (layers - text_layers)
    assert linear_again == (0 if mode in ("none", "linear") else in_layers)
    silu_again = found.counts["aten::silu"] - wanted.counts["aten::silu"]
    assert silu_again == (0 if mode == "none" else layers)


def test_the_inputs_of_all_layers_and_nothing_else_are_kept_on_the_host(
    model: ScalarReward, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[Tensor] = []
    returned: list[Tensor] = []

    def noted(tensor: Tensor) -> tuple[torch.device, Tensor]:
        moved.append(tensor)
        return to_host(tensor)

    def noted_return(kept: tuple[torch.device, Tensor]) -> Tensor:
        returned.append(kept[1])
        return to_device(kept)

    monkeypatch.setattr(activations, "to_host", noted)
    monkeypatch.setattr(activations, "to_device", noted_return)
    inputs: list[Tensor] = []
    hooks = []
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            hook = module.register_forward_pre_hook(lambda layer, args: inputs.append(args[0]))
            hooks.append(hook)

    backward(model, "offloaded")

    for hook in hooks:
        hook.remove()
    config = model.config
    layers = config.text_config.num_hidden_layers + config.vision_config.depth
    states = [tensor for tensor in moved if tensor.numel()]
    assert len(states) == layers
    # The hooks are called in the first computation, which every layer does once.
    for tensor, given in zip(states, inputs[:layers], strict=True):
        assert torch.equal(tensor, given)
    assert len([tensor for tensor in returned if tensor.numel()]) == layers


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


def test_another_version_of_transformers_is_named(
    model: ScalarReward, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            monkeypatch.delattr(module, "_gradient_checkpointing_func", raising=False)
    with pytest.raises(RuntimeError, match=r"_gradient_checkpointing_func.*tested with transf"):
        offload_inputs(model)
