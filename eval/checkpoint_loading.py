"""From a checkpoint folder to a model and an encoder that see prompts and pictures as in training.

The resolved recipe in the run folder says how; without it the checkpoint's own processor and config do, and notes say so.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from eval.run_folder import Recorded, recorded
from models.adapters import base_of, is_adapter, with_adapters
from models.backbone import compute_in_half, load_processor, load_scalar, window_size
from models.config import BackboneConfig
from models.encoder import Encoder

TOKEN_BUDGET = {"cpu": 4096, "cuda": 16384}
"""Tokens of one packed row where neither the command line nor the recipe says: no gradients, so one row may be long."""


class JudgeError(ValueError):
    """A path that is no judge; the message says what was found there and what is required."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """Where a judge runs and how much at a time."""

    device: torch.device
    token_budget: int | None = None
    """None takes the recipe's, or what suits the device."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint, loaded: a model on its device in eval mode, and what surrounds it."""

    model: Any
    encoder: Encoder
    device: torch.device
    token_budget: int
    workers: int
    notes: tuple[str, ...]


def load_scalar_checkpoint(path: Path, runtime: Runtime) -> Checkpoint:
    """Load a scalar reward model; see `load_with_head`."""
    return load_with_head(path, runtime, load_scalar)


def load_with_head(path: Path, runtime: Runtime, load: Callable[..., Any]) -> Checkpoint:
    """Load a reward model by `load` (`load_scalar` or `load_critic`), whole or as adapters on their base.

    Raises: JudgeError, RunFolderError, BackboneError or IncompleteCheckpointError for what is no whole checkpoint;
    SafetensorError for cut off weights.
    """
    run = recorded(path)
    model: Any = _adapted(path, load) if is_adapter(path) else load(backbone_of(path, run), fresh_head=False)
    if run is None or not run.nf4:  # what is quantised was loaded onto its device
        model = model.to(runtime.device)
    if run is not None and run.autocast:
        compute_in_half(model.get_base_model() if is_adapter(path) else model, runtime.device)
    notes = () if run else (f"No recipe.yaml lies above {path}: pictures as its processor says, no system prompt of its own.",)
    workers = run.workers if run else 0
    return Checkpoint(model.eval(), encoder_of(path, run), runtime.device, token_budget(run, runtime), workers, notes)


def _adapted(path: Path, load: Callable[..., Any]) -> nn.Module:
    run = run_of_adapters(path)
    return with_adapters(load(run.backbone, run.head, nf4=run.nf4), path)


def run_of_adapters(path: Path) -> Recorded:
    """Return what the recipe of a LoRA run says; raises JudgeError where it is not beside the adapters any more."""
    run = recorded(path)
    if run is None:
        raise JudgeError(
            f"{path} holds adapters, and there is no recipe.yaml in the folder above it, which names their base "
            f"({base_of(path)}?) and describes the head. Keep the checkpoint in its run folder."
        )
    return run


def encoder_of(path: Path, run: Recorded | None) -> Encoder:
    """Return the encoder of the checkpoint at `path`, with the tokenizer and image processor that lie in it."""
    config = backbone_of(path, run)
    processor = load_processor(config)
    base = run_of_adapters(path).backbone if is_adapter(path) else config
    return Encoder(processor.tokenizer, processor.image_processor, config, window_size(base))


def backbone_of(path: Path, run: Recorded | None) -> BackboneConfig:
    """Return how the checkpoint at `path` is loaded (in the dtype in which it was saved) and how it sees.

    `run` is its recipe, if there is one.
    Raises: JudgeError if the checkpoint's own files do not say the rest.
    """
    try:
        settings = {} if is_adapter(path) else _json(path / "config.json")
        known = {"dtype": settings.get("dtype") or settings["torch_dtype"]} if settings else {}
        if run is not None:
            return run.backbone.model_copy(update={"path": str(path), "revision": None, "freeze": [], **known})
        whole = path / "processor_config.json"  # other trainers write this one, and older releases the names of old
        sees = _json(whole)["image_processor"] if whole.is_file() else _json(path / "preprocessor_config.json")
        size = sees.get("size") or {}
        ends = {"min_pixels": "shortest_edge", "max_pixels": "longest_edge"}
        pixels = {name: sees.get(name) or size[end] for name, end in ends.items()}
        return BackboneConfig(path=str(path), **known, **pixels)
    except (OSError, ValueError, KeyError) as error:
        raise JudgeError(
            f"{path}: neither a recipe.yaml in the folder above nor its own preprocessor_config.json and config.json say how "
            f"it sees pictures ({type(error).__name__}: {error}). Keep the checkpoint whole, best in its run folder."
        ) from error


def _json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def token_budget(run: Recorded | None, runtime: Runtime) -> int:
    """Return the tokens of one packed row: the command line's, else the recipe's, else the device's."""
    return runtime.token_budget or (run.token_budget if run else None) or TOKEN_BUDGET[runtime.device.type]
