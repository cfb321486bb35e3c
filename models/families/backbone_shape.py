"""The shape of a backbone from its config.json, without weights, network or torch."""

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from mmrm.data.config.validation import format_validation_error
from mmrm.data.errors import CheckpointError
from mmrm.data.regular_files import read_bytes
from mmrm.models.families.family import Shape
from mmrm.models.families.registry import BACKBONES, PUBLISHED, family_of

EMBEDDED = Path(__file__).resolve().parents[2] / "models" / "embedded"


def shape_of(path: str) -> Shape | None:
    """Return the shape of a released checkpoint or of a local folder.

    config.json may have the released layout (flat) or the current one (`text_config`).

    Args:
        path: A folder, a hub id, or `embedded`.

    Returns:
        None for a hub id whose config is not known here.

    Raises:
        CheckpointError: A folder has no config.json, or that of a model that does not work.
    """
    folder = EMBEDDED if path == "embedded" else Path(path).expanduser()
    if path in PUBLISHED or not folder.is_dir():
        return PUBLISHED.get(path)
    file = folder / "config.json"
    if not file.is_file():
        raise CheckpointError(f"{folder} holds no config.json; required is {BACKBONES}.")
    try:
        config = TypeAdapter(dict[str, Any]).validate_json(read_bytes(file))
        family = family_of(config.get("model_type"), folder)
        text_config = config.get("text_config")
        numbers = dict(text_config if isinstance(text_config, dict) else config)
        for key in ("tie_word_embeddings", "vision_config"):
            if key in config:
                numbers[key] = config[key]
        return TypeAdapter(family.shape).validate_json(json.dumps(numbers), strict=True)
    except ValidationError as error:
        raise CheckpointError(
            f"{file} cannot be used: {format_validation_error(error)}. Required is {BACKBONES}."
        ) from error
