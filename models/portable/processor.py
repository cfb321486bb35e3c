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
from .conversations import (
    ConversationError,
    Picture,
    Response,
    apply_template,
    joined_text,
    read_conversation,
    read_response,
    text_of_image,
    trims_answers,
    with_written_images,
)
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


class ProcessedPicture(NamedTuple):
    """An image as the model takes it."""

    arguments: dict[str, Tensor]
    """The model's keyword arguments for this image alone."""
    num_tokens: int
    """Number of tokens that the image becomes."""


class TokenisedRow(NamedTuple):
    """The tokens of a whole conversation before padding."""

    ids: list[int]
    is_response: list[int]
    """1 for each token of the response, else 0."""


def padded_batch(
    config: Any,
    processor: Any,
    messages: Any,
    responses: Sequence[Response],
    images: Iterable[Any] = (),
) -> dict[str, Tensor]:
    """Return the model's arguments for scoring responses to a prompt, one padded row for each.

    The tensors are on the CPU.

    Args:
        config: The model's configuration.
        processor: Has a `tokenizer` and an `image_processor`.
        messages: The prompt, in one of the forms of `read_conversation`.
        responses: One for each row: texts, or lists of parts of which some are images.
        images: Images of the prompt that are not inside `messages`.

    Returns:
        `input_ids`, `attention_mask` and `response_mask`, (rows, length) int64 each, padded on the
        right, and the arguments of the images: for each row those of the prompt, then those of the
        response.

    Raises:
        ConversationError: The conversation cannot be scored, an image cannot be read, or a text
            contains a control token of the tokenizer.
    """
    read = _read(config, processor, messages, responses, images)
    images_of_rows: list[ProcessedPicture] = []
    rows: list[TokenisedRow] = []
    for answer, images_of_answer in zip(read.answers, read.images_of_answers, strict=True):
        images_of_row = [*read.images_of_prompt, *images_of_answer]
        rows.append(_tokenise(config, processor.tokenizer, read.turns, answer, images_of_row))
        images_of_rows += images_of_row

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
    return batch | _image_arguments(images_of_rows)


def joint_batch(
    config: Any,
    processor: Any,
    messages: Any,
    responses: Sequence[Response],
    images: Iterable[Any] = (),
) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Return the model's arguments for scoring all responses to a prompt in one conversation.

    The responses are successive turns of the assistant. The arguments of this function are those of
    `padded_batch`, and the tensors are on the CPU.

    Returns:
        `input_ids` and `attention_mask`, (1, length) int64 each, with the arguments of the images;
        the positions at which scores are read, (R,) int64; and for each position the number of the
        response that is scored there, (R,) int64.

    Raises:
        ConversationError: As in `padded_batch`.
    """
    read = _read(config, processor, messages, responses, images)
    reads_mean = config.reward_head["read"] == "mean"
    turns = list(read.turns)
    images_so_far = list(read.images_of_prompt)
    read_positions: list[int] = []
    read_owners: list[int] = []
    ids: list[int] = []
    for number, answer in enumerate(read.answers):
        images_so_far += read.images_of_answers[number]
        # The conversation up to this response, which the whole conversation begins with.
        row = _tokenise(config, processor.tokenizer, turns, answer, images_so_far)
        end_of_turn = len(row.ids) - 1
        positions = [end_of_turn]
        if reads_mean:
            positions = [index for index, is_own in enumerate(row.is_response) if is_own]
        if not positions:
            raise ConversationError(
                f"response {number} is empty, and this model reads the tokens of a response: give "
                "a text"
            )
        read_positions += positions
        read_owners += [number] * len(positions)
        ids = row.ids
        turns.append(answer)
    batch = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids)).long()}
    batch |= _image_arguments(images_so_far)
    return batch, torch.tensor(read_positions), torch.tensor(read_owners)


class ReadResponses(NamedTuple):
    """A prompt with responses as a caller gave them, ready to be rendered."""

    turns: list[dict[str, Any]]
    """The turns of the prompt."""
    answers: list[dict[str, Any]]
    """A turn of the assistant with one text for each response."""
    images_of_prompt: list[ProcessedPicture]
    images_of_answers: list[list[ProcessedPicture]]


def _read(
    config: Any,
    processor: Any,
    messages: Any,
    responses: Sequence[Response],
    images: Iterable[Any],
) -> ReadResponses:
    """Return a prompt with responses as turns, and their images as the model takes them.

    The arguments and errors are those of `padded_batch`.
    """
    turns, pictures = read_conversation(messages, images, images_in_answers=True)
    answers = [read_response(number, response) for number, response in enumerate(responses)]
    if config.system_prompt is not None and turns[0]["role"] != "system":
        content = [{"type": "text", "text": config.system_prompt}]
        turns.insert(0, {"role": "system", "content": content})
    tokenizer = processor.tokenizer
    _refuse_control_tokens(tokenizer, [*turns, *(turn for turn, _ in answers)])

    image_text = text_of_image(tokenizer)
    images_of_answers: list[list[ProcessedPicture]] = []
    images_of_prompt = [_processed(config, processor, picture) for picture in pictures]
    for _, pictures_of_answer in answers:
        images_of_answers.append(
            [_processed(config, processor, picture) for picture in pictures_of_answer]
        )
    return ReadResponses(
        turns=[_with_written_images(turn, image_text) for turn in turns],
        answers=[_with_written_images(answer, image_text) for answer, _ in answers],
        images_of_prompt=images_of_prompt,
        images_of_answers=images_of_answers,
    )


def _image_arguments(images: Sequence[ProcessedPicture]) -> dict[str, Tensor]:
    """Return the model's arguments for images, in their order; empty without images."""
    if not images:
        return {}
    arguments: dict[str, Tensor] = {}
    for name in images[0].arguments:
        arguments[name] = torch.cat([image.arguments[name] for image in images])
    return arguments


def _refuse_control_tokens(tokenizer: Any, turns: Sequence[dict[str, Any]]) -> None:
    """Raise ConversationError if a text contains a special token of the tokenizer."""
    special_tokens = [
        token.content for token in tokenizer.added_tokens_decoder.values() if token.special
    ]
    for turn in turns:
        content = joined_text(turn["content"])
        for token in special_tokens:
            if token in content:
                raise ConversationError(
                    f"a text contains {token!r}, which the tokenizer reads as a control token: "
                    "remove it"
                )


def _with_written_images(turn: dict[str, Any], image_text: str) -> dict[str, Any]:
    """Return a turn; one of the assistant with images as one text, in which these are written out.

    Args:
        turn: The turn.
        image_text: The text for an image.
    """
    has_image = any(part["type"] == "image" for part in turn["content"])
    if turn["role"] != "assistant" or not has_image:
        return turn
    content = with_written_images(turn["content"], image_text)
    return {"role": "assistant", "content": [{"type": "text", "text": content}]}


def _processed(config: Any, processor: Any, picture: Picture) -> ProcessedPicture:
    """Return an image as the model takes it.

    Args:
        config: The model's configuration.
        processor: Has an `image_processor`.
        picture: The image.

    Raises:
        ConversationError: The image cannot be read.
    """
    try:
        opened_image = upright(picture)
    except BROKEN as error:
        raise ConversationError(f"an image cannot be read: {error}") from error
    output = processor.image_processor(images=[opened_image], return_tensors="pt")
    image_rules = images_of(config.model_type)
    [num_tokens] = image_rules.token_counts(config, output)
    return ProcessedPicture(image_rules.model_inputs(output), num_tokens)


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
    turns: list[dict[str, Any]],
    answer: dict[str, Any],
    images: Sequence[ProcessedPicture],
) -> TokenisedRow:
    """Return the tokens of a conversation whose last turn is `answer`.

    Args:
        config: The model's configuration.
        tokenizer: The tokenizer, with its chat template.
        turns: The turns before the response.
        answer: The assistant's turn, with one text.
        images: The images of the conversation. The one image token in the text is repeated for each
            token of an image. Start and end tokens are put around it if the chat template writes
            none.

    Raises:
        ConversationError: The chat template changes the texts, or there are more or fewer image
            tokens in the text than images.
    """
    image_lengths = [image.num_tokens for image in images]
    response = joined_text(answer["content"])
    if trims_answers(tokenizer):
        response = response.strip()
    opening = apply_template(tokenizer, turns, open_turn=True)
    rendered = apply_template(tokenizer, [*turns, answer])
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
