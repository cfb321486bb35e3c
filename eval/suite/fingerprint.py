"""What a stored result belongs to: a fingerprint of the judge, the rows, the protocol and the code that scores."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from mmrm.data.preference import EncodedImage
from mmrm.data.storage.code_digest import code_digest
from mmrm.data.storage.files import content_digest, remembered_digest
from mmrm.eval.benchmarks.benchmark import Location
from mmrm.eval.benchmarks.preference_folder import PREFERENCE_FOLDER
from mmrm.eval.candidates import Example
from mmrm.eval.judges.checkpoint import backbone_of
from mmrm.eval.judges.judge_card import recorded
from mmrm.eval.judges.registry import judge_config
from mmrm.eval.protocol import ProtocolConfig
from mmrm.eval.results.run_folder import CARD
from mmrm.models.backbone import resolve
from mmrm.models.distributed import gather, rank
from mmrm.models.lora import is_adapter

CONTENTS = ("*.safetensors", "*.bin", "*.json", "*.jinja", "*.txt", "*.model")
"""What of a checkpoint folder decides what the model computes: weights, configs, tokenizer, processor, chat template."""
NO_PART = ("trainer_state.json", "training_args.bin", CARD)
"""Files of these kinds that decide nothing about a verdict, or count by their content."""
ELSEWHERE = {"backbone", "token_budget", "workers", "benchmarks", "protocol", "baselines"}
"""What a judge card says that decides no verdict, or stands in the fingerprint by itself."""
SCORES = (
    "mmrm.eval.suite.suite",
    "mmrm.eval.judges.loading",
    "mmrm.data.image_decoding",
    "mmrm.data.images",
    "mmrm.data.preference",
    "mmrm.data.prompts",
    "mmrm.data.video",
)
"""Where scoring begins: these modules, and all of models/ and eval/ that they import, are the version of the scoring code. Of
data/ they are all that decides a verdict: what judges are asked and how they are read is in data/prompts.py."""


def fingerprint(judge: str, rows: str, protocol: ProtocolConfig) -> str:
    """Return the name under which a result is stored, 32 hexadecimal digits, from the digests of the judge and of the rows."""
    return _digest([judge, rows, protocol.model_dump_json(), scoring_version()])[:32]


def judge_digest(path: Path) -> str:
    """Return a digest of everything at `path` that decides its verdicts: file contents, not names or times.

    Raises: what `load_judge` raises for a path that is no whole judge.
    """
    config = judge_config(path)
    parts = config.deciding_settings(is_file=path.is_file())
    for member in config.member_judges():
        parts.append(judge_digest(Path(member).expanduser()))
    records = config.validation_records()
    if records is not None:
        parts.append(rows_digest(PREFERENCE_FOLDER.load(Location(location=records)).examples))
    for checkpoint in config.checkpoints():
        folder = Path(resolve(checkpoint))
        parts += _checkpoint(folder) if folder.is_dir() else [checkpoint]
    return _digest(parts)


def _checkpoint(path: Path) -> list[str]:
    """Return what of a checkpoint decides its verdicts; not where it lies, nor which kernel runs."""
    card = recorded(path)
    sees = backbone_of(path, card).model_dump(exclude={"path", "revision", "freeze", "attention"})
    settings = None if card is None else card.model_dump(exclude=ELSEWHERE)
    parts = [json.dumps([sees, settings]), *_contents(path)]
    if card is None or not is_adapter(path):
        return parts
    base = card.backbone
    base_folder = Path(resolve(base.path))
    if base_folder.is_dir():
        return [*parts, *_contents(base_folder)]
    return [*parts, f"{base.path}@{base.revision}"]


def _contents(folder: Path) -> list[str]:
    """Return name and digest of every file that decides what the model computes."""
    found = {
        file for pattern in CONTENTS for file in folder.glob(pattern) if file.name not in NO_PART
    }
    return [f"{file.name} {remembered_digest(file)}" for file in sorted(found)]


def policy_digest(path: Path) -> str:
    """Return a digest of the weights and settings of a policy's checkpoint folder."""
    return _digest(_checkpoint(path))


def shared_digest(path: Path) -> str:
    """Return the judge's digest on every rank, read by the first one alone; all ranks must call together."""
    return gather("" if rank() else judge_digest(path))[0]


def rows_digest(examples: Sequence[Example]) -> str:
    """Return a digest of the rows of a benchmark: all that decides their figures, with the contents of the images.

    The keys are part of it, as votes are drawn from them.
    """
    digest_by_image: dict[EncodedImage, str] = {}
    rows: list[str] = []
    for example in examples:
        for image in example.images:
            if image not in digest_by_image:
                digest_by_image[image] = content_digest(image)
        row = [
            example.key,
            example.prompt,
            example.responses,
            example.better,
            example.official_first,
            example.group,
            example.source,
            [digest_by_image[image] for image in example.images],
        ]
        rows.append(json.dumps(row))
    return _digest(rows)


def scoring_version() -> str:
    """Return a digest of the code that scores."""
    return code_digest(*SCORES, floors=("models", "eval"))


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256(json.dumps(list(parts)).encode()).hexdigest()
