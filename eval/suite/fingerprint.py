"""Fingerprints of stored results: digests of judge, rows, protocol and scoring code."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from mmrm.data.preference import EncodedImage
from mmrm.data.storage.code_digest import code_digest
from mmrm.data.storage.content import written_response
from mmrm.data.storage.files import content_digest, remembered_digest
from mmrm.eval.benchmarks.benchmark import Location
from mmrm.eval.benchmarks.preference_folder import PREFERENCE_FOLDER
from mmrm.eval.candidates import BenchmarkRow, Example
from mmrm.eval.judges.checkpoint import backbone_of
from mmrm.eval.judges.judge_card import judge_card_of
from mmrm.eval.judges.registry import judge_config
from mmrm.eval.protocol import ProtocolConfig
from mmrm.eval.results.run_folder import CARD
from mmrm.models.backbone import resolve
from mmrm.models.distributed import gather, rank
from mmrm.models.lora import is_adapter

SETTINGS_CONTENTS = ("*.json", "*.jinja", "*.txt", "*.model")
"""Patterns of the files of a checkpoint folder that hold configs, tokenizer and chat template."""
CONTENTS = ("*.safetensors", "*.bin", *SETTINGS_CONTENTS)
"""Patterns of the files of a checkpoint folder that decide the model's output."""
WEIGHTS_ALONE = ("*.safetensors", "*.pth")
"""Patterns of the files of weights that are published without configs."""
IGNORED_FILES = ("trainer_state.json", "training_args.bin", CARD)
"""Files that match CONTENTS but do not decide a verdict, or whose settings are in the fingerprint
already."""
IGNORED_KEYS = {"backbone", "token_budget", "workers", "benchmarks", "protocol", "baselines"}
"""Keys of a judge card that do not decide a verdict, or are in the fingerprint already."""
SCORING_MODULES = (
    "mmrm.eval.suite.suite",
    "mmrm.eval.judges.loading",
    "mmrm.data.encoded_video",
    "mmrm.data.frame_sampling",
    "mmrm.data.image_decoding",
    "mmrm.data.images",
    "mmrm.data.preference",
    "mmrm.data.prompts",
    "mmrm.data.share_intervals",
    "mmrm.data.text_shortcuts",
    "mmrm.data.video",
)
"""The modules whose code decides verdicts, together with all modules of models/ and eval/ that they
import.

The modules of data/ in this list are the only ones there that decide a verdict or a figure of a
result. For example, data/prompts.py holds the questions to judges and reads their answers.
"""


def fingerprint(judge: str, rows: str, protocol: ProtocolConfig) -> str:
    """Return the name under which the result of an evaluation is stored, 32 hexadecimal digits.

    Args:
        judge: The digest of the judge, from `judge_digest`.
        rows: The digest of the benchmark's rows, from `rows_digest`.
        protocol: The protocol of the evaluation.
    """
    return _digest([judge, rows, protocol.model_dump_json(), scoring_version()])[:32]


def judge_digest(path: Path) -> str:
    """Return a digest of everything that decides the verdicts of the judge at `path`.

    It is made of settings and of the contents of files, not of their location or time.

    Raises:
        CheckpointError: If the judge is not complete, as in `load_judge`.
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
        if not folder.is_dir():
            parts.append(checkpoint)  # a hub id of a model that is not on this machine
        elif config.settings_folder is None:
            parts += _parts_of_checkpoint(folder)
        else:
            parts += _file_digests(folder, WEIGHTS_ALONE)
    if config.settings_folder is not None:
        settings_folder = Path(resolve(config.settings_folder))
        if settings_folder.is_dir():
            parts += _file_digests(settings_folder, SETTINGS_CONTENTS)
        else:
            parts.append(config.settings_folder)
    return _digest(parts)


def _parts_of_checkpoint(path: Path) -> list[str]:
    """Return the settings and file digests that decide a checkpoint's verdicts.

    They include the files of the base model if the checkpoint holds adapters. They do not include
    the location of the checkpoint and the attention kernel.
    """
    card = judge_card_of(path)
    backbone = backbone_of(path, card)
    backbone_settings = backbone.model_dump(exclude={"path", "revision", "freeze", "attention"})
    card_settings = None if card is None else card.model_dump(exclude=IGNORED_KEYS)
    parts = [json.dumps([backbone_settings, card_settings]), *_file_digests(path)]
    if card is None or not is_adapter(path):
        return parts
    base = card.backbone
    base_folder = Path(resolve(base.path))
    if base_folder.is_dir():
        return [*parts, *_file_digests(base_folder)]
    return [*parts, f"{base.path}@{base.revision}"]


def _file_digests(folder: Path, patterns: Sequence[str] = CONTENTS) -> list[str]:
    """Return the name and the digest of every file that decides the model's output.

    They are the files whose names match one of `patterns`.
    """
    files: set[Path] = set()
    for pattern in patterns:
        files.update(file for file in folder.glob(pattern) if file.name not in IGNORED_FILES)
    return [f"{file.name} {remembered_digest(file)}" for file in sorted(files)]


def policy_digest(path: Path) -> str:
    """Return a digest of the weights and settings of a policy's checkpoint folder."""
    return _digest(_parts_of_checkpoint(path))


def shared_digest(path: Path) -> str:
    """Return the digest of the judge at `path` on every rank; all ranks must call together.

    Only the first rank reads the files.
    """
    is_first_rank = rank() == 0
    return gather(judge_digest(path) if is_first_rank else "")[0]


def rows_digest(examples: Sequence[BenchmarkRow]) -> str:
    """Return a digest of the rows of a benchmark, with the contents of their images and videos.

    The keys of the rows are included, because the order of the responses is drawn from them.
    """
    digest_by_image: dict[EncodedImage, str] = {}
    rows: list[str] = []
    for example in examples:
        for image in example.all_images:
            if image not in digest_by_image:
                digest_by_image[image] = content_digest(image)
        label: list[object] = [example.ranks]
        if isinstance(example, Example):
            label = [example.better, example.official_first]
        row = [
            example.key,
            example.prompt,
            list(map(written_response, example.responses)),
            *label,
            example.group,
            example.source,
            [digest_by_image[image] for image in example.images],
        ]
        if example.videos:
            row.append([content_digest(video.content) for video in example.videos])
        rows.append(json.dumps(row))
    return _digest(rows)


def scoring_version() -> str:
    """Return a digest of the code that decides verdicts: SCORING_MODULES and their imports."""
    imported_from = ("models", "eval")  # imports from other folders are not followed
    return code_digest(*SCORING_MODULES, floors=imported_from)


def _digest(parts: Iterable[str]) -> str:
    """Return the SHA-256 of some texts, 64 hexadecimal digits."""
    return hashlib.sha256(json.dumps(list(parts)).encode()).hexdigest()
