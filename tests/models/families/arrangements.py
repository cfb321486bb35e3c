"""Random arrangements of packed rows against the stock model, one padded conversation a row.

    python -m tests.models.families.arrangements 200     # of every family; prints the largest differences

A row holds up to four groups of up to three images and five uneven continuations, some of them alike, and fillers anywhere.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from data.preference import Message, text
from models.backbone import load_scalar
from models.config import BackboneConfig, HeadConfig
from models.families.table import FAMILIES
from models.packing.groups import filler_group
from models.portable.reward import ScalarReward
from tests.models import stock, tiny

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
        BackboneConfig(path=str(folder), dtype="float32"), HeadConfig(width=24)
    )
    tiny.stir(model.head, 0.5)
    model.eval()
    return model


def arrangement(draw: random.Random, family: str) -> list[stock.Case]:
    """Return groups as people write them."""
    encoder, cases = tiny.encoder(family), []
    for number in range(draw.randint(1, 4)):
        sizes = [(draw.randint(30, 150), draw.randint(30, 150)) for _ in range(draw.randint(0, 3))]
        pictures = [
            tiny.picture(width, height, seed=draw.randint(0, 99)) for width, height in sizes
        ]
        places: Any = [{"type": "image"} for _ in pictures]
        asked: Message = {
            "role": "user",
            "content": [
                *places,
                {"type": "text", "text": " ".join(draw.choices(WORDS, k=1 + number))},
            ],
        }
        answers = [
            " ".join(draw.choices(WORDS, k=draw.randint(1, 6))) for _ in range(draw.randint(1, 5))
        ]
        cases.append(
            (pictures, [encoder.render([asked, text("assistant", answer)]) for answer in answers])
        )
    return cases


def packed(model: ScalarReward, cases: list[stock.Case], draw: random.Random) -> Tensor:
    """Return the scores of a row, with fillers before, between and behind its groups."""
    encoder, row = tiny.encoder(model.config.model_type), []
    for images, conversations in cases:
        row += [filler_group(encoder.vision)] * draw.randint(0, 1)
        row.append(encoder.encode(images, conversations, "end_of_turn"))
    scores: Tensor = model(
        **encoder.pack([*row, *[filler_group(encoder.vision)] * draw.randint(0, 1)]).score_inputs()
    )
    return scores


def differences(model: ScalarReward, seed: int) -> tuple[float, float, str]:
    """Return the largest difference of a score and of a gradient, and the latter's tensor.

    Scores are relative to the largest, or to 1; gradients to their tensor's largest, or to a hundredth of the largest of all: a
    bias of keys hardly moves a softmax, and its gradient is what large sums leave.
    """
    draw, family = random.Random(seed), model.config.model_type
    cases = arrangement(draw, family)
    backbone, inputs = stock.backbone(model.model), stock.padded_inputs(cases, family=family)
    ends = inputs["attention_mask"].sum(1) - 1
    first, bias, second = model.head.parameters()
    hidden = stock.hidden_states(backbone, inputs)[torch.arange(len(ends)), ends]
    wanted = F.linear(F.silu(F.linear(hidden, first, bias)), second)[:, 0]
    weights = torch.linspace(-1, 2, len(wanted))
    model.zero_grad()
    torch.autograd.backward((wanted * weights).sum())
    model.zero_grad()
    found = packed(model, cases, draw)
    torch.autograd.backward((found * weights).sum())
    theirs = {name: one.grad for name, one in backbone.named_parameters() if one.grad is not None}
    least, worst = 1e-2 * max(float(one.abs().max()) for one in theirs.values()), (0.0, "")
    for name, parameter in model.model.named_parameters():
        assert parameter.grad is not None, (
            f"{name} took no part: its hooks would not fire under ZeRO"
        )
        gradient = theirs.get(
            name, torch.zeros_like(parameter)
        )  # the stock model runs no tower without an image
        scale = max(float(gradient.abs().max()), least)
        worst = max(worst, (float((parameter.grad - gradient).abs().max()) / scale, name))
    with torch.no_grad():
        return float((found - wanted).abs().max()) / max(1.0, float(wanted.abs().max())), *worst


def main(count: int) -> None:
    """Print the largest differences over `count` arrangements of every family."""
    for family in FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            model = reward_model(Path(folder), family)
            found = [differences(model, seed) for seed in range(count)]
        print(
            f"{family}: {count} arrangements, scores {max(s for s, _, _ in found):.1e}, gradients",
            *max(one[1:] for one in found),
        )


if __name__ == "__main__":
    main(int(sys.argv[1]))
