"""Runs a function on several gloo ranks, each a process of its own, forked from a server that imported torch only once."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch

from mmrm.train.runs.environment import free_port
from tests.models.exactness import compute_in_float64

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.train.preloaded"])
SERVER = {
    "CUDA_VISIBLE_DEVICES": "",
    "DS_ACCELERATOR": "cpu",
    "OMP_NUM_THREADS": "1",
    "WANDB_MODE": "disabled",
}
"""The surroundings of all ranks; a machine with a GPU runs these tests on its CPU too."""


class RanksError(AssertionError):
    """Ranks that failed, or that were still there at the end of their time; the message holds what they printed."""

    def __init__(
        self, message: str, statuses: list[int | None], *, in_time: bool, printed: str
    ) -> None:
        self.statuses, self.in_time, self.printed = statuses, in_time, printed
        super().__init__(f"{message}\n{printed}")


def run_ranks(
    folder: Path,
    function: Callable[..., None],
    *arguments: Any,
    ranks: int = 2,
    seconds: float = 400.0,
    status: int = 0,
    meanwhile: Callable[[list[ForkServerProcess]], None] | None = None,
    in_float64: bool = False,
) -> str:
    """Call `function(*arguments)` on every rank and return what all ranks printed.

    The first rank that ends with anything but 0 takes the others with it, as under a launcher. `meanwhile` is called with the
    ranks' processes once they are started, to send them signals. With `in_float64` the ranks compute in float64 where the code
    names float32.
    Raises: RanksError after `seconds` (a hang), or unless `status` is how the ranks end (0: all of them, else: one of them).
    """
    folder.mkdir(parents=True, exist_ok=True)
    port, logs = free_port(), [folder / f"rank{rank}.log" for rank in range(ranks)]
    _start_server()
    processes = [
        CONTEXT.Process(
            target=_rank,
            args=(_environment(rank, ranks, port), log, in_float64, function, arguments),
        )
        for rank, log in enumerate(logs)
    ]
    for process in processes:
        process.start()
    if meanwhile is not None:
        meanwhile(processes)
    in_time = _wait(processes, seconds)
    found = [process.exitcode for process in processes]
    as_expected = found == [0] * ranks if status == 0 else status in found
    printed = "\n".join(
        f"--- {log.name}\n{log.read_text(errors='replace') if log.exists() else ''}" for log in logs
    )
    if not in_time or not as_expected:
        message = f"exit statuses {found}, expected {status}; in time: {in_time}"
        raise RanksError(message, found, in_time=in_time, printed=printed)
    return printed


def _start_server() -> None:
    before = {name: os.environ.get(name) for name in SERVER}
    os.environ.update(SERVER)
    forkserver.ensure_running()
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


def _environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """Return what a launcher sets."""
    numbers = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": ranks,
        "LOCAL_WORLD_SIZE": ranks,
        "MASTER_PORT": port,
    }
    return {**{name: str(value) for name, value in numbers.items()}, "MASTER_ADDR": "127.0.0.1"}


def _rank(
    environment: dict[str, str],
    log: Path,
    in_float64: bool,
    function: Callable[..., None],
    arguments: tuple[Any, ...],
) -> None:
    os.environ.update(environment)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    torch.set_num_threads(1)
    if in_float64:
        compute_in_float64()
    function(*arguments)


def _wait(processes: list[ForkServerProcess], seconds: float) -> bool:
    """Wait for all, or for the first that fails; end what is left. Return whether it was in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and any(process.is_alive() for process in processes):
        if any(process.exitcode for process in processes):
            break
        time.sleep(0.02)
    in_time = time.monotonic() < end
    for process in processes:
        if process.is_alive():
            process.kill()
        process.join()
    return in_time
