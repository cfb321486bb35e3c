"""What a run folder says of its checkpoints: the resolved recipe that training wrote, read as plain YAML."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from data.prompts import JudgeTemplate
from eval.benchmarks.table import BenchmarkConfig
from eval.protocol import ProtocolConfig
from models.config import BackboneConfig, CritiqueConfig, HeadConfig

RECIPE = "recipe.yaml"


class RunFolderError(ValueError):
    """A recipe beside a checkpoint that cannot be read; the message names the file."""


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
    Raises: RunFolderError for a file that is no resolved recipe.
    """
    file = checkpoint.resolve().parent / RECIPE
    if not file.is_file():
        return None
    try:
        return _recorded(file, YAML(typ="safe", pure=True).load(file))
    except (YAMLError, KeyError, TypeError, ValueError) as error:
        raise RunFolderError(
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
