"""Measurements of speed: time and memory of a call, the compared variants, and an optimizer step.

All variants run the same weights and pairs. They are padded as by stock transformers, packed,
packed with prompt and image shared, and compiled.
"""

import io
import resource
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor, nn
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
    padded_inputs,
    unshared,
    vision_tokens,
)
from mmrm.train.supervised.objectives import pair_loss
from mmrm.train.supervised.optimizer import compile_layers, make_optimizer, restore_layers
from mmrm.train.supervised.packed_trainer import only_item
from mmrm.train.supervised.steps import PairEncoder, Step, StepDataset, TrainingExample

STOCK = "stock, padded"
UNSHARED = "packed, not shared"
SHARED = "packed, shared"
COMPILED = "packed, shared, compiled"
APART = "packed, shared by a pair"
"""The variant of two pairs a prompt in which each pair has the prompt to itself."""
JUDGEMENTS = 8
TRAINING = "training"
"""The task of a forward and a backward pass over pairs."""
INFERENCE = "inference"
"""The task of the scores of pairs."""
LOG_PROBABILITIES = f"log-probabilities of {JUDGEMENTS}"
"""The task of the log-probabilities of JUDGEMENTS judgements over the prompt of every pair."""
TWO_PAIRS = "training, two pairs a prompt"
"""The task of a forward and a backward pass over pairs, of which every two have one prompt."""
WORD = " red"
PIXELS: dict[str, Any] = {"min_pixels": 28 * 28, "max_pixels": 28 * 28 * 16384}


def seconds(call: Callable[[], Any], device: torch.device, *, workers: int = 0) -> float:
    """Return the seconds that `call` takes, which uses `workers` processes of the loader.

    On a CPU with one thread, and without workers, this is the processor time of this process: other
    work on the machine does not count.
    """
    clock = time.process_time if own_time(device) and not workers else time.perf_counter
    synchronize = torch.get_device_module(device).synchronize
    synchronize()
    start = clock()
    call()
    synchronize()
    return clock() - start


def own_time(device: torch.device) -> bool:
    """Return True if times are processor time instead of wall-clock time."""
    return device.type == "cpu" and torch.get_num_threads() == 1


def measure(call: Callable[[], Any], device: torch.device, repeats: int) -> tuple[float, float]:
    """Return the median seconds of a call, and the peak memory in GiB.

    The call runs once to warm up, and then `repeats` times. On a CPU the memory is the most that
    the process has ever held.
    """
    call()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    times = [seconds(call, device) for _ in range(repeats)]
    return statistics.median(times), peak_bytes(device) / GIB


def peak_bytes(device: torch.device) -> int:
    """Return the most memory that was in use on a device; on a CPU, by this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Return the multiply-adds a second of large matrix products on `device`."""
    side = 8192 if device.type == "cuda" else 1024
    left = torch.randn(side, side, device=device, dtype=dtype)
    right = torch.randn(side, side, device=device, dtype=dtype)
    median, _ = measure(lambda: left @ right, device, repeats=10)
    return side**3 / median


def unique_work(model: CriticRewardModel, groups: Sequence[Group]) -> float:
    """Return the multiply-adds that `groups` cannot do without.

    Every token and every patch goes once through the matrices of its layers.
    """
    tower = model.model.get_submodule(family_of(model.config.model_type).tower)
    language_size = num_parameters(model.model.language_model.layers)
    num_tokens = sum(group.tokens for group in groups)
    num_patches = sum(group.patches for group in groups)
    return float(num_tokens * language_size + num_patches * num_parameters(tower))


def num_parameters(module: nn.Module) -> int:
    """Return the number of parameters of a module."""
    return sum(parameter.numel() for parameter in module.parameters())


@dataclass(frozen=True, slots=True)
class SpeedResult:
    """The speed of a variant on a task; None for what did not fit into memory."""

    what: str
    variant: str
    checkpointing: bool
    pairs_per_second: float | None
    mfu: float | None
    peak_gib: float | None
    rows: int = 1
    """Rows, or batches of the stock variant, into which the pairs were cut to fit into memory."""
    times_stock: float | None = None
    """Speed divided by that of the stock variant on the same task."""
    times_unshared: float | None = None
    """Speed divided by that of the variant that shares less on the same task."""


@dataclass
class Bench:
    """A model, the pairs that it computes, and the rate against which it is measured."""

    model: CriticRewardModel
    groups: Sequence[Group]
    rate: float
    """Multiply-adds a second of large matrix products."""
    repeats: int
    each: int = 1
    """Pairs in a group."""

    def run(self, what: str, variant: str, checkpointing: bool = False) -> SpeedResult:
        """Measure one variant of a task, in as few rows as fit into memory."""
        # A backward pass computes twice as much as the forward pass.
        num_passes = 1 if what in (INFERENCE, LOG_PROBABILITIES) else 3
        work = num_passes * unique_work(self.model, self.groups)
        num_pairs = self.each * len(self.groups)
        for power in range(len(self.groups).bit_length()):
            rows = 2**power
            try:
                median, peak = self._measure(what, variant, rows, checkpointing)
            except torch.OutOfMemoryError:
                continue
            mfu = work / self.rate / median
            return SpeedResult(what, variant, checkpointing, num_pairs / median, mfu, peak, rows)
        return SpeedResult(what, variant, checkpointing, None, None, None)

    def _measure(
        self, what: str, variant: str, rows: int, checkpointing: bool
    ) -> tuple[float, float]:
        """Return median seconds and peak memory of a variant, and undo its changes of the model."""
        try:
            if checkpointing:
                self.model.gradient_checkpointing_enable(
                    gradient_checkpointing_kwargs={"use_reentrant": False}
                )
            return measure(self.call(what, variant, rows), self.model.device, self.repeats)
        finally:
            self.model.zero_grad(set_to_none=True)
            self.model.gradient_checkpointing_disable()
            restore_layers(self.model.model)

    def call(self, what: str, variant: str, rows: int = 1) -> Callable[[], None]:
        """Return the call that is measured: all pairs, in `rows` rows."""
        is_training = what in (TRAINING, TWO_PAIRS)
        self.model.train(is_training)
        forwards = [
            self.forward(what, variant, self.groups[number::rows]) for number in range(rows)
        ]

        def step() -> None:
            for forward in forwards:
                with torch.set_grad_enabled(is_training):
                    scores = forward()
                if is_training:
                    chosen, rejected = scores.view(-1, 2).unbind(1)
                    loss = pair_loss(chosen, rejected).sum() / (self.each * len(self.groups))
                    torch.autograd.backward(loss)

        return step

    def forward(self, what: str, variant: str, groups: Sequence[Group]) -> Callable[[], Any]:
        """Prepare the model for a variant, and return the forward pass of `groups`."""
        model = self.model
        vision = vision_tokens(model.config)
        if variant == STOCK:
            # The attention of transformers for both towers, which takes no packed rows.
            model.set_attn_implementation({"text_config": "sdpa", "vision_config": "sdpa"})
            embed_patches(model, nn.Conv3d)
            padded, ends = padded_inputs(groups, vision)
            inputs = {name: value.to(model.device) for name, value in padded.items()}
            last_tokens = (torch.arange(len(ends), device=model.device), ends.to(model.device))

            def padded_scores() -> Tensor:
                hidden = model.model(**inputs, use_cache=False).last_hidden_state
                scores: Tensor = model.scores(hidden[last_tokens])
                return scores

            return padded_scores
        set_attention(model)
        embed_patches(model)
        if variant == COMPILED:
            compile_layers(model.model)
        continuations_per_prompt = {UNSHARED: 1, APART: 2}.get(variant)
        if continuations_per_prompt is not None:
            groups = unshared(groups, continuations_per_prompt)
        batch = pack(groups, vision).to(model.device)
        if what == LOG_PROBABILITIES:
            return lambda: model(**batch.label_inputs())
        return lambda: model(**batch.joint_inputs())[0]


class Synthetic:
    """Pairs of the workload as records: JPEG images of noise, and texts of about as many tokens."""

    def __init__(self, sizes: Sequence[PairSize], encode: PairEncoder) -> None:
        self.encode = encode
        self.records = [_record(str(index), size) for index, size in enumerate(sizes)]

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> TrainingExample:
        return self.encode(self.records[index])

    def order(self, epoch: int) -> npt.NDArray[np.int64]:
        """Return the indices of the records in the order of an epoch, which is always the same."""
        return np.arange(len(self.records))


def _record(identity: str, size: PairSize) -> Preference:
    """Return a pair of the given size."""
    noise = Image.effect_noise((14 * size.width, 14 * size.height), 60)
    file = io.BytesIO()
    noise.convert("RGB").save(file, "JPEG", quality=90)
    question = {"type": "text", "text": WORD * size.question}
    turn: Any = {"role": "user", "content": [{"type": "image"}, question]}
    chosen, rejected = (WORD * length for length in size.responses)
    return Preference(identity, (turn,), chosen, rejected, (file.getvalue(),), source="synthetic")


def steps_of(config: Any, sizes: Sequence[PairSize], per_step: int) -> StepDataset:
    """Return the pairs of `sizes` as optimizer steps of one row each, for a model of `config`.

    The small tokenizer is trained here. Its ids are in every vocabulary. The image token of
    `config` is set to that of the tokenizer.
    """
    backbone = BackboneConfig(path="random", **PIXELS)
    image_processor = family_of(config.model_type).parts().image_processor(**PIXELS)
    encoder = Encoder(train_tokenizer([WORD * 20] * 50), image_processor, backbone, config)
    config.image_token_id = encoder.vision.image
    records = Synthetic(sizes, PairEncoder(encoder, "end_of_turn"))
    return StepDataset(
        records,
        encoder.pack,
        records_per_step=per_step,
        steps=len(sizes) // per_step,
        token_budget=2**30,
    )


def load(data: StepDataset) -> tuple[list[Step], float]:
    """Return all steps, and the images a second that this core decoded, processed and packed."""
    _ = data[0]  # the first use builds objects, whose time does not count
    start = time.process_time()
    steps = [data[index] for index in range(len(data))]
    num_images = len(data) * data.records_per_step
    return steps, num_images / (time.process_time() - start)


def step_speed(
    model: ScalarRewardModel, sizes: Sequence[PairSize], per_step: int, workers: int
) -> dict[str, float]:
    """Train `model` on the pairs of `sizes`, once with all steps in memory and once by the loader.

    The optimizer is the trainer's, with its states in the dtype of the weights. In bf16 weights,
    gradients and both moments of 7B take 62 GB, so that the step fits on one device.
    """
    data = steps_of(model.config, sizes, per_step)
    optimizer = make_optimizer(
        model.train(),
        OptimConfig(learning_rate=1e-6, records_per_step=per_step, max_steps=len(data)),
    )
    objective = PairwiseScores(NaiveConfig(type="naive"))
    device = model.device

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

    steps, images_per_second = load(data)
    train(steps[:1])
    pure_seconds = seconds(lambda: train(steps), device)
    loader = DataLoader(
        data,
        batch_size=1,
        collate_fn=only_item,
        num_workers=workers,
        pin_memory=device.type == "cuda",
    )
    loader_seconds = seconds(lambda: train(loader), device, workers=workers)
    num_pairs = len(data) * per_step
    return {
        "pure_pairs_per_second": num_pairs / pure_seconds,
        "pairs_per_second": num_pairs / loader_seconds,
        "loader_images_per_second_and_core": images_per_second,
        "workers": workers,
    }
