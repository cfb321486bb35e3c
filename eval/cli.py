"""What the commands of this floor share: options, how they end, and the process group; torch is imported where it is used."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import torch
from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from safetensors import SafetensorError

from mmrm.data.config.validation import format_validation_error
from mmrm.data.errors import InUseError, UserError
from mmrm.eval.benchmarks.registry import BenchmarkConfig
from mmrm.eval.judges.judge_card import recorded
from mmrm.eval.protocol import Images, ProtocolConfig

SETTING = re.compile(r",(?=(?:revision|image_root|type|limit|frames)=)")
"""Separates the settings of a benchmark; a comma inside a path stays one."""

TIMEOUT = timedelta(hours=12)
"""How long ranks wait for one another: one of them may be downloading a benchmark, or waiting for an endpoint."""


@contextmanager
def command() -> Iterator[None]:
    """End the process with a message for what a user can put right; a fault of ours ends with a traceback.

    With several ranks each says which it is. The status is 2 for an output that another process is
    writing, as nothing is wrong then, and 1 for everything else.
    """
    try:
        yield
    except user_errors() as error:
        rank = f"rank {os.environ['RANK']}: " if int(os.environ.get("WORLD_SIZE", "1")) > 1 else ""
        message = f"error: {rank}{error}"
        if not isinstance(error, InUseError):
            sys.exit(message)
        print(message, file=sys.stderr, flush=True)
        sys.exit(2)


def refuse_existing(output: Path) -> None:
    """Raise UserError if an output is there already; call it while the output is locked."""
    if output.exists():
        raise UserError(f"{output} exists already. Move it away, or name another file.")


def user_errors() -> tuple[type[Exception], ...]:
    """Return the errors that end a command with their message and no traceback.

    The class of a checkpoint with missing tensors is defined in a file that imports torch, which takes
    5 to 13 seconds. It can only have been raised if that file was imported before.
    """
    errors = (UserError, ValidationError, YAMLError, OSError, SafetensorError)
    if "mmrm.models.portable.reward" not in sys.modules:
        return errors
    from mmrm.models.portable.reward import IncompleteCheckpointError

    return (*errors, IncompleteCheckpointError)


@contextmanager
def processes() -> Iterator[torch.device]:
    """Join the ranks that `deepspeed`, `torchrun` or `accelerate launch` started, and give this rank's device.

    A script started with plain `python` runs alone, without a process group. Where a rank fails, the launcher ends the
    others; nothing waits for them here.
    """
    import torch
    from torch import distributed
    from transformers.utils import logging

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
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=TIMEOUT)
    yield device
    if several:
        distributed.barrier()
        distributed.destroy_process_group()


@dataclass(frozen=True, slots=True)
class Task:
    """What a judge is evaluated on, and how."""

    benchmarks: tuple[BenchmarkConfig, ...]
    protocol: ProtocolConfig
    baselines: bool = True


def add_benchmarks(parser: argparse.ArgumentParser, more: str = "", **settings: Any) -> None:
    """Add `--benchmarks`."""
    form = "PLACE is `hub`, `embedded`, `embedded-medium`, `embedded-hard` or a path, then settings as needed: ,revision=… "
    form += ",image_root=… ,type=… ,limit=… ,frames=…"
    parser.add_argument(
        "--benchmarks",
        nargs="+",
        type=benchmark,
        metavar="NAME=PLACE",
        help=form + more,
        **settings,
    )


def add_ranks(parser: argparse.ArgumentParser) -> None:
    """Add the options of a command that judges with a model on several ranks."""
    parser.add_argument(
        "--token-budget",
        type=int,
        help="tokens of one packed row; default: the recipe's, or by the device",
    )
    parser.add_argument(
        "--local_rank",
        type=int,
        help="given by the deepspeed launcher and ignored; the environment says it",
    )


def add_shared(parser: argparse.ArgumentParser) -> None:
    """Add the options that `run.py` and `sweep.py` share."""
    add_benchmarks(parser, "; default: the recipe's", default=[])
    parser.add_argument(
        "--protocol",
        nargs="+",
        type=setting,
        default=[],
        metavar="KEY=VALUE",
        help="order, votes, ties, seed; default: the recipe's",
    )
    parser.add_argument(
        "--images", choices=get_args(Images)[1:], help="an ablation instead of the real images"
    )
    parser.add_argument("--output", type=Path, help="the folder for everything that is written")
    add_ranks(parser)


def benchmark(text: str) -> BenchmarkConfig:
    """Return the benchmark that `NAME=PLACE,key=value` names; raises ArgumentTypeError with what is wrong."""
    place, *settings = SETTING.split(text)
    name, _, location = place.partition("=")
    given = {"location": location} if location else {}
    try:
        return BenchmarkConfig.model_validate(
            {"name": name, **given, **dict(map(setting, settings))}
        )
    except ValidationError as error:
        raise argparse.ArgumentTypeError(f"{text}: {format_validation_error(error)}") from error


def setting(text: str) -> tuple[str, Any]:
    """Return the key and the value of `key=value`, the value as YAML would read it; raises ArgumentTypeError."""
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text}: required is KEY=VALUE")
    return key, YAML(typ="safe", pure=True).load(value)


def task_of(options: argparse.Namespace, judge: Path) -> Task:
    """Return what the options, and for what they leave open the recipe of the judge's run, say.

    Raises: UserError if there is no judge, nobody names a benchmark or one twice (results are stored by it), or a value is
    wrong; CheckpointError for a broken recipe.
    """
    if not judge.exists():
        raise UserError(
            f"{judge}: there is no such folder or file. Give a checkpoint folder, or the YAML file of a judge."
        )
    card = recorded(judge) if judge.is_dir() else None
    benchmarks = tuple(options.benchmarks) or (card.benchmarks if card else ())
    if not benchmarks:
        raise UserError(
            f"{judge}: no recipe beside it names a benchmark; say --benchmarks vl_rewardbench=hub, for example."
        )
    names = [one.name for one in benchmarks]
    double = sorted({name for name in names if names.count(name) > 1})
    if double:
        raise UserError(
            f"--benchmarks names {', '.join(double)} more than once; evaluate each place by a command of its own."
        )
    protocol = (card.protocol if card else ProtocolConfig()).model_dump() | dict(options.protocol)
    if options.images:
        protocol["images"] = options.images
    try:
        return Task(
            benchmarks, ProtocolConfig.model_validate(protocol), card.baselines if card else True
        )
    except ValidationError as error:
        raise UserError(f"--protocol: {format_validation_error(error)}") from error
