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
    """Bounds of sizes in tokens, of which the upper one is excluded; `side` is that of an image."""

    side: tuple[int, int]
    question: tuple[int, int]
    response: tuple[int, int]


FULL = Workload((26, 40), (20, 120), (60, 400))
SMALL = Workload((9, 14), (3, 15), (8, 50))
"""An eighth of the tokens in the same proportions, for the embedded backbone on a CPU."""


def config_of(name: str) -> Any:
    """Return the configuration of `embedded`, `3b`, `7b` or a released checkpoint.

    It has the head of the paper. Nothing is downloaded.
    """
    if name == EMBEDDED:
        config = architecture({token: number for number, token in enumerate(SPECIAL)})
    else:
        config = (SHAPES | PUBLISHED)[name].config()
    config.reward_head = HeadConfig().model_dump()
    return config


def build(kind: Any, name: str, device: torch.device, dtype: torch.dtype) -> Any:
    """Return a model of the class `kind`, with random weights made on the device.

    The head's last layer is random too, although it starts at zero for training: a backward pass of
    zeros needs less power on a GPU, and so less time.
    """
    torch.manual_seed(0)
    with torch.device(device):
        model = kind._from_config(config_of(name), dtype=dtype)
        for module in model.modules():
            if isinstance(module, ScoreLinear):
                nn.init.normal_(module.weight, std=0.02)
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
    """Return the sizes of `count` pairs."""
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
    """Return a pair as a group whose continuations are read at their last token."""
    generator = torch.Generator().manual_seed(seed)
    tokens = [vision.image] * (size.height * size.width // vision.merge_size**2)
    prompt = [*vision.with_marks(tokens), *_words(size.question, generator)]
    responses = tuple(
        Continuation(_words(length, generator), read=(length - 1,)) for length in size.responses
    )
    pixels = torch.randn(size.height * size.width, vision.patch_size, generator=generator)
    return Group(tuple(prompt), responses, pixels, ((1, size.height, size.width),))


def judgements_group(size: PairSize, vision: VisionTokens, seed: int, judgements: int) -> Group:
    """Return the prompt of `size` with sampled judgements, all of whose tokens are learned.

    They have the length of the longer response.
    """
    generator = torch.Generator().manual_seed(seed)
    length = max(size.responses)
    made = [
        Continuation(_words(length, generator), loss_tokens=tuple(range(length)))
        for _ in range(judgements)
    ]
    return replace(pair_group(size, vision, seed), continuations=tuple(made))


def two_pairs(pairs: Sequence[Group]) -> list[Group]:
    """Return half as many groups of two pairs: one of `pairs` with the next one's responses."""
    groups = []
    for first, second in zip(pairs[::2], pairs[1::2] or pairs, strict=False):
        groups.append(replace(first, continuations=first.continuations + second.continuations))
    return groups


def unshared(groups: Sequence[Group], count: int = 1) -> list[Group]:
    """Return every `count` continuations as a group with its own copy of prompt and image."""
    apart = []
    for group in groups:
        for start in range(0, len(group.continuations), count):
            own = group.continuations[start : start + count]
            apart.append(replace(group, continuations=own))
    return apart


def padded_inputs(
    groups: Sequence[Group], vision: VisionTokens
) -> tuple[dict[str, Tensor], Tensor]:
    """Return the stock model's inputs for all conversations, and the last token of each.

    The conversations are padded on the right. For B conversations of at most L tokens, `input_ids`
    and `attention_mask` have shape (B, L), and the last tokens have shape (B,) and dtype int64. An
    image is repeated for each of its conversations.
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
    """Return the tokens of images in a row of a model of `config`."""
    # The ids of the tokens around an image do not matter for the speed. They are not 0, which may
    # be padding, whose embedding is 0.
    ids = (1, config.image_token_id, 2)
    return family_of(config.model_type).vision_tokens(config.vision_config, ids)


def _words(length: int, generator: torch.Generator) -> tuple[int, ...]:
    """Return random ids of words."""
    return tuple(torch.randint(FIRST_WORD, LAST_WORD, (length,), generator=generator).tolist())
