"""Options that several commands in `eval/` share, and the process group of their ranks.

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
from mmrm.eval.judges.judge_card import judge_card_of
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
def rank_device() -> Iterator[torch.device]:
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
    """The benchmarks on which a judge is evaluated, and the protocol of the evaluation."""

    benchmarks: tuple[BenchmarkConfig, ...]
    protocol: ProtocolConfig
    baselines: bool = True
    """Whether the table of results also shows the baselines that ignore the content."""


def add_benchmarks(parser: argparse.ArgumentParser, help_suffix: str = "", **settings: Any) -> None:
    """Add the option `--benchmarks` to a parser.

    Args:
        parser: The parser of the command.
        help_suffix: Text to append to the option's help, such as a remark on its default.
        settings: Further keyword arguments of `add_argument`, such as `required` or `default`.
    """
    form = (
        "PLACE is `hub`, `embedded`, `embedded-medium`, `embedded-hard` or a path, then settings "
        "as needed: ,revision=… ,image_root=… ,type=… ,limit=… ,frames=…"
    )
    parser.add_argument(
        "--benchmarks",
        nargs="+",
        type=benchmark,
        metavar="NAME=PLACE",
        help=form + help_suffix,
        **settings,
    )


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that every command that runs a model has, alone or under a launcher.

    They are `--token-budget`, and `--local_rank`, which the deepspeed launcher passes to a script.
    """
    parser.add_argument(
        "--token-budget",
        type=int,
        help="Number of tokens in one packed row. The default is the recipe's token budget, or "
        "one that fits the device if no recipe sets it.",
    )
    parser.add_argument(
        "--local_rank",
        type=int,
        help="The deepspeed launcher passes this option. It is ignored, because the environment "
        "variable LOCAL_RANK holds the same number.",
    )


def add_shared(parser: argparse.ArgumentParser) -> None:
    """Add the options that `eval/run.py` and `eval/sweep.py` share."""
    add_benchmarks(parser, ". The default is the recipe's benchmarks.", default=[])
    parser.add_argument(
        "--protocol",
        nargs="+",
        type=setting,
        default=[],
        metavar="KEY=VALUE",
        help="Settings of the protocol: order, votes, ties and seed. The default is the recipe's "
        "protocol.",
    )
    parser.add_argument(
        "--images",
        choices=get_args(Images)[1:],
        help="Evaluate with these images instead of the real ones.",
    )
    parser.add_argument(
        "--output", type=Path, help="The folder for everything that the command writes."
    )
    add_model_options(parser)


def benchmark(text: str) -> BenchmarkConfig:
    """Return the benchmark that a text such as `NAME=PLACE,key=value` describes.

    Raises:
        ArgumentTypeError: If the text describes no benchmark.
    """
    name_and_location, *settings = SETTING.split(text)
    name, _, location = name_and_location.partition("=")
    section: dict[str, Any] = {"name": name}
    if location:
        section["location"] = location
    section |= dict(map(setting, settings))
    try:
        return BenchmarkConfig.model_validate(section)
    except ValidationError as error:
        raise argparse.ArgumentTypeError(f"{text}: {format_validation_error(error)}") from error


def setting(text: str) -> tuple[str, Any]:
    """Return the key and the value of a text such as `key=value`. The value is read as YAML.

    Raises:
        ArgumentTypeError: If the text has no equals sign.
    """
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text}: required is KEY=VALUE")
    return key, YAML(typ="safe", pure=True).load(value)


def task_of(options: argparse.Namespace, judge: Path) -> Task:
    """Return the task that the options describe, completed by the recipe of the judge's run.

    Args:
        options: The parsed command line, with the options that `add_shared` adds.
        judge: A checkpoint folder or the YAML file of a judge.

    Raises:
        UserError: If the judge does not exist, if no benchmark is named, if a benchmark is named
            twice (results are stored under its name), or if a setting has a wrong value.
        CheckpointError: If the recipe in the checkpoint cannot be read.
    """
    if not judge.exists():
        raise UserError(
            f"{judge}: there is no such folder or file. Give a checkpoint folder, or the YAML file "
            "of a judge."
        )
    recipe_task = Task((), ProtocolConfig())
    card = judge_card_of(judge) if judge.is_dir() else None
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
