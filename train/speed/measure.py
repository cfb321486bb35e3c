"""How speed is measured: a random model of a known shape, the device's own matrix-product rate, time and memory of a call."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Qwen2_5_VLConfig

from models.backbone import set_attention
from models.build_embedded import SPECIAL, architecture
from models.config import HeadConfig
from models.packing.groups import Group, PackedBatch
from models.portable.critic import CriticRewardModel
from models.portable.reward import ScoreLinear, mean_by_owner
from train.recipe.memory import PUBLISHED, Shape

SHAPES = {"3b": PUBLISHED["Qwen/Qwen2.5-VL-3B-Instruct"], "7b": PUBLISHED["Qwen/Qwen2.5-VL-7B-Instruct"]}
EMBEDDED = "embedded"
GIB = 2**30


class _Ids:
    """Stands in for a tokenizer where only the ids of the special tokens are asked for."""

    def convert_tokens_to_ids(self, tokens: Sequence[str]) -> list[int]:
        return [SPECIAL.index(token) for token in tokens]


def config_of(name: str) -> Qwen2_5_VLConfig:
    """Return the configuration of `embedded`, `3b` or `7b`, with the paper's reward head; nothing is downloaded."""
    config = architecture(_Ids()) if name == EMBEDDED else released(SHAPES[name])
    config.reward_head = HeadConfig().model_dump()
    return config


def released(shape: Shape) -> Qwen2_5_VLConfig:
    """Return the configuration of a released checkpoint; what `shape` does not hold is the same in all of them."""
    text = {
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.key_value_heads,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": 128000,
        "rope_parameters": {"rope_type": "default", "mrope_section": [16, 24, 24], "rope_theta": 1000000.0},
    }
    vision = {
        "hidden_size": shape.vision_hidden,
        "intermediate_size": shape.vision_intermediate,
        "depth": shape.vision_layers,
        "num_heads": 16,
        "out_hidden_size": shape.hidden,
        "fullatt_block_indexes": [7, 15, 23, 31],
        "window_size": 112,
    }
    return Qwen2_5_VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=shape.tied)


def build(kind: Any, name: str, device: torch.device, dtype: torch.dtype, seed: int = 0) -> Any:
    """Return a model of the class `kind`, with random weights made on the device.

    A head's last layer too, which starts at zero for training: a backward pass of zeros takes a GPU less power, so less time.
    """
    torch.manual_seed(seed)
    with torch.device(device):
        model = kind._from_config(config_of(name), dtype=dtype)
        for module in model.modules():
            if isinstance(module, ScoreLinear):
                nn.init.normal_(module.weight, std=0.02)
    set_attention(model)
    return model


def scores(model: CriticRewardModel, batch: PackedBatch) -> Tensor:
    """Return the scores of a packed row, (continuations,) fp32, without the LM head."""
    hidden = model.model(**batch.model_inputs()).last_hidden_state[0]
    return model.scores(mean_by_owner(hidden, batch.read_positions, batch.read_owners, sum(batch.group_sizes)))


def stock_scores(model: CriticRewardModel, inputs: dict[str, Tensor], ends: Tensor) -> Tensor:
    """Return the scores of a padded batch, (B,) fp32; `model` must have stock attention."""
    hidden = model.model(**inputs, use_cache=False).last_hidden_state
    return model.scores(hidden[torch.arange(len(hidden), device=hidden.device), ends])


def stock_attention(model: CriticRewardModel) -> None:
    """Give both halves of the model transformers' own SDPA attention, which takes no packed rows."""
    model.set_attn_implementation({"text_config": "sdpa", "vision_config": "sdpa"})


def unique_work(model: CriticRewardModel, groups: Sequence[Group]) -> float:
    """Return the multiply-adds that `groups` cannot do without: every token and patch once, through its layers' matrices."""
    language = sum(parameter.numel() for parameter in model.model.language_model.layers.parameters())
    vision = sum(parameter.numel() for parameter in model.model.visual.parameters())
    return float(sum(group.tokens for group in groups) * language + sum(group.patches for group in groups) * vision)


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Return the multiply-adds a second of large matrix products on `device`."""
    side = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    return float(side**3 / measure(lambda: a @ b, device, repeats=10).seconds)


@dataclass(frozen=True, slots=True)
class Timing:
    """The median time of a call, and the most memory that was in use."""

    seconds: float
    peak: float
    """GiB: of the device, or on a CPU the highest the process has ever held."""


def measure(call: Callable[[], Any], device: torch.device, repeats: int) -> Timing:
    """Return time and memory of `call`, run once to warm up and then `repeats` times.

    On a CPU with one thread the time is the processor's own, so that other work on the machine does not count.
    """
    call()
    cuda = device.type == "cuda"
    clock = time.process_time if own_time(device) else time.perf_counter
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
    times = []
    for _ in range(repeats):
        _wait(device)
        start = clock()
        call()
        _wait(device)
        times.append(clock() - start)
    peak = torch.cuda.max_memory_allocated(device) if cuda else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Timing(statistics.median(times), peak / GIB)


def own_time(device: torch.device) -> bool:
    """Say whether times are processor time instead of wall-clock time."""
    return device.type == "cpu" and torch.get_num_threads() == 1


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
