"""The MLP of the last layer computes the positions that are read and no others, and nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from mmrm.models.activations import set_checkpointing
from mmrm.models.backbone import load_critic, set_attention
from mmrm.models.config import BackboneConfig, CheckpointingMode
from mmrm.models.families.registry import FAMILIES
from mmrm.models.heads.score_head import ScoreHeadConfig
from mmrm.models.packing.last_layer import LastMlp
from mmrm.models.packing.packed_batch import PackedBatch
from tests.models import stock, tiny
from tests.models.exactness import assert_exact, float64
from tests.models.test_packed_equals_padded import case

WITHOUT_EXPERTS = [name for name, family in FAMILIES.items() if family.experts is None]


def loaded(folder: Path, family: str) -> Any:
    """Return a critic of a family in float64."""
    with float64():
        path = tiny.checkpoint(folder, family=family)
        config = BackboneConfig(path=str(path), dtype="float32")
        model = load_critic(config, ScoreHeadConfig())
        tiny.stir(model.head, 0.5)
    return model


def row(family: str) -> PackedBatch:
    """Return a row with scores and labels, and images in two of its three trees."""
    encoder = tiny.encoder(family)
    trees = []
    for num_pictures, seed in ((1, 0), (0, 1), (3, 2)):
        images, conversations = case(num_pictures, 2, seed)
        written = tiny.written_for(family, conversations)
        trees.append(encoder.encode(images, written, "end_of_turn"))
    return encoder.pack(trees)


def shorter_row() -> PackedBatch:
    """Return a row of one tree."""
    encoder = tiny.encoder()
    return encoder.pack([encoder.encode(*case(1, 2), "end_of_turn")])


def rows_of_mlp(model: Any) -> list[int]:
    """Return the list to which the last MLP will add the number of positions of each call."""
    found: list[int] = []

    def note(module: Any, args: tuple[Tensor, ...]) -> None:
        found.append(args[0].shape[1])

    model.model.language_model.layers[-1].mlp.register_forward_pre_hook(note)
    return found


def loss_of(model: Any, inputs: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return scores and log-probabilities in one tensor, and all gradients."""
    model.zero_grad()
    scores, log_probabilities = model(**inputs)
    results = torch.cat([scores.flatten(), log_probabilities.flatten()])
    torch.autograd.backward(results.square().sum())
    return results.detach(), stock.gradients(model)


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("family", WITHOUT_EXPERTS)
def test_only_read_positions_are_computed_and_results_are_those_of_all(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in the released models, the last layer has attention.
    kinds = ["full_attention", "linear_attention", "full_attention"]
    monkeypatch.setitem(tiny.TEXT["qwen3_5"], "layer_types", kinds)
    model = loaded(tmp_path, family)
    batch = row(family)
    inputs = batch.joint_inputs()
    whole_inputs = {**inputs, "attention_mask": batch.plan}
    found = rows_of_mlp(model)
    wanted, wanted_gradients = loss_of(model, whole_inputs)
    assert found == [batch.tokens]
    used = {0, 1, *batch.read_positions.tolist(), *batch.label_positions.tolist()}
    assert batch.used_positions.tolist() == sorted(used)
    assert len(batch.labels) > 0
    assert len(used) < batch.tokens
    for mode in get_args(CheckpointingMode):
        set_checkpointing(model, mode)
        model.train()
        found.clear()
        results, gradients = loss_of(model, inputs)
        # A layer that is computed again in the backward pass has the same positions.
        assert found == [len(used)] * (1 if mode == "none" else 2), mode
        assert_exact(results, wanted)
        assert_exact(gradients, wanted_gradients)
    set_checkpointing(model, "none")


@pytest.mark.usefixtures("float64")
def test_rows_that_wait_for_one_backward_pass_keep_their_positions(tmp_path: Path) -> None:
    """The layers of the first row are computed again after the second row."""
    model = loaded(tmp_path, tiny.FAMILY)
    inputs = [row(tiny.FAMILY).joint_inputs(), shorter_row().joint_inputs()]
    assert len({len(one["attention_mask"].used_positions) for one in inputs}) == 2
    wanted: dict[str, Tensor] = {}
    for one in inputs:
        for name, gradient in loss_of(model, one)[1].items():
            wanted[name] = wanted.get(name, torch.zeros(())) + gradient
    set_checkpointing(model, "full")
    model.train()
    model.zero_grad()
    results: list[Tensor] = []
    for one in inputs:
        scores, log_probabilities = model(**one)
        results += [scores.flatten(), log_probabilities.flatten()]
    torch.autograd.backward(torch.cat(results).square().sum())
    assert_exact(stock.gradients(model), wanted)


@pytest.mark.usefixtures("float64")
def test_hidden_states_of_all_tokens_are_computed_where_they_are_asked_for(tmp_path: Path) -> None:
    """Generation goes on from positions that no label or score is read at."""
    model = loaded(tmp_path, tiny.FAMILY)
    batch = row(tiny.FAMILY)
    found = rows_of_mlp(model)
    with torch.no_grad():
        model(**batch.joint_inputs())
        hidden = model.model(**batch.model_inputs()).last_hidden_state[0]
        scored = model.model(**{**batch.model_inputs(), **only_mask(batch)}).last_hidden_state[0]
    assert found == [len(batch.used_positions), batch.tokens, len(batch.used_positions)]
    assert_exact(scored[batch.used_positions], hidden[batch.used_positions])


def only_mask(batch: PackedBatch) -> dict[str, Any]:
    return {"attention_mask": batch.score_inputs()["attention_mask"]}


def test_a_second_call_changes_nothing(tmp_path: Path) -> None:
    model = loaded(tmp_path, tiny.FAMILY)
    layer = model.model.language_model.layers[-1]
    names = list(model.state_dict())
    kind = type(layer.mlp)
    set_attention(model)
    assert type(layer.mlp) is kind
    assert len(layer.self_attn._forward_pre_hooks) == 1
    assert isinstance(layer.mlp, LastMlp)
    assert not isinstance(model.model.language_model.layers[0].mlp, LastMlp)
    assert list(model.state_dict()) == names


def test_layers_with_experts_stay_as_they_are(tmp_path: Path) -> None:
    model = loaded(tmp_path, "qwen3_vl_moe")
    assert not isinstance(model.model.language_model.layers[-1].mlp, LastMlp)


def test_plans_of_one_row_share_what_they_keep() -> None:
    batch = row(tiny.FAMILY)
    plan = batch.score_inputs()["attention_mask"]
    assert plan.calls(torch.float32) is batch.plan.calls(torch.float32)
    assert batch.label_inputs()["attention_mask"].calls(torch.float32) is plan.calls(torch.float32)


def test_a_row_without_scores_and_labels_has_two_positions() -> None:
    """With none or one, torch.compile would compile the MLP once more."""
    batch = tiny.encoder().pack([])
    assert batch.used_positions.tolist() == [0, 1]
