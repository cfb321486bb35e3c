"""Optimizer states of a DeepSpeed checkpoint for another number of ranks.

DeepSpeed stores optimizer states by rank, and loads them on the same number of ranks only. Its
program `ds_to_universal` writes them again, with a file for each state of each parameter, which any
number of ranks can load. The files are about as large as the states themselves. They lie inside the
checkpoint, and are removed with it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from mmrm.data.errors import UserError
from mmrm.data.regular_files import read_text
from mmrm.data.storage.files import write_whole

LATEST = "latest"
"""File of DeepSpeed with the name of the folder of the states by rank."""
LATEST_UNIVERSAL = "latest_universal"
"""File of DeepSpeed with the name of the folder of the converted states. It is written last, so that
it only exists if the conversion is complete."""
CONVERTING = "converting-"
"""Start of the name of the folder into which a conversion writes. Each has a folder of its own: the
converter of a run that was killed may still be writing."""
STATES_OF_RANK = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_00_optim_states\.pt")
"""Name of the file with the optimizer states of a rank."""
WORKERS = 4
"""Number of processes that convert. Each holds the states of one rank in memory."""


def ranks_of_states(checkpoint: Path) -> int | None:
    """Return on how many ranks the optimizer states of a checkpoint were saved.

    Returns:
        The number, or None if the checkpoint has no states of DeepSpeed by rank.
    """
    folder = _states_folder(checkpoint)
    if folder is None:
        return None
    numbers = []
    for path in folder.iterdir():
        match = STATES_OF_RANK.fullmatch(path.name)
        if match:
            numbers.append(int(match[1]))
    return max(numbers) + 1 if numbers else None


def _states_folder(checkpoint: Path) -> Path | None:
    """Return the folder of DeepSpeed's states in a checkpoint; None if DeepSpeed saved none."""
    latest = checkpoint / LATEST
    if not latest.is_file():
        return None
    return checkpoint / read_text(latest).strip()


def convert_states(checkpoint: Path, ranks: int, console: Console) -> None:
    """Convert the optimizer states of a checkpoint, unless they are converted.

    A conversion that was interrupted begins again. Call it on one rank.

    Args:
        checkpoint: The checkpoint, which has states by rank.
        ranks: The number of ranks of this run, for the message.
        console: Receives a line. The converter prints its progress to standard error.

    Raises:
        UserError: The disk has no room, or the conversion fails.
    """
    if (checkpoint / LATEST_UNIVERSAL).exists():
        return
    states = _states_folder(checkpoint)
    assert states is not None, "only a checkpoint with states by rank is converted"
    num_bytes = sum(path.stat().st_size for path in states.iterdir())
    num_free = shutil.disk_usage(checkpoint).free
    num_ranks = ranks_of_states(checkpoint)
    ranks_before = "1 rank" if num_ranks == 1 else f"{num_ranks} ranks"
    if num_free < num_bytes:
        raise UserError(
            f"{checkpoint}: the states of {ranks_before} take {num_bytes:,} bytes, and as "
            f"many are required to convert them for {ranks}. {num_free:,} are free. Make room, or "
            f"start on {ranks_before}."
        )
    console.print(
        f"{checkpoint.name} was saved on {ranks_before}: its states are converted for "
        f"{ranks} ({num_bytes / 1e9:.1f} GB)",
        highlight=False,
        soft_wrap=True,
    )
    for interrupted in checkpoint.glob(f"{CONVERTING}*"):
        shutil.rmtree(interrupted, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=CONVERTING, dir=checkpoint))
    new_states = folder / f"{states.name}_universal"
    workers = str(WORKERS)
    # Python warns because the package of the converter imports it, too.
    command = [sys.executable, "-W", "ignore::RuntimeWarning:runpy"]
    command += ["-m", "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state"]
    command += ["--input_folder", str(states), "--output_folder", str(new_states)]
    command += ["--num_extract_workers", workers, "--num_merge_workers", workers]
    status = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
    if status or not (folder / LATEST_UNIVERSAL).exists():
        raise UserError(
            f"{checkpoint}: the states of {ranks_before} could not be converted for {ranks}: "
            f"DeepSpeed's ds_to_universal ended with status {status}. What it printed says why. "
            f"The checkpoint is unchanged: start on {ranks_before} to continue from it."
        )
    converted = checkpoint / new_states.name
    if converted.exists():
        shutil.rmtree(converted)  # a run was killed before it wrote LATEST_UNIVERSAL
    new_states.rename(converted)
    write_whole(checkpoint / LATEST_UNIVERSAL, converted.name)
    shutil.rmtree(folder)
