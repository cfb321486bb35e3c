"""Limits on the size of a record: the same in training, when files are scored, and in the server.

A record beyond a limit is refused before it costs time, and counted as unusable. No record of a
released data set is that large: it was made to exhaust memory or time, or it is broken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from mmrm.data.config.section import GrowingSection
from mmrm.data.errors import RecordError
from mmrm.data.preference import Preference, texts


class Limits(GrowingSection):
    """Upper limits on the contents of one record of a source.

    No record of a released data set comes near the defaults.
    """

    LATER_KEYS = frozenset({"videos"})

    characters: int = Field(default=500_000, ge=1, le=100_000_000)
    """Characters of all its texts together. This is about the 128,000 tokens that Qwen2.5-VL reads;
    to tokenise as many takes a second or two."""
    turns: int = Field(default=500, ge=1, le=100_000)
    """Turns of its prompt."""
    parts: int = Field(default=10_000, ge=1, le=1_000_000)
    """Parts of its prompt (texts, images and videos), and of responses that are not texts alone."""
    images: int = Field(default=256, ge=0, le=65_535)
    """Images of its prompt and its responses; frames that are given as images count."""
    videos: int = Field(default=32, ge=0, le=65_535)
    """Videos of its prompt and its responses. The length of a video is not limited: how many of its
    frames are shown is set by `backbone.videos`."""

    def check(self, record: Preference) -> Preference:
        """Return `record` unchanged; raise RecordError if it is beyond a limit."""
        optional_texts = (
            record.chosen_critique,
            record.rejected_critique,
            record.rationale,
            record.source,
            record.category,
        )
        all_texts = [*texts(record.prompt), *(response.text for response in record.responses)]
        all_texts += [text for text in optional_texts if text is not None]
        self.refuse_beyond("characters", sum(map(len, all_texts)))
        self.refuse_beyond("turns", len(record.prompt))
        num_parts = sum(len(message["content"]) for message in record.prompt)
        for response in record.responses:
            if response.images or response.videos:
                num_parts += len(response.content)
        self.refuse_beyond("parts", num_parts)
        self.refuse_beyond("images", len(record.all_images))
        self.refuse_beyond("videos", len(record.all_videos))
        return record

    def refuse_beyond(self, name: str, count: int, advice: str | None = None) -> None:
        """Raise RecordError if `count` is larger than the limit in the field `name`.

        Args:
            name: A field of this class, such as "characters".
            count: The number of characters, turns, parts, images or videos of a record.
            advice: How the user can raise the limit, for the message. None names the key of the
                recipe.
        """
        limit = getattr(self, name)
        if count > limit:
            how = advice or f"set `limits: {{{name}: N}}` at its source in the recipe"
            raise RecordError(
                f"{count:,} {name}; at most {limit:,} are read, since one record must not hold up "
                f"a run. Shorten it, or {how}."
            )


def written_sizes(messages: Any, responses: Sequence[Any], images: Any) -> dict[str, int]:
    """Return the sizes of a conversation that was sent or written to a file, before it is checked.

    The keys are the fields of `Limits`. Sizes are counted before any image is decoded or text
    tokenised. `characters` is the length of the prompt and the longest response, because these
    are tokenised together. `parts` and `images` are those of the prompt and of all responses; a
    response that is one text has no parts. Malformed parts are not counted: reading the
    conversation refuses them.

    Args:
        messages: A text, or a list of turns {role, content}. A content is a text or a list of
            parts. It may also be malformed.
        responses: The responses to the messages, texts or lists of parts. They may be malformed.
        images: The list of the images outside the messages; anything else counts as none.
    """
    turns = messages if isinstance(messages, list | tuple) else [{"content": messages}]
    num_characters = 0
    num_parts = 0
    num_images = len(images) if isinstance(images, list | tuple) else 0
    for turn in turns:
        content = turn.get("content") if isinstance(turn, dict) else None
        parts = content if isinstance(content, list | tuple) else [content]
        num_parts += len(parts)
        num_characters += _num_characters(parts)
        num_images += _num_images(parts)

    longest_response = 0
    for response in responses:
        parts = response if isinstance(response, list | tuple) else [response]
        if not isinstance(response, str):
            num_parts += len(parts)
        longest_response = max(longest_response, _num_characters(parts))
        num_images += _num_images(parts)
    return {
        "turns": len(turns),
        "parts": num_parts,
        "images": num_images,
        "characters": num_characters + longest_response,
    }


def _text_of(part: Any) -> Any:
    """Return the text of a part, which may itself be a text; not a text if the part has none."""
    return part.get("text") if isinstance(part, dict) else part


def _num_characters(parts: Sequence[Any]) -> int:
    """Return the number of characters in all texts of the parts of a turn or a response."""
    texts_of_parts = map(_text_of, parts)
    return sum(len(text) for text in texts_of_parts if isinstance(text, str))


def _num_images(parts: Sequence[Any]) -> int:
    """Return the number of images inside the parts of a turn or a response."""
    num_images = 0
    for part in parts:
        if not isinstance(_text_of(part), str) and isinstance(part, dict) and _has_value(part):
            num_images += 1
    return num_images


def _has_value(part: dict[str, Any]) -> bool:
    """Return True if a part of a turn has a value under another key than `type`.

    An image part without such a value marks the position of an image that is sent outside the
    messages.
    """
    return any(value is not None for key, value in part.items() if key != "type")


DEFAULTS = Limits()
