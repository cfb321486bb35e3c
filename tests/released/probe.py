"""Run a released model class on a tiny backbone with random weights, and save what it computed.

    PYTHONPATH=.cache/released/transformers-VERSION python -m tests.released.probe RELEASE FILE

This is a process of its own, because each release needs its own version of transformers. All
numbers are computed in float64. FILE gets, for each case, the weights, the inputs, the outputs of
the released class and the gradients of a weighted sum of these outputs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
import transformers
from torch import Tensor

from tests.models.exactness import compute_in_float64
from tests.released.sources import EDIT_REWARD, HPSV3, RELEASES, Release, released_definitions

SPECIAL_TOKENS = [5, 6, 7]
PAD = 0
IMAGE = 8
FIRST_WORD = 10
VOCABULARY = 40
WIDTH = 32

CASES: dict[str, dict[str, dict[str, Any]]] = {
    "VideoAlign": {
        "last": {"output_dim": 3, "reward_token": "last"},
        "mean": {"output_dim": 3, "reward_token": "mean"},
        "special": {"output_dim": 3, "special_token_ids": SPECIAL_TOKENS},
        "image": {"output_dim": 3, "reward_token": "last"},
    },
}
"""The arguments of the model class in each case, by release. The case `image` has an image."""
for name in (HPSV3.name, EDIT_REWARD.name):
    ranknet = {
        "output_dim": 2,
        "rm_head_type": "ranknet",
        "rm_head_kwargs": {"hidden_size": 12, "num_layers": 3, "dropout": 0.0, "bias": True},
    }
    CASES[name] = {
        "last": {**ranknet, "reward_token": "last"},
        "special": {**ranknet, "special_token_ids": SPECIAL_TOKENS[:1]},
        "image": {**ranknet, "special_token_ids": SPECIAL_TOKENS[:1]},
    }


UNUSED = VOCABULARY - 1
"""A token that never occurs, for marks that are not used here."""
MARKS = {
    "image_token_id": IMAGE,
    "video_token_id": UNUSED,
    "vision_start_token_id": UNUSED,
    "vision_end_token_id": UNUSED,
}


def tiny_config(
    release: Release, vocabulary: int = VOCABULARY, marks: Mapping[str, int] = MARKS
) -> Any:
    """Return the configuration of a backbone of 2 + 2 layers of width 32.

    Args:
        release: The release, whose family the backbone is of.
        vocabulary: Number of tokens.
        marks: Ids of the tokens of images, by their names in the configuration.
    """
    text = {
        "hidden_size": WIDTH,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": vocabulary,
        "rope_theta": 10000.0,
        "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]},
    }
    if release is EDIT_REWARD:
        vision: dict[str, Any] = {
            "hidden_size": WIDTH,
            "intermediate_size": 48,
            "depth": 2,
            "num_heads": 2,
            "out_hidden_size": WIDTH,
            "fullatt_block_indexes": [1],
            "window_size": 56,
        }
        return transformers.Qwen2_5_VLConfig(
            text_config=text, vision_config=vision, attn_implementation="sdpa", **marks
        )
    vision = {"embed_dim": 24, "hidden_size": WIDTH, "depth": 2, "num_heads": 2, "mlp_ratio": 2}
    config = transformers.Qwen2VLConfig(vision_config=vision, **text, **marks)
    config._attn_implementation = "sdpa"
    return config


def inputs_of_case(case: str) -> dict[str, Tensor]:
    """Return two padded conversations, the first of which has an image in the case `image`."""
    generator = torch.Generator().manual_seed(3)
    rows = []
    for num_words, num_pads in ((9, 0), (6, 3)):
        words = torch.randint(FIRST_WORD, VOCABULARY - 1, (num_words,), generator=generator)
        ends = [words, torch.tensor(SPECIAL_TOKENS), torch.full((num_pads,), PAD)]
        if case == "image":
            # An image of 4 x 4 patches is 4 tokens, because 2 x 2 patches are merged.
            ends.insert(0, torch.full((4,), IMAGE))
        rows.append(torch.cat(ends))
    input_ids = torch.stack(rows)
    inputs = {"input_ids": input_ids, "attention_mask": (input_ids != PAD).long()}
    if case == "image":
        inputs["pixel_values"] = torch.randn(32, 3 * 2 * 14 * 14, generator=generator)
        inputs["image_grid_thw"] = torch.tensor([[1, 4, 4], [1, 4, 4]])
    return inputs


def compute(release: Release, case: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the weights, inputs, outputs and gradients of one case."""
    backbone = getattr(transformers, release.backbone_class)  # loaded at first use
    model_class = released_definitions(release, backbone)[release.model_class]
    torch.manual_seed(7)
    model = model_class(tiny_config(release), **arguments)
    model.config.pad_token_id = PAD
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2 if parameter.ndim > 1 else 0.5)
    model.eval()
    inputs = inputs_of_case(case)
    logits = model(**inputs, return_dict=True)["logits"]
    output_weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(5))
    (logits * output_weights).sum().backward()
    gradients = {
        name: parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    return {
        "weights": model.state_dict(),
        "inputs": inputs,
        "logits": logits.detach(),
        "output_weights": output_weights,
        "gradients": gradients,
    }


def main() -> None:
    """Compute all cases of the release that is named on the command line."""
    release = RELEASES[sys.argv[1]]
    assert transformers.__version__ == release.transformers, transformers.__version__
    compute_in_float64()
    cases = CASES[release.name]
    computed = {case: compute(release, case, arguments) for case, arguments in cases.items()}
    torch.save(computed, sys.argv[2])


if __name__ == "__main__":
    main()
