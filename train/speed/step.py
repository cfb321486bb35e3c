"""The whole optimizer step, from encoded images to new weights, against the step alone: whether the loader keeps up."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable, Sequence
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
from train.speed.measure import own_time, synchronize
from train.speed.workload import PairSize
from train.supervised.objectives import PairwiseScores
from train.supervised.optimizer import make_optimizer
from train.supervised.steps import PairEncoder, Step, StepDataset, TrainingExample
from train.supervised.trainer import first

WORD = " red"
PIXELS: dict[str, Any] = {"min_pixels": 28 * 28, "max_pixels": 28 * 28 * 16384}


class Synthetic:
    """Pairs of the workload as records: JPEG images of noise, texts of about as many tokens."""

    def __init__(self, sizes: Sequence[PairSize], encode: PairEncoder) -> None:
        self.sizes, self.encode, self.images = sizes, encode, []
        for size in sizes:
            noise, file = Image.effect_noise((14 * size.width, 14 * size.height), 60), io.BytesIO()
            noise.convert("RGB").save(file, "JPEG", quality=90)
            self.images.append(file.getvalue())

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> TrainingExample:
        size = self.sizes[index]
        chosen, rejected = (WORD * length for length in size.responses)
        turn: Any = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": WORD * size.question}]}
        return self.encode(Preference(str(index), (turn,), chosen, rejected, (self.images[index],), source="synthetic"))

    def order(self, epoch: int) -> npt.NDArray[np.int64]:
        """Return the records in turn."""
        return np.arange(len(self.sizes))


def steps_of(vision: VisionTokens, sizes: Sequence[PairSize], per_step: int) -> tuple[Encoder, StepDataset]:
    """Return the pairs of `sizes` as optimizer steps of one row each, and the encoder that makes them.

    Its small tokenizer is trained here; the ids lie within every vocabulary.
    """
    config = BackboneConfig(path="random", **PIXELS)
    encoder = Encoder(train_tokenizer([WORD * 20] * 50), Qwen2VLImageProcessorPil(**PIXELS), config, vision.window)
    records, steps = Synthetic(sizes, PairEncoder(encoder, "end_of_turn")), len(sizes) // per_step
    return encoder, StepDataset(records, encoder.pack, records_per_step=per_step, steps=steps, token_budget=2**30)


def load(data: StepDataset) -> tuple[list[Step], float]:
    """Return all steps, and the images a second that this core has decoded, processed and packed."""
    _ = data[0]  # what is built at the first use does not count
    start = time.process_time()
    ready = [data[number] for number in range(len(data))]
    return ready, len(data) * data.records_per_step / (time.process_time() - start)


def step_speed(
    model: ScalarRewardModel, vision: VisionTokens, sizes: Sequence[PairSize], per_step: int, workers: int
) -> dict[str, float]:
    """Train `model` on the pairs of `sizes`, once with all steps at hand and once through the loader.

    The optimizer is the trainer's own, with its states in the dtype of the weights: bf16 weights, gradients and both
    moments of 7B take 62 GB, so that the step fits on one device.
    """
    encoder, data = steps_of(vision, sizes, per_step)
    model.config.image_token_id = encoder.vision.image  # the small tokenizer counts its special tokens in its own way
    optimizer = make_optimizer(model.train(), OptimConfig(learning_rate=1e-6, records_per_step=per_step, max_steps=len(data)))
    objective, device = PairwiseScores(NaiveConfig(type="naive")), model.device

    def train(steps: Iterable[Step], own_clock: bool = True) -> float:
        """Return the seconds that `steps` take on one rank, loading included if they are loaded on the way."""
        clock = time.process_time if own_clock and own_time(device) else time.perf_counter
        start = clock()
        for step in steps:
            totals = torch.stack([row.totals() for row in step["rows"]]).sum(0).to(device)
            for row in step["rows"]:
                loss, _ = objective.loss(model, row.to(device), totals)
                loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        synchronize(device)
        return clock() - start

    ready, images_per_second = load(data)
    train(ready[:1])
    pure = train(ready)
    loader = DataLoader(
        data,
        batch_size=1,
        collate_fn=first,
        num_workers=workers,
        prefetch_factor=2 if workers else None,
        pin_memory=device.type == "cuda",
    )
    pairs = len(data) * per_step
    return {
        "pure_pairs_per_second": pairs / pure,
        "pairs_per_second": pairs / train(loader, own_clock=workers == 0),
        "loader_images_per_second_and_core": images_per_second,
        "workers": workers,
    }
