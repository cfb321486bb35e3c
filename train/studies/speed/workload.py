"""The workload of speed measurements: models with random weights, and pairs of random tokens.

A pair is an image of about 1,050 tokens, a question of 20 to 120 and two responses of 60 to 400.
These sizes, and the order in which they are drawn, are those of the project's speed targets.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mmrm.models.backbone import embed_patches, set_attention
from mmrm.models.build_embedded import SPECIAL, architecture
from mmrm.models.config import HeadConfig
from mmrm.models.families.registry import PUBLISHED, family_of
from mmrm.models.packing.groups import Continuation, Group
from mmrm.models.packing.vision import VisionTokens
from mmrm.models.portable.reward import ScoreLinear

SHAPES = {
    "3b": PUBLISHED["Qwen/Qwen2.5-VL-3B-Instruct"],
    "7b": PUBLISHED["Qwen/Qwen2.5-VL-7B-Instruct"],
}
EMBEDDED = "embedded"
FIRST_WORD = 7
"""Smaller ids are the embedded backbone's special tokens, which no text contains."""
LAST_WORD = 1000


class Workload(NamedTuple):
    """Lower and upper bounds of the sizes of pairs, in tokens. The upper bounds are excluded."""

    side: tuple[int, int]
    """Height and width of an image."""
    question: tuple[int, int]
    response: tuple[int, int]


FULL = Workload((26, 40), (20, 120), (60, 400))
SMALL = Workload((9, 14), (3, 15), (8, 50))
"""About an eighth of the tokens of FULL, for the embedded backbone on a CPU."""


def config_of(name: str) -> Any:
    """Return the configuration of a model, with the reward head of BaseReward's paper.

    Nothing is downloaded.

    Args:
        name: `embedded`, a key of SHAPES, or the hub id of a released checkpoint.
    """
    if name == EMBEDDED:
        # The ids of special tokens do not matter for the speed.
        config = architecture({token: number for number, token in enumerate(SPECIAL)})
    else:
        config = (SHAPES | PUBLISHED)[name].config()
    config.reward_head = HeadConfig().model_dump()
    return config


def build(kind: Any, name: str, device: torch.device, dtype: torch.dtype) -> Any:
    """Return a model with random weights.

    The last layer of the head is random too, although it starts at zero for training. A backward
    pass of zeros would need less power on a GPU, and so less time.

    Args:
        kind: The class of the model.
        name: The name of its configuration, as in `config_of`.
        device: The device on which the weights are created.
        dtype: The dtype of the weights.
    """
    torch.manual_seed(0)
    with torch.device(device):
        model = kind._from_config(config_of(name), dtype=dtype)
        for module in model.modules():
            if isinstance(module, ScoreLinear):
                nn.init.normal_(module.weight, std=0.02)
    # The attention of packed rows and the faster embedding of patches, as in training.
    set_attention(model)
    embed_patches(model)
    return model


@dataclass(frozen=True, slots=True)
class PairSize:
    """The size of a pair; question and responses are in tokens."""

    height: int
    """Height of the image in patches of 14 pixels, an even number."""
    width: int
    """Width of the image in patches of 14 pixels, an even number."""
    question: int
    responses: tuple[int, int]


def pair_sizes(count: int, seed: int, workload: Workload) -> list[PairSize]:
    """Return the sizes of `count` pairs, drawn at random within the bounds of a workload."""
    generator = random.Random(seed)
    sizes = []
    for _ in range(count):
        height = 2 * generator.randrange(*workload.side)
        width = 2 * generator.randrange(*workload.side)
        question = generator.randrange(*workload.question)
        chosen = generator.randrange(*workload.response)
        rejected = generator.randrange(*workload.response)
        sizes.append(PairSize(height, width, question, (chosen, rejected)))
    return sizes


def pair_group(size: PairSize, vision: VisionTokens, seed: int) -> Group:
    """Return a pair of random tokens and pixels as a group: a prompt with two responses.

    The head reads the last token of each response.

    Args:
        size: The size of the pair.
        vision: The tokens of images in the model.
        seed: The seed of tokens and pixels.
    """
    generator = torch.Generator().manual_seed(seed)
    num_image_tokens = size.height * size.width // vision.merge_size**2
    image_tokens = [vision.image] * num_image_tokens
    # `with_marks` adds the tokens that the model expects around an image.
    prompt = [*vision.with_marks(image_tokens), *_words(size.question, generator)]
    responses = tuple(
        Continuation(_words(length, generator), read=(length - 1,)) for length in size.responses
    )
    pixels = torch.randn(size.height * size.width, vision.patch_size, generator=generator)
    grid = (1, size.height, size.width)  # frames, height and width in patches
    return Group(tuple(prompt), responses, pixels, (grid,))


def judgements_group(size: PairSize, vision: VisionTokens, seed: int, judgements: int) -> Group:
    """Return a prompt with judgements of random tokens, all of which carry loss.

    Each judgement is as long as the longer response of a pair of this size.

    Args:
        size: The size of the pair.
        vision: The tokens of images in the model.
        seed: The seed of tokens and pixels.
        judgements: Number of judgements.
    """
    generator = torch.Generator().manual_seed(seed)
    length = max(size.responses)
    continuations = [
        Continuation(_words(length, generator), loss_tokens=tuple(range(length)))
        for _ in range(judgements)
    ]
    return replace(pair_group(size, vision, seed), continuations=tuple(continuations))


def two_pairs(pairs: Sequence[Group]) -> list[Group]:
    """Return groups of two pairs each: every second pair takes over the prompt of the one before.

    A last pair without a successor is left out, but a single pair is joined with itself.
    """
    groups = []
    for first, second in zip(pairs[::2], pairs[1::2] or pairs, strict=False):
        groups.append(replace(first, continuations=first.continuations + second.continuations))
    return groups


def unshared(groups: Sequence[Group], count: int = 1) -> list[Group]:
    """Split groups into smaller ones, each with its own copy of the prompt and the image.

    Args:
        groups: The groups.
        count: Number of continuations in each returned group.
    """
    split_groups = []
    for group in groups:
        for start in range(0, len(group.continuations), count):
            continuations = group.continuations[start : start + count]
            split_groups.append(replace(group, continuations=continuations))
    return split_groups


def padded_inputs(
    groups: Sequence[Group], vision: VisionTokens
) -> tuple[dict[str, Tensor], Tensor]:
    """Return the inputs of a stock model for all conversations, padded on the right.

    A conversation is a prompt with one of its continuations. The image of a prompt is repeated for
    each of its conversations.

    Returns:
        The inputs by name; for B conversations of at most L tokens, `input_ids` and
        `attention_mask` have shape (B, L). Then the index of the last token of each conversation,
        (B,) int64.
    """
    singles = unshared(groups)
    ids = [torch.tensor([*group.prompt_ids, *group.continuations[0].ids]) for group in singles]
    lengths = torch.tensor([len(conversation) for conversation in ids])
    rows = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
    inputs = {
        "input_ids": rows,
        "attention_mask": (torch.arange(rows.shape[1]) < lengths[:, None]).long(),
        "mm_token_type_ids": (rows == vision.image).int(),
        "pixel_values": torch.cat(
            [group.pixel_values for group in singles if group.pixel_values is not None]
        ),
        "image_grid_thw": torch.tensor([grid for group in singles for grid in group.grids]),
    }
    return inputs, lengths - 1


def vision_tokens(config: Any) -> VisionTokens:
    """Return the tokens that stand for images in the rows of a model, and the sizes of patches.

    Args:
        config: The configuration of the model.
    """
    # The ids of the tokens around an image do not matter for the speed. They are not 0, which may
    # be padding, whose embedding is 0.
    ids = (1, config.image_token_id, 2)
    return family_of(config.model_type).vision_tokens(config.vision_config, ids)


def _words(length: int, generator: torch.Generator) -> tuple[int, ...]:
    """Return `length` random token ids that are no special tokens."""
    return tuple(torch.randint(FIRST_WORD, LAST_WORD, (length,), generator=generator).tolist())
