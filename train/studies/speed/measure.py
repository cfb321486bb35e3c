"""How speed is measured: time and memory of a call, the variants that are compared, and a whole optimizer step.

All variants run the same weights and pairs: padded as by stock transformers, packed, with prompt and image shared, compiled.
"""

import argparse
import io
import resource
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from rich.console import Console
from rich.table import Column, Table
from torch import nn
from torch.utils.data import DataLoader

from mmrm.data.preference import Preference
from mmrm.models.backbone import embed_patches, set_attention
from mmrm.models.build_embedded import train_tokenizer
from mmrm.models.config import BackboneConfig
from mmrm.models.encoder import Encoder
from mmrm.models.families.registry import family_of
from mmrm.models.packing.groups import Group, pack
from mmrm.models.portable.critic import CriticRewardModel
from mmrm.models.portable.reward import ScalarRewardModel
from mmrm.train.methods.naive.config import NaiveConfig
from mmrm.train.methods.naive.objective import PairwiseScores
from mmrm.train.planning.memory import GIB
from mmrm.train.recipe.sections import OptimConfig
from mmrm.train.studies.speed.workload import (
    PairSize,
    build,
    judgements_group,
    padded_inputs,
    pair_group,
    two_pairs,
    unshared,
    vision_tokens,
)
from mmrm.train.supervised.objectives import pair_loss
from mmrm.train.supervised.optimizer import compile_layers, make_optimizer, restore_layers
from mmrm.train.supervised.packed_trainer import first
from mmrm.train.supervised.steps import PairEncoder, Step, StepDataset, TrainingExample

STOCK, UNSHARED, SHARED, COMPILED = (
    "stock, padded",
    "packed, not shared",
    "packed, shared",
    "packed, shared, compiled",
)
APART = "packed, shared by a pair"
JUDGEMENTS = 8
TRAINING, INFERENCE, LOG_PROBABILITIES = (
    "training",
    "inference",
    f"log-probabilities of {JUDGEMENTS}",
)
TWO_PAIRS = "training, two pairs a prompt"
"""What is measured: forward and backward; scores; log-probabilities of JUDGEMENTS judgements over the prompt of every pair;
forward and backward of as many pairs, of which every two have one prompt."""
WORD = " red"
PIXELS: dict[str, Any] = {"min_pixels": 28 * 28, "max_pixels": 28 * 28 * 16384}


def seconds(call: Callable[[], Any], device: torch.device, *, workers: int = 0) -> float:
    """Return the seconds that `call` takes, with the help of so many loader `workers`.

    On a CPU with one thread, and without workers, they are the processor's own: other work on the machine does not count.
    """
    clock = time.process_time if own_time(device) and not workers else time.perf_counter
    synchronize = torch.get_device_module(device).synchronize
    synchronize()
    start = clock()
    call()
    synchronize()
    return clock() - start


def own_time(device: torch.device) -> bool:
    """Say whether times are processor time instead of wall-clock time."""
    return device.type == "cpu" and torch.get_num_threads() == 1


def measure(call: Callable[[], Any], device: torch.device, repeats: int) -> tuple[float, float]:
    """Return the median seconds of `call`, run once to warm up and then `repeats` times, and the peak memory in GiB.

    On a CPU the memory is the most that the process has ever held.
    """
    call()
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
    times = [seconds(call, device) for _ in range(repeats)]
    peak = (
        torch.cuda.max_memory_allocated(device)
        if cuda
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    )
    return statistics.median(times), peak / GIB


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Return the multiply-adds a second of large matrix products on `device`."""
    side = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    return side**3 / measure(lambda: a @ b, device, repeats=10)[0]


def unique_work(model: CriticRewardModel, groups: Sequence[Group]) -> float:
    """Return the multiply-adds that `groups` cannot do without: every token and patch once, through its layers' matrices."""
    language = sum(
        parameter.numel() for parameter in model.model.language_model.layers.parameters()
    )
    vision = sum(
        parameter.numel()
        for parameter in model.model.get_submodule(
            family_of(model.config.model_type).tower
        ).parameters()
    )
    return float(
        sum(group.tokens for group in groups) * language
        + sum(group.patches for group in groups) * vision
    )


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


@dataclass
class Bench:
    """A model, the pairs it runs on, and the rate against which it is measured."""

    model: CriticRewardModel
    groups: Sequence[Group]
    rate: float
    repeats: int
    each: int = 1
    """Pairs of a group."""

    def run(self, what: str, variant: str, checkpointing: bool = False) -> SpeedResult:
        """Measure one variant, in as few rows as fit."""
        work = unique_work(self.model, self.groups) * (
            1 if what in (INFERENCE, LOG_PROBABILITIES) else 3
        )
        for rows in (2**power for power in range(len(self.groups).bit_length())):
            try:
                if checkpointing:
                    self.model.gradient_checkpointing_enable(
                        gradient_checkpointing_kwargs={"use_reentrant": False}
                    )
                median, peak = measure(
                    self.call(what, variant, rows), self.model.device, self.repeats
                )
            except torch.OutOfMemoryError:
                continue
            finally:
                self.model.zero_grad(set_to_none=True)
                self.model.gradient_checkpointing_disable()
                restore_layers(self.model.model)
            speed, mfu = self.each * len(self.groups) / median, work / self.rate / median
            return SpeedResult(what, variant, checkpointing, speed, mfu, peak, rows)
        return SpeedResult(what, variant, checkpointing, None, None, None)

    def call(self, what: str, variant: str, rows: int = 1) -> Callable[[], None]:
        """Return what is measured, in `rows` equal shares."""
        training = what in (TRAINING, TWO_PAIRS)
        self.model.train(training)
        forwards = [
            self.forward(what, variant, self.groups[number::rows]) for number in range(rows)
        ]

        def step() -> None:
            for forward in forwards:
                with torch.set_grad_enabled(training):
                    found = forward()
                if training:
                    chosen, rejected = found.view(-1, 2).unbind(1)
                    torch.autograd.backward(
                        pair_loss(chosen, rejected).sum() / (self.each * len(self.groups))
                    )

        return step

    def forward(self, what: str, variant: str, groups: Sequence[Group]) -> Callable[[], Any]:
        """Return the forward pass of `groups`; the attention that it needs is set."""
        model, vision = self.model, vision_tokens(self.model.config)
        if variant == STOCK:
            # transformers' own attention for both towers, which takes no packed rows
            model.set_attn_implementation({"text_config": "sdpa", "vision_config": "sdpa"})
            embed_patches(model, nn.Conv3d)
            padded, ends = padded_inputs(groups, vision)
            inputs = {name: value.to(model.device) for name, value in padded.items()}
            last = torch.arange(len(ends), device=model.device), ends.to(model.device)
            return lambda: model.scores(
                model.model(**inputs, use_cache=False).last_hidden_state[last]
            )
        set_attention(model)
        embed_patches(model)
        if variant == COMPILED:
            compile_layers(model.model)
        alone = {UNSHARED: 1, APART: 2}.get(variant)
        batch = pack(groups if alone is None else unshared(groups, alone), vision).to(model.device)
        if what == LOG_PROBABILITIES:
            return lambda: model(**batch.label_inputs())
        return lambda: model(**batch.joint_inputs())[0]


def variants(
    options: argparse.Namespace, sizes: Sequence[PairSize], console: Console
) -> tuple[Table, dict[str, Any]]:
    """Measure all variants on pairs of `sizes`; compiled ones last, as a compiler may be missing.

    Each gets a line at once: they take minutes, and what is measured should not be lost to what comes.
    """
    rate, results = matrix_rate(options.device, options.dtype), []
    model: CriticRewardModel = build(
        CriticRewardModel, options.shape, options.device, options.dtype
    )
    vision = vision_tokens(model.config)
    pairs = Bench(
        model,
        [pair_group(size, vision, seed) for seed, size in enumerate(sizes)],
        rate,
        options.repeats,
    )
    judgements = replace(
        pairs,
        groups=[
            judgements_group(size, vision, seed, JUDGEMENTS) for seed, size in enumerate(sizes)
        ],
    )
    tasks = [(TRAINING, False), (TRAINING, True), (INFERENCE, False)]
    runs = [
        (pairs, what, variant, on) for what, on in tasks for variant in (STOCK, UNSHARED, SHARED)
    ]
    twos = replace(pairs, groups=two_pairs(pairs.groups), each=2)
    runs += [(twos, TWO_PAIRS, variant, False) for variant in (APART, SHARED)]
    runs += [(judgements, LOG_PROBABILITIES, variant, False) for variant in (UNSHARED, SHARED)]
    runs += [(pairs, what, COMPILED, on) for what, on in tasks if options.compile]
    for bench, what, variant, on in runs:
        one = bench.run(what, variant, on)
        speed = cell(one.pairs_per_second, "{:.2f} pairs/s", "does not fit")
        console.print(f"{what}{', checkpointing' if on else ''}, {variant}: {speed}", style="dim")
        results.append(one)
    results = compared(results)
    shown = table(
        results, f"matrix products: {2 * rate / 1e12:.3g} TFLOP/s", options.device.type == "cuda"
    )
    return shown, {"multiply_adds_per_second": rate, "results": [asdict(one) for one in results]}


def compared(results: Sequence[SpeedResult]) -> list[SpeedResult]:
    """Return the results with their ratios to the stock and the unshared variant of the same task.

    Of two pairs a prompt it is the one in which each has the prompt to itself.
    """
    speed = {(one.what, one.checkpointing, one.variant): one.pairs_per_second for one in results}
    found = []
    for one in results:
        shared_less = APART if one.what == TWO_PAIRS else UNSHARED
        bases = (
            speed.get((one.what, one.checkpointing, variant)) for variant in (STOCK, shared_less)
        )
        stock, unshared = (
            one.pairs_per_second / base if one.pairs_per_second and base else None for base in bases
        )
        found.append(replace(one, times_stock=stock, times_unshared=unshared))
    return found


def table(results: Sequence[SpeedResult], title: str, cuda: bool) -> Table:
    """Return the results for a person."""
    memory = "peak GiB" if cuda else "RSS GiB so far"
    figures = ("checkpointing", "rows", "pairs/s", "MFU", memory, "x stock", "x unshared")
    shown = Table("", "variant", *(Column(name, justify="right") for name in figures), title=title)
    for one in results:
        cells = [
            "on" if one.checkpointing else "off",
            str(one.rows),
            cell(one.pairs_per_second, absent="does not fit"),
        ]
        cells += [
            cell(one.mfu, "{:.1%}"),
            *map(cell, (one.peak_gib, one.times_stock, one.times_unshared)),
        ]
        shown.add_row(one.what, one.variant, *cells)
    return shown


def cell(value: float | None, form: str = "{:.2f}", absent: str = "-") -> str:
    """Return a figure for a person."""
    return absent if value is None else form.format(value)


class Synthetic:
    """Pairs of the workload as records: JPEG images of noise, texts of about as many tokens."""

    def __init__(self, sizes: Sequence[PairSize], encode: PairEncoder) -> None:
        self.encode, self.records = encode, []
        for index, size in enumerate(sizes):
            noise, file = Image.effect_noise((14 * size.width, 14 * size.height), 60), io.BytesIO()
            noise.convert("RGB").save(file, "JPEG", quality=90)
            turn: Any = {
                "role": "user",
                "content": [{"type": "image"}, {"type": "text", "text": WORD * size.question}],
            }
            chosen, rejected = (WORD * length for length in size.responses)
            self.records.append(
                Preference(
                    str(index), (turn,), chosen, rejected, (file.getvalue(),), source="synthetic"
                )
            )

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> TrainingExample:
        return self.encode(self.records[index])

    def order(self, epoch: int) -> npt.NDArray[np.int64]:
        """Return the records in turn."""
        return np.arange(len(self.records))


def steps_of(config: Any, sizes: Sequence[PairSize], per_step: int) -> StepDataset:
    """Return the pairs of `sizes` as optimizer steps of one row each, for a model of `config`.

    The small tokenizer is trained here; its ids lie within every vocabulary, and `config` is told its image token.
    """
    sees = BackboneConfig(path="random", **PIXELS)
    image_processor = family_of(config.model_type).parts().image_processor(**PIXELS)
    encoder = Encoder(train_tokenizer([WORD * 20] * 50), image_processor, sees, config)
    config.image_token_id = encoder.vision.image
    records, steps = Synthetic(sizes, PairEncoder(encoder, "end_of_turn")), len(sizes) // per_step
    return StepDataset(
        records, encoder.pack, records_per_step=per_step, steps=steps, token_budget=2**30
    )


def load(data: StepDataset) -> tuple[list[Step], float]:
    """Return all steps, and the images a second that this core has decoded, processed and packed."""
    _ = data[0]  # what is built at the first use does not count
    start = time.process_time()
    ready = [data[number] for number in range(len(data))]
    return ready, len(data) * data.records_per_step / (time.process_time() - start)


def step_speed(
    model: ScalarRewardModel, sizes: Sequence[PairSize], per_step: int, workers: int
) -> dict[str, float]:
    """Train `model` on the pairs of `sizes`, once with all steps at hand and once through the loader.

    The optimizer is the trainer's own, with its states in the dtype of the weights: bf16 weights, gradients and both
    moments of 7B take 62 GB, so that the step fits on one device.
    """
    data = steps_of(model.config, sizes, per_step)
    optimizer = make_optimizer(
        model.train(),
        OptimConfig(learning_rate=1e-6, records_per_step=per_step, max_steps=len(data)),
    )
    objective, device = PairwiseScores(NaiveConfig(type="naive")), model.device

    def train(steps: Iterable[Step]) -> None:
        """Take `steps` on one rank."""
        for step in steps:
            totals = torch.stack([row.totals() for row in step["rows"]]).sum(0).to(device)
            for row in step["rows"]:
                loss, _ = objective.loss(model, row.to(device), totals)
                loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    ready, images_per_second = load(data)
    train(ready[:1])
    pure = seconds(lambda: train(ready), device)
    loader = DataLoader(
        data, batch_size=1, collate_fn=first, num_workers=workers, pin_memory=device.type == "cuda"
    )
    pairs = len(data) * per_step
    return {
        "pure_pairs_per_second": pairs / pure,
        "pairs_per_second": pairs / seconds(lambda: train(loader), device, workers=workers),
        "loader_images_per_second_and_core": images_per_second,
        "workers": workers,
    }
