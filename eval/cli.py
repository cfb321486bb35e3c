"""Options that several commands of this floor share, and their process group.

Torch is imported in the functions that use it, since the import takes seconds.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pydantic import ValidationError
from ruamel.yaml import YAML

from mmrm.data.config.validation import format_validation_error
from mmrm.data.display.console import is_first_rank
from mmrm.data.errors import UserError
from mmrm.eval.benchmarks.registry import BenchmarkConfig
from mmrm.eval.judges.judge_card import recorded
from mmrm.eval.protocol import Images, ProtocolConfig

if TYPE_CHECKING:
    import torch

SETTING = re.compile(r",(?=(?:revision|image_root|type|limit|frames)=)")
"""Separator of the settings of a benchmark. Other commas belong to a path."""

TIMEOUT = timedelta(hours=12)
"""How long ranks wait for one another; one may download a benchmark or wait for an endpoint."""


def refuse_existing(output: Path) -> None:
    """Raise UserError if an output exists already; call it while the output is locked."""
    if output.exists():
        raise UserError(f"{output} exists already. Move it away, or name another file.")


@contextmanager
def processes() -> Iterator[torch.device]:
    """Join the ranks that a launcher started, and yield this rank's device.

    Launchers are `deepspeed`, `torchrun` and `accelerate launch`. A script that was started with
    `python` runs alone, without a process group. If a rank fails, the launcher ends the others, so
    that no rank waits for them here.
    """
    import torch
    from torch import distributed
    from transformers.utils import logging

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if not is_first_rank():
        logging.set_verbosity_error()
        logging.disable_progress_bar()
    has_several_ranks = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if has_several_ranks:
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=TIMEOUT)
    yield device
    if has_several_ranks:
        distributed.barrier()
        distributed.destroy_process_group()


@dataclass(frozen=True, slots=True)
class Task:
    """The benchmarks on which a judge is evaluated, and the protocol."""

    benchmarks: tuple[BenchmarkConfig, ...]
    protocol: ProtocolConfig
    baselines: bool = True


def add_benchmarks(parser: argparse.ArgumentParser, more: str = "", **settings: Any) -> None:
    """Add `--benchmarks`."""
    form = (
        "PLACE is `hub`, `embedded`, `embedded-medium`, `embedded-hard` or a path, then settings "
        "as needed: ,revision=… ,image_root=… ,type=… ,limit=… ,frames=…"
    )
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
    """Return the benchmark of `NAME=PLACE,key=value`; raise ArgumentTypeError if it is invalid."""
    place, *settings = SETTING.split(text)
    name, _, location = place.partition("=")
    section: dict[str, Any] = {"name": name}
    if location:
        section["location"] = location
    section |= dict(map(setting, settings))
    try:
        return BenchmarkConfig.model_validate(section)
    except ValidationError as error:
        raise argparse.ArgumentTypeError(f"{text}: {format_validation_error(error)}") from error


def setting(text: str) -> tuple[str, Any]:
    """Return the key and the value of `key=value`, of which the value is YAML.

    Raises:
        ArgumentTypeError: If there is no equals sign.
    """
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text}: required is KEY=VALUE")
    return key, YAML(typ="safe", pure=True).load(value)


def task_of(options: argparse.Namespace, judge: Path) -> Task:
    """Return the task of the options, completed by the recipe of the judge's run.

    Raises:
        UserError: If there is no judge, if no benchmark is named or one is named twice (results are
            stored under its name), or if a value is wrong.
        CheckpointError: If the recipe is broken.
    """
    if not judge.exists():
        raise UserError(
            f"{judge}: there is no such folder or file. Give a checkpoint folder, or the YAML file "
            "of a judge."
        )
    recipe_task = Task((), ProtocolConfig())
    card = recorded(judge) if judge.is_dir() else None
    if card is not None:
        recipe_task = Task(card.benchmarks, card.protocol, card.baselines)
    benchmarks = tuple(options.benchmarks) or recipe_task.benchmarks
    if not benchmarks:
        raise UserError(
            f"{judge}: no recipe beside it names a benchmark; say "
            "--benchmarks vl_rewardbench=hub, for example."
        )
    names = [config.name for config in benchmarks]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise UserError(
            f"--benchmarks names {', '.join(repeated)} more than once; evaluate each place by a "
            "command of its own."
        )
    protocol = recipe_task.protocol.model_dump() | dict(options.protocol)
    if options.images:
        protocol["images"] = options.images
    try:
        return Task(benchmarks, ProtocolConfig.model_validate(protocol), recipe_task.baselines)
    except ValidationError as error:
        raise UserError(f"--protocol: {format_validation_error(error)}") from error
