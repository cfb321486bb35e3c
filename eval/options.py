"""The command-line options that `run.py` and `sweep.py` share."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError
from ruamel.yaml import YAML

from eval.benchmarks.table import BenchmarkConfig
from eval.problems import said
from eval.protocol import Images, ProtocolConfig
from eval.run_folder import recorded

SETTING = re.compile(r",(?=(?:revision|image_root|limit)=)")
"""Separates the settings of a benchmark; a comma inside a path stays one."""


class OptionError(ValueError):
    """A command line that does not say enough; the message says what is missing."""


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
        raise argparse.ArgumentTypeError(f"{text}: {said(error)}") from error


def setting(text: str) -> tuple[str, Any]:
    """Return the key and the value of `key=value`, the value as YAML would read it; raises ArgumentTypeError."""
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text}: required is KEY=VALUE")
    return key, _value(value)


def task_of(options: argparse.Namespace, judge: Path) -> Task:
    """Return what the options, and for what they leave open the recipe of the judge's run, say.

    Raises: OptionError if there is no judge, nobody names a benchmark, or a value is wrong; RunFolderError for a broken recipe.
    """
    if not judge.exists():
        raise OptionError(f"{judge}: there is no such folder or file. Give a checkpoint folder, or the YAML file of a judge.")
    run = recorded(judge) if judge.is_dir() else None
    benchmarks = tuple(options.benchmarks) or (run.benchmarks if run else ())
    if not benchmarks:
        raise OptionError(f"{judge}: no recipe beside it names a benchmark; say --benchmarks vl_rewardbench=hub, for example.")
    protocol = changed(run.protocol if run else ProtocolConfig(), options)
    return Task(unique(benchmarks), protocol, run.baselines if run else True)


def changed(protocol: ProtocolConfig, options: argparse.Namespace) -> ProtocolConfig:
    """Return the protocol with what `--protocol` and `--images` say; raises OptionError."""
    values = {**protocol.model_dump(), **dict(options.protocol), **({"images": options.images} if options.images else {})}
    try:
        return ProtocolConfig.model_validate(values)
    except ValidationError as error:
        raise OptionError(f"--protocol: {said(error)}") from error


def unique(benchmarks: Sequence[BenchmarkConfig]) -> tuple[BenchmarkConfig, ...]:
    """Return the benchmarks; raises OptionError if a name occurs twice: results are stored by it."""
    names = [one.name for one in benchmarks]
    double = sorted({name for name in names if names.count(name) > 1})
    if double:
        raise OptionError(f"--benchmarks names {', '.join(double)} more than once; evaluate each place by a command of its own.")
    return tuple(benchmarks)


def _value(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(text)
