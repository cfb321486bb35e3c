"""Options that several commands in `eval/` share, and the process group of their ranks.

Torch is imported in the functions that use it, since the import takes seconds.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pydantic import ValidationError

from mmrm.data.config.layers import option_value
from mmrm.data.config.validation import format_validation_error
from mmrm.data.display.console import is_first_rank
from mmrm.data.display.option_numbers import COUNT, LOCAL_RANK
from mmrm.data.errors import UserError
from mmrm.eval.benchmarks.preference_folder import PREFERENCE_FOLDER
from mmrm.eval.benchmarks.registry import BenchmarkConfig
from mmrm.eval.judges.judge_card import judge_card_of
from mmrm.eval.protocol import Images, ProtocolConfig
from mmrm.eval.results.run_folder import HELD_OUT_RECORDS, is_run_folder

if TYPE_CHECKING:
    import torch

SETTING_SEPARATOR = re.compile(r",(?=(?:revision|image_root|type|limit|frames)=)")
"""Separator of the settings of a benchmark. Other commas belong to a path."""

RANK_TIMEOUT = timedelta(hours=12)
"""The time that ranks wait for one another. One of them may download a benchmark or wait for an
endpoint."""


def refuse_existing(output: Path) -> None:
    """Raise UserError if the file `output` exists already.

    The caller holds the lock of the file, so that no other command can write it afterwards.
    """
    if output.exists():
        raise UserError(f"{output} exists already. Move it away, or name another file.")


ABLATED_IMAGES: list[Images] = [images for images in get_args(Images) if images != "real"]
"""The values of the protocol's `images` that replace the real images."""


@contextmanager
def rank_device() -> Iterator[torch.device]:
    """Run the block on the device of this rank, together with the other ranks of the command.

    The ranks are the processes that `deepspeed`, `torchrun` or `accelerate launch` started. At the
    end of the block they wait for one another. A command that was started with `python` runs alone,
    without a process group. The value of the block is the rank's GPU, or the CPU if there is no
    GPU.

    If the block raises an error, this rank does not wait for the others: the launcher ends them.
    """
    import torch
    from torch import distributed
    from transformers.utils import logging

    # Without this setting, tokenizers warns in every worker that is forked after its first use.
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
        backend = "nccl" if device.type == "cuda" else "gloo"
        distributed.init_process_group(backend, timeout=RANK_TIMEOUT)
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


def add_benchmarks_option(
    parser: argparse.ArgumentParser, help_suffix: str = "", **settings: Any
) -> None:
    """Add the option `--benchmarks`, which takes one benchmark or several, to a command.

    Args:
        parser: The parser of the command.
        help_suffix: Text to append to the option's help, such as a remark on its default.
        settings: Further keyword arguments of `add_argument`, such as `required` or `default`.
    """
    help_text = (
        "PLACE is `hub`, `embedded`, `embedded-medium`, `embedded-hard` or a path, then settings "
        "as needed: ,revision=… ,image_root=… ,type=… ,limit=… ,frames=… ,videos=video"
    )
    parser.add_argument(
        "--benchmarks",
        nargs="+",
        type=benchmark,
        metavar="NAME=PLACE",
        help=help_text + help_suffix,
        **settings,
    )


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a command that runs a model: `--token-budget` and `--local_rank`.

    The deepspeed launcher passes `--local_rank` to every script that it starts.
    """
    parser.add_argument(
        "--token-budget",
        type=COUNT,
        help="Number of tokens in one packed row. The default is the recipe's token budget, or "
        "one that fits the device if no recipe sets it.",
    )
    parser.add_argument(
        "--local_rank",
        type=LOCAL_RANK,
        help="The deepspeed launcher passes this option. It is ignored, because the environment "
        "variable LOCAL_RANK holds the same number.",
    )


def add_evaluation_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a command that evaluates judges: benchmarks, protocol, images and output.

    The options of `add_model_options` are added, too.
    """
    add_benchmarks_option(
        parser,
        ". The default is the recipe's benchmarks, or else the records that the run held out.",
        default=[],
    )
    parser.add_argument(
        "--protocol",
        nargs="+",
        type=setting,
        default=[],
        metavar="KEY=VALUE",
        help="Settings of the protocol: order, votes, ties, verdicts, rationale and seed. The default "
        "is the recipe's protocol.",
    )
    parser.add_argument(
        "--images",
        choices=ABLATED_IMAGES,
        help="Evaluate with these images instead of the real ones.",
    )
    parser.add_argument(
        "--output", type=Path, help="The folder for everything that the command writes."
    )
    add_model_options(parser)


def benchmark(text: str) -> BenchmarkConfig:
    """Return the benchmark that an argument such as `NAME=PLACE,key=value` describes.

    Without `=PLACE` the benchmark has its default location.

    Raises:
        ArgumentTypeError: If the text describes no benchmark.
    """
    name_and_location, *settings = SETTING_SEPARATOR.split(text)
    name, _, location = name_and_location.partition("=")
    config: dict[str, Any] = {"name": name}
    if location:
        config["location"] = location
    config |= dict(map(setting, settings))
    try:
        return BenchmarkConfig.model_validate(config)
    except ValidationError as error:
        raise argparse.ArgumentTypeError(f"{text}: {format_validation_error(error)}") from error


def setting(text: str) -> tuple[str, Any]:
    """Return the key and the value of an argument such as `key=value`. The value is read as YAML.

    Raises:
        ArgumentTypeError: If the text has no equals sign, or its value cannot be read as YAML.
    """
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text}: required is KEY=VALUE")
    try:
        return key, option_value(key, value)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def held_out_benchmarks(judge: Path) -> tuple[BenchmarkConfig, ...]:
    """Return the records that a checkpoint's run held out from training, as a benchmark.

    The run has written them into its folder, which is the folder of the checkpoint. The result is
    empty if there is no such file.

    Args:
        judge: A checkpoint folder, or a link to it.
    """
    file = judge.resolve().parent / HELD_OUT_RECORDS
    if not file.is_file():
        return ()
    config = BenchmarkConfig(name=PREFERENCE_FOLDER.name, location=str(file), type="project")
    return (config,)


def refuse_other_held_out_records(
    benchmarks: Sequence[BenchmarkConfig], judges: Sequence[Path]
) -> None:
    """Refuse to compare checkpoints on records that one of their runs did not hold out.

    Such a run may have been trained on them. A judge that is no checkpoint of a run, such as an
    endpoint, is compared.

    Args:
        benchmarks: The benchmarks of all judges. Nothing is checked if they are not the held-out
            records of one of the judges' runs.
        judges: Checkpoint folders or YAML files of judges.

    Raises:
        UserError: If the held-out records of two runs differ, or a run has held out none.
    """
    files: list[Path] = []
    for judge in judges:
        files += [Path(config.location) for config in held_out_benchmarks(judge)]
    compared_files = [Path(config.location) for config in benchmarks]
    held_out_files = [file for file in compared_files if file in files]
    if not held_out_files:
        return
    held_out_file = held_out_files[0]
    for file in files:
        if not filecmp.cmp(file, held_out_file, shallow=False):
            raise UserError(
                f"{held_out_file} and {file} hold different records, and a run may have been "
                "trained on the records that another one held out. Train the runs with the same "
                "data.sources, data.validation and data.validation_seed, or name a benchmark that "
                "none of them was trained on, such as --benchmarks "
                "preference_folder=/data/mine.jsonl."
            )
    for judge in judges:
        run_folder = judge.resolve().parent
        if is_run_folder(run_folder) and not held_out_benchmarks(judge):
            raise UserError(
                f"{judge} cannot be compared on {held_out_file}: {run_folder} has no "
                f"{HELD_OUT_RECORDS}, so that its run may have been trained on these records. "
                "Leave this checkpoint out, or train its run with the same data.sources, "
                "data.validation and data.validation_seed. If you know that the run was not "
                f"trained on them, copy {held_out_file} to another folder, and name the copy: "
                "--benchmarks preference_folder=COPY."
            )


def task_of(options: argparse.Namespace, judge: Path) -> Task:
    """Return the benchmarks and the protocol that the options describe.

    What the options leave open is taken from the recipe of the run that saved the judge's
    checkpoint, or else is the default. If neither the options nor the recipe name a benchmark, it
    is the run's file of held-out records.

    Args:
        options: The parsed command line, with the options that `add_evaluation_options` adds.
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
    # The card of a checkpoint holds the evaluation settings of its recipe.
    card = judge_card_of(judge) if judge.is_dir() else None
    if card is not None:
        recipe_task = Task(card.benchmarks, card.protocol, card.baselines)
    benchmarks = tuple(options.benchmarks) or recipe_task.benchmarks
    if not benchmarks and card is not None:
        benchmarks = held_out_benchmarks(judge)
    if not benchmarks:
        raise UserError(
            f"{judge}: its recipe names no benchmark, and there is no {HELD_OUT_RECORDS} with "
            "held-out records in the folder of its run. Name a benchmark, such as --benchmarks "
            "vl_rewardbench=hub, or a file of preference records of your own, such as --benchmarks "
            "preference_folder=/data/mine.jsonl."
        )
    names = [config.name for config in benchmarks]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise UserError(
            f"--benchmarks names {', '.join(repeated)} more than once; evaluate each place by a "
            "command of its own."
        )
    protocol_settings = recipe_task.protocol.model_dump() | dict(options.protocol)
    if options.images:
        protocol_settings["images"] = options.images
    try:
        protocol = ProtocolConfig.model_validate(protocol_settings)
    except ValidationError as error:
        raise UserError(f"--protocol: {format_validation_error(error)}") from error
    return Task(benchmarks, protocol, recipe_task.baselines)
