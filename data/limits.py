"""Limits on the size of a record, the same in training, in scoring files and in the server.

A record beyond a limit is refused before it costs time, and counted as unusable. It was made to
break something, or it is no record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from mmrm.data.config.section import Section
from mmrm.data.errors import RecordError
from mmrm.data.preference import Preference, texts


class Limits(Section):
    """Upper limits on the contents of one record of a source.

    No record of a released data set comes near the defaults.
    """

    characters: int = Field(default=500_000, ge=1, le=100_000_000)
    """Characters of all its texts together. This is about the 128,000 tokens that Qwen2.5-VL reads;
    to tokenise as many takes a second or two."""
    turns: int = Field(default=500, ge=1, le=100_000)
    """Turns of its prompt."""
    parts: int = Field(default=10_000, ge=1, le=1_000_000)
    """Text parts and image parts of its prompt."""
    images: int = Field(default=256, ge=0, le=65_535)
    """Images of its prompt; the frames of a video are images."""

    def check(self, record: Preference) -> Preference:
        """Return `record` unchanged; raise RecordError if it is beyond a limit."""
        notes = (
            record.chosen_critique,
            record.rejected_critique,
            record.rationale,
            record.source,
            record.category,
        )
        written = (
            *texts(record.prompt),
            record.chosen,
            record.rejected,
            *(note for note in notes if note is not None),
        )
        self.refuse("characters", sum(map(len, written)))
        self.refuse("turns", len(record.prompt))
        self.refuse("parts", sum(len(message["content"]) for message in record.prompt))
        self.refuse("images", len(record.images))
        return record

    def refuse(self, name: str, count: int, way_out: str | None = None) -> None:
        """Raise RecordError if `count` is beyond the limit `name`.

        `way_out` is the part of the message about how to raise the limit.
        """
        limit = getattr(self, name)
        if count > limit:
            how = way_out or f"set `limits: {{{name}: N}}` at its source in the recipe"
            raise RecordError(
                f"{count:,} {name}; at most {limit:,} are read, since one record must not hold up "
                f"a run. Shorten it, or {how}."
            )


def written_sizes(messages: Any, responses: Sequence[str], images: Any) -> dict[str, int]:
    """Return the sizes of a conversation by the names of `Limits`, in any form that callers write.

    They are counted before images are decoded or texts tokenised. `characters` are the characters
    of the prompt with its longest response, which are tokenised together. Malformed parts are not
    counted, because reading refuses them.
    """
    turns = messages if isinstance(messages, list | tuple) else [{"content": messages}]
    num_characters = max(map(len, responses), default=0)
    num_parts = 0
    num_images = len(images) if isinstance(images, list | tuple) else 0
    for turn in turns:
        content = turn.get("content") if isinstance(turn, dict) else None
        parts = content if isinstance(content, list | tuple) else [content]
        num_parts += len(parts)
        for part in parts:
            written = part.get("text") if isinstance(part, dict) else part
            if isinstance(written, str):
                num_characters += len(written)
            elif isinstance(part, dict) and _holds_content(part):
                num_images += 1  # the image is in its place, not given next to the messages
    return {
        "turns": len(turns),
        "parts": num_parts,
        "images": num_images,
        "characters": num_characters,
    }


def _holds_content(part: dict[str, Any]) -> bool:
    """Return True if a part has another value than its type."""
    return any(value is not None for key, value in part.items() if key != "type")


DEFAULTS = Limits()
