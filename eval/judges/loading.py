"""From a path to a judge: a checkpoint folder by what its config.json says, a YAML file by its `type`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from data.config.section import Section
from data.config.validation import format_validation_error
from data.errors import CheckpointError
from eval.benchmarks.benchmark import Benchmark
from eval.benchmarks.preference_folder import PREFERENCE_FOLDER
from eval.judges.checkpoint import Runtime, load_scalar_checkpoint, load_with_head, run_of_adapters
from eval.judges.config import CriticJudgeConfig, EndpointConfig, GenerativeJudgeConfig, ScalarJudgeConfig
from eval.judges.critic import load_critic_checkpoint
from eval.judges.endpoint import endpoint_judge
from eval.judges.ensemble import EnsembleConfig, EnsembleJudge, combination
from eval.judges.generative import load_generative
from eval.judges.packed_inference import Scorer
from eval.judges.scalar import ResponsesEncoder, ScalarJudge
from eval.protocol import Judge, ProtocolConfig
from models.adapters import is_adapter
from models.backbone import load_scalar
from models.config import HeadConfig


@dataclass(frozen=True, slots=True)
class Seated:
    """A judge made for one benchmark under one protocol."""

    judge: Judge
    notes: Callable[[], tuple[str, ...]]
    """What must be said beside its figures; asked for after judging."""


Settings = TypeVar("Settings", bound=Section)
JudgeFor = Callable[[Benchmark, ProtocolConfig], Seated]


def load_judge(path: Path, runtime: Runtime) -> JudgeFor:
    """Return the judge at `path`, ready for any benchmark; its weights are loaded once.

    Raises: CheckpointError, CheckpointError, CheckpointError or IncompleteCheckpointError for what is no whole judge;
    SafetensorError for cut off weights.
    """
    return LOADERS[kind_of(path)](path, runtime)


def kind_of(path: Path) -> str:
    """Return the name in `LOADERS` of what lies at `path`; raises CheckpointError, CheckpointError."""
    kind = settings_of(path)["type"] if path.is_file() else _class_of(path)
    if kind not in LOADERS:
        raise CheckpointError(f"{path} is a {kind!r}, which cannot judge here. Judges are: {', '.join(LOADERS)}.")
    return str(kind)


def settings_of(path: Path) -> dict[str, Any]:
    """Return the content of a judge's YAML file; raises CheckpointError for anything but a mapping with a `type`."""
    try:
        found = YAML(typ="safe", pure=True).load(path)
    except (YAMLError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} is no YAML: {error}") from error
    if not isinstance(found, dict) or "type" not in found:
        raise CheckpointError(
            f"{path}: required is a mapping with `type: scalar`, `ensemble`, `critic`, `generative` or `endpoint`."
        )
    return found


def read_settings(path: Path, section: type[Settings]) -> Settings:
    """Return a judge's YAML file, checked; raises CheckpointError with every key that is wrong."""
    try:
        return section.model_validate(settings_of(path))
    except ValidationError as error:
        raise CheckpointError(f"{path}: {format_validation_error(error)}") from error


def _class_of(folder: Path) -> str:
    if is_adapter(folder):
        return ADAPTED.get(run_of_adapters(folder).method, "LoRA adapter without a reward head")
    file = folder / "config.json"
    if not file.is_file():
        inside = ", ".join(sorted(path.name for path in folder.glob("checkpoint-*"))) if folder.is_dir() else ""
        hint = f"It is a run folder with {inside}: give one of these." if inside else "Give a checkpoint-N folder of a run."
        raise CheckpointError(f"{folder}: there is no config.json and no adapter_config.json. {hint}")
    try:
        classes = json.loads(file.read_text(encoding="utf-8")).get("architectures")
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{file} is no JSON: {error}") from error
    return str(classes[0]) if classes else "model without a class"


def _seat(judge: Judge, *notes: str) -> JudgeFor:
    return lambda benchmark, protocol: Seated(judge, lambda: notes)


def _scalar(path: Path, runtime: Runtime) -> JudgeFor:
    if path.is_file():
        config = read_settings(path, ScalarJudgeConfig)
        head = HeadConfig(layers=1, activation="none", read=config.read)
        found = load_with_head(Path(config.checkpoint).expanduser(), runtime, partial(load_scalar, head=head))
    else:
        found = load_scalar_checkpoint(path, runtime)
    scorer = Scorer(found.model, found.encoder, found.device, found.token_budget, found.workers)
    return _seat(ScalarJudge(scorer, ResponsesEncoder(found.encoder, found.model.config.reward_head["read"])), *found.notes)


def _critic(path: Path, runtime: Runtime) -> JudgeFor:
    config = CriticJudgeConfig(type="critic", checkpoint=str(path))
    if path.is_file():
        config = read_settings(path, CriticJudgeConfig)
    folder = Path(config.checkpoint).expanduser()
    if kind_of(folder) != "CriticRewardModel":
        raise CheckpointError(f"{path}: {folder} is a {kind_of(folder)!r} and no critic; give a checkpoint of `method: critic`.")
    critic = load_critic_checkpoint(folder, runtime)

    def seat(benchmark: Benchmark, protocol: ProtocolConfig) -> Seated:
        judge = critic.judge(config)
        return Seated(judge, lambda: (*critic.checkpoint.notes, *judge.notes()))

    return seat


def _generative(path: Path, runtime: Runtime) -> JudgeFor:
    config = GenerativeJudgeConfig(type="generative", checkpoint=str(path))
    if path.is_file():
        config = read_settings(path, GenerativeJudgeConfig)
    loaded = load_generative(config, runtime)
    return lambda benchmark, protocol: Seated(*loaded.judge(benchmark, protocol))


def _ensemble(path: Path, runtime: Runtime) -> JudgeFor:
    config = read_settings(path, EnsembleConfig)
    places = [Path(member).expanduser() for member in config.members]
    for place in places:
        if kind_of(place) in VOTERS:
            raise CheckpointError(f"{path}: {place} compares responses and gives no scores, so that it cannot be a member.")
    members = [load_judge(place, runtime) for place in places]
    combined = combination(config, [member(PREFERENCE_FOLDER, ProtocolConfig()).judge for member in members])

    def seat(benchmark: Benchmark, protocol: ProtocolConfig) -> Seated:
        seated = [member(benchmark, protocol) for member in members]
        judge = EnsembleJudge(config, tuple(one.judge for one in seated), combined)
        return Seated(judge, lambda: (combined.note(config), *(note for one in seated for note in one.notes())))

    return seat


def _endpoint(path: Path, runtime: Runtime) -> JudgeFor:
    config = read_settings(path, EndpointConfig)

    def seat(benchmark: Benchmark, protocol: ProtocolConfig) -> Seated:
        judge = endpoint_judge(config, benchmark, protocol)
        return Seated(judge, judge.notes)

    return seat


VOTERS = ("Qwen2_5_VLForConditionalGeneration", "generative", "endpoint")
"""Kinds that name the better response and give no scores."""
ADAPTED = {
    "naive": "ScalarRewardModel",
    "critic": "CriticRewardModel",
    "language_model": "Qwen2_5_VLForConditionalGeneration",
    "stable_reinforce": "Qwen2_5_VLForConditionalGeneration",
}
"""Method of the recipe to the class that its adapters sit on."""
LOADERS: dict[str, Callable[[Path, Runtime], JudgeFor]] = {
    "ScalarRewardModel": _scalar,
    "scalar": _scalar,
    "CriticRewardModel": _critic,
    "critic": _critic,
    "Qwen2_5_VLForConditionalGeneration": _generative,
    "generative": _generative,
    "ensemble": _ensemble,
    "endpoint": _endpoint,
}
"""Class of a checkpoint, or `type` of a YAML file, to what loads it. A new kind of judge is a row here."""
