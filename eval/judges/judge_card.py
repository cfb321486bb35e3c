"""What judging with a checkpoint needs from the recipe behind it: `judge.json`, which training writes into each checkpoint.

Checkpoints of earlier releases have none; their card is made of the resolved recipe in the run folder. Imports no torch.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmrm.data.config.layers import read_yaml
from mmrm.data.config.section import Section
from mmrm.data.errors import CheckpointError
from mmrm.data.prompts import JudgeTemplate
from mmrm.data.storage.manifest import verify_settings
from mmrm.eval.benchmarks.registry import BenchmarkConfig
from mmrm.eval.protocol import ProtocolConfig
from mmrm.eval.results.run_folder import CARD, PROVENANCE, RECIPE
from mmrm.models.config import BackboneConfig, CritiqueConfig, HeadConfig


class JudgeCard(Section):
    """How a checkpoint was trained and is evaluated, as far as it matters for judging."""

    backbone: BackboneConfig
    """Of the model that training started from; a checkpoint sees images and prompts as this says."""
    head: HeadConfig | None
    method: str
    autocast: bool
    """Training computed in bf16 with fp32 weights: torch's autocast, where DeepSpeed keeps no copies."""
    nf4: bool
    """Adapters were trained on a base in 4 bits."""
    critique: CritiqueConfig | None
    """How a critic was asked for critiques; None for other methods."""
    template: JudgeTemplate | None
    """What a generative judge was asked in training; None for other methods."""
    token_budget: int | None
    """None where the recipe leaves it to the device."""
    workers: int
    benchmarks: tuple[BenchmarkConfig, ...]
    protocol: ProtocolConfig
    baselines: bool


def judge_card(recipe: Mapping[str, Any]) -> JudgeCard:
    """Return the card of the checkpoints that a resolved recipe, given as plain values, makes."""
    backbone, method, evaluation = recipe["backbone"], recipe["method"], recipe["evaluation"]
    budget, lora, critique = recipe["optim"]["token_budget"], recipe["optim"]["lora"], None
    if method["type"] == "critic":
        request = (
            {} if method["critique_request"] is None else {"request": method["critique_request"]}
        )
        critique = {"max_new_tokens": method["critique_max_tokens"], **request}
    card = {
        "backbone": backbone,
        "head": recipe.get("head"),
        "method": method["type"],
        "autocast": recipe["deepspeed"] == "none" and backbone["dtype"] == "bfloat16",
        "nf4": lora is not None and lora["quantise"] == "nf4",
        "critique": critique,
        "template": method.get("template"),
        "token_budget": None if budget == "auto" else budget,
        "workers": recipe["workers"],
        **{name: evaluation[name] for name in ("benchmarks", "protocol", "baselines")},
    }
    return JudgeCard.model_validate_json(json.dumps(card))


def recorded(checkpoint: Path) -> JudgeCard | None:
    """Return the card of a checkpoint, None if there is neither a `judge.json` in it nor its run's `recipe.yaml` above it.

    Links are followed first: `best` belongs to the run that it points into. A run folder has a `provenance.json` beside its
    recipe, which any other recipe that happens to lie there has not.
    Raises: CheckpointError for a file that is not as training writes it, or not as it was saved.
    """
    card, recipe = checkpoint.resolve() / CARD, checkpoint.resolve().parent / RECIPE
    file, kind = (card, "judge card") if card.is_file() else (recipe, "recipe")
    if not file.is_file() or (file == recipe and not recipe.with_name(PROVENANCE).is_file()):
        return None
    if file == card:
        verify_settings(checkpoint)
    try:
        if file == card:
            return JudgeCard.model_validate_json(card.read_bytes())
        return judge_card(read_yaml(recipe).plain())
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{file} is not a {kind} as train/ writes it beside its checkpoints ({type(error).__name__}: {error}). "
            "Restore that file: it says how the checkpoint sees images and prompts."
        ) from error
