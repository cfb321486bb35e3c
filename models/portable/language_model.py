"""The stock language model with one more way to call it: log-probabilities of the labels of a packed row.

Vocabulary logits exist for a chunk of labels at a time and only at label positions; neither forward nor backward holds
(tokens x vocabulary). Saved, it is an ordinary checkpoint of its backbone's family.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import (
    InternVLForConditionalGeneration,
    PreTrainedModel,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLForConditionalGeneration,
    Qwen3VLForConditionalGeneration,
    VideoLlama3ForConditionalGeneration,
)

from .images import images_of, refuse_wrong_images  # relative: this file travels with a critic
from .reward import RELEASED_CURRENT, RELEASED_TILES, CompleteCheckpoint

CHUNK = 1024
"""Labels whose logits exist at one time: 1024 x 152,064 in fp32 are 0.6 GB."""


class LabelHead(nn.Linear):
    """An LM head that can also return the log-probabilities of given labels without keeping the logits.

    Everything happens inside one forward of the module that owns the weight, so that ZeRO-3 gathers it once for all chunks.
    """

    def forward(
        self, hidden: Tensor, labels: Tensor | None = None, temperature: float = 1.0
    ) -> Tensor:
        """Return logits (..., vocabulary), or with `labels` (L,) of `hidden` (L, H) their log-probabilities (L,) fp32.

        The log-probabilities are those of sampling at `temperature`.
        """
        if labels is None:
            return super().forward(hidden)
        if len(labels) <= CHUNK:
            return self._log_probabilities(hidden, labels, temperature)
        chunks = zip(torch.split(hidden, CHUNK), torch.split(labels, CHUNK), strict=True)
        return torch.cat(
            [
                checkpoint(self._log_probabilities, h, y, temperature, use_reentrant=False)
                for h, y in chunks
            ]
        )

    def _log_probabilities(self, hidden: Tensor, labels: Tensor, temperature: float) -> Tensor:
        logits = super().forward(hidden).float() / temperature
        return -nn.functional.cross_entropy(logits, labels, reduction="none")


class LabelModel(CompleteCheckpoint):
    """A stock model with its LM head, whose class follows in a family's own; `generate` and the padded forward are stock."""

    _keys_to_ignore_on_load_unexpected: tuple[str, ...] = ()

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.lm_head = LabelHead(
            config.text_config.hidden_size, config.text_config.vocab_size, bias=False
        )
        self.post_init()

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the stock forward; with `label_positions` and `labels` (L,) return the labels' log-probabilities (L,) fp32.

        `temperature` (1 by default) is that of the sampling whose log-probabilities are asked for. The stock forward raises
        ValueError for images that do not fit their placeholders and for a video.
        """
        if "label_positions" not in kwargs:
            return super().forward(*args, **self._with_kinds(args, kwargs))
        positions, labels = kwargs.pop("label_positions"), kwargs.pop("labels")
        temperature = kwargs.pop("temperature", 1.0)
        hidden = self.model(**kwargs).last_hidden_state[0]
        return self.lm_head(hidden[positions], labels, temperature)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Generate as the stock model does; raises ValueError as `forward` does."""
        return super().generate(*args, **self._with_kinds(args, kwargs))

    def _with_kinds(self, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Check the images of a padded batch, and say what kind each of its tokens is.

        What `generate` has checked, it calls the model with again: with encoded images, then with cached tokens.
        """
        ids = args[0] if args else kwargs.get("inputs", kwargs.get("input_ids"))
        cache = kwargs.get("past_key_values")
        if (
            ids is None
            or kwargs.get("mm_encoder_outputs")
            or (cache is not None and cache.get_seq_length())
        ):
            return kwargs
        refuse_wrong_images(self.config, **{**kwargs, "input_ids": ids})
        return {**images_of(self.config.model_type).kinds(self.config, ids), **kwargs}


def forward_of(stock: type[PreTrainedModel]) -> Callable[..., Any]:
    """Return a forward that is `run` under the stock signature, from which `generate` sees which arguments the model takes."""

    @functools.wraps(stock.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)

    return forward


class LanguageModel(LabelModel, Qwen2_5_VLForConditionalGeneration):  # type: ignore[misc]
    """Qwen2.5-VL."""

    forward = forward_of(Qwen2_5_VLForConditionalGeneration)


class Qwen2VLLanguageModel(LabelModel, Qwen2VLForConditionalGeneration):  # type: ignore[misc]
    """Qwen2-VL."""

    forward = forward_of(Qwen2VLForConditionalGeneration)


class Qwen3VLLanguageModel(LabelModel, Qwen3VLForConditionalGeneration):  # type: ignore[misc]
    """Qwen3-VL."""

    forward = forward_of(Qwen3VLForConditionalGeneration)


class InternVLLanguageModel(LabelModel, InternVLForConditionalGeneration):  # type: ignore[misc]
    """InternVL."""

    forward = forward_of(InternVLForConditionalGeneration)
    released_layout = RELEASED_TILES


class VideoLlama3LanguageModel(LabelModel, VideoLlama3ForConditionalGeneration):  # type: ignore[misc]
    """VideoLLaMA3."""

    forward = forward_of(VideoLlama3ForConditionalGeneration)
    released_layout = RELEASED_CURRENT


# The saved config names the class; to everybody else these are the stock models.
LanguageModel.__name__ = Qwen2_5_VLForConditionalGeneration.__name__
Qwen2VLLanguageModel.__name__ = Qwen2VLForConditionalGeneration.__name__
Qwen3VLLanguageModel.__name__ = Qwen3VLForConditionalGeneration.__name__
InternVLLanguageModel.__name__ = InternVLForConditionalGeneration.__name__
VideoLlama3LanguageModel.__name__ = VideoLlama3ForConditionalGeneration.__name__
