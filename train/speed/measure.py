"""How speed is measured: random models of known shapes, the variants that are compared on them, time and memory of a call.

All variants run the same weights and pairs: padded as by stock transformers, packed, with prompt and image shared, compiled.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Qwen2_5_VLConfig

from models.backbone import set_attention
from models.build_embedded import SPECIAL, architecture
from models.config import HeadConfig
from models.packing.groups import Group, VisionTokens, pack
from models.portable.critic import CriticRewardModel
from models.portable.reward import ScoreLinear, mean_by_owner
from train.recipe.memory import GIB, PUBLISHED
from train.speed.workload import padded_inputs, unshared, vision_tokens
from train.supervised.optimizer import compile_layers, restore_layers

SHAPES = {"3b": PUBLISHED["Qwen/Qwen2.5-VL-3B-Instruct"], "7b": PUBLISHED["Qwen/Qwen2.5-VL-7B-Instruct"]}
EMBEDDED = "embedded"
STOCK, UNSHARED, SHARED, COMPILED = "stock, padded", "packed, not shared", "packed, shared", "packed, shared, compiled"
JUDGEMENTS = 8
TRAINING, INFERENCE, LOG_PROBABILITIES = "training", "inference", f"log-probabilities of {JUDGEMENTS}"
"""What is measured: forward and backward; scores; log-probabilities of JUDGEMENTS judgements over the prompt of every pair."""


def config_of(name: str) -> Qwen2_5_VLConfig:
    """Return the configuration of `embedded`, `3b` or `7b`, with the paper's reward head; nothing is downloaded."""
    if name == EMBEDDED:
        # Of the tokenizer, only the ids of the special tokens are asked for.
        config = architecture(SimpleNamespace(convert_tokens_to_ids=lambda tokens: [SPECIAL.index(token) for token in tokens]))
    else:
        text = asdict(SHAPES[name])
        vision, tied = text.pop("vision_config"), text.pop("tie_word_embeddings")
        rope = {"rope_type": "default", "mrope_section": [16, 24, 24], "rope_theta": 1000000.0}
        text |= {"max_position_embeddings": 128000, "rope_parameters": rope}
        vision |= {
            "num_heads": 16,
            "out_hidden_size": text["hidden_size"],
            "fullatt_block_indexes": [7, 15, 23, 31],
            "window_size": 112,
        }
        config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=tied)
    config.reward_head = HeadConfig().model_dump()
    return config


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


def measure(call: Callable[[], Any], device: torch.device, repeats: int) -> tuple[float, float]:
    """Return the median seconds of `call`, run once to warm up and then `repeats` times, and the peak memory in GiB.

    On a CPU with one thread the time is the processor's own, so that other work on the machine does not count, and the memory
    the most that the process has ever held.
    """
    call()
    cuda = device.type == "cuda"
    clock = time.process_time if own_time(device) else time.perf_counter
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
    times = []
    for _ in range(repeats):
        synchronize(device)
        start = clock()
        call()
        synchronize(device)
        times.append(clock() - start)
    peak = torch.cuda.max_memory_allocated(device) if cuda else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return statistics.median(times), peak / GIB


def own_time(device: torch.device) -> bool:
    """Say whether times are processor time instead of wall-clock time."""
    return device.type == "cpu" and torch.get_num_threads() == 1


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Return the multiply-adds a second of large matrix products on `device`."""
    side = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    return float(side**3 / measure(lambda: a @ b, device, repeats=10)[0])


def unique_work(model: CriticRewardModel, groups: Sequence[Group]) -> float:
    """Return the multiply-adds that `groups` cannot do without: every token and patch once, through its layers' matrices."""
    language = sum(parameter.numel() for parameter in model.model.language_model.layers.parameters())
    vision = sum(parameter.numel() for parameter in model.model.visual.parameters())
    return float(sum(group.tokens for group in groups) * language + sum(group.patches for group in groups) * vision)


@dataclass(frozen=True, slots=True)
class SpeedResult:
    """One line of the table; None where it did not fit into memory."""

    what: str
    variant: str
    checkpointing: bool
    pairs_per_second: float | None
    mfu: float | None
    peak_gib: float | None
    rows: int = 1
    """Rows (of the stock variant: batches) that the pairs were cut into, because fewer did not fit."""
    times_stock: float | None = None
    times_unshared: float | None = None


class Bench:
    """A model, the pairs it runs on, and the rate against which it is measured."""

    def __init__(self, model: CriticRewardModel, groups: Sequence[Group], rate: float, repeats: int) -> None:
        self.model, self.groups, self.rate, self.repeats = model, groups, rate, repeats
        self.device: torch.device = model.device
        self.vision: VisionTokens = vision_tokens(model.config)

    def run(self, what: str, variant: str, checkpointing: bool = False) -> SpeedResult:
        """Measure one variant, in as few rows as fit."""
        work = unique_work(self.model, self.groups) * (3 if what == TRAINING else 1)
        for rows in (2**power for power in range(len(self.groups).bit_length())):
            try:
                if checkpointing:
                    self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
                seconds, peak = measure(self.call(what, variant, rows), self.device, self.repeats)
            except torch.OutOfMemoryError:
                continue
            finally:
                self.model.zero_grad(set_to_none=True)
                self.model.gradient_checkpointing_disable()
                restore_layers(self.model.model)
            speed, mfu = len(self.groups) / seconds, work / self.rate / seconds
            return SpeedResult(what, variant, checkpointing, speed, mfu, peak, rows)
        return SpeedResult(what, variant, checkpointing, None, None, None)

    def call(self, what: str, variant: str, rows: int = 1) -> Callable[[], None]:
        """Return what is measured, in `rows` equal shares."""
        training = what == TRAINING
        self.model.train(training)
        forwards = [self.forward(what, variant, self.groups[number::rows]) for number in range(rows)]

        def step() -> None:
            for forward in forwards:
                with torch.set_grad_enabled(training):
                    found = forward()
                if training:
                    chosen, rejected = found.view(-1, 2).unbind(1)
                    torch.autograd.backward(-nn.functional.logsigmoid(chosen - rejected).sum() / len(self.groups))

        return step

    def forward(self, what: str, variant: str, groups: Sequence[Group]) -> Callable[[], Any]:
        """Return the forward pass of `groups`; the attention that it needs is set."""
        model, device = self.model, self.device
        if variant == STOCK:
            # transformers' own attention for both towers, which takes no packed rows
            model.set_attn_implementation({"text_config": "sdpa", "vision_config": "sdpa"})
            padded, ends = padded_inputs(groups, self.vision)
            inputs = {name: value.to(device) for name, value in padded.items()}
            last = torch.arange(len(ends), device=device), ends.to(device)
            return lambda: model.scores(model.model(**inputs, use_cache=False).last_hidden_state[last])
        set_attention(model)
        if variant == COMPILED:
            compile_layers(model.model)
        batch = pack(unshared(groups) if variant == UNSHARED else groups, self.vision).to(device)
        if what == LOG_PROBABILITIES:
            return lambda: model(**batch.label_inputs())

        def scores() -> Tensor:
            hidden = model.model(**batch.model_inputs()).last_hidden_state[0]
            return model.scores(mean_by_owner(hidden, batch.read_positions, batch.read_owners, sum(batch.group_sizes)))

        return scores
