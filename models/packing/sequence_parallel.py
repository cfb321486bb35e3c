"""Sequence parallelism: several ranks compute one packed row together, each a part of its tokens.

It is that of DeepSpeed-Ulysses (Jacobs et al. 2023, arXiv 2309.14509). The ranks of a group have the
same row. In the language model each rank computes one stretch of the row's tokens. In every
attention layer the ranks exchange tokens for heads: a rank then has all tokens of some of the heads,
so that attention is that of one rank. The vision tower of each rank computes some of the images.
Embeddings of all images and the last hidden states of all tokens are gathered, so that every rank
has the scores and the loss of the whole row.

How gradients are scaled: let L be the loss of a row, and N the number of ranks of a group. Each of
them computes L. The backward passes of the gathering operations add up the gradients of all N ranks.
The sum over the group of the gradients of a weight is then N times the gradient of L. The number of
records, added up over all ranks, is N times their number as well, because each rank of a group counts
the records of its row. So a loss that is divided by this number has the right gradients.

DeepSpeed's own registration (`UlyssesSPAttentionHF.register_with_transformers`) is not used, because
it passes no mask on, in whose place the plan of a packed row is given.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import nn

from mmrm.data.errors import UserError
from mmrm.models.packing.attention import DividedPlan


def divide_sequences(model: Any, size: int) -> None:
    """Let a loaded model compute rows whose plan is a `DividedPlan`. Other rows stay as they are.

    Args:
        model: A model of any class of its family.
        size: The number of ranks in a group.

    Raises:
        UserError: The family has recurrent layers, or the heads do not divide over the ranks.
    """
    text_config = model.config.text_config
    if "linear_attention" in text_config.to_dict().get("layer_types", ()):
        raise UserError(
            f"optim.sequence_parallel={size}, but the backbone ({model.config.model_type}) has "
            "recurrent layers, which need all tokens before a token. Required are layers of "
            "attention alone. Remove the key, or take another backbone."
        )
    num_heads = text_config.num_attention_heads
    if num_heads % size:
        raise UserError(
            f"optim.sequence_parallel={size}, but the backbone has {num_heads} attention heads. "
            "Every rank computes as many heads as the others, so the number of heads has to be "
            "divisible. Set optim.sequence_parallel to one of "
            f"{', '.join(str(n) for n in range(1, num_heads + 1) if num_heads % n == 0)}."
        )
    language_model = model.model.language_model
    language_model.register_forward_pre_hook(_take_stretch, with_kwargs=True)
    language_model.register_forward_hook(_gather_hidden_states, with_kwargs=True)


def _take_stretch(
    language_model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of the language model for this rank's stretch of a divided row.

    Tokens beyond the end of the row are zeros.
    """
    plan = kwargs["attention_mask"]
    if not isinstance(plan, DividedPlan):
        return args, kwargs
    (num_tokens,) = plan.shape
    start, end = plan.group.stretch(num_tokens)
    missing = plan.group.size * (end - start) - num_tokens
    embeddings = F.pad(kwargs["inputs_embeds"], (0, 0, 0, missing))
    positions = F.pad(kwargs["position_ids"], (0, missing))
    changed: dict[str, Any] = {
        "inputs_embeds": embeddings[:, start:end],
        "position_ids": positions[..., start:end],
    }
    # Qwen3-VL adds further features of images to the first layers ("deepstack").
    is_image_token = kwargs.get("visual_pos_masks")
    if is_image_token is not None:
        padded = F.pad(is_image_token, (0, missing))
        changed["visual_pos_masks"] = padded[:, start:end]
        first = int(is_image_token[:, :start].sum())
        last = int(is_image_token[:, :end].sum())
        changed["deepstack_visual_embeds"] = [
            features[first:last] for features in kwargs["deepstack_visual_embeds"]
        ]
    return args, {**kwargs, **changed}


def _gather_hidden_states(
    language_model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
) -> Any:
    """Return the output of the language model with the hidden states of a divided row's tokens."""
    plan = kwargs["attention_mask"]
    if isinstance(plan, DividedPlan):
        (num_tokens,) = plan.shape
        stretch = output.last_hidden_state[0]
        output.last_hidden_state = plan.group.gather_stretches(stretch, num_tokens)[None]
    return output
