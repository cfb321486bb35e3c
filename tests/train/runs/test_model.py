"""The number formats of a run's model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.runs.model import make_model
from tests.models import tiny
from tests.train import worker


@pytest.mark.parametrize(
    ("deepspeed", "dtype", "weights", "half"),
    [
        ("none", "bfloat16", torch.float32, True),
        ("none", "float32", torch.float32, False),
        ("zero2", "bfloat16", torch.bfloat16, False),
    ],
)
def test_without_deepspeed_bf16_is_computed_on_fp32_weights(
    tmp_path: Path, deepspeed: str, dtype: str, weights: torch.dtype, half: bool
) -> None:
    """Also where a part of the model is called by itself, as a judge does that writes."""
    model: Any = make_model(
        read_recipe(worker.prepare(tmp_path), [f"deepspeed={deepspeed}", f"backbone.dtype={dtype}"])
    )
    found: list[bool] = []
    for layer in (model.model.language_model.layers[0], model.model.visual.blocks[0]):
        layer.register_forward_pre_hook(lambda *_: found.append(torch.is_autocast_enabled("cpu")))
    batch = tiny.encoder().pack([])
    model(**batch.score_inputs())
    model.model(**batch.model_inputs())
    assert found == [half] * 4
    assert {parameter.dtype for parameter in model.parameters()} == {weights}
