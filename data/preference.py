"""The record of this project: a multimodal prompt with responses that were compared or rated.

A response is a message: it may hold images and videos as well as texts.

Training and evaluation both start from `Preference` records, and `validate` checks the rules that
every record must satisfy. Images and videos stay encoded (bytes or a path) until a worker needs
their pixels, so that a record is small and a data set can be memory-mapped.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isinf
from pathlib import Path
from typing import Literal, NamedTuple, TypedDict

import numpy as np

from mmrm.data.encoded_video import Video
from mmrm.data.errors import MarkerInTextError, RecordError
from mmrm.data.markers import marker_in_prompt, marker_in_response, stray_marker
from mmrm.data.video import VIDEO_PART_ADVICE, VIDEO_TOKEN

EncodedImage = bytes | Path
"""An image file that is not decoded yet: its bytes or its path."""


class TextPart(TypedDict):
    """A piece of text inside a message."""

    type: Literal["text"]
    text: str


class ImagePart(TypedDict):
    """The position of the record's next image in a message."""

    type: Literal["image"]


class VideoPart(TypedDict):
    """The position of the record's next video in a message."""

    type: Literal["video"]


Part = TextPart | ImagePart | VideoPart


class Message(TypedDict):
    """One turn of a conversation, in the form that chat templates read."""

    role: Literal["system", "user", "assistant"]
    content: list[Part]


def text(role: Literal["system", "user", "assistant"], content: str, images: int = 0) -> Message:
    """Return a message of `images` image parts followed by one text part."""
    return {"role": role, "content": [*image_parts(images), {"type": "text", "text": content}]}


def image_parts(count: int) -> list[Part]:
    """Return the places of `count` images."""
    return [{"type": "image"} for _ in range(count)]


def texts(messages: Sequence[Message]) -> list[str]:
    """Return the text parts of `messages`."""
    return [
        part["text"]
        for message in messages
        for part in message["content"]
        if part["type"] == "text"
    ]


def media_parts(messages: Sequence[Message]) -> list[Part]:
    """Return the image parts and video parts of `messages`, in their order."""
    parts: list[Part] = []
    for message in messages:
        parts += [part for part in message["content"] if part["type"] != "text"]
    return parts


def num_image_parts(messages: Sequence[Message]) -> int:
    """Return the number of image parts of `messages`."""
    return sum(part["type"] == "image" for message in messages for part in message["content"])


def num_video_parts(messages: Sequence[Message]) -> int:
    """Return the number of video parts of `messages`."""
    return sum(part["type"] == "video" for message in messages for part in message["content"])


@dataclass(frozen=True, slots=True)
class Response:
    """An answer to a prompt: texts, images and videos in the order in which they are shown.

    A policy's answer is mostly one text. What an image generator or an editor returns is an image,
    and an interleaved answer has both.
    """

    content: tuple[str | EncodedImage | Video, ...]
    """The texts, the images and the videos."""

    @classmethod
    def of_text(cls, text: str) -> Response:
        """Return a response of one text."""
        return cls((text,))

    @property
    def text(self) -> str:
        """The texts, joined as chat templates join them, without the images."""
        return "".join(part for part in self.content if isinstance(part, str))

    @property
    def images(self) -> tuple[EncodedImage, ...]:
        """The images in their order."""
        return tuple(part for part in self.content if isinstance(part, bytes | Path))

    @property
    def videos(self) -> tuple[Video, ...]:
        """The videos in their order."""
        return tuple(part for part in self.content if isinstance(part, Video))

    @property
    def is_visible(self) -> bool:
        """True if the response has an image, a video, or a character that can be seen."""
        return bool(self.images or self.videos) or visible(self.text)

    @property
    def parts(self) -> list[Part]:
        """The content as the parts of a message, with a place for each image and each video."""
        parts: list[Part] = []
        for part in self.content:
            if isinstance(part, str):
                parts.append({"type": "text", "text": part})
            elif isinstance(part, Video):
                parts.append({"type": "video"})
            else:
                parts.append({"type": "image"})
        return parts

    @property
    def turn(self) -> Message:
        """The response as a turn of the assistant, with a place for each image and video."""
        return {"role": "assistant", "content": self.parts}

    def without_media(self) -> Response:
        """Return the response without its images and its videos."""
        return Response(tuple(part for part in self.content if isinstance(part, str)))

    def with_media(self, images: Sequence[EncodedImage], videos: Sequence[Video]) -> Response:
        """Return the response with other images and videos in the places of its own.

        Args:
            images: As many images as the response has.
            videos: As many videos as the response has.
        """
        remaining_images = iter(images)
        remaining_videos = iter(videos)
        content: list[str | EncodedImage | Video] = []
        for part in self.content:
            if isinstance(part, str):
                content.append(part)
            elif isinstance(part, Video):
                content.append(next(remaining_videos))
            else:
                content.append(next(remaining_images))
        return Response(tuple(content))


UNANSWERED = (Response(()), Response(()))
"""The responses of a record that is a prompt alone."""


def text_pair(first: str, second: str) -> tuple[Response, Response]:
    """Return two responses of one text each."""
    return Response.of_text(first), Response.of_text(second)


def text_responses(*contents: str) -> tuple[Response, ...]:
    """Return a response of one text for each of the texts."""
    return tuple(map(Response.of_text, contents))


def positions_of_pair(is_first_chosen: bool) -> tuple[int, int]:
    """Return the positions of the chosen and the rejected response in the order of a source.

    Args:
        is_first_chosen: True if the response that the source lists first is the chosen one.
    """
    return (0, 1) if is_first_chosen else (1, 0)


Rule = Literal["exact", "multiple_choice", "numeric"]
"""The rule by which a response is compared with a known answer; the rules are in
eval/verifiers.py."""


class Truth(NamedTuple):
    """The known answer to a prompt."""

    rule: Rule
    answers: tuple[str, ...]
    """A response is right if it states one of these answers."""


@dataclass(frozen=True, slots=True)
class Preference:
    """A prompt with its images and videos, and two or more responses that people or a rule compared."""

    identity: str
    """Origin of the record, for messages to people: `source:row`, or a file and line."""
    prompt: tuple[Message, ...]
    """System, user and earlier assistant turns; the last turn is the user's."""
    responses: tuple[Response, ...]
    """The responses, the best one first. Responses of equal rank are in the source's order."""
    images: tuple[EncodedImage, ...] = ()
    """One image for each image part of the prompt, in the same order."""
    margin: float | None = None
    """The difference in quality in the source's own unit; None if the source has no margins."""
    chosen_critique: str | None = None
    rejected_critique: str | None = None
    rationale: str | None = None
    """Reasoning that compares the two responses. `first_in_rationale` names the response that it
    calls Response 1."""
    first_in_rationale: Literal["chosen", "rejected"] = "chosen"
    """`rejected` only for a rationale that cannot be rewritten for the other order; see
    data/rationales.py."""
    source: str = ""
    category: str = ""
    truth: Truth | None = None
    """The known answer; None if the source has none. A record with a known answer and without
    responses is a question for a policy."""
    ranks: tuple[int, ...] = (0, 1)
    """The rank of each response: 0 is the best, and responses of equal rank are tied."""
    attributes: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """By the name of an attribute, one number for each response in the source's own unit, such as a
    rating. A higher number is better, equal numbers are a tie, and NaN is unknown."""
    videos: tuple[Video, ...] = ()
    """One video for each video part of the prompt, in the same order."""
    difficulty: int | None = None
    """The number of tries that an annotator needed until its judgement of the pair was right, and
    one more than its tries if none was right (see eval/annotate.py). None if no annotator was
    asked."""
    positions: tuple[int, ...] = field(default=(), compare=False, repr=False)
    """The position of each response in the order of the source, from 0; empty if the source has no
    order of its own, such as columns for the chosen and the rejected response. It is not a part of
    what makes two records equal."""

    @property
    def chosen(self) -> Response:
        """The best response, which is the preferred one of a pair."""
        return self.responses[0]

    @property
    def rejected(self) -> Response:
        """The worst response, which is the other one of a pair."""
        return self.responses[-1]

    @property
    def is_pair(self) -> bool:
        """True if the record has two responses, of which one is better than the other."""
        return self.ranks == (0, 1)

    @property
    def is_question(self) -> bool:
        """True if the record is a prompt with a known answer and no responses."""
        has_responses = any(
            response.text or response.images or response.videos for response in self.responses
        )
        return self.truth is not None and not has_responses

    @property
    def all_images(self) -> tuple[EncodedImage, ...]:
        """The images of the prompt, and after them those of the responses in their order."""
        images = list(self.images)
        for response in self.responses:
            images += response.images
        return tuple(images)

    @property
    def all_videos(self) -> tuple[Video, ...]:
        """The videos of the prompt, and after them those of the responses in their order."""
        videos = list(self.videos)
        for response in self.responses:
            videos += response.videos
        return tuple(videos)


CONTROL_TOKENS = (
    VIDEO_TOKEN,
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>"),
    *("<|quad_start|>", "<|quad_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>"),
)
"""Qwen2.5-VL's special tokens, the token of videos first. In the text of a record they would be
read as the end of a turn or as the position of an image."""
INVISIBLE_CATEGORIES = "CZM"
"""First letters of the Unicode categories of characters that cannot be seen: control, format and
unassigned (C), separators (Z), combining marks (M)."""
FILLERS = "\u115f\u1160\u3164\uffa0\u2800"
"""Characters that cannot be seen, although Unicode has them among letters and symbols: Hangul
fillers and the Braille blank."""
FORMAT_CATEGORIES = ("Cc", "Cf", "Cn")
"""Unicode categories of control, format and unassigned characters."""
VARIATION_SELECTORS = "\u034f" + "".join(map(chr, range(0xFE00, 0xFE10)))
"""Combining characters that show nothing themselves."""
LARGEST_MARGIN = float(np.finfo(np.float32).max)
"""The largest margin: the loss is computed in float32."""
LARGEST_DIFFICULTY = 2**16 - 1
"""The largest difficulty: a row index has 16 bits for it."""


def control_token(content: str, tokens: Sequence[str] = CONTROL_TOKENS) -> str | None:
    """Return the first of `tokens` that occurs in `content`, or None."""
    for token in tokens:
        if token in content:
            return token
    return None


def control_token_faults(
    record: Preference, tokens: Sequence[str] = CONTROL_TOKENS
) -> Iterator[str]:
    """Yield an error message for each text of a record that contains one of `tokens`.

    `tokens` are a tokenizer's special tokens, such as the end of a turn. A text that contains one
    could forge a turn or the position of an image.
    """
    # The text parts of a turn are joined, as the chat template joins them: a token may be spread
    # over two parts.
    named_texts = [("the prompt", "".join(texts([message]))) for message in record.prompt]
    named_texts += _responses_and_notes(record).items()
    for name, content in named_texts:
        token = control_token(content, tokens)
        if token is None:
            continue
        message = (
            f"{name} holds {token!r}, which the tokenizer would read as a control token, not as "
            "text. Remove it from the record."
        )
        if token == VIDEO_TOKEN:
            message = f"{message} {VIDEO_PART_ADVICE}"
        yield message


def visible(content: str) -> bool:
    """Return True if `content` has a character that can be seen.

    Control, format, separator, combining and unassigned characters cannot be seen, nor can those
    in FILLERS.
    """
    return any(
        unicodedata.category(character)[0] not in INVISIBLE_CATEGORIES and character not in FILLERS
        for character in content
    )


def shown_words(content: str) -> list[str]:
    """Return the words of a text as a reader sees them, without characters that show nothing.

    Texts that differ only in white space, in control and format characters, in FILLERS or in
    VARIATION_SELECTORS have equal words.
    """
    content = unicodedata.normalize("NFC", content)
    replacement_by_code: dict[int, str] = {}
    for character in set(content):
        if character.isspace() or character in FILLERS:
            replacement_by_code[ord(character)] = " "
        elif (
            unicodedata.category(character) in FORMAT_CATEGORIES or character in VARIATION_SELECTORS
        ):
            replacement_by_code[ord(character)] = ""
    return content.translate(replacement_by_code).split()


def validate(record: Preference, tokens: Sequence[str] = CONTROL_TOKENS) -> Preference:
    """Return `record` unchanged if it can be trained or evaluated on, else raise its first fault.

    Args:
        record: The record.
        tokens: Special tokens of the tokenizer, which the record's texts may not contain. Empty if
            the caller looks for them itself.

    Raises:
        MarkerInTextError: A text has a marker, such as `<image>`, that belongs to no image.
        RecordError: The record has another fault.
    """
    faults = [*_faults(record), *control_token_faults(record, tokens)]
    if faults:
        raise RecordError(f"{record.identity}: {faults[0]}")
    marker_faults = list(_stray_markers(record))
    if marker_faults:
        raise MarkerInTextError(f"{record.identity}: {marker_faults[0]}")
    return record


def _stray_markers(record: Preference) -> Iterator[str]:
    """Yield an error message for each text with a marker of an image or of another medium.

    Markers that are control tokens of Qwen2.5-VL are passed over, because
    `control_token_faults` finds them.
    """
    for message in record.prompt:
        content = "".join(texts([message]))
        problem = marker_in_prompt(content)
        if problem and stray_marker(content) not in CONTROL_TOKENS:
            yield problem
    for name, content in _responses_and_notes(record).items():
        problem = marker_in_response(name, content)
        if problem and stray_marker(content) not in CONTROL_TOKENS:
            yield problem


def _responses_and_notes(record: Preference) -> dict[str, str]:
    """Return the texts of a record except its prompt, by their names in messages.

    The texts of one response are joined, as a chat template joins them. Critiques and rationales
    that the record does not have are left out.
    """
    text_by_name = {name: response.text for name, response in _named_responses(record).items()}
    content_by_name = {
        **text_by_name,
        "the chosen critique": record.chosen_critique,
        "the rejected critique": record.rejected_critique,
        "the rationale": record.rationale,
    }
    return {name: content for name, content in content_by_name.items() if content is not None}


def _named_responses(record: Preference) -> dict[str, Response]:
    """Return the responses of a record by their names in messages, the best response first."""
    if len(record.responses) == 2:
        return {
            "the chosen response": record.chosen,
            "the rejected response": record.rejected,
        }
    return {
        f"response {number}": response for number, response in enumerate(record.responses, start=1)
    }


def _faults(record: Preference) -> Iterator[str]:
    """Yield an error message for each fault of a record, except those of texts that are tokens."""
    roles = [message["role"] for message in record.prompt]
    roles_after_system = roles[1:] if roles[:1] == ["system"] else roles
    expected_roles = ["user", "assistant"] * (len(roles_after_system) // 2) + ["user"]
    if roles_after_system != expected_roles:
        yield (
            f"the prompt's turns are {roles}; required are user and assistant in alternation, "
            "beginning and ending with the user, after at most one system turn."
        )
    for index, message in enumerate(record.prompt):
        has_images = num_image_parts([message]) > 0
        has_videos = num_video_parts([message]) > 0
        has_text = any(map(visible, texts([message])))
        if not has_images and not has_videos and not has_text:
            yield f"turn {index} of the prompt ({message['role']}) is empty."
        if has_images and message["role"] == "assistant":
            yield (
                f"turn {index} of the prompt (assistant) holds an image; images belong to the "
                "turns of the user."
            )
        if has_videos and message["role"] == "assistant":
            yield (
                f"turn {index} of the prompt (assistant) holds a video; videos belong to the "
                "turns of the user."
            )
    num_parts = num_image_parts(record.prompt)
    if num_parts != len(record.images):
        yield (
            f"the prompt has {num_parts} image parts for {len(record.images)} images. "
            "Each image needs exactly one place in the prompt."
        )
    num_video_places = num_video_parts(record.prompt)
    if num_video_places != len(record.videos):
        yield (
            f"the prompt has {num_video_places} video parts for {len(record.videos)} videos. "
            "Each video needs exactly one place in the prompt."
        )
    for name, response in _named_responses(record).items():
        if not response.is_visible and not record.is_question:
            yield (
                f"{name} is empty; every response must hold an image, a video, or text that can be "
                "seen."
            )
    yield from _faults_of_ranks(record)
    # `not … <=` instead of `>`, because every comparison with NaN is False.
    if record.margin is not None and not abs(record.margin) <= LARGEST_MARGIN:
        yield (
            f"the margin is {record.margin}; required is a finite number of at most "
            f"{LARGEST_MARGIN:.4g}, or none."
        )
    if record.difficulty is not None and not 1 <= record.difficulty <= LARGEST_DIFFICULTY:
        yield (
            f"the difficulty is {record.difficulty}; required is a whole number from 1 to "
            f"{LARGEST_DIFFICULTY:,}, or none."
        )


def _faults_of_ranks(record: Preference) -> Iterator[str]:
    """Yield an error message for each fault in the number, ranks and attributes of responses."""
    num_responses = len(record.responses)
    if num_responses < 2:
        yield f"the record has {num_responses} responses; at least two are required."
    if len(record.ranks) != num_responses:
        yield f"the record has {len(record.ranks)} ranks for {num_responses} responses."
    if record.positions and len(record.positions) != num_responses:
        yield f"the record has {len(record.positions)} positions for {num_responses} responses."
    is_in_order = list(record.ranks) == sorted(record.ranks)
    if not is_in_order or list(record.ranks) != dense_ranks(record.ranks):
        yield (
            f"the ranks are {list(record.ranks)}; required are ranks from 0 on without gaps, in "
            "the order of the responses, which begin with the best one."
        )
    for name, values in record.attributes.items():
        if len(values) != num_responses:
            yield f"attribute {name!r} has {len(values)} numbers for {num_responses} responses."
        if any(map(isinf, values)):
            yield f"attribute {name!r} has an infinite number; required are finite ones, or NaN."


def dense_ranks(values: Sequence[float]) -> list[int]:
    """Return the ranks of values in ascending order: 0 for the smallest, and no gaps.

    Equal values have equal ranks. Example: 5, 2, 5, 3 have the ranks 2, 0, 2, 1.
    """
    ascending = sorted(set(values))
    rank_of_value = {value: rank for rank, value in enumerate(ascending)}
    return [rank_of_value[value] for value in values]
