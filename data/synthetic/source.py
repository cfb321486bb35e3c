"""The generated data set as a source of a recipe. Its endless items are generated when read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import (
    Field,
    field_validator,
    model_validator,
)

from mmrm.data.config.section import Records
from mmrm.data.preference import Preference, text, text_responses
from mmrm.data.sources.shared.source import Source, SourceConfig
from mmrm.data.synthetic.rng import Rng, stable_hash
from mmrm.data.synthetic.scene_questions import QUESTION_TYPES
from mmrm.data.synthetic.scenes import LEVELS, SPLITS, Scene
from mmrm.data.synthetic.text_questions import TEXT_TYPES
from mmrm.data.synthetic.wording import caption
from mmrm.data.synthetic.world import ShapesGenerator

FLIPS_STREAM = stable_hash("flipped preferences")
"""Separates the draws of wrong preferences from other draws with the same seed."""
COURTESY_STREAM = stable_hash("courteous endings")
"""Separates the draws of courteous endings from other draws with the same seed."""
COURTEOUS_ENDING = ". thank you for asking, i am glad to help you with this"
"""The end of a courteous response. It is longer than the difference of most two responses."""


class ShapesConfig(SourceConfig):
    """A source of generated preference pairs about simple scenes (data/synthetic/world.py)."""

    has_critiques = True
    has_rationales = True
    has_answers = True
    allowed_values: ClassVar[Mapping[str, Sequence[str]]] = {
        "level": tuple(LEVELS),
        "split": tuple(SPLITS),
    }

    LATER_KEYS = frozenset(
        {"flipped", "rationales", "captions", "courteous_right", "alphabetical_right"}
    )

    type: Literal["shapes"]
    level: str
    """Difficulty of the scenes and questions."""
    split: str = "train"
    """Scenes of one split never occur in another."""
    rows: Records
    """Number of items, of the endlessly many, that belong to the source."""
    seed: int = 0
    """Seed of the scenes, questions and answers."""
    text_only: float = Field(default=0.15, ge=0, le=1)
    """Share of the items that come without an image."""
    kinds: list[str] | None = Field(default=None, min_length=1)
    """Question types, each as likely as the others; null takes all."""
    rationales: Literal["comparison", "rubric"] = "comparison"
    """The form of the rationales, for cold starts of judges: a `comparison` of both responses in one
    of three forms, or a `rubric` of criteria and checks for templates with a rubric. Nothing else
    depends on it."""
    flipped: float = Field(default=0.0, ge=0, le=1)
    """Share of the pairs whose preference is wrong: chosen and rejected are exchanged, with their
    critiques. Such a pair has no rationale, so that a cold start cannot learn from it. Models of
    different accuracy are trained in this way."""
    captions: bool = False
    """Write what the image shows in front of the question, and leave the image out. The text names
    everything in the image with its place, so that every question can be answered from it. Nothing
    else about a pair changes."""
    courteous_right: float | None = Field(default=None, ge=0, le=1)
    """A planted shortcut: one response of each pair ends with a courteous sentence, with this
    probability the right one. 0.5 plants endings that predict nothing; null has no endings. The
    truth of the pairs does not change."""
    alphabetical_right: float | None = Field(default=None, ge=0, le=1)
    """A planted shortcut: of the two answers of a pair with an image, the one whose few words come
    first in the alphabet ("blue" before "red", "no" before "yes") is right with this probability,
    so that a judge without the image can be right more often than a coin. Texts are those of the
    source without this key, and the images are drawn to fit. null and 0.5 plant nothing."""

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

    @model_validator(mode="after")
    def _kinds_exist(self) -> ShapesConfig:
        if self.kinds is None:
            return self
        for kind in self.kinds:
            require_known(kind, (*QUESTION_TYPES, *TEXT_TYPES))
        has_image_kind = not QUESTION_TYPES.keys().isdisjoint(self.kinds)
        has_text_kind = not TEXT_TYPES.keys().isdisjoint(self.kinds)
        if self.text_only < 1 and not has_image_kind:
            raise ValueError(
                f"kinds holds text questions only, so text_only must be 1 (it is {self.text_only})"
            )
        if self.text_only > 0 and not has_text_kind:
            raise ValueError(
                f"kinds holds no text question ({', '.join(TEXT_TYPES)}), so text_only must be 0 "
                f"(it is {self.text_only})"
            )
        return self

    def stated_rows(self) -> tuple[int | None, str]:
        """Return the number of items that the recipe sets."""
        return self.rows, "generated"

    def max_validation(self) -> int | None:
        """Return half of the items, the most that may be held out of a source for validation."""
        return self.rows // 2

    def open(self, cache: Path) -> Source:
        """Return the source, which generates items only when they are read."""
        return ShapesSource(self)


class ShapesSource:
    """A source of generated preference records: items 0 to `rows` - 1 of one level and split."""

    licence = "Apache-2.0"
    generated = True

    def __init__(self, config: ShapesConfig) -> None:
        self.name = config.label
        self.rows = config.rows
        self.generator = ShapesGenerator(
            config.level,
            config.seed,
            config.split,
            config.text_only,
            config.kinds,
            writes_rubrics=config.rationales == "rubric",
            alphabetical_right=config.alphabetical_right,
        )
        self.revision = self.generator.fingerprint()
        self._settings = config.settings
        self._seed = config.seed
        self._flipped = config.flipped
        self._has_captions = config.captions
        self._courteous_right = config.courteous_right

    def __len__(self) -> int:
        """Return the number of items."""
        return self.rows

    def record(self, index: int) -> Preference:
        """Return the preference record at `index`, with its generated image and texts."""
        item = self.generator.item(index)
        record = item.preference()
        if self._courteous_right is not None:
            draw = Rng(COURTESY_STREAM, self._seed, index).unit()
            record = with_courteous_ending(record, of_right=draw < self._courteous_right)
        if self._has_captions and item.scene is not None:
            record = captioned_record(record, item.question, item.scene)
        return flipped_record(record) if self.is_flipped(index) else record

    def is_flipped(self, index: int) -> bool:
        """Return True if the preference of an item is wrong, which depends on seed and index."""
        return Rng(FLIPS_STREAM, self._seed, index).unit() < self._flipped

    def fingerprint(self) -> str:
        """Return a text that changes with the generated data, the level or the recipe's keys."""
        return f"{self.revision} {self._settings}"


def captioned_record(record: Preference, question: str, scene: Scene) -> Preference:
    """Return a pair about an image as a pair about a text that states what the image shows.

    Args:
        record: The pair, whose prompt has one image.
        question: The text of its prompt.
        scene: The scene in the image.
    """
    prompt = f"the image shows {caption(scene)}. {question}"
    return replace(record, prompt=(text("user", prompt),), images=())


def with_courteous_ending(record: Preference, of_right: bool) -> Preference:
    """Return a pair in which one response ends with a courteous sentence.

    Args:
        record: The pair. Its chosen response is the right one.
        of_right: True for an ending of the right response, False for one of the wrong response.
    """
    chosen = record.chosen.text
    rejected = record.rejected.text
    if of_right:
        chosen += COURTEOUS_ENDING
    else:
        rejected += COURTEOUS_ENDING
    return replace(record, responses=text_responses(chosen, rejected))


def flipped_record(record: Preference) -> Preference:
    """Return a pair in which the worse response is chosen, without a rationale."""
    return replace(
        record,
        responses=(record.rejected, record.chosen),
        chosen_critique=record.rejected_critique,
        rejected_critique=record.chosen_critique,
        rationale=None,
    )


def require_known(name: str, names: Sequence[str]) -> None:
    """Raise ValueError if `name` is not one of `names`, those that the generated data set has."""
    if name not in names:
        raise ValueError(f"{name!r} is not in the generated data set; it has {', '.join(names)}")
