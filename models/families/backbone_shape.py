"""A function that reads the sizes of a backbone's layers without weights, network or torch."""

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
    """Return the sizes of a backbone's layers, from which its parameters are counted.

    They are read from config.json in a folder. Those of released checkpoints are in this project.

    Args:
        path: A folder, a hub id, or `embedded`, the tiny backbone in this repository.

    Returns:
        The sizes; None for a hub id of another checkpoint, whose sizes are not known.

    Raises:
        CheckpointError: The folder has no config.json, or its model is not supported.
    """
    if path in PUBLISHED:
        return PUBLISHED[path]
    folder = EMBEDDED if path == "embedded" else Path(path).expanduser()
    if not folder.is_dir():
        return None
    file = folder / "config.json"
    if not file.is_file():
        raise CheckpointError(f"{folder} holds no config.json; required is {BACKBONES}.")
    try:
        config = TypeAdapter(dict[str, Any]).validate_json(read_bytes(file))
        family = family_of(config.get("model_type"), folder)
        # The numbers of the language model are in `text_config`. Released files have them directly
        # in config.json.
        text_config = config.get("text_config")
        sizes = dict(text_config if isinstance(text_config, dict) else config)
        for key in family.shape.outside_text_config:
            if key in config:
                sizes[key] = config[key]
        return TypeAdapter(family.shape).validate_json(json.dumps(sizes), strict=True)
    except ValidationError as error:
        raise CheckpointError(
            f"{file} cannot be used: {format_validation_error(error)}. Required is {BACKBONES}."
        ) from error
