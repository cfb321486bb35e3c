"""The generated pictures, drawn from a description or edited, as sources of a recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from mmrm.data.config.section import Records
from mmrm.data.preference import Preference
from mmrm.data.sources.shared.source import Source, SourceConfig
from mmrm.data.synthetic.drawn_world import DrawnGenerator
from mmrm.data.synthetic.edited_world import EditedGenerator
from mmrm.data.synthetic.rated_pictures import MAX_RESPONSES, PictureGenerator
from mmrm.data.synthetic.scenes import LEVELS, SPLITS
from mmrm.data.synthetic.source import require_known


class PicturesConfig(SourceConfig):
    """The keys of the two sources of generated pictures (data/synthetic/rated_pictures.py)."""

    allowed_values: ClassVar[Mapping[str, Sequence[str]]] = {
        "level": tuple(LEVELS),
        "split": tuple(SPLITS),
    }
    generator: ClassVar[type[PictureGenerator]]
    """The class of the generator of the records."""

    level: str
    """Difficulty of the scenes."""
    split: str = "train"
    """Scenes of one split never occur in another."""
    rows: Records
    """Number of prompts, of the endlessly many, that belong to the source."""
    seed: int = 0
    """Seed of the prompts and pictures."""
    responses: int = Field(default=4, ge=2, le=MAX_RESPONSES)
    """Number of pictures for each prompt."""
    ties: bool = True
    """False: no two pictures for a prompt are equal in both content and quality."""

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

    @property
    def gives_lists(self) -> bool:
        """True if a record has more than two responses."""
        return self.responses > 2

    @property
    def gives_ties(self) -> bool:
        """True if all responses of a record may be tied with these settings."""
        return self.ties

    def stated_rows(self) -> tuple[int | None, str]:
        """Return the number of prompts that the recipe sets."""
        return self.rows, "generated"

    def max_validation(self) -> int | None:
        """Return half of the prompts, the most that may be held out of a source."""
        return self.rows // 2

    def open(self, cache: Path) -> Source:
        """Return the source, which generates records only when they are read."""
        return PicturesSource(self)


class DrawnShapesConfig(PicturesConfig):
    """A source of descriptions with drawings of them (data/synthetic/drawn_world.py).

    Each drawing differs from its description in none, one or two facts, and has a fault of quality
    (noise, blur, cut) of severity 0, 1 or 2.
    """

    generator = DrawnGenerator

    type: Literal["shapes_drawn"]


class EditedShapesConfig(PicturesConfig):
    """A source of instructions to edit a picture, with results (data/synthetic/edited_world.py).

    Each result differs from what was asked for in none, one or two facts, and has a fault of
    quality (noise, blur, cut) of severity 0, 1 or 2.
    """

    generator = EditedGenerator

    type: Literal["shapes_edited"]


class PicturesSource:
    """A source of generated records with pictures: 0 to `rows` - 1 of one level and split."""

    licence = "Apache-2.0"
    generated = True

    def __init__(self, config: PicturesConfig) -> None:
        self.name = config.label
        self.rows = config.rows
        self.generator = config.generator(
            config.level, config.seed, config.split, config.responses, config.ties
        )
        self.revision = self.generator.fingerprint()
        self._settings = config.settings

    def __len__(self) -> int:
        """Return the number of prompts."""
        return self.rows

    def record(self, index: int) -> Preference:
        """Return the preference record at `index`, with its generated pictures."""
        return self.generator.item(index).preference()

    def fingerprint(self) -> str:
        """Return a text that changes with the generated data, the level or the recipe's keys."""
        return f"{self.revision} {self._settings}"
