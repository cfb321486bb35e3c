"""Loading of a checkpoint folder: the model, and the encoder of its training.

The encoder's settings for prompts and images are in the checkpoint's judge card. A checkpoint
without a card is loaded with its own processor and config, and a note is added.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from mmrm.data.errors import CheckpointError, HubError
from mmrm.data.storage.files import read_json
from mmrm.data.storage.manifest import COMPLETE, verify_settings
from mmrm.eval.judges.judge_card import JudgeCard, judge_card_of
from mmrm.eval.judges.packed_inference import Packed
from mmrm.models.backbone import compute_in_half, load_encoder
from mmrm.models.config import HUB_ID, BackboneConfig
from mmrm.models.families.registry import FAMILIES, family_of
from mmrm.models.lora import base_of, is_adapter, with_adapters
from mmrm.models.portable.reward import IncompleteCheckpointError

KINDS = {"scalar": "scalar", "critic": "critic", "language_model": "generative"}
"""The `type` of judge of a checkpoint, by the name of its model class."""
PARTS = ("*.safetensors", "*.json", "*.jinja", "*.txt", COMPLETE)
"""The files of a checkpoint on the hub that are downloaded."""
TOKEN_BUDGET = {"cpu": 4096, "cuda": 16384}
"""Tokens of one packed row if neither the command line nor the recipe sets a budget. Judging needs no
gradients, so rows may be long."""


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
    notes: tuple[str, ...]


def fetch_checkpoint(path: Path) -> Path:
    """Return the folder of a checkpoint: `path` itself, or the cache folder of a hub id's files.

    Raises: HubError if `path` is no folder, and the hub has no readable repository of this id.
    """
    if path.exists() or not HUB_ID.fullmatch(str(path)):
        return path
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return Path(snapshot_download(str(path), allow_patterns=list(PARTS)))
    except (HfHubHTTPError, OSError) as error:
        raise HubError(
            f"{path}: there is no such folder (looked from {Path.cwd()}), and the hub does not give a model of this name "
            f"({type(error).__name__}: {error}). Check the name, the network and (for a gated model) the login; fetch it where "
            "there is a network (docs/clusters.md), or give the folder of a copy."
        ) from error


def load_checkpoint(
    path: Path, runtime: Runtime, load: Callable[..., Any], sees: Mapping[str, Any] | None = None
) -> LoadedCheckpoint:
    """Load a checkpoint with the function `load`, for example `load_scalar`.

    The checkpoint may hold all weights, or adapters that are put on their base model. A hub id is
    downloaded first.

    `sees` replaces settings of the checkpoint's backbone.

    Raises:
        CheckpointError: The checkpoint is incomplete, or its files differ from those saved.
        HubError: The hub has no readable repository of this id.
    """
    path = fetch_checkpoint(path)
    if path.is_dir():
        verify_settings(path)
    card: JudgeCard | None
    try:
        if is_adapter(path):
            card = own = card_of_adapters(path)
            config = backbone_of(path, own)
            base = own.backbone
            adapted: Any = with_adapters(load(base, head=own.head, nf4=own.nf4), path)
            model = adapted.get_base_model()
        else:
            card = judge_card_of(path)
            config = base = backbone_of(path, card).model_copy(update=sees)
            model = load(config, fresh_head=False)
    except IncompleteCheckpointError as error:
        raise CheckpointError(str(error)) from error
    except SafetensorError as error:
        raise CheckpointError(
            f"a file of weights cannot be read ({error}). It was probably cut off while it was saved: take another checkpoint."
        ) from error
    if card is None or not card.nf4:  # quantised weights were loaded onto their device
        model = model.to(runtime.device)
    if card is not None and card.autocast:
        compute_in_half(model, runtime.device)
    encoder = load_encoder(config, base)
    budget = (
        runtime.token_budget
        or (card.token_budget if card else None)
        or TOKEN_BUDGET[runtime.device.type]
    )
    note = f"There is no judge.json in {path} and no recipe.yaml of a run above it: images are seen as its processor says, a "
    note += "system prompt is that of its config.json."
    workers = card.workers if card else 0
    notes = () if card else (note,)
    packed = Packed(encoder, runtime.device, budget, workers)
    return LoadedCheckpoint(model.eval(), packed, card, notes)


def judge_type_of(folder: Path) -> str:
    """Return the `type` of judge of a checkpoint, or the name of another kind of model.

    Raises: CheckpointError if `path` is no checkpoint.
    """
    if is_adapter(folder):
        return card_of_adapters(folder).judge_type or "LoRA adapter without a reward head"
    file = folder / "config.json"
    if not file.is_file():
        whole = "config.json and no adapter_config.json"
        absent = whole if folder.is_dir() else "such folder; paths count from the working directory"
        raise CheckpointError(
            f"{folder}: there is no {absent}. Give a checkpoint-N folder of a run."
        )
    try:
        classes = read_json(file).get("architectures")
    except ValueError as error:
        raise CheckpointError(f"{file} is no JSON: {error}") from error
    return classes_of_judges().get(classes[0], classes[0]) if classes else "model without a class"


def classes_of_judges() -> dict[str, str]:
    """Return the `type` of judge of each family's checkpoints, by the name of their model class."""
    rows = [family.parts()._asdict() for family in FAMILIES.values()]
    return {row[kind].__name__: judge for row in rows for kind, judge in KINDS.items()}


def card_of_adapters(path: Path) -> JudgeCard:
    """Return the judge card of adapters; raises CheckpointError if they have none."""
    card = judge_card_of(path)
    if card is None:
        raise CheckpointError(
            f"{path} holds adapters, and there is no recipe.yaml of a run in the folder above it, which names their base "
            f"({base_of(path)}?) and describes the head. Keep the checkpoint in its run folder."
        )
    return card


def backbone_of(path: Path, card: JudgeCard | None) -> BackboneConfig:
    """Return the backbone settings with which the checkpoint at `path` is loaded and reads its inputs.

    The dtype is the one in which the weights were saved.

    Raises: CheckpointError if there is no card, and the checkpoint's own files lack the settings.
    """
    try:
        settings = {} if is_adapter(path) else read_json(path / "config.json")
        known = {"dtype": settings.get("dtype") or settings["torch_dtype"]} if settings else {}
        if card is not None:
            return card.backbone.model_copy(
                update={"path": str(path), "revision": None, "freeze": [], **known}
            )
        whole = (
            path / "processor_config.json"
        )  # other trainers write this one, and older releases the other
        sees = (
            read_json(whole)["image_processor"]
            if whole.is_file()
            else read_json(path / "preprocessor_config.json")
        )
        pixels = family_of(settings.get("model_type"), path).images.limits(sees)
        return BackboneConfig(
            path=str(path), system_prompt=settings.get("system_prompt"), **known, **pixels
        )
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"{path}: neither the recipe.yaml of a run in the folder above nor its own preprocessor_config.json and config.json "
            f"say how it sees images ({type(error).__name__}: {error}). Keep the checkpoint whole, best in its run folder."
        ) from error
