"""The embedded world of coloured shapes as a source: endless, drawn when asked for, nothing on disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from mmrm.data.config.section import Records
from mmrm.data.preference import Preference
from mmrm.data.sources.shared.source import Source, SourceConfig
from mmrm.data.synthetic.scene_questions import QUESTION_TYPES
from mmrm.data.synthetic.scenes import LEVELS, SPLITS
from mmrm.data.synthetic.text_questions import TEXT_TYPES
from mmrm.data.synthetic.world import ShapesWorld


class ShapesConfig(SourceConfig):
    """Items of the embedded world."""

    type: Literal["shapes"]
    level: str
    """How hard scenes and questions are."""
    split: str = "train"
    """Scenes of one split never occur in another."""
    rows: Records
    """How many of the endless items belong to the source."""
    seed: int = 0
    """Of the scenes, questions and answers."""
    text_only: float = Field(default=0.15, ge=0, le=1)
    """Share of the items that come without an image."""
    kinds: list[str] | None = Field(default=None, min_length=1)
    """Question types, each as likely as the others; null takes all."""

    @field_validator("level", "split")
    @classmethod
    def _exists(cls, name: str, info: ValidationInfo) -> str:
        return _known(name, LEVELS if info.field_name == "level" else SPLITS)

    @model_validator(mode="after")
    def _kinds_exist(self) -> ShapesConfig:
        for kind in self.kinds or []:
            _known(kind, dict.fromkeys([*QUESTION_TYPES, *TEXT_TYPES]))
        if (
            self.kinds is not None
            and self.text_only < 1
            and not QUESTION_TYPES.keys() & set(self.kinds)
        ):
            raise ValueError(
                f"kinds holds text questions only, so text_only must be 1 (it is {self.text_only})"
            )
        if (
            self.kinds is not None
            and self.text_only > 0
            and not TEXT_TYPES.keys() & set(self.kinds)
        ):
            raise ValueError(
                f"kinds holds no text question ({', '.join(TEXT_TYPES)}), so text_only must be 0 (it is {self.text_only})"
            )
        return self

    def open(self, cache: Path) -> Source:
        """Return the source; nothing is drawn yet."""
        return ShapesSource(self)


class ShapesSource:
    """Items 0 … rows - 1 of one level and split of the embedded world."""

    licence = "Apache-2.0"
    generated = True

    def __init__(self, config: ShapesConfig) -> None:
        self.name = config.label
        self.rows = config.rows
        self.world = ShapesWorld(
            config.level, config.seed, config.split, config.text_only, config.kinds
        )
        self.revision = self.world.fingerprint()
        self._settings = config.settings

    def __len__(self) -> int:
        """Return the number of items."""
        return self.rows

    def record(self, index: int) -> Preference:
        """Draw item `index`."""
        return self.world.item(index).preference()

    def fingerprint(self) -> str:
        """Return the world's code and level and this source's settings."""
        return f"{self.revision} {self._settings}"


def _known(name: str, table: Mapping[str, object]) -> str:
    if name not in table:
        raise ValueError(f"{name!r} is not in the embedded world; it has {', '.join(table)}")
    return name
