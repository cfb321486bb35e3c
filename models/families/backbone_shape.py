"""What a backbone's weights, gradients and optimizer states take on every rank, from its shape alone.

Arithmetic on config.json: no weights, no network, no torch. Activations, buffers and the allocator's slack come on top.
"""

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
    """Return the shape of a released checkpoint or of a local folder; None for anything whose config is not at hand.

    config.json may have the released layout (flat) or the current one (`text_config`).
    Raises: CheckpointError for a folder that holds no such config, or that of another model.
    """
    folder = EMBEDDED if path == "embedded" else Path(path).expanduser()
    if path in PUBLISHED or not folder.is_dir():
        return PUBLISHED.get(path)
    file = folder / "config.json"
    if not file.is_file():
        raise CheckpointError(f"{folder} holds no config.json; required is {BACKBONES}")
    try:
        config = TypeAdapter(dict[str, Any]).validate_json(read_bytes(file))
        family = family_of(config.get("model_type"), folder)
        text = config["text_config"] if isinstance(config.get("text_config"), dict) else config
        whole = {
            key: config[key] for key in ("tie_word_embeddings", "vision_config") if key in config
        }
        return TypeAdapter(family.shape).validate_json(json.dumps({**text, **whole}), strict=True)
    except ValidationError as error:
        raise CheckpointError(
            f"{file} is broken ({format_validation_error(error)}); required is {BACKBONES}"
        ) from error
