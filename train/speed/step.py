"""The whole optimizer step, from encoded images to new weights, against the step alone: whether the loader keeps up."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.utils.data import DataLoader
from transformers import Qwen2VLImageProcessorPil

from data.preference import Preference
from models.build_embedded import train_tokenizer
from models.config import BackboneConfig
from models.encoder import Encoder
from models.packing.groups import VisionTokens
from models.portable.reward import ScalarRewardModel
from train.recipe.methods import NaiveConfig
from train.recipe.recipe import OptimConfig
from train.speed.measure import own_time
from train.speed.workload import PairSize
from train.supervised.objectives import PairwiseScores
from train.supervised.optimizer import make_optimizer
from train.supervised.steps import PairEncoder, Step, StepDataset, TrainingExample
from train.supervised.trainer import first

WORD = " red"
PIXELS = 28 * 28, 28 * 28 * 16384


@dataclass(frozen=True, slots=True)
class StepSpeed:
    """Pairs a second of the step alone and with the loader, and what the loader does on one core."""

    pure_pairs_per_second: float
    pairs_per_second: float
    loader_images_per_second_and_core: float
    workers: int

    @property
    def kept(self) -> float:
        """Share of the pure step's speed that is left end to end."""
        return self.pairs_per_second / self.pure_pairs_per_second


@dataclass(frozen=True)
class Synthetic:
    """Pairs of the workload as records: JPEG images of noise, texts of about as many tokens."""

    sizes: tuple[PairSize, ...]
    encode: PairEncoder

    @cached_property
    def images(self) -> tuple[bytes, ...]:
        """The images, encoded."""
        return tuple(jpeg(14 * size.width, 14 * size.height) for size in self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> TrainingExample:
        size = self.sizes[index]
        chosen, rejected = (WORD * length for length in size.responses)
        picture: Any = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": WORD * size.question}]}
        fields: dict[str, Any] = {"images": (self.images[index],), "prompt": (picture,)}
        return self.encode(Preference(**fields, chosen=chosen, rejected=rejected, source="synthetic", identity=str(index)))

    def order(self, epoch: int) -> npt.NDArray[np.int64]:
        """Return the records in turn."""
        return np.arange(len(self.sizes))


def jpeg(width: int, height: int) -> bytes:
    """Return a picture of noise, encoded."""
    file = io.BytesIO()
    Image.effect_noise((width, height), 60).convert("RGB").save(file, "JPEG", quality=90)
    return file.getvalue()


def encoder_for(vision: VisionTokens) -> Encoder:
    """Return an encoder with a small tokenizer of its own; the ids lie within every vocabulary."""
    processor = Qwen2VLImageProcessorPil(min_pixels=PIXELS[0], max_pixels=PIXELS[1])
    config = BackboneConfig(path="random", min_pixels=PIXELS[0], max_pixels=PIXELS[1])
    return Encoder(train_tokenizer([WORD * 20] * 50), processor, config, vision.window)


def steps_of(encoder: Encoder, sizes: Sequence[PairSize], per_step: int) -> StepDataset:
    """Return the pairs of `sizes` as optimizer steps of one row each."""
    records = Synthetic(tuple(sizes), PairEncoder(encoder, "end_of_turn"))
    assert records.images
    return StepDataset(records, encoder.pack, records_per_step=per_step, steps=len(sizes) // per_step, token_budget=2**30)


def load(data: StepDataset) -> tuple[list[Step], float]:
    """Return all steps, and the images a second that this core has decoded, processed and packed."""
    _ = data[0]  # what is built at the first use does not count
    start = time.process_time()
    ready = [data[number] for number in range(len(data))]
    return ready, len(data) * data.records_per_step / (time.process_time() - start)


def step_speed(model: ScalarRewardModel, vision: VisionTokens, sizes: list[PairSize], per_step: int, workers: int) -> StepSpeed:
    """Train `model` on the pairs of `sizes`, once with all steps at hand and once through the loader.

    The optimizer is the trainer's own, with its states in the dtype of the weights: bf16 weights, gradients and both
    moments of 7B take 62 GB, so that the step fits on one device.
    """
    encoder = encoder_for(vision)
    model.config.image_token_id = encoder.vision.image  # the small tokenizer counts its special tokens in its own way
    data = steps_of(encoder, sizes, per_step)
    optim = OptimConfig(learning_rate=1e-6, records_per_step=per_step, max_steps=len(data))
    stepper = Stepper(model, make_optimizer(model, optim))
    ready, images_per_second = load(data)
    stepper.run(ready[:1])
    pure = stepper.run(ready)
    loader = DataLoader(
        data,
        batch_size=1,
        collate_fn=first,
        num_workers=workers,
        prefetch_factor=2 if workers else None,
        pin_memory=model.device.type == "cuda",
    )
    whole = stepper.run(loader, own_clock=workers == 0)
    pairs = len(data) * per_step
    return StepSpeed(pairs / pure, pairs / whole, images_per_second, workers)


class Stepper:
    """Forward, backward, clipping and optimizer, as the trainer does them on one rank."""

    def __init__(self, model: ScalarRewardModel, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model.train(), optimizer
        self.objective = PairwiseScores(NaiveConfig(type="naive"))

    def run(self, steps: Iterable[Step], own_clock: bool = True) -> float:
        """Return the seconds that `steps` take, loading included if they are loaded on the way."""
        clock = time.process_time if own_clock and own_time(self.model.device) else time.perf_counter
        start = clock()
        for step in steps:
            totals = torch.stack([self.objective.totals(row) for row in step["rows"]]).sum(0).to(self.model.device)
            for row in step["rows"]:
                loss, _ = self.objective.loss(self.model, row.to(self.model.device), totals)
                loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        if self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)
        return clock() - start
