"""The critic: a backbone with an LM head, which writes critiques, and a reward head, which scores.

This file is saved with every checkpoint as its remote code, together with the files that it imports
relatively. In another project, load it with `AutoModelForImageTextToText.from_pretrained(folder,
trust_remote_code=True)`. `generate` then writes critiques, and `score` scores responses with given
critiques.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .language_model import (
    Cosmos3EdgeLanguageModel,
    Glm4vLanguageModel,
    InternVLLanguageModel,
    LabelModel,
    LanguageModel,
    Qwen2VLLanguageModel,
    Qwen3_5LanguageModel,
    Qwen3VLLanguageModel,
    Qwen3VLMoeLanguageModel,
    VideoLlama3LanguageModel,
)
from .reward import RewardHead, mean_by_owner, pooled


class Critic(LabelModel):
    """A backbone with an LM head and a reward head; the base of the classes of all families.

    `config.reward_head` describes the reward head, as in `ScalarReward`. It computes one score,
    from the hidden state at the end of the critique's turn.
    """

    # `save_pretrained` therefore copies this file and names it in config.json.
    _auto_class = "AutoModelForImageTextToText"

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.head = RewardHead(config)
        self.post_init()

    def packed_or_stock_forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute a packed row with both heads, or run the language model as `LabelModel` does.

        An input with `read_positions` is a packed row for both heads. Besides the backbone's
        arguments it has `read_positions` and `read_owners` (R,), `label_positions` and `labels`
        (L,), all int64, and the number of `continuations`. The result is then scores
        (continuations,) fp32, and log-probabilities of the labels (L,) fp32.
        """
        if "read_positions" not in kwargs:
            return super().packed_or_stock_forward(*args, **kwargs)
        read_positions = kwargs.pop("read_positions")
        read_owners = kwargs.pop("read_owners")
        num_continuations = kwargs.pop("continuations")
        label_positions = kwargs.pop("label_positions")
        labels = kwargs.pop("labels")
        hidden = self.model(**kwargs).last_hidden_state[0]
        pooled_hidden = mean_by_owner(hidden, read_positions, read_owners, num_continuations)
        scores = self.scores(pooled_hidden)
        log_probabilities = self.lm_head(hidden[label_positions], labels)
        return scores, log_probabilities

    def scores(self, hidden: Tensor) -> Tensor:
        """Map pooled hidden states (C, hidden) to scores (C,) fp32."""
        scores: Tensor = self.head(hidden)
        return scores[:, 0]

    def score(self, input_ids: Tensor, attention_mask: Tensor, **images: Any) -> Tensor:
        """Return the scores (B,) fp32 of a padded batch of whole conversations.

        A conversation consists of a prompt, a response, the request for a critique, and the
        critique.

        Args:
            input_ids: (B, T), as the chat template writes the conversations.
            attention_mask: (B, T), 0 on padding.
            images: `pixel_values` and `image_grid_thw` as the stock processor returns them.

        Raises:
            ValueError: The batch cannot be scored: see `read_mask` and `refuse_wrong_images`.
        """
        return self.scores(pooled(self, input_ids, attention_mask, **images))


class CriticRewardModel(Critic, LanguageModel):
    """The critic on Qwen2.5-VL; older checkpoints have this name, without the family."""


class Qwen2VLCriticRewardModel(Critic, Qwen2VLLanguageModel):
    """The critic on Qwen2-VL."""


class Qwen3VLCriticRewardModel(Critic, Qwen3VLLanguageModel):
    """The critic on Qwen3-VL."""


class Qwen3VLMoeCriticRewardModel(Critic, Qwen3VLMoeLanguageModel):
    """The critic on Qwen3-VL with experts."""


class Qwen3_5CriticRewardModel(Critic, Qwen3_5LanguageModel):
    """The critic on Qwen3.5, dense."""


class InternVLCriticRewardModel(Critic, InternVLLanguageModel):
    """The critic on InternVL."""


class VideoLlama3CriticRewardModel(Critic, VideoLlama3LanguageModel):
    """The critic on VideoLLaMA3."""


class Glm4vCriticRewardModel(Critic, Glm4vLanguageModel):
    """The critic on GLM-4.1V."""


class Cosmos3EdgeCriticRewardModel(Critic, Cosmos3EdgeLanguageModel):
    """The critic on Cosmos3-Edge."""
