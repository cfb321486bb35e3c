"""The environment of a run: process group, seeds, DeepSpeed on a CPU, and an orderly end.

`start` leads from the command line to a run: it parses and checks before torch is imported, then
trains inside this environment.
"""

import os
import resource
import socket
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mmrm.data.config.registry import load
from mmrm.train.recipe.deepspeed_config import NONE
from mmrm.train.recipe.parsing import parse_arguments
from mmrm.train.recipe.sections import Script
from mmrm.train.supervised.preemption import ended_by_signals

EXTRAS = {"--dry-run": "mmrm.train.planning.dry_run:dry_run"}
"""Options of the scripts that do something other than train, and the function that each calls.

The function is imported when its option is given.
"""

SINGLE_PROCESS = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
"""The variables that a launcher sets. A script started with plain `python` gets these."""
ENDED: list[Any] = []
"""Process groups that are no longer used, kept until the interpreter ends."""
FILES = 2**16
"""The open files that a process may have, if the machine allows so many."""
OLD_NAMES = (r"`torch\.distributed\.", r"`(is_)?gradient_checkpointing", r"`broadcast_buffers`")
"""Names that the newest versions warn of and the older ones need.

They are of DeepSpeed's collectives, of transformers' checkpointing and of what accelerate hands to
DDP.
"""


def free_port() -> int:
    """Return a TCP port that is free at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def prepare_environment(deepspeed: bool) -> None:
    """Set what torch and DeepSpeed read from the environment before they are imported.

    The recipe decides if there is a DeepSpeed engine, and the machine if there is a GPU. On a CPU,
    accelerate silently ignores a DeepSpeed configuration unless ACCELERATE_USE_DEEPSPEED is set, or
    if `accelerate launch --cpu` has set ACCELERATE_USE_CPU.
    """
    if "RANK" not in os.environ:
        os.environ.update(SINGLE_PROCESS, MASTER_PORT=str(free_port()))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("DS_SKIP_CUDA_CHECK", "1")
    os.environ.update(ACCELERATE_USE_DEEPSPEED=str(deepspeed).lower(), ACCELERATE_USE_CPU="false")


def raise_file_limit() -> None:
    """Let this process and the loader's workers open up to FILES files, if the machine allows it.

    Every tensor of a step that a worker hands over takes a descriptor, and many systems begin with
    1,024.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def silence() -> None:
    """Switch off progress bars and warnings on all ranks but the first. All ranks print errors."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warnings.simplefilter("ignore")


def warn_of_locks() -> None:
    """Print the locks in the folder where torch compiles DeepSpeed's extensions.

    A start that was killed leaves its lock there. Every process that needs the extension then waits
    forever, without a message.
    """
    from torch.utils.cpp_extension import get_default_build_root

    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root())
    for lock in sorted(root.glob("**/lock")):
        print(
            f"{lock} is there: another process compiles this extension now, or one was killed while "
            "it did. If the run does not go on and nothing compiles, remove the file.",
            file=sys.stderr,
        )


def _no_place(storage: Any) -> None:
    """Return None, so that torch names the device of a tensor that is saved in its own way."""


def _numbered_cpu(storage: Any, place: str) -> Any:
    """Return a storage that was saved under a name like `cpu:0`, None under any other name."""
    return storage if place.startswith("cpu:") else None


@contextmanager
def run_environment(*, seed: int, deterministic: bool, deepspeed: bool) -> Iterator[None]:
    """Make the process group before any code asks for its rank, and end all ranks together.

    Ranks that end one by one abort each other. After an error a rank does not wait for the others,
    because the launcher ends them.
    """
    prepare_environment(deepspeed)
    raise_file_limit()
    import torch
    from accelerate import PartialState
    from transformers import set_seed

    from mmrm.models.distributed import barrier, is_distributed, rank

    cpu = not torch.cuda.is_available()
    if cpu:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
        # accelerate numbers CPUs, and transformers 5.17 resumes by a name like `cpu:0`.
        torch.serialization.register_package(9, _no_place, _numbered_cpu)
        if deepspeed:
            from deepspeed.ops import __compatible_ops__ as buildable

            # The one extension that DeepSpeed would compile on a CPU, with g++ and in half a minute.
            # It is an all-reduce for inference.
            buildable["deepspeed_shm_comm"] = False
    if deepspeed and os.environ["LOCAL_RANK"] == "0":
        warn_of_locks()
    try:
        PartialState(cpu=cpu)
    except torch.distributed.DistNetworkError as error:
        sys.exit(
            f"The ranks could not meet at {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}: "
            f"{error}\nEvery run on a machine needs a port of its own, and `deepspeed` always "
            "proposes 29500. If another run has it, choose another: deepspeed --master_port 29501 "
            "train/rm.py RECIPE"
        )
    for name in OLD_NAMES:
        warnings.filterwarnings("ignore", message=name, category=FutureWarning)
    if rank():
        silence()
    set_seed(seed, deterministic=deterministic)
    yield
    barrier()
    if is_distributed():
        # The reducer of DDP lives longer than this and must not be what ends the group. It would hold
        # the interpreter's lock while it waits for gloo's threads, which need that lock to free the
        # tensors of a collective (pytorch/pytorch#56297).
        ENDED.append(torch.distributed.group.WORLD)
        torch.distributed.destroy_process_group()


def start(argv: Sequence[str], entry: Script, description: str) -> None:
    """Run a training script: print the plan with --dry-run, else train.

    If the recipe has errors, they are printed without a traceback, and the process ends with
    status 2.
    """
    launch = parse_arguments(argv, entry, description)
    if launch.dry_run:
        load(EXTRAS["--dry-run"])(launch)
        return
    recipe = launch.recipe
    repository = recipe.output.push_to_hub
    environment = run_environment(
        seed=recipe.seed, deterministic=recipe.deterministic, deepspeed=recipe.deepspeed != NONE
    )
    with ended_by_signals(), environment:
        # torch, transformers and DeepSpeed take seconds that a dry run should not.
        from huggingface_hub import HfApi

        from mmrm.train.runs.build import run
        from mmrm.train.runs.model_card import push

        pushes = repository is not None and os.environ["RANK"] == "0"
        if pushes:
            # A missing login or right ends the run here and not after it.
            HfApi().create_repo(str(repository), private=True, exist_ok=True)
        is_finished = run(launch)
    # An upload may take longer than ranks wait for one another, so it comes when they have parted.
    if pushes and is_finished:
        checkpoint = push(Path(recipe.output.folder), str(repository), HfApi())
        print(f"{checkpoint} is on the hub as {repository}")
