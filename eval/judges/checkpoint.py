"""From a checkpoint folder to a model and an encoder that see prompts and pictures as in training.

The resolved recipe in the run folder says how; without it the checkpoint's own processor and config do, and notes say so.

What a run folder says of its checkpoints: the resolved recipe that training wrote, read as plain YAML.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from torch import nn

from data.errors import CheckpointError
from data.prompts import JudgeTemplate
from eval.benchmarks.table import BenchmarkConfig
from eval.protocol import ProtocolConfig
from models.adapters import base_of, is_adapter, with_adapters
from models.backbone import compute_in_half, load_processor, load_scalar, window_size
from models.config import BackboneConfig, CritiqueConfig, HeadConfig
from models.encoder import Encoder

TOKEN_BUDGET = {"cpu": 4096, "cuda": 16384}
"""Tokens of one packed row where neither the command line nor the recipe says: no gradients, so one row may be long."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """Where a judge runs and how much at a time."""

    device: torch.device
    token_budget: int | None = None
    """None takes the recipe's, or what suits the device."""


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    """A checkpoint, loaded: a model on its device in eval mode, and what surrounds it."""

    model: Any
    encoder: Encoder
    device: torch.device
    token_budget: int
    workers: int
    notes: tuple[str, ...]


def load_scalar_checkpoint(path: Path, runtime: Runtime) -> LoadedCheckpoint:
    """Load a scalar reward model; see `load_with_head`."""
    return load_with_head(path, runtime, load_scalar)


def load_with_head(path: Path, runtime: Runtime, load: Callable[..., Any]) -> LoadedCheckpoint:
    """Load a reward model by `load` (`load_scalar` or `load_critic`), whole or as adapters on their base.

    Raises: CheckpointError, CheckpointError, CheckpointError or IncompleteCheckpointError for what is no whole checkpoint;
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
    return LoadedCheckpoint(model.eval(), encoder_of(path, run), runtime.device, token_budget(run, runtime), workers, notes)


def _adapted(path: Path, load: Callable[..., Any]) -> nn.Module:
    run = run_of_adapters(path)
    return with_adapters(load(run.backbone, run.head, nf4=run.nf4), path)


def run_of_adapters(path: Path) -> Recorded:
    """Return what the recipe of a LoRA run says; raises CheckpointError where it is not beside the adapters any more."""
    run = recorded(path)
    if run is None:
        raise CheckpointError(
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
    Raises: CheckpointError if the checkpoint's own files do not say the rest.
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
        raise CheckpointError(
            f"{path}: neither a recipe.yaml in the folder above nor its own preprocessor_config.json and config.json say how "
            f"it sees pictures ({type(error).__name__}: {error}). Keep the checkpoint whole, best in its run folder."
        ) from error


def _json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def token_budget(run: Recorded | None, runtime: Runtime) -> int:
    """Return the tokens of one packed row: the command line's, else the recipe's, else the device's."""
    return runtime.token_budget or (run.token_budget if run else None) or TOKEN_BUDGET[runtime.device.type]


RECIPE = "recipe.yaml"


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the resolved recipe says that matters for judging with a checkpoint."""

    file: Path
    backbone: BackboneConfig
    """Of the model that training started from; a checkpoint sees pictures and prompts as this says."""
    head: HeadConfig | None
    method: str
    autocast: bool
    """Training computed in bf16 with fp32 weights: torch's autocast, where DeepSpeed keeps no copies."""
    nf4: bool
    """Adapters were trained on a base in 4 bits."""
    critique: CritiqueConfig | None
    """How a critic was asked for critiques; None for other methods."""
    token_budget: int | None
    """None where the recipe leaves it to the device."""
    workers: int
    benchmarks: tuple[BenchmarkConfig, ...]
    protocol: ProtocolConfig
    baselines: bool
    template: JudgeTemplate | None = None
    """What a generative judge was asked in training; None for other methods."""


def recorded(checkpoint: Path) -> Recorded | None:
    """Return what the recipe of the checkpoint's run says, None if there is no `recipe.yaml` in the folder above it.

    Links are followed first: `best` belongs to the run that it points into.
    Raises: CheckpointError for a file that is no resolved recipe.
    """
    file = checkpoint.resolve().parent / RECIPE
    if not file.is_file():
        return None
    try:
        return _recorded(file, YAML(typ="safe", pure=True).load(file))
    except (YAMLError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{file} is not a recipe as train/ writes it beside its checkpoints ({type(error).__name__}: {error}). "
            "Restore that file: it says how the checkpoint sees pictures and prompts."
        ) from error


def _recorded(file: Path, recipe: Mapping[str, Any]) -> Recorded:
    evaluation, optim = recipe["evaluation"], recipe["optim"]
    backbone, budget, lora = recipe["backbone"], optim["token_budget"], optim["lora"]
    return Recorded(
        file=file,
        backbone=BackboneConfig.model_validate_json(json.dumps(backbone)),
        head=HeadConfig.model_validate_json(json.dumps(recipe["head"])) if "head" in recipe else None,
        method=recipe["method"]["type"],
        autocast=recipe["deepspeed"] == "none" and backbone["dtype"] == "bfloat16",
        nf4=lora is not None and lora["quantise"] == "nf4",
        critique=_critique(recipe["method"]),
        token_budget=None if budget == "auto" else int(budget),
        workers=int(recipe["workers"]),
        benchmarks=tuple(BenchmarkConfig.model_validate_json(json.dumps(one)) for one in evaluation["benchmarks"]),
        protocol=ProtocolConfig.model_validate_json(json.dumps(evaluation["protocol"])),
        baselines=evaluation["baselines"],
        template=recipe["method"].get("template"),
    )


def _critique(method: Mapping[str, Any]) -> CritiqueConfig | None:
    if method["type"] != "critic":
        return None
    request = {} if method["critique_request"] is None else {"request": method["critique_request"]}
    return CritiqueConfig(max_new_tokens=method["critique_max_tokens"], **request)
