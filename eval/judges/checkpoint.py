"""Loading of a checkpoint folder: the model, and the encoder that prepares its inputs.

The encoder renders prompts and images as in the checkpoint's training. Its settings are in the
checkpoint's judge card (`judge.json`). A checkpoint without a card is loaded with its own processor
and config, and a note is added.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from mmrm.data.encoded_video import VideoConfig
from mmrm.data.errors import SHOWN_CHARACTERS, CheckpointError, HubError, UserError
from mmrm.data.storage.files import read_json_object
from mmrm.data.storage.manifest import COMPLETE, require_json_settings, verify_settings
from mmrm.eval.judges.judge_card import JudgeCard, judge_card_of
from mmrm.eval.judges.packed_inference import Packed
from mmrm.models.backbone import compute_in_half, load_encoder
from mmrm.models.config import HUB_ID, BackboneConfig
from mmrm.models.families.registry import FAMILIES, family_of
from mmrm.models.lora import base_of, is_adapter, with_adapters
from mmrm.models.portable.reward import IncompleteCheckpointError
from mmrm.models.portable.videos import SETTINGS as VIDEO_SETTINGS

JUDGE_TYPES = {"scalar": "scalar", "critic": "critic", "language_model": "generative"}
"""The `type` of judge of a checkpoint, by the field of `Parts` that holds its model class."""
SETTINGS_DOWNLOADED = ("*.json", "*.jinja", "*.txt")
"""Patterns of the files on the hub that hold configuration, tokenizer and image processor."""
DOWNLOADED = ("*.safetensors", *SETTINGS_DOWNLOADED, COMPLETE)
"""Patterns of the files of a checkpoint on the hub that are downloaded."""
TOKEN_BUDGET = {"cpu": 4096, "cuda": 16384}
"""Tokens of one packed row if neither the command line nor the recipe sets a budget. Judging needs
no gradients, so rows may be long."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """The device on which a judge runs, and the size of its packed rows."""

    device: torch.device
    token_budget: int | None = None
    """None takes the recipe's value, or a default for the device."""


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    """A loaded checkpoint: the model on its device in eval mode, its encoder and its settings."""

    model: Any
    """The model itself; adapters stay in its layers."""
    packed: Packed
    card: JudgeCard | None
    """None for a checkpoint of another trainer."""
    notes: tuple[str, ...]
    """Notes to print with figures of this checkpoint, such as that it has no card."""


def fetch_checkpoint(path: Path, patterns: Sequence[str] = DOWNLOADED) -> Path:
    """Return the folder of a checkpoint: `path` itself, or the cache folder of a hub id's files.

    Files on the hub are downloaded if their names match one of `patterns`.

    Raises: HubError if `path` is no folder, and the hub has no readable repository of this id.
    """
    if path.exists() or not HUB_ID.fullmatch(str(path)):
        return path
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return Path(snapshot_download(str(path), allow_patterns=list(patterns)))
    except (HfHubHTTPError, OSError) as error:
        raise HubError(
            f"{path}: there is no such folder (looked from {Path.cwd()}), and the hub does not "
            f"give a model of this name ({type(error).__name__}: {error}). Check the name, the "
            "network and (for a gated model) the login; fetch it where there is a network "
            "(docs/clusters.md), or give the folder of a copy."
        ) from error


def load_checkpoint(
    path: Path,
    runtime: Runtime,
    load_model: Callable[..., Any],
    backbone_settings: Mapping[str, Any] | None = None,
) -> LoadedCheckpoint:
    """Load the model of a checkpoint and the encoder that prepares its inputs.

    The checkpoint may hold all weights, or adapters that are put on their base model. A hub id is
    downloaded first.

    Args:
        path: The checkpoint folder, or a hub id.
        runtime: The device, and the size of packed rows.
        load_model: The function that loads the model class, for example `load_scalar`.
        backbone_settings: Settings that replace those of the checkpoint's backbone. They are not
            used for adapters.

    Raises:
        CheckpointError: The checkpoint is incomplete, or its files differ from those saved.
        HubError: The hub has no readable repository of this id.
    """
    path = fetch_checkpoint(path)
    if path.is_dir():
        verify_settings(path)
        require_json_settings(path)
    card: JudgeCard | None
    try:
        if is_adapter(path):
            adapter_card = card_of_adapters(path)
            card = adapter_card
            config = backbone_of(path, adapter_card)
            base_config = adapter_card.backbone
            base = load_model(base_config, head=adapter_card.head, nf4=adapter_card.nf4)
            adapted: Any = with_adapters(base, path)
            model = adapted.get_base_model()  # the model itself, with the adapters in its layers
        else:
            card = judge_card_of(path)
            config = backbone_of(path, card).model_copy(update=backbone_settings)
            base_config = config
            model = load_model(config, fresh_head=False)
    except IncompleteCheckpointError as error:
        raise CheckpointError(str(error)) from error
    except SafetensorError as error:
        raise CheckpointError(
            f"a file of weights cannot be read ({error}). It was probably cut off while it was "
            "saved: take another checkpoint."
        ) from error

    token_budget = runtime.token_budget
    if not token_budget and card is not None:
        token_budget = card.token_budget
    if not token_budget:
        token_budget = TOKEN_BUDGET[runtime.device.type]
    workers = 0 if card is None else card.workers
    notes: tuple[str, ...] = ()
    if card is None:
        note = (
            f"There is no judge.json in {path} and no recipe.yaml of a run above it: images are "
            "seen as its processor says, a system prompt is that of its config.json."
        )
        notes = (note,)

    # Weights in 4 bits were loaded onto their device.
    has_quantised_weights = card is not None and card.nf4
    if not has_quantised_weights:
        model = model.to(runtime.device)
    if card is not None and card.autocast:
        compute_in_half(model, runtime.device)
    encoder = load_encoder(config, base_config)
    packed = Packed(encoder, runtime.device, token_budget, workers)
    return LoadedCheckpoint(model.eval(), packed, card, notes)


def judge_type_of(folder: Path) -> str:
    """Return the `type` of judge of a checkpoint.

    For a model that is no judge, return a name for messages: its class, or a description.

    Raises: CheckpointError if `folder` is no checkpoint.
    """
    if is_adapter(folder):
        return card_of_adapters(folder).judge_type or "LoRA adapter without a reward head"
    file = folder / "config.json"
    if not file.is_file():
        absent = "such folder; paths count from the working directory"
        if folder.is_dir():
            absent = "config.json and no adapter_config.json"
        raise CheckpointError(
            f"{folder}: there is no {absent}. Give a checkpoint-N folder of a run."
        )
    try:
        settings = read_json_object(file)
    except UserError as error:
        raise CheckpointError(str(error)) from error
    class_names = settings.get("architectures")
    if not class_names:
        return "model without a class"
    if not isinstance(class_names, list) or not isinstance(class_names[0], str):
        raise CheckpointError(
            f"{file}: architectures is {str(class_names)[:SHOWN_CHARACTERS]!r}, and it should be a "
            "list with the name of the model's class. The file is damaged."
        )
    class_name: str = class_names[0]
    judge_type = judge_type_by_class().get(class_name, class_name)
    if judge_type == "scalar" and "joint_responses" in settings:
        return (
            "joint"  # the class of a scalar model, trained on several responses in one conversation
        )
    if judge_type == "generative":
        card = judge_card_of(folder)
        if card is not None and card.points is not None:
            return "points"  # a language model that was trained to score single responses
    return judge_type


def judge_type_by_class() -> dict[str, str]:
    """Return the `type` of judge for each model class of each model family, by the class's name."""
    types: dict[str, str] = {}
    for family in FAMILIES.values():
        family_parts = family.parts()._asdict()
        for part, judge_type in JUDGE_TYPES.items():
            model_class = family_parts[part]
            types[model_class.__name__] = judge_type
    return types


def card_of_adapters(path: Path) -> JudgeCard:
    """Return the judge card of a folder of adapters; raise CheckpointError if it has none."""
    card = judge_card_of(path)
    if card is None:
        raise CheckpointError(
            f"{path} holds adapters, and there is no recipe.yaml of a run in the folder above it, "
            f"which names their base ({base_of(path)}?) and describes the head. Keep the "
            "checkpoint in its run folder."
        )
    return card


def _require_dtype(name: object) -> None:
    """Raise ValueError unless `name` is the name of a dtype of torch, such as "float32"."""
    if not isinstance(name, str) or not isinstance(vars(torch).get(name), torch.dtype):
        raise ValueError(f"dtype is {str(name)[:SHOWN_CHARACTERS]!r}, required is float32, say")


def backbone_of(path: Path, card: JudgeCard | None) -> BackboneConfig:
    """Return the backbone settings with which a checkpoint is loaded and its inputs are encoded.

    The dtype is the one in which the weights were saved. Without a card, the other settings come
    from the checkpoint's own files.

    Args:
        path: The checkpoint folder.
        card: Its judge card; None for a checkpoint of another trainer.

    Raises: CheckpointError if there is no card, and the checkpoint's own files lack the settings.
    """
    try:
        model_config: dict[str, Any] = {}
        dtype: dict[str, Any] = {}
        if not is_adapter(path):
            model_config = read_json_object(path / "config.json")
        if model_config:
            dtype["dtype"] = model_config.get("dtype") or model_config["torch_dtype"]
            _require_dtype(dtype["dtype"])
        if card is not None:
            own_settings = {"path": str(path), "revision": None, "freeze": [], **dtype}
            return card.backbone.model_copy(update=own_settings)
        # The version of transformers that saved the checkpoint decides which of the files it has.
        processor_file = path / "processor_config.json"
        if processor_file.is_file():
            image_processor = read_json_object(processor_file)["image_processor"]
        else:
            image_processor = read_json_object(path / "preprocessor_config.json")
        family = family_of(model_config.get("model_type"), path)
        pixel_limits = family.images.limits(image_processor)
        system_prompt = model_config.get("system_prompt")
        # Checkpoints of older versions, and of other trainers, do not have the settings for videos.
        videos = VideoConfig()
        if VIDEO_SETTINGS in model_config:
            stored = model_config[VIDEO_SETTINGS]
            videos = VideoConfig(**{name: stored[name] for name in VideoConfig.model_fields})
        return BackboneConfig(
            path=str(path), system_prompt=system_prompt, videos=videos, **dtype, **pixel_limits
        )
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"{path}: neither the recipe.yaml of a run in the folder above nor its own "
            "preprocessor_config.json and config.json say how it sees images "
            f"({type(error).__name__}: {error}). Keep the checkpoint whole, best in its run folder."
        ) from error
