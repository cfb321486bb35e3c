"""The embedded world of coloured shapes as a source: endless, drawn when asked for, nothing on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from data.preference import Preference
from data.sources.shared.base import Source, SourceConfig
from data.synthetic.world import ShapesWorld


class ShapesConfig(SourceConfig):
    """Items of the embedded world."""

    type: Literal["shapes"]
    level: str
    split: str = "train"
    rows: int = Field(ge=1)
    """How many of the endless items belong to the source."""
    seed: int = 0
    text_only: float = Field(default=0.15, ge=0, le=1)
    """Share of the items that come without an image."""
    kinds: list[str] | None = Field(default=None, min_length=1)
    """Question types, each as likely as the others; None takes all."""

    @model_validator(mode="after")
    def _exists(self) -> ShapesConfig:
        self.world()
        return self

    def world(self) -> ShapesWorld:
        """Return the world; raises ValueError for unknown names, and for a share that no question type can fill."""
        weights = None if self.kinds is None else dict.fromkeys(self.kinds, 1.0)
        return ShapesWorld(self.level, self.seed, self.split, self.text_only, weights)

    def open(self, cache: Path) -> Source:
        """Return the source; nothing is drawn yet."""
        return ShapesSource(self)


class ShapesSource:
    """Items 0 … rows - 1 of one level and split of the embedded world."""

    licence = "Apache-2.0"
    generated = True

    def __init__(self, config: ShapesConfig) -> None:
        self.config, self.name, self.world = config, config.label, config.world()
        self.revision = self.world.fingerprint()

    def __len__(self) -> int:
        """Return the number of items."""
        return self.config.rows

    def record(self, index: int) -> Preference:
        """Draw item `index`."""
        return self.world.preference(index)

    def fingerprint(self) -> str:
        """Return the world's code and level and this source's settings."""
        return f"{self.revision} {self.config.settings}"
