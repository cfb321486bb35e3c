"""The released shapes in full, without values: one kernel a layer, one question to the device a row, memory that is bounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import pytest
import torch
from torch import nn

from mmrm.models.config import CheckpointingMode
from mmrm.models.packing.segments import SegmentTree
from mmrm.models.portable.critic import CriticRewardModel
from mmrm.models.portable.language_model import LanguageModel
from mmrm.models.portable.reward import CompleteCheckpoint, ScalarRewardModel
from mmrm.train.recipe.sections import OptimConfig
from mmrm.train.studies.speed.workload import (
    FULL,
    judgements_tree,
    pair_sizes,
    unshared,
    vision_tokens,
)
from mmrm.train.supervised.objectives import pair_loss
from mmrm.train.supervised.optimizer import make_optimizer
from tests.models.shapes_only import ASKED, VARLEN, Kernels, Shapes, shapes_of

pytestmark = pytest.mark.slow


VOCABULARY = 152064
EMBEDDINGS = VOCABULARY * 3584 * 2
GIB = 2**30


def backward(shapes: Shapes, trees: Sequence[SegmentTree]) -> Kernels:
    """Run forward and backward of the pair loss over a row of `trees`."""
    row = shapes.row(trees)
    with shapes.run() as kernels:
        chosen, rejected = shapes.model(**row.score_inputs()).view(-1, 2).unbind(1)
        torch.autograd.backward(pair_loss(chosen, rejected).mean())
    return kernels


@pytest.mark.parametrize(("name", "checkpointing"), [("3b", "none"), ("7b", "full")])
def test_every_layer_takes_the_varlen_kernel_and_every_weight_gets_a_gradient(
    name: str, checkpointing: CheckpointingMode
) -> None:
    shapes = shapes_of(ScalarRewardModel, name, checkpointing=checkpointing)
    kernels = backward(shapes, shapes.pairs(2))
    layers = len(shapes.model.model.language_model.layers) + len(shapes.model.model.visual.blocks)
    assert kernels.counts[VARLEN] == layers * (2 if checkpointing == "full" else 1)
    assert not [kernel for kernel in kernels.counts if "scaled_dot_product" in kernel]
    for weight, parameter in shapes.model.named_parameters():
        assert parameter.grad is not None, weight
        assert (parameter.grad.shape, parameter.grad.dtype) == (parameter.shape, torch.bfloat16), (
            weight
        )


@pytest.mark.parametrize("pairs", [1, 3])
def test_the_device_is_asked_once_a_row(pairs: int) -> None:
    """It is transformers that compares the number of image tokens with the vision tower's output."""
    shapes = shapes_of(ScalarRewardModel, "3b")
    assert backward(shapes, shapes.pairs(pairs)).counts[ASKED] == 1


@pytest.mark.parametrize("checkpointing", get_args(CheckpointingMode))
def test_sharing_takes_no_more_memory_than_not_sharing(checkpointing: CheckpointingMode) -> None:
    shapes = shapes_of(ScalarRewardModel, "7b", checkpointing=checkpointing)
    pairs = shapes.pairs(2)
    shared = backward(shapes, pairs).peak
    shapes.model.zero_grad()
    assert shared < backward(shapes, unshared(pairs)).peak


@pytest.mark.parametrize("kind", [LanguageModel, CriticRewardModel])
def test_no_tensor_holds_a_vocabulary_for_every_token(kind: type[nn.Module]) -> None:
    """The largest one is that of the embeddings; logits exist for a chunk of labels."""
    shapes = shapes_of(kind, "7b", checkpointing="full")
    vision = vision_tokens(shapes.model.config)
    sizes = enumerate(pair_sizes(2, 0, FULL))
    row = shapes.row([judgements_tree(size, vision, seed, 8) for seed, size in sizes])
    assert len(row.labels) * VOCABULARY * 4 > 2 * EMBEDDINGS
    with shapes.run() as kernels:
        log_probabilities = shapes.model(**row.label_inputs())
        assert log_probabilities.shape == row.labels.shape
        log_probabilities.mean().backward()
    assert kernels.largest == EMBEDDINGS


def test_without_gradients_memory_is_that_of_a_layer() -> None:
    shapes = shapes_of(ScalarRewardModel, "7b")
    weights = sum(parameter.nbytes for parameter in shapes.model.parameters())
    row = shapes.row(shapes.pairs(8))
    with torch.no_grad(), shapes.run() as kernels:
        shapes.model(**row.score_inputs())
    assert kernels.peak - weights < 2 * GIB


def test_a_full_fine_tune_of_7b_fits_into_one_large_device() -> None:
    """Weights, gradients and both moments in bf16, eight pairs in a row with activation checkpointing: 139 GiB are there."""
    shapes = shapes_of(ScalarRewardModel, "7b", checkpointing="full")
    optimizer = make_optimizer(
        shapes.model, OptimConfig(learning_rate=1e-6, records_per_step=8, max_steps=1)
    )
    moments = 2 * sum(
        parameter.nbytes for group in optimizer.param_groups for parameter in group["params"]
    )
    assert backward(shapes, shapes.pairs(8)).peak + moments < 65 * GIB


@pytest.mark.skipif(
    torch.version.cuda is None, reason="needs a build of PyTorch for CUDA, though no device"
)
@pytest.mark.parametrize("kind", [ScalarRewardModel, LanguageModel, CriticRewardModel])
def test_on_cuda_everything_lies_on_the_device(kind: type[CompleteCheckpoint]) -> None:
    shapes = shapes_of(kind, "7b", device=torch.device("cuda", 0))
    vision = vision_tokens(shapes.model.config)
    # Each tree has an image of its own.
    trees = [
        judgements_tree(size, vision, seed, 3) for seed, size in enumerate(pair_sizes(2, 0, FULL))
    ]
    read = []
    for tree in trees:
        outputs = [replace(output, reads=output.labels[-1:]) for output in tree.outputs]
        read.append(tree.with_outputs(outputs))
    row = shapes.row(trees if kind is LanguageModel else read)
    inputs = {
        ScalarRewardModel: row.score_inputs,
        LanguageModel: row.label_inputs,
        CriticRewardModel: row.joint_inputs,
    }[kind]()
    with torch.no_grad(), shapes.run() as kernels:
        found = shapes.model(**inputs)
    assert kernels.counts[VARLEN] == len(shapes.model.model.language_model.layers) + len(
        shapes.model.model.visual.blocks
    )
    assert all(one.is_cuda for one in (found if isinstance(found, tuple) else (found,)))
