"""The command-line options that `run.py` and `sweep.py` share.

What a user can put right, and so ends with its message; a fault of ours ends with a traceback.

The ranks of an evaluation: a process group where a launcher started several, and an orderly end.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import torch
from pydantic import ValidationError
from ruamel.yaml import YAML
from safetensors import SafetensorError
from torch import distributed
from transformers.utils import logging

from data.config.validation import format_validation_error
from data.errors import CheckpointError, EndpointError, PredictionsError, RecordError, UserError
from eval.benchmarks.table import BenchmarkConfig
from eval.judges.checkpoint import recorded
from eval.protocol import Images, ProtocolConfig
from models.portable.reward import IncompleteCheckpointError

SETTING = re.compile(r",(?=(?:revision|image_root|limit)=)")
"""Separates the settings of a benchmark; a comma inside a path stays one."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a judge is evaluated on, and how."""

    benchmarks: tuple[BenchmarkConfig, ...]
    protocol: ProtocolConfig
    baselines: bool = True


def add_shared(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--benchmarks",
        nargs="+",
        type=benchmark,
        default=[],
        metavar="NAME=PLACE",
        help="PLACE is `hub`, `embedded` or a path, then ,revision=… ,image_root=… ,limit=… as needed; default: the recipe's",
    )
    parser.add_argument(
        "--protocol",
        nargs="+",
        type=setting,
        default=[],
        metavar="KEY=VALUE",
        help="order, votes, ties, seed; default: the recipe's",
    )
    parser.add_argument("--images", choices=get_args(Images)[1:], help="an ablation instead of the real pictures")
    parser.add_argument("--output", type=Path, help="the folder for everything that is written")
    parser.add_argument("--token-budget", type=int, help="tokens of one packed row; default: the recipe's, or by the device")
    parser.add_argument("--local_rank", type=int, help="given by the deepspeed launcher and ignored; the environment says it")


def benchmark(text: str) -> BenchmarkConfig:
    """Return the benchmark that `NAME=PLACE,key=value` names; raises ArgumentTypeError with what is wrong."""
    place, *settings = SETTING.split(text)
    name, _, location = place.partition("=")
    found = {key: _value(value) for key, _, value in (one.partition("=") for one in settings)}
    try:
        return BenchmarkConfig.model_validate({"name": name, **({"location": location} if location else {}), **found})
    except ValidationError as error:
        raise argparse.ArgumentTypeError(f"{text}: {format_validation_error(error)}") from error


def setting(text: str) -> tuple[str, Any]:
    """Return the key and the value of `key=value`, the value as YAML would read it; raises ArgumentTypeError."""
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text}: required is KEY=VALUE")
    return key, _value(value)


def task_of(options: argparse.Namespace, judge: Path) -> Task:
    """Return what the options, and for what they leave open the recipe of the judge's run, say.

    Raises: UserError if there is no judge, nobody names a benchmark, or a value is wrong; CheckpointError for a broken recipe.
    """
    if not judge.exists():
        raise UserError(f"{judge}: there is no such folder or file. Give a checkpoint folder, or the YAML file of a judge.")
    run = recorded(judge) if judge.is_dir() else None
    benchmarks = tuple(options.benchmarks) or (run.benchmarks if run else ())
    if not benchmarks:
        raise UserError(f"{judge}: no recipe beside it names a benchmark; say --benchmarks vl_rewardbench=hub, for example.")
    protocol = changed(run.protocol if run else ProtocolConfig(), options)
    return Task(unique(benchmarks), protocol, run.baselines if run else True)


def changed(protocol: ProtocolConfig, options: argparse.Namespace) -> ProtocolConfig:
    """Return the protocol with what `--protocol` and `--images` say; raises UserError."""
    values = {**protocol.model_dump(), **dict(options.protocol), **({"images": options.images} if options.images else {})}
    try:
        return ProtocolConfig.model_validate(values)
    except ValidationError as error:
        raise UserError(f"--protocol: {format_validation_error(error)}") from error


def unique(benchmarks: Sequence[BenchmarkConfig]) -> tuple[BenchmarkConfig, ...]:
    """Return the benchmarks; raises UserError if a name occurs twice: results are stored by it."""
    names = [one.name for one in benchmarks]
    double = sorted({name for name in names if names.count(name) > 1})
    if double:
        raise UserError(f"--benchmarks names {', '.join(double)} more than once; evaluate each place by a command of its own.")
    return tuple(benchmarks)


def _value(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(text)


BROKEN = (CheckpointError, CheckpointError, CheckpointError, CheckpointError, IncompleteCheckpointError, SafetensorError, OSError)
"""What a path that is no whole judge raises while it is loaded."""
USER = (
    *BROKEN,
    UserError,
    UserError,
    PredictionsError,
    UserError,
    UserError,
    EndpointError,
    RecordError,
    UserError,
)


def reason(error: BaseException) -> str:
    """Return what went wrong, for a person."""
    if isinstance(error, SafetensorError):
        return f"a file of weights cannot be read ({error}). It was probably cut off while it was saved: take another checkpoint."
    return str(error)


def format_error(error: BaseException) -> str:
    """Return what the process ends with; with several ranks each says which it is."""
    rank = f"rank {os.environ['RANK']}: " if int(os.environ.get("WORLD_SIZE", "1")) > 1 else ""
    return f"error: {rank}{reason(error)}"


PATIENCE = timedelta(hours=12)
"""How long ranks wait for one another: one of them may be downloading a benchmark, or waiting for an endpoint."""


@contextmanager
def processes() -> Iterator[torch.device]:
    """Join the ranks that `deepspeed`, `torchrun` or `accelerate launch` started, and give this rank's device.

    A script started with plain `python` runs alone, without a process group. Where a rank fails, the launcher ends the
    others; nothing waits for them here.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if os.environ.get("RANK", "0") != "0":  # progress bars and warnings are the first rank's
        logging.set_verbosity_error()
        logging.disable_progress_bar()
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if several:
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    yield device
    if several:
        distributed.barrier()
        distributed.destroy_process_group()
