"""The scalar reward model: a Qwen2.5-VL backbone and a small head that turns hidden states into a score.

This file travels with every checkpoint as its remote code, and the decoder of images with it, so it imports torch and
transformers and nothing else.
Elsewhere, `AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True)` runs it.
"""

from __future__ import annotations

import inspect
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel, Qwen2_5_VLConfig, Qwen2_5_VLModel, Qwen2_5_VLPreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from .decoding import upright_rgb  # relative, because that file travels too

RELEASED_LAYOUT = {r"^visual": "model.visual", r"^model(?!\.(language_model|visual))": "model.language_model"}
"""Names in the released Qwen2.5-VL checkpoints -> names in the current classes; current names pass unchanged."""

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "none": nn.Identity,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}


class IncompleteCheckpointError(ValueError):
    """A checkpoint whose tensors are not exactly the model's."""


def refuse_incomplete(path: Any, info: dict[str, Any], fresh: str | None = None) -> None:
    """Raise `IncompleteCheckpointError` unless every tensor was loaded and every tensor on disk was used.

    `info` is transformers' loading report; `fresh` is the prefix of the parameters that may be newly initialised.
    """
    missing = sorted(key for key in info["missing_keys"] if fresh is None or not key.startswith(fresh))
    surplus = sorted(info["unexpected_keys"])
    shapes = sorted(str(key) for key in info["mismatched_keys"])
    lines = [
        f"  {len(keys)} {what}: {', '.join(keys[:5])}{' ...' if len(keys) > 5 else ''}"
        for what, keys in (("missing", missing), ("unexpected", surplus), ("of another shape", shapes))
        if keys
    ]
    if lines:
        raise IncompleteCheckpointError(
            f"{path} does not hold exactly this model's tensors; nothing was trained or scored with it.\n"
            + "\n".join(lines)
            + "\nA model with such gaps would run with random weights. Use a complete Qwen2.5-VL checkpoint "
            "(or a checkpoint of this project, whose config.json names its reward head)."
        )


class CompleteCheckpoint(PreTrainedModel):  # type: ignore[misc]
    """Loads a checkpoint completely or not at all, and writes it in the current key layout only.

    The second half matters on resume: what is saved in the released layout, a plain `load_state_dict` skips silently.
    """

    decode = staticmethod(upright_rgb)
    """How training and evaluation decode: what `Image.open` gives becomes upright RGB, for the image processor."""

    @classmethod
    def from_pretrained(
        cls, path: Any, *args: Any, fresh_head: bool = False, output_loading_info: bool = False, **kwargs: Any
    ) -> Any:
        """Load as transformers does; with `fresh_head` the head, and nothing else, may be newly initialised.

        Raises IncompleteCheckpointError naming the tensors that are missing, unexpected or of another shape.
        """
        kwargs.setdefault("key_mapping", RELEASED_LAYOUT)
        kwargs["ignore_mismatched_sizes"] = True  # reported by us, with the missing ones, instead of one by one
        model, info = super().from_pretrained(path, *args, output_loading_info=True, **kwargs)
        refuse_incomplete(path, info, "head." if fresh_head else None)
        return (model, info) if output_loading_info else model

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise as transformers does, except that a new reward head starts at zero."""
        if isinstance(module, ScoreLinear):
            nn.init.zeros_(module.weight)
        else:
            super()._init_weights(module)

    def save_pretrained(self, save_directory: Any, *args: Any, save_original_format: bool = False, **kwargs: Any) -> None:
        """Save as transformers does, in the current key layout whatever the layout that was loaded."""
        super().save_pretrained(save_directory, *args, save_original_format=save_original_format, **kwargs)
        if self._auto_class is not None:  # transformers copies our `decoding.py`, which only names where the decoder lies
            shutil.copyfile(inspect.getfile(upright_rgb), Path(save_directory, "decoding.py"))


class Fp32Linear(nn.Linear):
    """A linear layer that computes in fp32 whatever its storage, the input or an autocast around it."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in) of any float dtype to (..., out) fp32."""
        with torch.autocast(x.device.type, enabled=False):
            bias = None if self.bias is None else self.bias.float()
            return F.linear(x.float(), self.weight.float(), bias)


class ScoreLinear(Fp32Linear):
    """The head's last layer. It starts at zero, so every score is 0 and every pair a tie before anything was learned.

    A random layer would lean to one side by luck of its seed (ours; the papers do not say how they start).
    It has no bias: a Bradley-Terry loss sees differences of scores only and would give it no gradient.
    """

    def __init__(self, features: int) -> None:
        super().__init__(features, 1, bias=False)


class RewardHead(nn.Sequential):
    """Hidden states to scores: `layers` linear layers with an activation between them, in fp32."""

    def __init__(self, features: int, layers: int, activation: str, width: int | None, dropout: float) -> None:
        hidden = width or features
        parts: list[nn.Module] = []
        for i in range(layers - 1):
            parts += [Fp32Linear(hidden if i else features, hidden), ACTIVATIONS[activation](), nn.Dropout(dropout)]
        super().__init__(*parts, ScoreLinear(hidden if layers > 1 else features))


class ScalarRewardModel(CompleteCheckpoint, Qwen2_5_VLPreTrainedModel):  # type: ignore[misc]
    """Backbone and reward head. `config.reward_head` holds `layers, activation, width, dropout, read`."""

    _keys_to_ignore_on_load_unexpected = (r"^lm_head\.",)  # the 7B backbone brings one; a score has no use for it
    _auto_class = "AutoModelForSequenceClassification"  # so `save_pretrained` copies this file and names it in config.json

    def __init__(self, config: Qwen2_5_VLConfig) -> None:
        super().__init__(config)
        shape = {name: value for name, value in config.reward_head.items() if name != "read"}
        self.model = Qwen2_5_VLModel(config)
        self.head = RewardHead(config.text_config.hidden_size, **shape)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Any = None,
        pixel_values: Tensor | None = None,
        image_grid_thw: Tensor | None = None,
        response_mask: Tensor | None = None,
        read_positions: Tensor | None = None,
        read_owners: Tensor | None = None,
        continuations: int = 0,
        **backbone: Any,
    ) -> Tensor | SequenceClassifierOutput:
        """Score a packed row, or a padded batch of whole conversations.

        Packed (`read_positions`, `read_owners` (R,) given; see the batch that this project packs): `input_ids` is
        (1, T); returns scores (continuations,) fp32, each the head's value of the mean hidden state of its reads.

        Padded (remote users): `input_ids` and `attention_mask` (B, T), padded on either side, each conversation ending
        with its end-of-turn token and nothing after it (the chat template's last newline stripped); `pixel_values` and
        `image_grid_thw` as the stock processor gives them. Returns logits (B, 1) fp32. A head that reads the mean
        needs `response_mask` (B, T), 1 on the response's own tokens, and raises ValueError without it.
        """
        backbone.setdefault("use_cache", False)
        if read_positions is None:
            backbone.setdefault("mm_token_type_ids", self._token_kinds(input_ids))
        hidden = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            pixel_values=pixel_values,
            image_grid_thw=image_grid_thw,
            **backbone,
        ).last_hidden_state
        if read_positions is not None and read_owners is not None:
            return self.scores(mean_by_owner(hidden[0], read_positions, read_owners, continuations))
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        pooled = pool(hidden, mask, response_mask, self.config.reward_head["read"])
        return SequenceClassifierOutput(logits=self.scores(pooled)[:, None])

    def scores(self, pooled: Tensor) -> Tensor:
        """Map pooled hidden states (C, hidden) to scores (C,) fp32."""
        scores: Tensor = self.head(pooled).squeeze(-1)
        return scores

    def _token_kinds(self, input_ids: Tensor) -> Tensor:
        """0 for text, 1 for an image, 2 for a video: without it the stock model silently counts positions in 1-D."""
        images, videos = (input_ids == kind for kind in (self.config.image_token_id, self.config.video_token_id))
        kinds: Tensor = images.int() + 2 * videos.int()
        return kinds


def mean_by_owner(hidden: Tensor, positions: Tensor, owners: Tensor, count: int) -> Tensor:
    """Mean over each owner's positions: hidden (T, H), positions and owners (R,); returns (count, H) fp32."""
    total = hidden.new_zeros(count, hidden.shape[1], dtype=torch.float32).index_add(0, owners, hidden[positions].float())
    reads = torch.zeros(count, device=hidden.device).index_add(0, owners, torch.ones_like(owners, dtype=torch.float32))
    return total / reads[:, None]


def pool(hidden: Tensor, mask: Tensor, response: Tensor | None, read: str) -> Tensor:
    """Read (B, H) from padded hidden states (B, T, H)."""
    if read == "mean":
        if response is None:
            raise ValueError("this reward head reads the mean over the response: pass `response_mask`, 1 on its tokens")
        weights = response[..., None].float()
        return (hidden.float() * weights).sum(1) / weights.sum(1)
    last = (mask * torch.arange(mask.shape[1], device=mask.device)).argmax(1)
    last = last - 1 if read == "last_token" else last
    pooled: Tensor = hidden[torch.arange(len(hidden), device=hidden.device), last]
    return pooled
