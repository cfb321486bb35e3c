"""What QLoRA keeps in 4 bits; whether it computes needs a CUDA device and bitsandbytes."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers.quantizers.quantizers_utils import should_convert_module

from mmrm.data.errors import UserError
from mmrm.models import backbone as quantisation
from mmrm.models.backbone import (
    load_critic,
    load_language_model,
    load_scalar,
    nf4_arguments,
    not_quantised,
)
from mmrm.models.config import BackboneConfig
from mmrm.models.families.registry import FAMILIES
from tests.models import tiny


@pytest.mark.parametrize("load", [load_scalar, load_critic, load_language_model])
def test_the_language_models_matrices_and_no_others_are_quantised(
    tmp_path: Path, load: Callable[..., Any]
) -> None:
    model = load(BackboneConfig(path=str(tiny.checkpoint(tmp_path)), dtype="float32"))
    linear = {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    chosen = {
        name
        for name in linear
        if should_convert_module(name, not_quantised(FAMILIES["qwen2_5_vl"]))
    }
    assert chosen == {name for name in linear if name.startswith("model.language_model.layers.")}
    assert len(chosen) == 7 * 2


def test_without_bitsandbytes_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantisation, "find_spec", lambda name: None)
    with pytest.raises(
        UserError, match=r"bitsandbytes.*\[quantisation\].*optim\.lora\.quantise=none"
    ):
        nf4_arguments(torch.bfloat16, torch.device("cpu"), FAMILIES["qwen2_5_vl"])


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available() or find_spec("bitsandbytes") is None, reason="needs both"
)
def test_a_quantised_backbone_is_loaded_in_its_three_formats(tmp_path: Path) -> None:
    config = BackboneConfig(path=str(tiny.checkpoint(tmp_path)))
    quantised = load_scalar(config, nf4=True)
    assert quantised.model.language_model.layers[0].mlp.up_proj.weight.dtype == torch.uint8
    assert quantised.model.visual.blocks[0].attn.qkv.weight.dtype == torch.bfloat16
    assert quantised.head[0].weight.dtype == torch.bfloat16
