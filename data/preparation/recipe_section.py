"""The parts of a recipe that commands on data read: its mixture, and how many tokens an image becomes."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel

from mmrm.data.config.section import Count
from mmrm.data.config.validation import read_section
from mmrm.data.errors import UserError
from mmrm.data.images import (
    MAX_PIXELS_OF_BACKBONE,
    MIN_PIXELS_OF_BACKBONE,
    TOKEN_SIDE,
    ImageTokens,
    PatchTokens,
    image_tokens_of,
)
from mmrm.data.preparation.mixing import MixtureConfig
from mmrm.data.preparation.sampling import METHODS_WITH_SETS, PAIRS_TOGETHER
from mmrm.data.regular_files import read_bytes

EMBEDDED = Path(__file__).resolve().parents[2] / "models" / "embedded"


class _Seen(BaseModel):
    """What decides how many tokens an image becomes."""

    path: str = "embedded"
    revision: str | None = None
    min_pixels: int = MIN_PIXELS_OF_BACKBONE
    max_pixels: int = MAX_PIXELS_OF_BACKBONE


class _Sets(BaseModel):
    """The settings that decide how many pairs of one prompt are trained together."""

    type: str = "naive"
    pairs_together: Count = PAIRS_TOGETHER


class _DataOfRecipe(BaseModel):
    """What commands on data read of a recipe; they leave its other sections alone."""

    data: MixtureConfig
    backbone: _Seen = _Seen()
    method: _Sets = _Sets()


def section_of(recipe: Path) -> MixtureConfig:
    """Return the `data` section of a recipe, laid over those that it extends.

    Raises: RecipeError with everything that is wrong with it.
    """
    return read_section(recipe, _DataOfRecipe).data


def pairs_together_of(recipe: Path) -> int:
    """Return the largest number of pairs of one prompt that a recipe trains together."""
    method = read_section(recipe, _DataOfRecipe).method
    return method.pairs_together if method.type in METHODS_WITH_SETS else 1


def image_tokens_of_recipe(recipe: Path) -> tuple[ImageTokens, str]:
    """Return how many tokens images become in a recipe's backbone, and what is to be said about it.

    The backbone's config.json is read where it lies, or fetched from the hub; raises UserError for limits that it cannot keep.
    """
    seen = read_section(recipe, _DataOfRecipe).backbone
    limits = seen.min_pixels, seen.max_pixels
    folder = EMBEDDED if seen.path == "embedded" else Path(seen.path).expanduser()
    try:
        file = (
            folder / "config.json" if folder.is_dir() else _fetched_config(seen.path, seen.revision)
        )
        config = json.loads(read_bytes(file))
    except (OSError, ValueError) as error:
        return PatchTokens(*limits), (
            f"image tokens are counted by {TOKEN_SIDE} x {TOKEN_SIDE} pixels, which may not be those of {seen.path}: its "
            f"config.json cannot be read ({type(error).__name__}: {str(error).splitlines()[0]}). A run counts by its backbone."
        )
    if not isinstance(config, dict) or not isinstance(config.get("vision_config"), dict):
        raise UserError(f"backbone.path: {file} is no config.json of a model that sees images.")
    return image_tokens_of(config, *limits), ""


def _fetched_config(hub: str, revision: str | None) -> Path:
    """Fetch 1 kB; a hub that does not answer, or has no such model, is an OSError or a ValueError."""
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(hub, "config.json", revision=revision))
