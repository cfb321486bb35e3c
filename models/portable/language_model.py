"""The stock language model, which also computes log-probabilities of the labels of a packed row.

Labels are the tokens whose log-probabilities are wanted. Logits over the vocabulary are computed
only at their positions and for one chunk of labels at a time, so neither forward nor backward holds
(tokens x vocabulary) numbers. A saved model is an ordinary checkpoint of its backbone's family.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import (
    Cosmos3EdgeForConditionalGeneration,
    Glm4vForConditionalGeneration,
    InternVLForConditionalGeneration,
    PreTrainedModel,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLForConditionalGeneration,
    Qwen3_5ForConditionalGeneration,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeForConditionalGeneration,
    VideoLlama3ForConditionalGeneration,
)

from .images import images_of, refuse_wrong_images  # relative: saved with a critic
from .reward import (
    EXPERT_WEIGHTS,
    MULTI_TOKEN_PREDICTION,
    RELEASED_CURRENT,
    RELEASED_TILES,
    CompleteCheckpoint,
)

CHUNK = 1024
"""Number of labels whose logits exist at one time: 1024 x 152,064 numbers in fp32 are 0.6 GB."""


class LabelHead(nn.Linear):
    """An LM head that can also return log-probabilities of given labels without keeping logits.

    Labels are divided into chunks, whose logits are computed one after another. All chunks are
    computed in one forward of the module that owns the weight, so that ZeRO-3 gathers the weight
    once.
    """

    def forward(
        self, hidden: Tensor, labels: Tensor | None = None, temperature: float = 1.0
    ) -> Tensor:
        """Return logits, or the log-probabilities of `labels` if these are given.

        Args:
            hidden: (..., H), or (L, H) with labels.
            labels: (L,) int64.
            temperature: The log-probabilities are those of sampling at this temperature.

        Returns:
            Logits (..., vocabulary), or log-probabilities (L,) fp32.
        """
        if labels is None:
            return super().forward(hidden)
        if len(labels) <= CHUNK:
            return self._log_probabilities(hidden, labels, temperature)
        log_probabilities = []
        chunks = zip(torch.split(hidden, CHUNK), torch.split(labels, CHUNK), strict=True)
        for hidden_chunk, label_chunk in chunks:
            log_probabilities.append(
                # The logits of a chunk are computed again in the backward pass instead of kept.
                checkpoint(
                    self._log_probabilities,
                    hidden_chunk,
                    label_chunk,
                    temperature,
                    use_reentrant=False,
                )
            )
        return torch.cat(log_probabilities)

    def _log_probabilities(self, hidden: Tensor, labels: Tensor, temperature: float) -> Tensor:
        """Return the log-probability of each label, (L,) fp32, for hidden states (L, H)."""
        logits = super().forward(hidden).float() / temperature
        return -nn.functional.cross_entropy(logits, labels, reduction="none")


class LabelModel(CompleteCheckpoint):
    """A language model with a `LabelHead` as LM head; the base of the classes of all families.

    A family's class also inherits from the stock class, whose `generate` and padded forward it
    keeps.
    """

    _keys_to_ignore_on_load_unexpected: tuple[str, ...] = ()

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.lm_head = LabelHead(
            config.text_config.hidden_size, config.text_config.vocab_size, bias=False
        )
        self.post_init()

    def packed_or_stock_forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the log-probabilities of a packed row's labels, or run the stock forward.

        An input with `label_positions` is a packed row. Besides the backbone's arguments it has
        `label_positions` and `labels`, (L,) int64 each, and possibly `temperature` (1 by default).
        The result is then (L,) fp32: the log-probability of each label in sampling at that
        temperature.

        Raises:
            ValueError: In the stock forward, images do not fit their placeholders, or a video is
                given.
        """
        if "label_positions" not in kwargs:
            return super().forward(*args, **self._with_kinds(args, kwargs))
        label_positions = kwargs.pop("label_positions")
        labels = kwargs.pop("labels")
        temperature = kwargs.pop("temperature", 1.0)
        hidden = self.model(**kwargs).last_hidden_state[0]
        return self.lm_head(hidden[label_positions], labels, temperature)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Generate text as the stock model does.

        Raises:
            ValueError: Images do not fit their placeholders, or a video is given.
        """
        return super().generate(*args, **self._with_kinds(args, kwargs))

    def _with_kinds(self, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Check the images of a padded batch, and return `kwargs` with the kind of each token.

        The kind is text or image. `generate` calls the model again with inputs that were checked
        before: with encoded images, then with cached tokens. These are returned unchanged.

        Args:
            args: Positional arguments of the model or of `generate`; the first is the token ids.
            kwargs: Keyword arguments of the model or of `generate`.
        """
        input_ids = args[0] if args else kwargs.get("inputs", kwargs.get("input_ids"))
        cache = kwargs.get("past_key_values")
        has_cached_tokens = cache is not None and cache.get_seq_length() > 0
        has_encoded_images = bool(kwargs.get("mm_encoder_outputs"))
        if input_ids is None or has_encoded_images or has_cached_tokens:
            return kwargs
        refuse_wrong_images(self.config, **{**kwargs, "input_ids": input_ids})
        token_kinds = images_of(self.config.model_type).token_kinds(self.config, input_ids)
        return {**token_kinds, **kwargs}


def forward_of(stock: type[PreTrainedModel]) -> Callable[..., Any]:
    """Return a `forward` for a class derived from `LabelModel` and the class `stock`.

    It calls `packed_or_stock_forward` and has the signature of the stock forward, from which
    `generate` reads the arguments that the model takes.
    """

    @functools.wraps(stock.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.packed_or_stock_forward(*args, **kwargs)

    return forward


class LanguageModel(LabelModel, Qwen2_5_VLForConditionalGeneration):  # type: ignore[misc]
    """The language model on Qwen2.5-VL."""

    forward = forward_of(Qwen2_5_VLForConditionalGeneration)


class Qwen2VLLanguageModel(LabelModel, Qwen2VLForConditionalGeneration):  # type: ignore[misc]
    """The language model on Qwen2-VL."""

    forward = forward_of(Qwen2VLForConditionalGeneration)


class Qwen3VLLanguageModel(LabelModel, Qwen3VLForConditionalGeneration):  # type: ignore[misc]
    """The language model on Qwen3-VL."""

    forward = forward_of(Qwen3VLForConditionalGeneration)


class Qwen3VLMoeLanguageModel(
    LabelModel,
    Qwen3VLMoeForConditionalGeneration,  # type: ignore[misc]
):
    """The language model on Qwen3-VL with experts."""

    forward = forward_of(Qwen3VLMoeForConditionalGeneration)
    released_layout = RELEASED_CURRENT
    expert_weights = EXPERT_WEIGHTS


class Qwen3_5LanguageModel(LabelModel, Qwen3_5ForConditionalGeneration):  # type: ignore[misc]
    """The language model on Qwen3.5, dense."""

    forward = forward_of(Qwen3_5ForConditionalGeneration)
    released_layout = RELEASED_CURRENT
    _keys_to_ignore_on_load_unexpected = (MULTI_TOKEN_PREDICTION,)


class InternVLLanguageModel(LabelModel, InternVLForConditionalGeneration):  # type: ignore[misc]
    """The language model on InternVL."""

    forward = forward_of(InternVLForConditionalGeneration)
    released_layout = RELEASED_TILES


class VideoLlama3LanguageModel(
    LabelModel,
    VideoLlama3ForConditionalGeneration,  # type: ignore[misc]
):
    """The language model on VideoLLaMA3."""

    forward = forward_of(VideoLlama3ForConditionalGeneration)
    released_layout = RELEASED_CURRENT


class Glm4vLanguageModel(LabelModel, Glm4vForConditionalGeneration):  # type: ignore[misc]
    """The language model on GLM-4.1V."""

    forward = forward_of(Glm4vForConditionalGeneration)
    released_layout = RELEASED_CURRENT


class Cosmos3EdgeLanguageModel(
    LabelModel,
    Cosmos3EdgeForConditionalGeneration,  # type: ignore[misc]
):
    """The language model on Cosmos3-Edge."""

    forward = forward_of(Cosmos3EdgeForConditionalGeneration)
    released_layout = RELEASED_CURRENT


# config.json of a saved model names its class. Other projects load the stock class.
LanguageModel.__name__ = Qwen2_5_VLForConditionalGeneration.__name__
Qwen2VLLanguageModel.__name__ = Qwen2VLForConditionalGeneration.__name__
Qwen3VLLanguageModel.__name__ = Qwen3VLForConditionalGeneration.__name__
Qwen3VLMoeLanguageModel.__name__ = Qwen3VLMoeForConditionalGeneration.__name__
Qwen3_5LanguageModel.__name__ = Qwen3_5ForConditionalGeneration.__name__
InternVLLanguageModel.__name__ = InternVLForConditionalGeneration.__name__
VideoLlama3LanguageModel.__name__ = VideoLlama3ForConditionalGeneration.__name__
Glm4vLanguageModel.__name__ = Glm4vForConditionalGeneration.__name__
Cosmos3EdgeLanguageModel.__name__ = Cosmos3EdgeForConditionalGeneration.__name__
