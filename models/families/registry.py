"""The families of backbones that work, and model types that are known not to work."""

from mmrm.data.errors import CheckpointError
from mmrm.models.families import (
    cosmos3_edge,
    glm4v,
    internvl,
    qwen2_5_vl,
    qwen2_vl,
    qwen3_5,
    qwen3_vl,
    qwen3_vl_moe,
    video_llama_3,
)
from mmrm.models.families.family import Family, Shape

FAMILIES: dict[str, Family] = {
    "qwen2_5_vl": qwen2_5_vl.FAMILY,
    "qwen2_vl": qwen2_vl.FAMILY,
    "qwen3_vl": qwen3_vl.FAMILY,
    "qwen3_vl_moe": qwen3_vl_moe.FAMILY,
    "qwen3_5": qwen3_5.FAMILY,
    "internvl": internvl.FAMILY,
    "video_llama_3": video_llama_3.FAMILY,
    "glm4v": glm4v.FAMILY,
    "cosmos3_edge": cosmos3_edge.FAMILY,
}
"""`model_type` in config.json to a family. A new family is a file of this folder and a row here."""

BOTH_WAYS = "its image tokens see each other in both directions, and packed rows attend causally"
OMNI = "it takes sound besides images, and packed rows of it were not verified"
MIXED = (
    "its recurrent layers and its experts work in other families, and packed rows of both together "
    "were not verified"
)
ANYRES = (
    "its image tokens depend on the image's own size, with a learned one after each row of "
    "patches, and its chat template writes white space before an answer that its generation prompt "
    "does not"
)
BETWEEN_TILES = (
    "there is text between an image's tiles, and its chat template writes white space before an "
    "answer that its generation prompt does not"
)
REFUSED: dict[str, str] = {
    **dict.fromkeys(("gemma3", "gemma3n", "gemma4", "paligemma"), BOTH_WAYS),
    "qwen3_omni_moe": OMNI,
    "qwen3_5_moe": MIXED,
    "llava_onevision": ANYRES,
    **dict.fromkeys(("idefics3", "smolvlm"), BETWEEN_TILES),
    "videollama3_qwen2": (
        "it has the format of its authors' own code; the checkpoints whose names end with "
        "-Image-HF work"
    ),
    "internvl_chat": (
        "it has the format of its authors' own code; the checkpoint of the same name with -hf at "
        "the end works"
    ),
}
"""`model_type` to the reason why packed rows would not be exact, or were not shown to be."""

PUBLISHED: dict[str, Shape] = {
    path: shape for family in FAMILIES.values() for path, shape in family.published.items()
}
"""Shapes of all released checkpoints, by hub id."""

WORKS = ", ".join(f"{family.title} (model_type {name})" for name, family in FAMILIES.items())
"""The supported families in words, for messages."""
BACKBONES = (
    f"a folder with a model of {WORKS}: config.json, *.safetensors, a tokenizer and "
    f"preprocessor_config.json; a hub id such as {next(iter(PUBLISHED))}; or `embedded`"
)
"""The models that a run can start from, in words, for messages."""


def family_of(model_type: object, where: object = "the model") -> Family:
    """Return the family of a model.

    Args:
        model_type: The value of `model_type` in config.json.
        where: The folder or hub id of the checkpoint, for the message.

    Raises:
        CheckpointError: This project does not support the model. The message says why.
    """
    if isinstance(model_type, str) and model_type in FAMILIES:
        return FAMILIES[model_type]
    reason = REFUSED.get(str(model_type), "packed rows were not shown to be exact for it")
    raise CheckpointError(
        f"{where} is a {model_type or 'nameless'!r} model: {reason}. Give a checkpoint of one of "
        f"these: {WORKS}. models/families/README.md "
        "explains how to add a family."
    )


def family_of_shape(shape: Shape) -> Family:
    """Return the family of the model that has the sizes `shape`."""
    [family] = [family for family in FAMILIES.values() if family.shape is type(shape)]
    return family
