"""Random trees of segments, computed packed and by the stock model, for comparison.

    python -m tests.models.families.random_trees 200          # every family
    python -m tests.models.families.random_trees 200 qwen2_vl

The command compares 200 rows of each family in float64, fp32 and bf16 and prints the figures. A row
holds one to three trees with up to four levels. Segments have up to three images, at their
beginning, in the middle and at their end, and some images stand at several places of the row. The
end mark of an image may be the first token of a child. The stock model computes each conversation
of a row by itself, or all of them as one padded batch.

All weights and pixels are numbers that bf16 can represent, so that one computation in float64 is
the exact result for every precision.
"""

from __future__ import annotations

import copy
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from mmrm.models.backbone import load_critic
from mmrm.models.config import BackboneConfig
from mmrm.models.families.registry import FAMILIES
from mmrm.models.heads.score_head import ScoreHeadConfig
from mmrm.models.packing.packed_batch import pack, patches_of
from mmrm.models.packing.segments import (
    ImagePlace,
    Output,
    ProcessedImage,
    Segment,
    SegmentTree,
    TokenisedConversation,
)
from mmrm.models.packing.vision import VisionTokens
from tests.models import stock, tiny
from tests.models.exactness import MARGIN, assert_exact, float64

TEXT_IDS = range(20, 250)
"""Ids of ordinary tokens of the tiny tokenizers."""
MAX_LEVELS = 4
ENOUGH_ROWS = 200
"""Number of rows from which on the errors of each tensor have to be within `MARGIN`."""
MARGIN_IN_FEW_ROWS = 2.0
"""Largest error of each of our tensors in fewer rows, relative to that of the stock model. The
largest ratio of a block of 20 rows was 1.46, and that of 200 rows was 1.09."""
PADDING_SIDES = (None, "left", None, "right")
"""How the stock model computes a row: None is each conversation by itself. Row n uses entry n modulo
4."""


class RandomRow:
    """Makes the trees of one random row, which share a pool of images."""

    def __init__(
        self, family: str, seed: int, image_counts: Sequence[int] = (0, 0, 1, 1, 2, 3)
    ) -> None:
        """Create an empty row.

        Args:
            family: The family of backbones.
            seed: It decides all that is drawn.
            image_counts: The number of images of a segment is one of these.
        """
        self.image_counts = image_counts
        self.vision: VisionTokens = tiny.encoder(family).vision
        self.has_tiles = not FAMILIES[family].images.attends_in_runs
        self.draw = random.Random(f"{family}/{seed}")
        self.images: list[ProcessedImage] = []
        """The images that have been placed in the row; any of them may be placed again."""

    def trees(self) -> list[SegmentTree]:
        """Return one to three trees."""
        return [self.tree() for _ in range(self.draw.randint(1, 3))]

    def tree(self) -> SegmentTree:
        """Return a tree with an output for each leaf and for some inner segments."""
        segments: list[Segment] = []
        self._add_segments(segments, parent=None, levels=self.draw.randint(1, MAX_LEVELS))
        parents = {segment.parent for segment in segments}
        outputs: list[Output] = []
        for index, segment in enumerate(segments):
            is_leaf = index not in parents
            if is_leaf or self.draw.random() < 0.4:
                outputs.append(self._output(index, segment))
            if self.draw.random() < 0.1:
                outputs.append(self._output(index, segment))
        self.draw.shuffle(outputs)
        return SegmentTree(tuple(segments), tuple(outputs))

    def _add_segments(
        self,
        segments: list[Segment],
        parent: int | None,
        levels: int,
        first_ids: Sequence[int] = (),
    ) -> None:
        """Add a random segment and the segments below it to `segments`.

        Args:
            segments: The segments of the tree so far.
            parent: Index of the segment before the new one.
            levels: The largest number of levels from the new segment on.
            first_ids: The first tokens of the new segment. The end mark of an image, if the segment
                before ends inside the marks of that image.
        """
        ids = [*first_ids, *self._text((0, 1, 2, 5, 17, 40))]
        places: list[ImagePlace] = []
        ids_of_children: list[int] = []
        num_images = self.draw.choice(self.image_counts)
        for number in range(num_images):
            image = self._image()
            marked_ids = self.vision.with_marks([self.vision.image] * image.num_tokens)
            places.append(ImagePlace(len(ids) + marked_ids.index(self.vision.image), image))
            ids += marked_ids
            is_last = number == num_images - 1
            if is_last and self.vision.end is not None and self.draw.random() < 0.5:
                ids_of_children = [ids.pop()]
            else:
                ids += self._text((0, 1, 6))
        if len(ids) < 2:
            ids += self._text((2,))
        index = len(segments)
        segments.append(Segment(tuple(ids), parent, tuple(places)))
        if levels > 1:
            for _ in range(self.draw.choice((0, 1, 2, 2, 3))):
                self._add_segments(segments, index, levels - 1, ids_of_children)

    def _text(self, lengths: Sequence[int]) -> list[int]:
        """Return random text tokens; their number is one of `lengths`."""
        return self.draw.choices(TEXT_IDS, k=self.draw.choice(lengths))

    def _image(self) -> ProcessedImage:
        """Return an image of the row again, or a new one of random size and pixels."""
        if self.images and self.draw.random() < 0.4:
            return self.draw.choice(self.images)
        smallest = self.vision.smallest
        if self.has_tiles:
            grid = (self.draw.randint(1, 3), *smallest[1:])
        else:
            merge_size = self.vision.merge_size
            grid = (1, merge_size * self.draw.randint(1, 5), merge_size * self.draw.randint(1, 5))
        generator = torch.Generator().manual_seed(self.draw.randrange(2**31))
        noise = torch.randn(
            prod(grid), self.vision.patch_size, generator=generator, dtype=tiny.SINGLE
        )
        image = ProcessedImage(
            content=f"image {len(self.images)}",
            grid=grid,
            num_tokens=prod(grid) // self.vision.merge_size**2,
            pixel_values=noise.bfloat16().to(torch.get_default_dtype()),
        )
        self.images.append(image)
        return image

    def _output(self, index: int, segment: Segment) -> Output:
        """Return an output of a segment: it is read at its end, and random tokens carry loss."""
        last = len(segment.ids) - 1
        reads = {last, self.draw.randint(0, last)} if self.draw.random() < 0.3 else {last}
        # The first token of a root has no token before it from which it could be predicted.
        first_label = 1 if segment.parent is None else 0
        candidates = [i for i in range(first_label, last + 1) if segment.ids[i] in TEXT_IDS]
        labels = [i for i in candidates if self.draw.random() < 0.5]
        if candidates[:1] == [0] and self.draw.random() < 0.5:
            labels = sorted({0, *labels})
        return Output(index, reads=tuple(sorted(reads)), labels=tuple(labels))


@dataclass
class Results:
    """The numbers that a model computes for a row."""

    hidden: Tensor
    """Last hidden states of all tokens of each conversation, one conversation after another."""
    scores: Tensor
    """(conversations,)."""
    log_probabilities: Tensor
    """(labels,)."""
    gradients: dict[str, Tensor]
    """The gradient of `loss` for each parameter, by name."""

    def by_name(self) -> dict[str, Tensor]:
        """Return all tensors by name."""
        tensors = {f"gradient of {name}": value for name, value in self.gradients.items()}
        tensors["hidden states"] = self.hidden
        tensors["scores"] = self.scores
        if len(self.log_probabilities):
            tensors["log-probabilities"] = self.log_probabilities
        return tensors


def assert_equal(ours: Results, exact: Results) -> None:
    """Assert that two results in float64 are equal; see `assert_exact`."""
    assert_exact(ours.hidden, exact.hidden)
    assert_exact(ours.scores, exact.scores)
    if len(exact.log_probabilities):
        assert_exact(ours.log_probabilities, exact.log_probabilities)
    assert_exact(ours.gradients, exact.gradients)


def loss(score: Tensor, log_probabilities: Tensor, index: int, count: int) -> Tensor:
    """Return the loss of conversation `index` of `count`; each counts differently."""
    weight = 0.5 + index / count
    if index % 2:
        weight = -weight
    return weight * (score + 0.1 * log_probabilities.sum())


def stock_inputs(
    config: Any, conversations: Sequence[TokenisedConversation], side: str
) -> dict[str, Tensor]:
    """Return conversations as the arguments of the stock model, padded on `side`."""
    length = max(len(conversation.ids) for conversation in conversations)
    ids = torch.zeros(len(conversations), length, dtype=torch.int64)
    is_token = torch.zeros_like(ids)
    images: list[ProcessedImage] = []
    for row, conversation in enumerate(conversations):
        num_tokens = len(conversation.ids)
        start = length - num_tokens if side == "left" else 0
        ids[row, start : start + num_tokens] = torch.tensor(conversation.ids)
        is_token[row, start : start + num_tokens] = 1
        images += [place.image for place in conversation.images]
    inputs = {"input_ids": ids, "attention_mask": is_token}
    if not images:
        return inputs
    pixels = torch.cat([patches_of(image) for image in images])
    if config.model_type == "internvl":
        height, width = config.vision_config.image_size
        return {**inputs, "pixel_values": pixels.view(-1, 3, height, width)}
    inputs["pixel_values"] = pixels
    inputs["image_grid_thw"] = torch.tensor([image.grid for image in images])
    if config.model_type == "video_llama_3":
        inputs["image_merge_sizes"] = torch.ones(len(images), dtype=torch.int64)
    return inputs


class StockCritic(nn.Module):
    """The stock language model with a copy of a critic's reward head; it knows no packing."""

    def __init__(self, critic: Any) -> None:
        super().__init__()
        self.model = stock.backbone(critic.model)
        self.head = copy.deepcopy(critic.head)
        self.lm_head = nn.Linear(
            critic.lm_head.in_features, critic.lm_head.out_features, bias=False
        ).to(critic.lm_head.weight.dtype)
        self.lm_head.load_state_dict(critic.lm_head.state_dict())

    def hidden_states(
        self, conversations: Sequence[TokenisedConversation], side: str
    ) -> list[Tensor]:
        """Return the last hidden states of each conversation, computed as one padded batch."""
        inputs = stock_inputs(self.model.config, conversations, side)
        states = stock.hidden_states(self.model, inputs)
        is_token = inputs["attention_mask"].bool()
        return [states[row, is_token[row]] for row in range(len(conversations))]

    def results(self, trees: Sequence[SegmentTree], side: str | None) -> Results:
        """Return what the stock model computes for the conversations of some trees.

        Args:
            trees: The trees.
            side: The side of the padding; None if each conversation is computed by itself.
        """
        conversations: list[TokenisedConversation] = []
        for tree in trees:
            conversations += tree.conversations()
        batches = [conversations] if side else [[one] for one in conversations]
        hidden: list[Tensor] = []
        scores: list[Tensor] = []
        log_probabilities: list[Tensor] = []
        self.zero_grad()
        for batch in batches:
            losses: list[Tensor] = []
            for conversation, states in zip(
                batch, self.hidden_states(batch, side or "right"), strict=True
            ):
                index = len(scores)
                score = self.head(states[list(conversation.reads)].float().mean(0))[0]
                labels = torch.tensor(conversation.labels, dtype=torch.int64)
                logits = self.lm_head(states[labels - 1]).float()
                label_ids = torch.tensor(conversation.ids)[labels]
                chosen = logits.log_softmax(1).gather(1, label_ids[:, None])[:, 0]
                losses.append(loss(score, chosen, index, len(conversations)))
                hidden.append(states.detach())
                scores.append(score.detach())
                log_probabilities.append(chosen.detach())
            torch.autograd.backward(torch.stack(losses).sum())
        return Results(
            hidden=torch.cat(hidden),
            scores=torch.stack(scores),
            log_probabilities=torch.cat(log_probabilities),
            gradients=copies(stock.gradients(self)),
        )


def packed_results(critic: Any, trees: Sequence[SegmentTree], vision: VisionTokens) -> Results:
    """Return the results of our model for some trees, packed in one row.

    Scores and log-probabilities come from a forward pass that computes the last layer only where
    they are read. Hidden states of all tokens come from another one.
    """
    batch = pack(trees, vision)
    critic.zero_grad()
    with torch.no_grad():
        states = critic.model(**batch.model_inputs()).last_hidden_state[0]
    scores, log_probabilities = critic(**batch.joint_inputs())
    losses: list[Tensor] = []
    for index, score in enumerate(scores):
        own_labels = batch.label_owners == index
        losses.append(loss(score, log_probabilities[own_labels], index, len(scores)))
    torch.autograd.backward(torch.stack(losses).sum())
    for name, parameter in critic.named_parameters():
        assert parameter.grad is not None, f"{name} took no part: its hooks would not fire"
    positions = [batch.plan.keys_of(segment) for segment in batch.output_segments]
    return Results(
        hidden=states[torch.cat(positions)],
        scores=scores.detach(),
        log_probabilities=log_probabilities.detach(),
        gradients=copies(stock.gradients(critic)),
    )


def copies(gradients: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of gradients, which the next backward pass does not change."""
    return {name: gradient.clone() for name, gradient in gradients.items()}


@torch.no_grad()
def round_to_bf16(module: nn.Module) -> None:
    """Round all parameters to numbers that bf16 can represent."""
    for parameter in module.parameters():
        parameter.copy_(parameter.bfloat16())


@dataclass(frozen=True)
class Models:
    """Our model and the stock model with the same weights, in one precision."""

    family: str
    dtype: str
    """float64, float32 or bfloat16."""
    critic: Any
    stock: StockCritic

    @classmethod
    def tiny(cls, folder: Path, family: str, dtype: str) -> Models:
        """Return tiny models with random weights, from a checkpoint that is written to `folder`."""
        with precision(dtype):
            weights = tiny.language_model(family=family)
            round_to_bf16(weights)
            weights.save_pretrained(folder)
            tiny.encoder(family).save_pretrained(folder)
            is_bf16 = dtype == "bfloat16"
            # Inside the context, float32 means float64.
            config = BackboneConfig(path=str(folder), dtype="bfloat16" if is_bf16 else "float32")
            critic: Any = load_critic(config, ScoreHeadConfig(width=24)).eval()
            torch.manual_seed(1)
            tiny.stir(critic.head, 0.5)
            round_to_bf16(critic.head)
            return cls(family, dtype, critic, StockCritic(critic))

    def compare(self, seed: int) -> tuple[Results, Results]:
        """Return what our model and the stock model compute for the random row `seed`."""
        with precision(self.dtype):
            row = RandomRow(self.family, seed)
            trees = row.trees()
            side = PADDING_SIDES[seed % len(PADDING_SIDES)]
            return packed_results(self.critic, trees, row.vision), self.stock.results(trees, side)


@contextmanager
def precision(dtype: str) -> Iterator[None]:
    """Compute in float64 inside the context if `dtype` is float64, else as the code says."""
    with float64() if dtype == "float64" else nullcontext():
        yield


@dataclass
class Errors:
    """The errors of our model and of the stock model in a low precision, summed over rows.

    The error of a tensor in a row is the Euclidean norm of its difference from the exact tensor.
    Those of hidden states and gradients are relative to the exact tensor's norm. The gradient of
    some tensors, such as the keys' bias, is nearly zero, so that what is computed for it is nothing
    but rounding of larger numbers. A gradient's error is therefore relative to at least a thousandth
    of the norm of the row's largest gradient.
    """

    ours: dict[str, float] = field(default_factory=dict)
    """The sum for each tensor, by its name in `Results.by_name`."""
    stock: dict[str, float] = field(default_factory=dict)
    num_rows: int = 0

    def add(self, ours: Results, stock_results: Results, exact: Results) -> None:
        """Add the errors of a row."""
        self.num_rows += 1
        largest = max(float(gradient.norm()) for gradient in exact.gradients.values())
        ours_by_name = ours.by_name()
        stock_by_name = stock_results.by_name()
        for name, wanted in exact.by_name().items():
            unit = 1.0
            if name == "hidden states":
                unit = float(wanted.norm())
            elif name.startswith("gradient"):
                unit = max(float(wanted.norm()), largest / 1000)
            our_error = float((ours_by_name[name].double() - wanted).norm()) / unit
            stock_error = float((stock_by_name[name].double() - wanted).norm()) / unit
            self.ours[name] = self.ours.get(name, 0.0) + our_error
            self.stock[name] = self.stock.get(name, 0.0) + stock_error

    def ratios(self) -> dict[str, float]:
        """Return our error as a multiple of the stock model's, by the name of the tensor."""
        return {name: error / self.stock[name] for name, error in self.ours.items()}

    def gradient_ratios(self) -> list[float]:
        """Return the ratios of all gradients, the smallest first."""
        ratios = self.ratios().items()
        return sorted(ratio for name, ratio in ratios if name.startswith("gradient"))

    def excesses(self) -> list[str]:
        """Return a text for each error that is more than `MARGIN` times the stock model's.

        In fewer than ENOUGH_ROWS rows, this holds for hidden states and for the median of the
        gradients. The other tensors may differ by MARGIN_IN_FEW_ROWS, because few roundings differ
        by luck.
        """
        margin_of_tensors = MARGIN if self.num_rows >= ENOUGH_ROWS else MARGIN_IN_FEW_ROWS
        ratios = self.ratios()
        checks = [
            ("hidden states", ratios["hidden states"], MARGIN),
            ("the median of the gradients", median(self.gradient_ratios()), MARGIN),
        ]
        checks += [(name, ratio, margin_of_tensors) for name, ratio in ratios.items()]
        excesses = []
        for name, ratio, margin in checks:
            if ratio > margin:
                excesses.append(
                    f"{name}: {ratio:.2f} times the stock model's error; allowed are {margin}"
                )
        return excesses

    def assert_no_worse(self) -> None:
        """Assert that there are no `excesses`."""
        assert self.excesses() == []


LOW_PRECISIONS = ("float32", "bfloat16")


def compare_rows(family: str, seeds: Sequence[int], folder: Path) -> Iterator[dict[str, Errors]]:
    """Compare random rows of a family, and yield the errors by precision after each row.

    In float64 our model and the stock model must agree in every row; see `assert_equal`. Their
    errors in lower precisions are only summed up; see `Errors.assert_no_worse`.

    Args:
        family: The family of backbones.
        seeds: The seeds of the rows.
        folder: An empty folder for the weights.
    """
    models = {}
    for dtype in ("float64", *LOW_PRECISIONS):
        models[dtype] = Models.tiny(folder / dtype, family, dtype)
    errors_by_precision = {dtype: Errors() for dtype in LOW_PRECISIONS}
    for seed in seeds:
        ours, exact = models["float64"].compare(seed)
        assert_equal(ours, exact)
        for dtype, errors in errors_by_precision.items():
            errors.add(*models[dtype].compare(seed), exact)
        yield errors_by_precision


def main(count: int, families: Sequence[str]) -> None:
    """Compare `count` random rows of families, and print our errors as multiples of the stock's."""
    for family in families:
        with tempfile.TemporaryDirectory() as folder:
            errors_after_rows = list(compare_rows(family, range(count), Path(folder)))
        print(f"{family}: {count} rows are equal in float64")
        for dtype, errors in errors_after_rows[-1].items():
            errors.assert_no_worse()
            ratios = errors.ratios()
            gradient_ratios = errors.gradient_ratios()
            print(
                f"  {dtype}, times the stock error: hidden states {ratios['hidden states']:.2f}, "
                f"scores {ratios['scores']:.2f}, "
                f"log-probabilities {ratios['log-probabilities']:.2f}, "
                f"gradients {median(gradient_ratios):.2f} (at most {gradient_ratios[-1]:.2f})",
                flush=True,
            )


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:] or list(FAMILIES))
