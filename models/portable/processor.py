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
    VideoFile,
    joined_text,
    read_conversation,
    read_response,
    text_of_image,
    with_written_images,
)
from .decoding import upright_rgb
from .frame_sampling import FRAMES_OF_PATCH
from .images import PatchGrids, images_of
from .positions import mrope
from .turns import TurnRules, apply_template, trimmed_sides
from .videos import (
    PatchesOfVideo,
    frames_as_images,
    patches_of_video,
    settings_of,
    timestamps,
)

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
VIDEO_TOKEN = "<|video_pad|>"
"""The token of Qwen's tokenizers that stands for a video."""
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
    """An image as the model takes it; a video is an image of several frames, or several images."""

    arguments: dict[str, Tensor]
    """The model's keyword arguments for this image alone."""
    num_tokens: int
    """Number of tokens that the image becomes."""
    temporal_step: float = 1.0
    """Positions from one frame of a video to the next on the frame axis."""

    @property
    def grid(self) -> tuple[int, int, int]:
        """Frames, rows and columns of patches, in a model that takes grids of patches."""
        frames, rows, columns = self.arguments["image_grid_thw"][0].tolist()
        return frames, rows, columns


class ReadMedia(NamedTuple):
    """The images and videos of some turns, as the model takes them."""

    images: list[ProcessedPicture]
    """All images in the order of their places, those of videos included."""
    video_texts: list[str]
    """The text that stands in the place of each video: its times, and an image text for each of its
    images."""


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
    videos: Iterable[Any] = (),
) -> dict[str, Tensor]:
    """Return the model's arguments for scoring responses to a prompt, one padded row for each.

    The tensors are on the CPU.

    Args:
        config: The model's configuration.
        processor: Has a `tokenizer` and an `image_processor`.
        messages: The prompt, in one of the forms of `read_conversation`.
        responses: One for each row: texts, or lists of parts of which some are images or videos.
        images: Images of the prompt that are not inside `messages`.
        videos: Videos of the prompt that are not inside `messages`.

    Returns:
        `input_ids`, `attention_mask` and `response_mask`, (rows, length) int64 each, padded on the
        right, and the arguments of the images: for each row those of the prompt, then those of the
        response. With videos there may also be `position_ids`, (3, rows, length) int64.

    Raises:
        ConversationError: The conversation cannot be scored, an image or a video cannot be read, or
            a text contains a control token of the tokenizer.
    """
    read = _read(config, processor, messages, responses, images, videos)
    images_of_rows: list[list[ProcessedPicture]] = []
    rows: list[TokenisedRow] = []
    for answer, media_of_answer in zip(read.answers, read.media_of_answers, strict=True):
        media = _joined(read.media_of_prompt, media_of_answer)
        rows.append(_tokenise(config, processor.tokenizer, read.turns, answer, media))
        images_of_rows.append(media.images)

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
    batch |= _position_arguments(config, [row.ids for row in rows], images_of_rows)
    return batch | _image_arguments([image for images in images_of_rows for image in images])


def joint_batch(
    config: Any,
    processor: Any,
    messages: Any,
    responses: Sequence[Response],
    images: Iterable[Any] = (),
    videos: Iterable[Any] = (),
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
    read = _read(config, processor, messages, responses, images, videos)
    reads_mean = config.reward_head["read"] == "mean"
    turns = list(read.turns)
    media_so_far = read.media_of_prompt
    read_positions: list[int] = []
    read_owners: list[int] = []
    ids: list[int] = []
    for number, answer in enumerate(read.answers):
        media_so_far = _joined(media_so_far, read.media_of_answers[number])
        # The conversation up to this response, which the whole conversation begins with.
        row = _tokenise(config, processor.tokenizer, turns, answer, media_so_far)
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
    batch |= _position_arguments(config, [ids], [media_so_far.images])
    batch |= _image_arguments(media_so_far.images)
    return batch, torch.tensor(read_positions), torch.tensor(read_owners)


class ReadResponses(NamedTuple):
    """A prompt with responses as a caller gave them, ready to be rendered."""

    turns: list[dict[str, Any]]
    """The turns of the prompt."""
    answers: list[dict[str, Any]]
    """A turn of the assistant with one text for each response."""
    media_of_prompt: ReadMedia
    media_of_answers: list[ReadMedia]


def _read(
    config: Any,
    processor: Any,
    messages: Any,
    responses: Sequence[Response],
    images: Iterable[Any],
    videos: Iterable[Any],
) -> ReadResponses:
    """Return a prompt with responses as turns, with images and videos as the model takes them.

    The arguments and errors are those of `padded_batch`.
    """
    conversation = read_conversation(messages, images, videos, media_in_answers=True)
    turns = conversation.turns
    read_answers = [read_response(number, response) for number, response in enumerate(responses)]
    if config.system_prompt is not None and turns[0]["role"] != "system":
        content = [{"type": "text", "text": config.system_prompt}]
        turns.insert(0, {"role": "system", "content": content})
    _refuse_control_tokens(processor.tokenizer, [*turns, *(answer.turn for answer in read_answers)])

    turns, media_of_prompt = _with_media(
        config, processor, turns, conversation.images, conversation.videos
    )
    answers: list[dict[str, Any]] = []
    media_of_answers: list[ReadMedia] = []
    for read_answer in read_answers:
        [answer], media = _with_media(
            config, processor, [read_answer.turn], read_answer.images, read_answer.videos
        )
        answers.append(answer)
        media_of_answers.append(media)
    return ReadResponses(turns, answers, media_of_prompt, media_of_answers)


def _with_media(
    config: Any,
    processor: Any,
    turns: Sequence[dict[str, Any]],
    pictures: Sequence[Picture],
    video_files: Sequence[VideoFile],
) -> tuple[list[dict[str, Any]], ReadMedia]:
    """Return turns, and their images and videos as the model takes them.

    A video that is shown as images of its frames becomes as many image parts. A turn of the
    assistant with images or videos becomes one text, in which these are written out.

    Args:
        config: The model's configuration.
        processor: As in `padded_batch`.
        turns: The turns.
        pictures: Their images, in the order of their parts.
        video_files: Their videos, in the order of their parts.
    """
    image_text = text_of_image(processor.tokenizer)
    video_text = _text_of_video(config, processor.tokenizer)
    remaining_pictures = iter(pictures)
    remaining_videos = iter(video_files)
    media = ReadMedia([], [])
    new_turns: list[dict[str, Any]] = []
    for turn in turns:
        parts: list[dict[str, Any]] = []
        for part in turn["content"]:
            if part["type"] == "image":
                media.images.append(_processed(config, processor, next(remaining_pictures)))
                parts.append(part)
            elif part["type"] == "video":
                parts += _read_video(config, processor, next(remaining_videos), media, image_text)
            else:
                parts.append(part)
        has_media = any(part["type"] != "text" for part in parts)
        if turn["role"] == "assistant" and has_media:
            for index, part in enumerate(parts):
                if part["type"] == "video":
                    parts[index] = {"type": "text", "text": video_text}
            parts = [{"type": "text", "text": with_written_images(parts, image_text)}]
        new_turns.append({"role": turn["role"], "content": parts})
    return new_turns, media


def _read_video(
    config: Any, processor: Any, video: VideoFile, media: ReadMedia, image_text: str
) -> list[dict[str, Any]]:
    """Append a video to `media`, and return its parts: one of the type "video", or its frames.

    Args:
        config: The model's configuration.
        processor: As in `padded_batch`.
        video: The video.
        media: The images and videos so far.
        image_text: The text that the chat template writes for an image.

    Raises:
        ConversationError: The video cannot be read, or the model takes images only.
    """
    settings = settings_of(config)
    if settings.form == "frames":
        frames = frames_as_images(video, settings)
        media.images.extend(_processed(config, processor, frame) for frame in frames)
        return [{"type": "image"} for _ in frames]

    found = patches_of_video(video, config, processor.image_processor, settings)
    num_patches = len(found.patches)
    rules = images_of(config.model_type)
    assert issubclass(rules, PatchGrids), "`patches_of_video` refuses other models."
    if rules.has_timestamps:
        # An image for each temporal patch, with its time before it.
        for patches in found.patches:
            media.images.append(_picture_of_patches(config, patches, 1, found, 1.0))
        media.video_texts.append("".join(time + image_text for time in timestamps(found.times)))
        return [{"type": "video"}]
    temporal_step = 1.0
    if rules.has_timed_positions:
        positions_per_second = config.vision_config.tokens_per_second
        temporal_step = positions_per_second * FRAMES_OF_PATCH * found.interval
    all_patches = found.patches.flatten(0, 1)
    media.images.append(_picture_of_patches(config, all_patches, num_patches, found, temporal_step))
    media.video_texts.append(image_text)
    return [{"type": "video"}]


def _picture_of_patches(
    config: Any, patches: Tensor, num_frames: int, found: PatchesOfVideo, temporal_step: float
) -> ProcessedPicture:
    """Return patches of a video as an image of `num_frames` temporal patches.

    Args:
        config: The model's configuration.
        patches: (patches, numbers).
        num_frames: Number of temporal patches.
        found: The video, for the rows and columns of a frame.
        temporal_step: As in `ProcessedPicture`.
    """
    arguments = {
        "pixel_values": patches,
        "image_grid_thw": torch.tensor([[num_frames, found.rows, found.columns]]),
    }
    [num_tokens] = images_of(config.model_type).token_counts(config, arguments)
    return ProcessedPicture(arguments, num_tokens, temporal_step)


def _text_of_video(config: Any, tokenizer: Any) -> str:
    """Return the text that the chat template writes for a video in a turn of the user."""
    image_token = tokenizer.convert_ids_to_tokens(config.image_token_id)
    return text_of_image(tokenizer).replace(image_token, VIDEO_TOKEN)


def _joined(first: ReadMedia, second: ReadMedia) -> ReadMedia:
    """Return the images and videos of some turns and of the turns that follow them."""
    return ReadMedia([*first.images, *second.images], [*first.video_texts, *second.video_texts])


def _position_arguments(
    config: Any, ids_of_rows: Sequence[list[int]], images_of_rows: Sequence[list[ProcessedPicture]]
) -> dict[str, Tensor]:
    """Return the argument `position_ids`, (3, rows, length) int64, if there are videos.

    It is empty if no image has several frames. The model then counts the positions itself. In
    transformers 5.23, a forward pass begins the text behind a video too early if its frames take
    more positions than its longer side.

    Args:
        config: The model's configuration.
        ids_of_rows: The token ids of each row.
        images_of_rows: The images of each row.
    """
    has_several_frames = False
    for images in images_of_rows:
        for image in images:
            if "image_grid_thw" in image.arguments and image.grid[0] > 1:
                has_several_frames = True
    if not has_several_frames:
        return {}
    merge_size = images_of(config.model_type).merge_size(config)  # type: ignore[union-attr]
    length = max(map(len, ids_of_rows))
    position_ids = torch.zeros(3, len(ids_of_rows), length, dtype=torch.long)
    for index, (ids, images) in enumerate(zip(ids_of_rows, images_of_rows, strict=True)):
        grids = [image.grid for image in images]
        steps = [image.temporal_step for image in images]
        positions, _ = mrope(ids, config.image_token_id, grids, merge_size, steps)
        position_ids[:, index, : len(ids)] = positions
    return {"position_ids": position_ids}


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
    media: ReadMedia,
) -> TokenisedRow:
    """Return the tokens of a conversation whose last turn is `answer`.

    Args:
        config: The model's configuration.
        tokenizer: The tokenizer, with its chat template.
        turns: The turns before the response.
        answer: The assistant's turn, with one text.
        media: The images and videos of the conversation. The one image token in the text is
            repeated for each token of an image. Start and end tokens are put around it if the chat
            template writes none.

    Raises:
        ConversationError: The chat template changes the texts, or there are more or fewer image
            tokens in the text than images, or the same of videos.
    """
    image_lengths = [image.num_tokens for image in media.images]
    rules = TurnRules.of(config)
    response = joined_text(answer["content"])
    response = trimmed_sides(tokenizer, rules).trim(response)
    opening = apply_template(tokenizer, turns, rules, open_turn=True)
    rendered = apply_template(tokenizer, [*turns, answer], rules, open_turn=False)
    if not rendered.startswith(opening + response):
        raise ConversationError(
            "the chat template rewrites earlier turns or the response, so its tokens cannot be "
            "found; use the checkpoint's own template"
        )
    if config.reward_head["read"] != "last_token":
        rendered = rendered.rstrip("\n")
    if media.video_texts:
        ending = rendered[len(opening) + len(response) :]
        opening, response, ending = _with_video_texts(
            [opening, response, ending],
            _text_of_video(config, tokenizer),
            media.video_texts,
        )
        rendered = opening + response + ending
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


def _with_video_texts(
    texts: Sequence[str], video_text: str, replacements: Sequence[str]
) -> list[str]:
    """Return successive texts of a conversation with another text in the place of each video.

    Args:
        texts: The texts.
        video_text: The text that the chat template writes for a video.
        replacements: The text for each video.

    Raises:
        ConversationError: There are more or fewer videos than places in the texts.
    """
    num_places = sum(text.count(video_text) for text in texts)
    if num_places != len(replacements):
        raise ConversationError(
            f"{len(replacements)} videos, but {num_places} video places in the text of the "
            "conversation; required is one place for each video"
        )
    remaining_replacements = iter(replacements)
    replaced: list[str] = []
    for text in texts:
        first_piece, *pieces = text.split(video_text)
        new_text = first_piece
        for piece in pieces:
            new_text += next(remaining_replacements) + piece
        replaced.append(new_text)
    return replaced
