"""Run a released model class on weights and inputs from a file, and save what it computed.

    PYTHONPATH=.cache/released/transformers-VERSION python -m tests.released.row_probe RELEASE IN OUT

This is a process of its own, because each release needs its own version of transformers. The
weights are loaded as the authors' inference scripts load them, with `strict=True`. All numbers are
computed in float64. OUT gets the numbers of each picture, (pictures, 2).
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import transformers
from torch import Tensor

from tests.models.exactness import compute_in_float64
from tests.released.probe import tiny_config
from tests.released.sources import EDIT_REWARD, RELEASES, released_definitions


@torch.no_grad()
def numbers_of(content: dict[str, Any], model: Any, has_two_heads: bool) -> Tensor:
    """Return the numbers of each picture in a file.

    Args:
        content: `pictures` has the inputs of each question about each picture.
        model: The released model.
        has_two_heads: Each head gets the inputs of its own question.
    """
    numbers = []
    for questions in content["pictures"]:
        for inputs in questions:
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        if has_two_heads:
            batch = {"batch_dim1": questions[0], "batch_dim2": questions[1]}
        else:
            [batch] = questions
        numbers.append(model(**batch, return_dict=True)["logits"][0])
    return torch.stack(numbers)


def main() -> None:
    """Compute the numbers of the pictures in the file that is named on the command line."""
    release = RELEASES[sys.argv[1]]
    assert transformers.__version__ == release.transformers, transformers.__version__
    compute_in_float64()
    content = torch.load(sys.argv[2])
    has_two_heads = release is EDIT_REWARD
    arguments = {"output_dim": 2, "special_token_ids": [content["reward_token"]]}
    if has_two_heads:
        arguments |= {"rm_head_type": "ranknet_multi_head", "pooling_strategy": "mean"}
    else:
        arguments |= {"rm_head_type": "ranknet"}
    backbone = getattr(transformers, release.backbone_class)  # loaded at first use
    model_class = released_definitions(release, backbone)[release.model_class]
    model = model_class(tiny_config(release, content["vocabulary"], content["marks"]), **arguments)
    model.config.pad_token_id = content["pad_token"]
    model.load_state_dict(content["tensors"], strict=True)
    model.eval()
    torch.save(numbers_of(content, model, has_two_heads), sys.argv[3])


if __name__ == "__main__":
    main()
