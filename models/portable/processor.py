"""Functions that turn conversations into the tensors of a padded batch, exactly as in training.

This file is saved with every checkpoint that has a reward head, so it imports torch, transformers
and Pillow alone.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedConfig, ProcessorMixin

# Relative, because these files are saved too.
from .conversations import ConversationError, Picture, read_conversation, refuse_markers
from .decoding import upright_rgb
from .images import images_of

BROKEN = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    LookupError,
    TypeError,
    OverflowError,
    struct.error,
    zlib.error,
)
"""Errors that Pillow's readers raise for damaged files."""
HUB_ARGUMENTS = ("revision", "token", "cache_dir", "local_files_only")
"""Arguments of `from_pretrained` that choose the files of a hub id."""


class RewardProcessor(ProcessorMixin):  # type: ignore[misc]
    """Tokenizer and image processor of a reward model.

    `AutoProcessor.from_pretrained(folder, trust_remote_code=True)` returns it. Images go through
    the PIL processor, as in training, which needs no torchvision.
    """

    def __init__(self, image_processor: Any = None, tokenizer: Any = None, **kwargs: Any) -> None:
        super().__init__(image_processor, tokenizer, chat_template=tokenizer.chat_template)

    @classmethod
    def from_pretrained(cls, path: Any, **kwargs: Any) -> Any:
        """Load the tokenizer and the image processor from a checkpoint folder or hub id.

        Args:
            path: The folder or hub id.
            kwargs: As in transformers. All but those of HUB_ARGUMENTS are ignored.
        """
        hub_arguments = {name: kwargs[name] for name in HUB_ARGUMENTS if name in kwargs}
        settings, _ = PreTrainedConfig.get_config_dict(path, **hub_arguments)
        image_processor_class = images_of(settings["model_type"]).processor
        return cls(
            image_processor_class.from_pretrained(path, **hub_arguments),
            AutoTokenizer.from_pretrained(path, **hub_arguments),
        )


class TokenisedRow(NamedTuple):
    """The tokens of a whole conversation before padding."""

    ids: list[int]
    is_response: list[int]
    """1 for each token of the response, else 0."""


def padded_batch(
    config: Any, processor: Any, messages: Any, responses: Sequence[str], images: Iterable[Any] = ()
) -> dict[str, Tensor]:
    """Return the model's arguments for scoring responses to a prompt, one padded row for each.

    The tensors are on the CPU.

    Args:
        config: The model's configuration.
        processor: Has a `tokenizer` and an `image_processor`.
        messages: The prompt, in one of the forms of `read_conversation`.
        responses: One text for each row.
        images: Images of the prompt that are not inside `messages`.

    Returns:
        `input_ids`, `attention_mask` and `response_mask`, (rows, length) int64 each, padded on the
        right, and the arguments of the images, repeated for each row.

    Raises:
        ConversationError: The conversation cannot be scored, an image cannot be read, or a text
            contains a control token of the tokenizer.
    """
    turns, pictures = read_conversation(messages, images)
    refuse_markers(responses)
    if config.system_prompt is not None and turns[0]["role"] != "system":
        content = [{"type": "text", "text": config.system_prompt}]
        turns.insert(0, {"role": "system", "content": content})
    tokenizer = processor.tokenizer
    _refuse_control_tokens(tokenizer, turns, responses)

    image_arguments: dict[str, Tensor] = {}
    image_lengths: list[int] = []
    if pictures:
        try:
            opened_images = [upright(picture) for picture in pictures]
        except BROKEN as error:
            raise ConversationError(f"an image cannot be read: {error}") from error
        processed = processor.image_processor(images=opened_images, return_tensors="pt")
        image_rules = images_of(config.model_type)
        image_arguments = image_rules.model_inputs(processed)
        image_lengths = image_rules.token_counts(config, processed)

    opening = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    rows = []
    for response in responses:
        rows.append(_tokenise(config, tokenizer, opening, turns, response, image_lengths))
    length = max(len(row.ids) for row in rows)
    shape = (len(rows), length)
    input_ids = torch.zeros(shape, dtype=torch.long)
    attention_mask = torch.zeros(shape, dtype=torch.long)
    response_mask = torch.zeros(shape, dtype=torch.long)
    for index, row in enumerate(rows):
        num_tokens = len(row.ids)
        input_ids[index, :num_tokens] = torch.tensor(row.ids)
        attention_mask[index, :num_tokens] = 1
        response_mask[index, :num_tokens] = torch.tensor(row.is_response)
    batch = {
        "input_ids": input_ids,
        "attention_mask": attention_mask,
        "response_mask": response_mask,
    }
    for name, value in image_arguments.items():
        batch[name] = torch.cat([value] * len(rows))
    return batch


def _refuse_control_tokens(
    tokenizer: Any, turns: Sequence[dict[str, Any]], responses: Sequence[str]
) -> None:
    """Raise ConversationError if a text contains a special token of the tokenizer."""
    texts = []
    for turn in turns:
        parts = [part["text"] for part in turn["content"] if part["type"] == "text"]
        texts.append("".join(parts))
    special_tokens = [
        token.content for token in tokenizer.added_tokens_decoder.values() if token.special
    ]
    for content in (*texts, *responses):
        for token in special_tokens:
            if token in content:
                raise ConversationError(
                    f"a text contains {token!r}, which the tokenizer reads as a control token: "
                    "remove it"
                )


def upright(image: Picture) -> Image.Image:
    """Return an image opened, upright and in RGB, as in training.

    Raises:
        OSError: A path is not a regular file, or the file is damaged; for damaged files Pillow
            raises any of `BROKEN`.
    """
    if isinstance(image, Image.Image):
        return upright_rgb(image)
    if isinstance(image, Path) and not image.is_file():
        # Reading a FIFO or a device may never end.
        raise OSError(f"{image} is no regular file")
    with Image.open(io.BytesIO(image) if isinstance(image, bytes) else image) as opened:
        return upright_rgb(opened)


def _tokenise(
    config: Any,
    tokenizer: Any,
    opening: str,
    turns: list[dict[str, Any]],
    response: str,
    image_lengths: Sequence[int],
) -> TokenisedRow:
    """Return the tokens of a conversation whose last turn is `response`.

    Args:
        config: The model's configuration.
        tokenizer: The tokenizer, with its chat template.
        opening: The rendered turns, up to where the assistant begins to write.
        turns: The turns before the response.
        response: The assistant's text.
        image_lengths: Number of tokens of each image. The one image token in the text is repeated
            as often. Start and end tokens are put around it if the chat template writes none.

    Raises:
        ConversationError: The chat template changes the texts, or there are more or fewer image
            tokens in the text than images.
    """
    answer = {"role": "assistant", "content": [{"type": "text", "text": response}]}
    rendered = tokenizer.apply_chat_template([*turns, answer], tokenize=False)
    if not rendered.startswith(opening + response):
        raise ConversationError(
            "the chat template rewrites earlier turns or the response, so its tokens cannot be "
            "found; use the checkpoint's own template"
        )
    if config.reward_head["read"] != "last_token":
        rendered = rendered.rstrip("\n")
    tokenised = tokenizer(rendered, add_special_tokens=False, return_offsets_mapping=True)
    num_places = tokenised["input_ids"].count(config.image_token_id)
    if num_places != len(image_lengths):
        raise ConversationError(
            f"{len(image_lengths)} images, but {num_places} image places in the text of the "
            "conversation; required is one place for each image"
        )

    response_start = len(opening)
    response_end = response_start + len(response)
    remaining_lengths = iter(image_lengths)
    marks = tokenizer.convert_tokens_to_ids(list(images_of(config.model_type).marks))
    ids: list[int] = []
    is_response: list[int] = []
    for token, (start, end) in zip(
        tokenised["input_ids"], tokenised["offset_mapping"], strict=True
    ):
        tokens = [token]
        if token == config.image_token_id:
            tokens = [*marks[:1], *[token] * next(remaining_lengths), *marks[1:]]
        ids += tokens
        overlaps_response = end > response_start and start < response_end
        is_response += [int(overlaps_response)] * len(tokens)
    return TokenisedRow(ids, is_response)
