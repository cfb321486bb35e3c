"""Random arrangements of packed rows against the stock model, one padded conversation a row.

    python -m tests.models.families.arrangements 200             # of every family; prints the largest differences in float64
    python -m tests.models.families.arrangements 200 qwen3_vl    # of this family

A row holds up to four prompts of up to three images with five uneven responses, some of them alike, and fillers anywhere.
The responses to half of the prompts contain up to three images at any place.
"""

from __future__ import annotations

import io
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from mmrm.data.preference import Message, Response
from mmrm.data.synthetic.scenes import png
from mmrm.models.backbone import load_scalar
from mmrm.models.config import BackboneConfig
from mmrm.models.encoder import Conversation
from mmrm.models.families.registry import FAMILIES
from mmrm.models.heads.score_head import ScoreHeadConfig
from mmrm.models.packing.packed_batch import filler_tree
from mmrm.models.portable.reward import ScalarReward
from tests.models import stock, tiny
from tests.models.exactness import float64

WORDS = (
    "red",
    "a blue circle",
    "what is in the picture?",
    "the square is left of it",
    "no",
    "a picture of a red square.",
    "",
)


def reward_model(folder: Path, family: str) -> ScalarReward:
    """Return a tiny reward model with random weights everywhere, from a checkpoint in `folder`."""
    tiny.checkpoint(folder, family=family)
    model: ScalarReward = load_scalar(
        BackboneConfig(path=str(folder), dtype="float32"), ScoreHeadConfig(width=24)
    )
    tiny.stir(model.head, 0.5)
    model.eval()
    return model


def arrangement(draw: random.Random, family: str) -> list[list[Conversation]]:
    """Return random prompts, each as conversations with its responses.

    A prompt has up to three images. Half of the prompts have responses of texts alone, and the
    others have responses of texts and up to three images in any order.
    """
    prompts = []
    for number in range(draw.randint(1, 4)):
        prompt_images = random_images(draw)
        words = " ".join(draw.choices(WORDS, k=1 + number))
        parts: Any = [{"type": "image"} for _ in prompt_images]
        parts.append({"type": "text", "text": words})
        turn: Message = {"role": "user", "content": parts}
        with_images = draw.random() < 0.5
        conversations = []
        for _ in range(draw.randint(1, 5)):
            response = random_response(draw, with_images)
            conversations.append(Conversation.answered([turn], prompt_images, response))
        prompts.append(conversations)
    return prompts


def random_images(draw: random.Random) -> list[bytes]:
    """Return up to three encoded images of random sizes, some of which occur several times."""
    images = []
    for _ in range(draw.randint(0, 3)):
        width = draw.randint(30, 150)
        height = draw.randint(30, 150)
        images.append(png(tiny.picture(width, height, seed=draw.randint(0, 99))))
    return images


def random_response(draw: random.Random, with_images: bool) -> Response:
    """Return a response of one to six texts, with up to three images at random places of it."""
    texts = draw.choices(WORDS, k=draw.randint(1, 6))
    if not with_images:
        return Response((" ".join(texts),))
    content: list[str | bytes | Path] = list(texts)
    for image in random_images(draw):
        content.insert(draw.randint(0, len(content)), image)
    return Response(tuple(content))


def packed(
    model: ScalarReward,
    prompts: Sequence[Sequence[Conversation]],
    draw: random.Random,
    **settings: Any,
) -> Tensor:
    """Return the scores of a row, with fillers before, between and behind its trees.

    `settings` are of the section `backbone`.
    """
    encoder = tiny.encoder(model.config.model_type, **settings)
    row = []
    for conversations in prompts:
        row += [filler_tree(encoder.vision)] * draw.randint(0, 1)
        row.append(encoder.encode_conversations(conversations, "end_of_turn", "a random record"))
    row += [filler_tree(encoder.vision)] * draw.randint(0, 1)
    scores: Tensor = model(**encoder.pack(row).score_inputs())
    return scores


def stock_cases(prompts: Sequence[Sequence[Conversation]], family: str) -> list[stock.Case]:
    """Return each conversation with its own images, as the stock model is given it."""
    encoder = tiny.encoder(family)
    cases: list[stock.Case] = []
    for conversations in prompts:
        for conversation in conversations:
            pictures = []
            for image in conversation.images:
                assert isinstance(image, bytes)
                pictures.append(Image.open(io.BytesIO(image)).convert("RGB"))
            cases.append((pictures, [encoder.render(conversation.messages)]))
    return cases


@dataclass
class Comparison:
    """Scores and gradients by name of one random arrangement, packed and as the stock model has them."""

    scores: Tensor
    stock_scores: Tensor
    gradients: dict[str, Tensor]
    stock_gradients: dict[str, Tensor]


def compare(model: ScalarReward, seed: int) -> Comparison:
    """Compute a random arrangement with `model`, and with the stock model on padded rows."""
    draw = random.Random(seed)
    family = model.config.model_type
    prompts = arrangement(draw, family)
    backbone = stock.backbone(model.model)
    inputs = stock.padded_inputs(stock_cases(prompts, family), family=family)
    ends = inputs["attention_mask"].sum(1) - 1
    first, bias, second = model.head.parameters()
    hidden = stock.hidden_states(backbone, inputs)[torch.arange(len(ends)), ends]
    stock_scores = F.linear(F.silu(F.linear(hidden, first, bias)), second)[:, 0]
    weights = torch.linspace(-1, 2, len(stock_scores))
    torch.autograd.backward((stock_scores * weights).sum())

    model.zero_grad()
    scores = packed(model, prompts, draw)
    torch.autograd.backward((scores * weights).sum())
    for name, parameter in model.model.named_parameters():
        assert parameter.grad is not None, (
            f"{name} took no part: its hooks would not fire under ZeRO"
        )
    gradients = stock.gradients(model.model)
    return Comparison(scores.detach(), stock_scores.detach(), gradients, stock.gradients(backbone))


def largest_differences(model: ScalarReward, seed: int) -> tuple[float, float]:
    """Return the largest difference of a score and of a gradient, each relative to the largest one."""
    found = compare(model, seed)
    largest_score = float(found.stock_scores.abs().max())
    largest_gradient = max(float(one.abs().max()) for one in found.stock_gradients.values())
    score = float((found.scores - found.stock_scores).abs().max()) / largest_score
    gradient = 0.0
    for name, wanted in found.stock_gradients.items():
        difference = float((found.gradients[name] - wanted).abs().max())
        gradient = max(gradient, difference / largest_gradient)
    return score, gradient


def main(count: int, families: Sequence[str]) -> None:
    """Print the largest differences over `count` arrangements of families, in float64."""
    for family in families:
        with tempfile.TemporaryDirectory() as folder, float64():
            model = reward_model(Path(folder), family)
            found = [largest_differences(model, seed) for seed in range(count)]
        scores, gradients = zip(*found, strict=True)
        print(
            f"{family}: {count} arrangements, scores {max(scores):.1e}, gradients {max(gradients):.1e}"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:] or list(FAMILIES))
