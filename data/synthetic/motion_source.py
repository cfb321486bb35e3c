"""The generated films with questions, as a source of a recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from mmrm.data.config.section import Records
from mmrm.data.encoded_video import import_pyav
from mmrm.data.preference import Preference
from mmrm.data.sources.shared.source import Source, SourceConfig
from mmrm.data.synthetic.film_questions import FILM_QUESTION_TYPES
from mmrm.data.synthetic.films import Played
from mmrm.data.synthetic.motion_world import MotionGenerator
from mmrm.data.synthetic.scenes import LEVELS, SPLITS
from mmrm.data.synthetic.source import require_known


class MotionConfig(SourceConfig):
    """A source of questions about short films of moving shapes (data/synthetic/motion_world.py).

    The films are encoded with PyAV, which `pip install -e .[video]` installs.
    """

    has_answers = True
    allowed_values: ClassVar[Mapping[str, Sequence[str]]] = {
        "level": tuple(LEVELS),
        "split": tuple(SPLITS),
    }

    type: Literal["shapes_motion"]
    level: str
    """Difficulty of the films."""
    split: str = "train"
    """Films of one split never occur in another."""
    rows: Records
    """Number of items, of the endlessly many, that belong to the source."""
    seed: int = 0
    """Seed of the films, questions and answers."""
    frames: int = Field(default=8, ge=4, le=16)
    """Number of frames of each film, of which two are shown each second."""
    kinds: list[str] | None = Field(default=None, min_length=1)
    """Question types, each as likely as the others; null takes all."""
    played: Played = "forwards"
    """The way in which films are played. `forwards` plays them as the answers say. The others are
    controls: `reversed` plays them from their end, `shuffled` in a random order, `first` repeats
    the first frame, and `grey` shows grey pictures. Questions and answers stay the same."""

    @field_validator("level")
    @classmethod
    def _level_exists(cls, level: str) -> str:
        require_known(level, tuple(LEVELS))
        return level

    @field_validator("split")
    @classmethod
    def _split_exists(cls, split: str) -> str:
        require_known(split, tuple(SPLITS))
        return split

    @field_validator("kinds")
    @classmethod
    def _kinds_exist(cls, kinds: list[str] | None) -> list[str] | None:
        for kind in kinds or ():
            require_known(kind, tuple(FILM_QUESTION_TYPES))
        return kinds

    def stated_rows(self) -> tuple[int | None, str]:
        """Return the number of items that the recipe sets."""
        return self.rows, "generated"

    def max_validation(self) -> int | None:
        """Return half of the items, the most that may be held out of a source for validation."""
        return self.rows // 2

    def open(self, cache: Path) -> Source:
        """Return the source, which generates items only when they are read.

        Raises:
            UserError: PyAV is not installed.
        """
        import_pyav()
        return MotionSource(self)


class MotionSource:
    """A source of generated records with videos: items 0 to `rows` - 1 of one level and split."""

    licence = "Apache-2.0"
    generated = True

    def __init__(self, config: MotionConfig) -> None:
        self.name = config.label
        self.rows = config.rows
        self.generator = MotionGenerator(
            config.level, config.seed, config.split, config.frames, config.kinds
        )
        self.revision = self.generator.fingerprint()
        self._played = config.played
        self._settings = config.settings

    def __len__(self) -> int:
        """Return the number of items."""
        return self.rows

    def record(self, index: int) -> Preference:
        """Return the preference record at `index`, with its generated video and texts."""
        return self.generator.item(index).preference(self._played)

    def fingerprint(self) -> str:
        """Return a text that changes with the generated data, the level or the recipe's keys."""
        return f"{self.revision} {self._settings}"
