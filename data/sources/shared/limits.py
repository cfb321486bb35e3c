"""How large a record may be: beyond, it was made to break something, or it is no record, and it is counted as unusable."""

from __future__ import annotations

from pydantic import Field

from data.config.section import Section
from data.errors import RecordError
from data.preference import Preference, texts


class Limits(Section):
    """What one record of a source may hold at most; no record of a released data set comes near the defaults."""

    characters: int = Field(default=500_000, ge=1, le=100_000_000)
    """Of all its texts together: about the 128,000 tokens that Qwen2.5-VL reads. To tokenise as many takes a second or two."""
    turns: int = Field(default=500, ge=1, le=100_000)
    """Of its prompt."""
    parts: int = Field(default=10_000, ge=1, le=1_000_000)
    """Pieces of text and places of images in its prompt."""
    images: int = Field(default=256, ge=0, le=65_535)
    """Of its prompt; the frames of a video are images."""

    def check(self, record: Preference) -> Preference:
        """Return `record` unchanged; raise RecordError for one beyond a limit."""
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

    def refuse(self, name: str, count: int) -> None:
        """Raise RecordError if `count` is beyond the limit `name`."""
        limit = getattr(self, name)
        if count > limit:
            raise RecordError(
                f"{count:,} {name}; at most {limit:,} are read, since one record must not hold up a run. Shorten it, or set "
                f"`limits: {{{name}: N}}` at its source in the recipe."
            )


DEFAULTS = Limits()
