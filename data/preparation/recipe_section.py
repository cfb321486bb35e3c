"""The keys of a recipe that commands on data read.

These are the mixture, the numbers of pairs of one prompt and of one image that are trained
together, and the number of tokens that an image becomes.
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel

from mmrm.data.config.section import Count
from mmrm.data.config.validation import read_section
from mmrm.data.encoded_video import VideoConfig
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
from mmrm.data.preparation.sampling import IMAGES_TOGETHER, METHODS_WITH_SETS, PAIRS_TOGETHER
from mmrm.data.regular_files import read_bytes

EMBEDDED = Path(__file__).resolve().parents[2] / "models" / "embedded"


class _BackboneKeys(BaseModel):
    """The keys of a recipe's section `backbone` that decide how many tokens an image becomes."""

    path: str = "embedded"
    revision: str | None = None
    min_pixels: int = MIN_PIXELS_OF_BACKBONE
    max_pixels: int = MAX_PIXELS_OF_BACKBONE
    videos: VideoConfig = VideoConfig()


class _MethodKeys(BaseModel):
    """The keys of a recipe's section `method` that decide which pairs share a step."""

    type: str = "naive"
    pairs_together: Count = PAIRS_TOGETHER
    images_together: Count = IMAGES_TOGETHER


class _DataKeys(BaseModel):
    """The keys of a recipe that commands on data read. Other keys are allowed, and not checked."""

    data: MixtureConfig
    backbone: _BackboneKeys = _BackboneKeys()
    method: _MethodKeys = _MethodKeys()


def read_data_section(recipe: Path) -> MixtureConfig:
    """Return the `data` section of a recipe, merged with those of the recipes that it extends.

    Raises: RecipeError with all faults of the section.
    """
    return read_section(recipe, _DataKeys).data


def read_pairs_section(recipe: Path) -> MixtureConfig:
    """Return the `data` section of a recipe, as `read_data_section`, if its records are pairs.

    Raises:
        RecipeError: If the section has faults.
        UserError: If a source gives records with more than two responses, or ties.
    """
    section = read_data_section(recipe)
    for source in section.sources:
        if source.gives_lists or source.gives_ties:
            kind = "more than two responses" if source.gives_lists else "tied responses"
            raise UserError(
                f"{recipe}: the source {source.label!r} gives records with {kind}. Required are "
                "pairs of a better and a worse response. Set the source to give such pairs, for "
                "most sources by removing `pairs: none` and `ties: keep`."
            )
    return section


def pairs_together_of(recipe: Path) -> int:
    """Return the largest number of pairs with the same prompt that are trained in one step.

    It is the recipe's key `method.pairs_together`, or 1 for a method without that key.
    """
    method = read_section(recipe, _DataKeys).method
    return method.pairs_together if method.type in METHODS_WITH_SETS else 1


def images_together_of(recipe: Path) -> int:
    """Return the largest number of pairs with the same first image that are trained in one step.

    It is the recipe's key `method.images_together`, or 1 for a method without that key.
    """
    method = read_section(recipe, _DataKeys).method
    return method.images_together if method.type in METHODS_WITH_SETS else 1


def image_tokens_of_recipe(recipe: Path) -> tuple[ImageTokens, str]:
    """Return the function that counts the image tokens of a recipe's backbone, and a warning.

    The backbone's config.json is read from its folder, or fetched from the hub. If it cannot be
    read, tokens are counted as for Qwen2.5-VL, and the warning says so. Otherwise the warning is
    empty.

    Raises: UserError if the backbone reads no images, or no image can be within the configured
    limits of pixels.
    """
    backbone = read_section(recipe, _DataKeys).backbone
    try:
        file = _config_file(backbone)
        config = json.loads(read_bytes(file))
    except (OSError, ValueError) as error:
        warning = (
            f"image tokens are counted by {TOKEN_SIDE} x {TOKEN_SIDE} pixels, which may not be "
            f"those of {backbone.path}: its config.json cannot be read ({type(error).__name__}: "
            f"{str(error).splitlines()[0]}). A run counts by its backbone."
        )
        return PatchTokens(
            backbone.min_pixels, backbone.max_pixels, videos=backbone.videos
        ), warning
    if not isinstance(config, dict) or not isinstance(config.get("vision_config"), dict):
        raise UserError(
            f"backbone.path: {file} has no vision_config. Required is the config.json of a model "
            "that reads images. Give the path of another model."
        )
    tokens = image_tokens_of(config, backbone.min_pixels, backbone.max_pixels, backbone.videos)
    return tokens, ""


def _config_file(backbone: _BackboneKeys) -> Path:
    """Return the path of a backbone's config.json, fetched from the hub if it is not local.

    Raises: OSError or ValueError if the hub does not answer, or has no such model.
    """
    folder = Path(backbone.path).expanduser()
    if backbone.path == "embedded":
        folder = EMBEDDED
    if folder.is_dir():
        return folder / "config.json"
    return _fetched_config(hub_id=backbone.path, revision=backbone.revision)


def _fetched_config(hub_id: str, revision: str | None) -> Path:
    """Fetch a model's config.json (1 kB) from the hub, and return its path in the hub's cache."""
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(hub_id, "config.json", revision=revision))
