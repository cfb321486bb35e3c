"""What the name of a backbone tells before anything is downloaded.

A name is compared with the hub ids of checkpoints that were looked at. Nothing is concluded from a
part of a name: a hub id that is in no list may well work, and its config.json decides.
"""

from difflib import get_close_matches

from mmrm.models.families.registry import PUBLISHED, REFUSED

EMBEDDED_NAME = "embedded"

REFUSED_CHECKPOINTS: dict[str, str] = {
    **dict.fromkeys(
        (
            "google/gemma-3-4b-it",
            "google/gemma-3-12b-it",
            "google/gemma-3-27b-it",
        ),
        "gemma3",
    ),
    **dict.fromkeys(("google/gemma-3n-E2B-it", "google/gemma-3n-E4B-it"), "gemma3n"),
    **dict.fromkeys(
        (
            "llava-hf/llava-onevision-qwen2-0.5b-ov-hf",
            "llava-hf/llava-onevision-qwen2-7b-ov-hf",
            "llava-hf/llava-onevision-qwen2-72b-ov-hf",
        ),
        "llava_onevision",
    ),
    "HuggingFaceM4/Idefics3-8B-Llama3": "idefics3",
    "HuggingFaceTB/SmolVLM2-2.2B-Instruct": "smolvlm",
    **dict.fromkeys(
        ("DAMO-NLP-SG/VideoLLaMA3-2B", "DAMO-NLP-SG/VideoLLaMA3-7B"), "videollama3_qwen2"
    ),
    **dict.fromkeys(
        (
            "OpenGVLab/InternVL3-1B",
            "OpenGVLab/InternVL3-2B",
            "OpenGVLab/InternVL3-8B",
            "OpenGVLab/InternVL3-14B",
        ),
        "internvl_chat",
    ),
}
"""Hub id to `model_type`, for checkpoints of families that are known not to work."""


def refusal_of_name(name: str) -> str:
    """Return why a backbone of this name cannot be used, an empty text if nothing speaks against it.

    Args:
        name: A hub id such as `Qwen/Qwen2.5-VL-7B-Instruct`, or a name without an owner at which
            there is no folder.
    """
    if name in REFUSED_CHECKPOINTS:
        model_type = REFUSED_CHECKPOINTS[name]
        return (
            f"{name} is a {model_type!r} model, and this family does not work here: "
            f"{REFUSED[model_type]}. models/families/README.md explains how to add a family."
        )
    if "/" in name or name == EMBEDDED_NAME:
        return ""
    hub_ids = {hub_id.partition("/")[2]: hub_id for hub_id in (*PUBLISHED, *REFUSED_CHECKPOINTS)}
    known_names = [EMBEDDED_NAME, *hub_ids]
    for similar in get_close_matches(name, known_names, n=1, cutoff=0.7):
        hub_id = hub_ids.get(similar, similar)
        reason = refusal_of_name(hub_id) if hub_id in REFUSED_CHECKPOINTS else ""
        return (
            f"{name} is no folder, and no hub id, which is written owner/name. Did you mean "
            f"{hub_id}? {reason}".strip()
        )
    return ""


def similar_hub_id(name: str) -> str | None:
    """Return the published hub id that a hub id may be a misspelling of; None if there is none."""
    for hub_id in get_close_matches(name, PUBLISHED, n=1, cutoff=0.9):
        return None if hub_id == name else hub_id
    return None
