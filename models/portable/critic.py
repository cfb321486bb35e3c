"""The critic: a backbone with both heads. The LM head writes a critique of a response, the reward head scores after it.

This file travels with every checkpoint as its remote code, and with it the files that it imports.
Elsewhere, `AutoModelForImageTextToText.from_pretrained(folder, trust_remote_code=True)` runs it: `generate` writes critiques,
`score` scores given ones.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .language_model import (
    InternVLLanguageModel,
    LabelModel,
    LanguageModel,
    Qwen2VLLanguageModel,
    Qwen3VLLanguageModel,
    VideoLlama3LanguageModel,
)
from .reward import RewardHead, mean_by_owner, pooled


class Critic(LabelModel):
    """Backbone, LM head and reward head. `config.reward_head` is the scalar model's; `read` is the end of the critique's turn."""

    _auto_class = "AutoModelForImageTextToText"  # so `save_pretrained` copies this file and names it in config.json

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.head = RewardHead(config)
        self.post_init()

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the language model; with read positions and labels of a packed row return both of its views in one pass.

        Packed (`read_positions`, `read_owners` (R,), `label_positions`, `labels` (L,), `continuations` given): returns
        (scores (continuations,) fp32, log-probabilities of the labels (L,) fp32).
        """
        if "read_positions" not in kwargs:
            return super().run(*args, **kwargs)
        reads, owners, count = (
            kwargs.pop(name) for name in ("read_positions", "read_owners", "continuations")
        )
        positions, labels = kwargs.pop("label_positions"), kwargs.pop("labels")
        hidden = self.model(**kwargs).last_hidden_state[0]
        return self.scores(mean_by_owner(hidden, reads, owners, count)), self.lm_head(
            hidden[positions], labels
        )

    def scores(self, hidden: Tensor) -> Tensor:
        """Map pooled hidden states (C, hidden) to scores (C,) fp32."""
        scores: Tensor = self.head(hidden)
        return scores[:, 0]

    def score(self, input_ids: Tensor, attention_mask: Tensor, **images: Any) -> Tensor:
        """Score a padded batch of whole conversations `prompt, response, request, critique`, (B, T), as the template writes them.

        `images` are `pixel_values` and `image_grid_thw` as the stock processor gives them. Returns scores (B,) fp32.
        Raises ValueError for what cannot be scored: see `reads` and `refuse_wrong_images`.
        """
        return self.scores(pooled(self, input_ids, attention_mask, **images))


class CriticRewardModel(Critic, LanguageModel):
    """On Qwen2.5-VL; the name is that of older checkpoints."""


class Qwen2VLCriticRewardModel(Critic, Qwen2VLLanguageModel):
    """On Qwen2-VL."""


class Qwen3VLCriticRewardModel(Critic, Qwen3VLLanguageModel):
    """On Qwen3-VL."""


class InternVLCriticRewardModel(Critic, InternVLLanguageModel):
    """On InternVL."""


class VideoLlama3CriticRewardModel(Critic, VideoLlama3LanguageModel):
    """On VideoLLaMA3."""
