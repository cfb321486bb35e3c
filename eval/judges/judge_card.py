"""The judge card of a checkpoint: the settings of its recipe that judging needs.

Training writes it as `judge.json` into each checkpoint.

Checkpoints of earlier releases have none, and their card is made from the resolved recipe in the
run folder. This module does not import torch.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from mmrm.data.config.layers import read_yaml
from mmrm.data.config.section import Section
from mmrm.data.errors import CheckpointError
from mmrm.data.point_prompt import PointPrompt
from mmrm.data.prompts import CRITIQUE_REQUEST, JudgeTemplate
from mmrm.data.storage.manifest import verify_settings
from mmrm.eval.benchmarks.registry import BenchmarkConfig
from mmrm.eval.protocol import ProtocolConfig
from mmrm.eval.results.run_folder import CARD, RECIPE, is_run_folder
from mmrm.models.config import BackboneConfig, CritiqueConfig
from mmrm.models.heads.registry import AnyHead

JUDGE_OF_METHOD = {
    "naive": "scalar",
    "critic": "critic",
    "joint": "joint",
    "language_model": "generative",
    "stable_reinforce": "generative",
}
"""The `type` of judge that a method trains, for cards of versions that wrote no `judge_type`."""


def judge_of_earlier_card(card: dict[str, Any]) -> str | None:
    """Return the `judge_type` for a card of an earlier version, which wrote none.

    `card` holds the validated fields that come before `judge_type`. Returns None if the card's
    method trains no judge.
    """
    return JUDGE_OF_METHOD.get(card.get("method", ""))


class JudgeCard(Section):
    """The settings of a checkpoint's training and evaluation that judging needs."""

    backbone: BackboneConfig
    """Configuration of the model that training started from. It decides how a checkpoint reads
    images and prompts."""
    head: AnyHead | None
    method: str
    judge_type: str | None = Field(default_factory=judge_of_earlier_card)
    """The `type` of judge that the checkpoint is. None if training made no judge."""
    autocast: bool
    """True if training computed in bf16 by torch's autocast, with fp32 weights. DeepSpeed does not
    use autocast."""
    nf4: bool
    """Adapters were trained on a base in 4 bits."""
    critique: CritiqueConfig | None
    """The critique prompt and format of a critic; None for other methods."""
    template: JudgeTemplate | None
    """The prompt of a generative judge in training; None for other methods."""
    token_budget: int | None
    """None if the recipe leaves the value to the device."""
    workers: int
    benchmarks: tuple[BenchmarkConfig, ...]
    protocol: ProtocolConfig
    baselines: bool
    joint_responses: int | None = None
    """Largest number of responses that training showed in one conversation. None if each response
    had a conversation of its own; the card then has no such key."""

    points: PointPrompt | None = None
    """The question to a judge that was trained to score single responses. None for other judges;
    the card then has no such key."""

    @model_serializer(mode="wrap")
    def _without_unused_keys(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the card as plain values, without `joint_responses` and `points` if None."""
        values: dict[str, Any] = handler(self)
        for name in ("joint_responses", "points"):
            if values[name] is None:
                del values[name]
        return values


def judge_card(
    recipe: Mapping[str, Any],
    judge_type: str | None,
    critique: CritiqueConfig | None,
    joint_responses: int | None = None,
    points: PointPrompt | None = None,
) -> JudgeCard:
    """Return the judge card of a recipe's checkpoints.

    Args:
        recipe: The resolved recipe, as plain values.
        judge_type: The `type` of judge that the checkpoints are. None if they are no judges.
        critique: The settings of critiques. None if the model writes none.
        joint_responses: The largest number of responses that are shown in one conversation. None if
            each response has a conversation of its own.
        points: The question to a judge that scores single responses. None for other judges.
    """
    backbone = recipe["backbone"]
    method = recipe["method"]
    evaluation = recipe["evaluation"]
    budget = recipe["optim"]["token_budget"]
    lora = recipe["optim"]["lora"]
    critique_values = None
    if critique is not None:
        critique_values = critique.model_dump(mode="json")
    template = method.get("template")
    points_values = None
    if points is not None:
        # A judge of single responses compares nothing.
        template = None
        points_values = points.model_dump(mode="json")
        judge_type = "points"
    card = {
        "backbone": backbone,
        "head": recipe.get("head"),
        "method": method["type"],
        "judge_type": judge_type,
        "autocast": recipe["deepspeed"] == "none" and backbone["dtype"] == "bfloat16",
        "nf4": lora is not None and lora["quantise"] == "nf4",
        "critique": critique_values,
        "template": template,
        "token_budget": None if budget == "auto" else budget,
        "workers": recipe["workers"],
        "benchmarks": evaluation["benchmarks"],
        "protocol": evaluation["protocol"],
        "baselines": evaluation["baselines"],
        "joint_responses": joint_responses,
        "points": points_values,
    }
    return JudgeCard.model_validate_json(json.dumps(card))


def card_of_earlier_run(recipe: Mapping[str, Any]) -> JudgeCard:
    """Return the judge card for a checkpoint of an earlier version, which wrote no card.

    Args:
        recipe: The resolved recipe in the checkpoint's run folder, as plain values.
    """
    method = recipe["method"]
    critique = None
    if method["type"] == "critic":
        request = method["critique_request"]
        if request is None:
            request = CRITIQUE_REQUEST
        critique = CritiqueConfig(request=request, max_new_tokens=method["critique_max_tokens"])
    joint_responses = method["responses"] if method["type"] == "joint" else None
    return judge_card(recipe, JUDGE_OF_METHOD.get(method["type"]), critique, joint_responses)


def judge_card_of(checkpoint: Path) -> JudgeCard | None:
    """Return the judge card of a checkpoint.

    If an earlier version saved the checkpoint, the card is made from the recipe in its run folder.
    Returns None if there is neither a `judge.json` in the checkpoint nor a run folder above it.

    Raises:
        CheckpointError: A file is not as training writes it, or not as it was saved.
    """
    # `best` is a link to a checkpoint, whose run folder is above its target.
    folder = checkpoint.resolve()
    card_file = folder / CARD
    if card_file.is_file():
        verify_settings(checkpoint)
        try:
            return JudgeCard.model_validate_json(card_file.read_bytes())
        except (KeyError, TypeError, ValueError) as error:
            raise _unreadable(card_file, "judge card", error) from error

    recipe_file = folder.parent / RECIPE
    # A run folder also has a provenance file. Another recipe of the same name is not used.
    if not is_run_folder(folder.parent):
        return None
    try:
        return card_of_earlier_run(read_yaml(recipe_file).plain())
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable(recipe_file, "recipe", error) from error


def _unreadable(file: Path, kind: str, error: Exception) -> CheckpointError:
    """Return the error for a card or recipe that cannot be read; `kind` says which of the two."""
    return CheckpointError(
        f"{file} is not a {kind} as train/ writes it next to its checkpoints "
        f"({type(error).__name__}: {error}). Restore that file: it says how the checkpoint sees "
        "images and prompts."
    )
