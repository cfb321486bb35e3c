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

from mmrm.models.backbone import copy_grids, embed_patches, set_attention
from mmrm.models.build_embedded import SPECIAL, architecture
from mmrm.models.families.registry import PUBLISHED, family_of
from mmrm.models.heads.score_head import ScoreHeadConfig
from mmrm.models.packed_generation import with_texts
from mmrm.models.packing.image_places import place_images
from mmrm.models.packing.packed_batch import patches_of
from mmrm.models.packing.segments import (
    ImagePlace,
    Output,
    ProcessedImage,
    Segment,
    SegmentTree,
)
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
    config.reward_head = ScoreHeadConfig().model_dump()
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
    place_images(model.model)
    copy_grids(model)
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


def pair_tree(size: PairSize, vision: VisionTokens, seed: int) -> SegmentTree:
    """Return a pair of random tokens and pixels as a tree: a prompt with two responses.

    The head reads the last token of each response.

    Args:
        size: The size of the pair.
        vision: The tokens of images in the model.
        seed: The seed of tokens and pixels.
    """
    generator = torch.Generator().manual_seed(seed)
    image = ProcessedImage(
        content=f"seed {seed}",
        grid=(1, size.height, size.width),  # frames, height and width in patches
        num_tokens=size.height * size.width // vision.merge_size**2,
    )
    # `with_marks` adds the tokens that the model expects around an image.
    image_ids = vision.with_marks([vision.image] * image.num_tokens)
    question = _words(size.question, generator)
    responses = [_words(length, generator) for length in size.responses]
    pixels = torch.randn(image.patches, vision.patch_size, generator=generator)
    place = ImagePlace(image_ids.index(vision.image), replace(image, pixel_values=pixels))
    prompt = Segment((*image_ids, *question), images=(place,))
    return SegmentTree(
        segments=(prompt, *(Segment(response, parent=0) for response in responses)),
        outputs=tuple(
            Output(segment=number, reads=(len(response) - 1,))
            for number, response in enumerate(responses, start=1)
        ),
    )


def judgements_tree(
    size: PairSize, vision: VisionTokens, seed: int, judgements: int
) -> SegmentTree:
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
    texts = [_words(length, generator) for _ in range(judgements)]
    prompt = pair_tree(size, vision, seed).with_outputs([Output(segment=0)])
    return with_texts(prompt, texts)


def two_pairs(pairs: Sequence[SegmentTree]) -> list[SegmentTree]:
    """Return trees of two pairs each: every second pair takes over the prompt of the one before.

    A last pair without a successor is left out, but a single pair is joined with itself.
    """
    trees = []
    for first, second in zip(pairs[::2], pairs[1::2] or pairs, strict=False):
        num_first = len(first.segments)
        # The responses of the second pair move behind those of the first, below the first prompt.
        shift = num_first - 1
        outputs = [replace(output, segment=output.segment + shift) for output in second.outputs]
        segments = (*first.segments, *second.segments[1:])
        trees.append(SegmentTree(segments, (*first.outputs, *outputs)))
    return trees


def unshared(trees: Sequence[SegmentTree], count: int = 1) -> list[SegmentTree]:
    """Split trees into smaller ones, each with its own copy of the prompt and the image.

    Args:
        trees: The trees.
        count: Number of outputs of each returned tree.
    """
    split_trees: list[SegmentTree] = []
    for tree in trees:
        for start in range(0, len(tree.outputs), count):
            part = tree.with_outputs(tree.outputs[start : start + count])
            # An image of its own, which the vision tower computes once more.
            copies = {
                image: replace(image, content=f"{image.content}, copy {len(split_trees)}")
                for image in part.images
            }
            split_trees.append(part.with_images(copies))
    return split_trees


def padded_inputs(
    trees: Sequence[SegmentTree], vision: VisionTokens
) -> tuple[dict[str, Tensor], Tensor]:
    """Return the inputs of a stock model for all conversations, padded on the right.

    The images of a conversation are repeated for each of the conversations.

    Returns:
        The inputs by name; for B conversations of at most L tokens, `input_ids` and
        `attention_mask` have shape (B, L). Then the index of the last token of each conversation,
        (B,) int64.
    """
    conversations = [conversation for tree in trees for conversation in tree.conversations()]
    images = [place.image for conversation in conversations for place in conversation.images]
    ids = [torch.tensor(conversation.ids) for conversation in conversations]
    lengths = torch.tensor([len(conversation) for conversation in ids])
    rows = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
    inputs = {
        "input_ids": rows,
        "attention_mask": (torch.arange(rows.shape[1]) < lengths[:, None]).long(),
        "mm_token_type_ids": (rows == vision.image).int(),
        "pixel_values": torch.cat([patches_of(image) for image in images]),
        "image_grid_thw": torch.tensor([image.grid for image in images]),
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
