"""What a stored result belongs to: a fingerprint of the judge, the rows, the protocol and the code that scores."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from data.storage.code import code_digest
from data.storage.files import content_digest
from eval.benchmarks.benchmark import Location
from eval.benchmarks.preference_folder import PREFERENCE_FOLDER
from eval.judges.checkpoint import backbone_of, recorded, run_of_adapters
from eval.judges.config import CriticJudgeConfig, EndpointConfig, GenerativeJudgeConfig, ScalarJudgeConfig
from eval.judges.ensemble import EnsembleConfig
from eval.judges.loading import kind_of, read_settings
from eval.protocol import Example, ProtocolConfig
from models.adapters import is_adapter
from models.backbone import resolve
from models.config import BackboneConfig

WEIGHTS = ("*.safetensors", "*.bin")
TEXTS = ("*.json", "*.jinja", "*.txt", "*.model")
"""What of a checkpoint folder decides what the model computes: weights, configs, tokenizer, processor, chat template."""
NO_PART = ("trainer_state.json", "training_args.bin")
"""Files of these kinds that decide nothing about a verdict."""
ELSEWHERE = ("file", "backbone", "token_budget", "workers", "benchmarks", "protocol", "baselines")
"""What a recipe says that decides no verdict, or stands in the fingerprint by itself."""
SCORES = ("eval.running.suite", "eval.judges.loading", "data.images", "data.decoding")
"""Where scoring begins: these modules, and all of models/ and eval/ that they import, are the version of the scoring code."""


def fingerprint(judge: str, rows: str, protocol: ProtocolConfig) -> str:
    """Return the name under which a result is stored, 32 hexadecimal digits, from the digests of the judge and of the rows."""
    return _digest([judge, rows, protocol.model_dump_json(), scoring_version()])[:32]


def judge_digest(path: Path) -> str:
    """Return a digest of everything at `path` that decides its verdicts: file contents, not names or times.

    Raises: what `load_judge` raises for a path that is no whole judge.
    """
    kind = kind_of(path)
    return _digest([kind, *(FILES[kind](path) if path.is_file() else _checkpoint(path))])


def _checkpoint(path: Path) -> list[str]:
    return [_sees(path), *_contents(path), *(_base(path) if is_adapter(path) else [])]


def _endpoint(path: Path) -> list[str]:
    return [read_settings(path, EndpointConfig).model_dump_json(include={"url", "model", "request"})]


def _critic(path: Path) -> list[str]:
    config = read_settings(path, CriticJudgeConfig)
    return [config.model_dump_json(exclude={"checkpoint"}), judge_digest(Path(config.checkpoint).expanduser())]


def _scalar(path: Path) -> list[str]:
    config = read_settings(path, ScalarJudgeConfig)
    return [config.read, *_checkpoint(Path(config.checkpoint).expanduser())]


def _generative(path: Path) -> list[str]:
    config = read_settings(path, GenerativeJudgeConfig)
    place = Path(resolve(config.checkpoint))
    return [config.model_dump_json(exclude={"checkpoint"}), judge_digest(place) if place.is_dir() else config.checkpoint]


def _ensemble(path: Path) -> list[str]:
    config = read_settings(path, EnsembleConfig)
    members = [judge_digest(Path(member).expanduser()) for member in config.members]
    if config.validation is not None:
        members.append(rows_digest(PREFERENCE_FOLDER.load(Location(location=config.validation)).examples))
    return [config.combine, *members]


FILES: dict[str, Callable[[Path], list[str]]] = {
    "endpoint": _endpoint,
    "scalar": _scalar,
    "critic": _critic,
    "generative": _generative,
    "ensemble": _ensemble,
}
"""`type` of a judge's YAML file to what of it decides verdicts."""


def rows_digest(examples: Sequence[Example]) -> str:
    """Return a digest of the rows of a benchmark: texts, labels, groups, and the contents of the images."""
    images = (image for example in examples for image in example.images)
    files = {image: content_digest(image) for image in images}
    return _digest(
        json.dumps([e.prompt, e.responses, e.better, e.group, e.source, [files[image] for image in e.images]]) for e in examples
    )


def scoring_version() -> str:
    """Return a digest of the code that scores."""
    return code_digest(*SCORES, floors=("models", "eval"))


def _sees(path: Path) -> str:
    """Return how the checkpoint at `path` is loaded and sees; not where it lies, nor which kernel runs."""
    run = recorded(path)
    settings = backbone_of(path, run).model_dump(exclude={"path", "revision", "freeze", "attention"})
    training = {} if run is None else {name: value for name, value in asdict(run).items() if name not in ELSEWHERE}
    return json.dumps([settings, training], default=str)


def _base(adapters: Path) -> list[str]:
    run = run_of_adapters(adapters)
    base: BackboneConfig = run.backbone
    place = Path(resolve(base.path))
    if place.is_dir():
        return [str(run.head), *_contents(place)]
    return [str(run.head), f"{base.path}@{base.revision}"]


def _contents(folder: Path) -> list[str]:
    found = {file for pattern in (*WEIGHTS, *TEXTS) for file in folder.glob(pattern) if file.name not in NO_PART}
    return [f"{file.name} {content_digest(file)}" for file in sorted(found)]


def _digest(parts: Iterable[str]) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(hashlib.sha256(part.encode()).digest())
    return whole.hexdigest()
