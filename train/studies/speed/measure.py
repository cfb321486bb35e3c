"""Measurements of speed: time and memory of a call, the compared variants, and an optimizer step.

All variants run the same weights and pairs of responses. In the first variant, conversations are
padded as by stock transformers. In the others they are packed into rows, without and with a shared
prompt and image, and the last variant is also compiled.
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

from mmrm.data.preference import Preference, text_responses
from mmrm.models.activations import set_checkpointing
from mmrm.models.backbone import embed_patches, set_attention
from mmrm.models.build_embedded import train_tokenizer
from mmrm.models.config import BackboneConfig, CheckpointingMode
from mmrm.models.encoder import Encoder
from mmrm.models.families.registry import family_of
from mmrm.models.packing.packed_batch import pack
from mmrm.models.packing.segments import SegmentTree
from mmrm.models.portable.critic import CriticRewardModel
from mmrm.models.portable.reward import ScalarRewardModel
from mmrm.train.methods.naive.config import NaiveConfig
from mmrm.train.methods.naive.objective import make_objective
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
from mmrm.train.supervised.steps import ResponseEncoder, Step, StepDataset, TrainingExample

STOCK = "stock, padded"
UNSHARED = "packed, not shared"
SHARED = "packed, shared"
COMPILED = "packed, shared, compiled"
APART = "packed, shared by a pair"
"""The variant of TWO_PAIRS in which each pair has its own copy of the prompt."""
JUDGEMENTS = 8
"""Judgements of each pair in the task LOG_PROBABILITIES."""
TRAINING = "training"
"""The task of a forward and a backward pass over pairs."""
INFERENCE = "inference"
"""The task of the scores of pairs."""
LOG_PROBABILITIES = f"log-probabilities of {JUDGEMENTS}"
"""The task of the log-probabilities of JUDGEMENTS judgements over the prompt of every pair."""
TWO_PAIRS = "training, two pairs a prompt"
"""The task of a forward and a backward pass over pairs, of which every two have one prompt."""
WORD = " red"
"""A word that the small tokenizer encodes as one token."""
PIXELS: dict[str, Any] = {"min_pixels": 28 * 28, "max_pixels": 28 * 28 * 16384}
"""Limits that leave every image of the workload at its size."""


def seconds(call: Callable[[], Any], device: torch.device, *, workers: int = 0) -> float:
    """Return the seconds that a call takes.

    On a CPU with one thread, and without workers, this is the processor time of this process, in
    which other work on the machine does not count. Otherwise it is wall-clock time.

    Args:
        call: The measured function.
        device: The device on which it computes.
        workers: Number of loader processes that it uses.
    """
    clock = time.perf_counter
    if uses_processor_time(device) and not workers:
        clock = time.process_time
    synchronize = torch.get_device_module(device).synchronize
    synchronize()
    start = clock()
    call()
    synchronize()
    return clock() - start


def uses_processor_time(device: torch.device) -> bool:
    """Return True if times are measured as processor time of this process, not as wall-clock time.

    A process with several threads would sum the times of all threads.
    """
    return device.type == "cpu" and torch.get_num_threads() == 1


def measure(call: Callable[[], Any], device: torch.device, repeats: int) -> tuple[float, float]:
    """Return the median seconds of a call, and its peak memory in GiB.

    The call runs once to warm up, and then `repeats` times. On a CPU the memory is the most that
    the process has held since its start.
    """
    call()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    times = [seconds(call, device) for _ in range(repeats)]
    return statistics.median(times), peak_bytes(device) / GIB


def peak_bytes(device: torch.device) -> int:
    """Return the largest number of bytes that tensors took on a CUDA device since the last reset.

    On a CPU it is the largest number that this process has taken since its start.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # Linux reports KiB.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Return the multiply-adds per second of large matrix products on a device.

    Other rates are given as shares of this one.
    """
    side = 8192 if device.type == "cuda" else 1024
    left = torch.randn(side, side, device=device, dtype=dtype)
    right = torch.randn(side, side, device=device, dtype=dtype)
    median, _ = measure(lambda: left @ right, device, repeats=10)
    multiply_adds = side**3
    return multiply_adds / median


def unique_work(model: CriticRewardModel, trees: Sequence[SegmentTree]) -> float:
    """Return the multiply-adds of a forward pass in which nothing is computed twice.

    Every token and every image patch of the trees goes once through the matrices of its layers. In
    the MLP of the last layer, only positions that are read are counted. Attention scores are not
    counted.
    """
    family = family_of(model.config.model_type)
    tower = model.model.get_submodule(family.tower)
    layers = model.model.language_model.layers
    num_tokens = sum(tree.tokens for tree in trees)
    num_patches = sum(tree.patches for tree in trees)
    work = num_tokens * num_parameters(layers) + num_patches * num_parameters(tower)
    if family.experts is None:
        num_read = 0
        for tree in trees:
            num_read += sum(len(output.reads) + len(output.labels) for output in tree.outputs)
        work -= (num_tokens - num_read) * num_parameters(layers[-1].mlp)
    return float(work)


def num_parameters(module: nn.Module) -> int:
    """Return the number of parameters of a module."""
    return sum(parameter.numel() for parameter in module.parameters())


@dataclass(frozen=True, slots=True)
class SpeedResult:
    """The speed of a variant on a task. Figures are None if the variant did not fit into memory."""

    what: str
    """The task, such as TRAINING."""
    variant: str
    """The way in which the pairs are computed, such as SHARED."""
    checkpointing: CheckpointingMode
    """The mode of activation checkpointing."""
    pairs_per_second: float | None
    mfu: float | None
    """`unique_work` per second, as a share of `matrix_rate`."""
    mfu_with_copies: float | None
    """The same, with prompts and images counted for each response, as frameworks that copy them
    count. It can exceed 1 where they are computed once."""
    peak_gib: float | None
    rows: int = 1
    """Rows, or batches of the stock variant, into which the pairs were cut to fit into memory."""
    times_stock: float | None = None
    """Speed divided by that of the stock variant on the same task."""
    times_unshared: float | None = None
    """Speed divided by that of the variant that shares less on the same task."""


@dataclass
class Bench:
    """Measures variants of a task on one model and the same pairs."""

    model: CriticRewardModel
    trees: Sequence[SegmentTree]
    rate: float
    """Multiply-adds per second of large matrix products, from `matrix_rate`."""
    repeats: int
    """Measured calls, of which the median counts."""
    pairs_per_tree: int = 1

    def measure_variant(
        self, task: str, variant: str, checkpointing: CheckpointingMode = "none"
    ) -> SpeedResult:
        """Measure one variant of a task, in as few rows as fit into memory.

        Args:
            task: TRAINING, INFERENCE, LOG_PROBABILITIES or TWO_PAIRS.
            variant: STOCK, UNSHARED, SHARED, COMPILED or APART.
            checkpointing: The mode of activation checkpointing.
        """
        # A backward pass computes twice as much as the forward pass.
        num_passes = 1 if task in (INFERENCE, LOG_PROBABILITIES) else 3
        work = num_passes * unique_work(self.model, self.trees)
        work_with_copies = num_passes * unique_work(self.model, unshared(self.trees))
        num_pairs = self.pairs_per_tree * len(self.trees)
        for power in range(len(self.trees).bit_length()):
            num_rows = 2**power
            try:
                seconds_a_call, peak_gib = self._measure_rows(
                    task, variant, num_rows, checkpointing
                )
            except torch.OutOfMemoryError:
                continue  # try again with twice as many rows
            return SpeedResult(
                task,
                variant,
                checkpointing,
                pairs_per_second=num_pairs / seconds_a_call,
                mfu=work / self.rate / seconds_a_call,
                mfu_with_copies=work_with_copies / self.rate / seconds_a_call,
                peak_gib=peak_gib,
                rows=num_rows,
            )
        return SpeedResult(
            task,
            variant,
            checkpointing,
            pairs_per_second=None,
            mfu=None,
            mfu_with_copies=None,
            peak_gib=None,
        )

    def _measure_rows(
        self, task: str, variant: str, num_rows: int, checkpointing: CheckpointingMode
    ) -> tuple[float, float]:
        """Return median seconds and peak GiB of a variant whose pairs are cut into `num_rows` rows.

        The changes that the variant makes to the model are undone.
        """
        try:
            set_checkpointing(self.model, checkpointing)
            call = self.measured_call(task, variant, num_rows)
            return measure(call, self.model.device, self.repeats)
        finally:
            self.model.zero_grad(set_to_none=True)
            set_checkpointing(self.model, "none")
            restore_layers(self.model.model)

    def measured_call(self, task: str, variant: str, num_rows: int = 1) -> Callable[[], None]:
        """Return a function that computes a task on all pairs, cut into `num_rows` rows.

        It runs the forward passes and, in training, the backward passes.
        """
        is_training = task in (TRAINING, TWO_PAIRS)
        self.model.train(is_training)
        forwards = []
        for row_index in range(num_rows):
            trees_of_row = self.trees[row_index::num_rows]
            forwards.append(self.prepared_forward(task, variant, trees_of_row))
        num_pairs = self.pairs_per_tree * len(self.trees)

        def compute_all_rows() -> None:
            for forward in forwards:
                with torch.set_grad_enabled(is_training):
                    scores = forward()
                if is_training:
                    chosen, rejected = scores.view(-1, 2).unbind(1)
                    loss = pair_loss(chosen, rejected).sum() / num_pairs
                    torch.autograd.backward(loss)

        return compute_all_rows

    def prepared_forward(
        self, task: str, variant: str, trees: Sequence[SegmentTree]
    ) -> Callable[[], Any]:
        """Prepare the model for a variant, and return the forward pass of `trees` as a function.

        The function returns the scores of all outputs, or their log-probabilities for
        LOG_PROBABILITIES.
        """
        model = self.model
        vision = vision_tokens(model.config)
        if variant == STOCK:
            # The attention of transformers for both towers, which takes no packed rows, and its
            # convolution of image patches.
            model.set_attn_implementation({"text_config": "sdpa", "vision_config": "sdpa"})
            embed_patches(model, nn.Conv3d)
            padded, ends = padded_inputs(trees, vision)
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
        outputs_per_tree = {UNSHARED: 1, APART: 2}.get(variant)
        if outputs_per_tree is not None:
            trees = unshared(trees, outputs_per_tree)
        batch = pack(trees, vision).to(model.device)
        if task == LOG_PROBABILITIES:
            return lambda: model(**batch.label_inputs())
        return lambda: model(**batch.joint_inputs())[0]


class SyntheticPairs:
    """Pairs of given sizes as the records of a run, with JPEG images of noise and texts of WORD."""

    def __init__(self, sizes: Sequence[PairSize], encode: ResponseEncoder) -> None:
        self.encode = encode
        self.records = [_synthetic_pair(str(index), size) for index, size in enumerate(sizes)]

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> TrainingExample:
        return self.encode(self.records[index])

    def order(self, epoch: int) -> npt.NDArray[np.int64]:
        """Return the indices of the records in the order of an epoch, which is always the same."""
        return np.arange(len(self.records))


def _synthetic_pair(identity: str, size: PairSize) -> Preference:
    """Return a pair of the given size, whose image is noise and whose texts repeat WORD."""
    noise = Image.effect_noise((14 * size.width, 14 * size.height), 60)
    file = io.BytesIO()
    noise.convert("RGB").save(file, "JPEG", quality=90)
    question = {"type": "text", "text": WORD * size.question}
    turn: Any = {"role": "user", "content": [{"type": "image"}, question]}
    chosen, rejected = (WORD * length for length in size.responses)
    return Preference(
        identity, (turn,), text_responses(chosen, rejected), (file.getvalue(),), source="synthetic"
    )


def steps_of(config: Any, sizes: Sequence[PairSize], per_step: int) -> StepDataset:
    """Return pairs of the given sizes as optimizer steps of one row each.

    The texts are encoded by a small tokenizer that is trained here. Its ids are in the vocabulary
    of every model.

    Args:
        config: The configuration of the model. Its image token is set to that of the tokenizer.
        sizes: The sizes of the pairs.
        per_step: Number of pairs in a step.
    """
    backbone = BackboneConfig(path="random", **PIXELS)
    image_processor = family_of(config.model_type).parts().image_processor(**PIXELS)
    encoder = Encoder(train_tokenizer([WORD * 20] * 50), image_processor, backbone, config)
    config.image_token_id = encoder.vision.image
    records = SyntheticPairs(sizes, ResponseEncoder(encoder, "end_of_turn"))
    return StepDataset(
        records,
        encoder.pack,
        records_per_step=per_step,
        steps=len(sizes) // per_step,
        token_budget=2**30,  # more than any step has
    )


def load_all(data: StepDataset) -> tuple[list[Step], float]:
    """Load all steps in this process.

    Returns:
        The steps, and the images that one core decoded, processed and packed per second.
    """
    _ = data[0]  # the first use builds objects, whose time does not count
    start = time.process_time()
    num_images = 0
    elapsed = 0.0
    while elapsed == 0.0:  # a clock of coarse ticks may not move during a few images
        steps = [data[index] for index in range(len(data))]
        num_images += len(data) * data.records_per_step
        elapsed = time.process_time() - start
    return steps, num_images / elapsed


def step_speed(
    model: ScalarRewardModel, sizes: Sequence[PairSize], per_step: int, workers: int
) -> dict[str, float]:
    """Measure the speed of training on pairs of the given sizes.

    The model is trained twice: on steps that are all in memory, and on steps from the loader. The
    optimizer is the trainer's, with its states in the dtype of the weights. In bf16, weights,
    gradients and both moments of a model of 7B parameters take 62 GB, so that the step fits on one
    device.

    Args:
        model: The model, which is changed by the training.
        sizes: The sizes of the pairs.
        per_step: Number of pairs in a step.
        workers: Number of loader processes.

    Returns:
        Pairs per second from memory (`pure_…`) and from the loader, and the loader's images per
        second and core.
    """
    data = steps_of(model.config, sizes, per_step)
    optimizer = make_optimizer(
        model.train(),
        OptimConfig(learning_rate=1e-6, records_per_step=per_step, max_steps=len(data)),
    )
    objective = make_objective(NaiveConfig(type="naive"))
    device = model.device

    def train(steps: Iterable[Step]) -> None:
        """Run forward and backward passes and the optimizer for every step, on one rank."""
        for step in steps:
            totals = torch.stack([row.totals() for row in step["rows"]]).sum(0).to(device)
            for row in step["rows"]:
                loss, _ = objective.loss(model, row.to(device), totals)
                loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    steps, images_per_second = load_all(data)
    train(steps[:1])  # a warm-up, which is not measured
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
