"""Checkpoints that are written to a folder of the node first, and copied while training goes on.

The recipe names the folder in `output.staging`: memory such as /dev/shm, or a local disk. Trainer
and DeepSpeed write a checkpoint into it through a link, `checkpoint-N` in the run folder. Training
then goes on. A thread of every rank copies its part of the node's files into
`copying-checkpoint-N` in the run folder, computes their digests on the way, and leaves a list of
them there. When the lists of all ranks are there, the thread of the first rank puts the copy in the
place of the link and writes the file `complete`.

The threads exchange nothing but these files. A collective operation of a second thread would meet
the operations of the training.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from torch import nn

from mmrm.data.errors import UserError
from mmrm.data.regular_files import read_bytes
from mmrm.data.storage.files import digest, write_whole
from mmrm.data.storage.manifest import COMPLETE, FileEntry, Manifest, parse_manifest
from mmrm.models.distributed import barrier, gather, rank, world_size
from mmrm.train.checkpoints.integrity import is_written_later
from mmrm.train.checkpoints.sizes import first_checkpoint_bytes, folder_bytes

COPYING = "copying-"
"""Start of the name of the folder into which a checkpoint is copied. It ends with the name of the
checkpoint."""
LIST_OF_RANK = ".copied-by-rank-{}.json"
"""Name of the list of the files that a rank has copied."""
CHUNK = 16 * 2**20
"""Number of bytes that are copied at once."""
POLL = 0.2
"""Seconds between two looks for a file of another rank."""
LAST_WAIT = 60.0
"""Seconds for which the first rank waits for other ranks' files when the run has failed. The ranks
may have ended."""


class Staging:
    """The staging folder of a run on this node, and the checkpoint that is being copied from it.

    There is at most one such checkpoint: the next one waits until this one is complete.
    """

    def __init__(self, folder: Path, staging: Path, console: Console) -> None:
        """Set the folders; nothing is written yet.

        Args:
            folder: The run folder, which all nodes share.
            staging: The folder of this node, which other runs may use as well.
            console: Receives a line for each complete checkpoint, on the first rank.
        """
        self.folder = folder
        self.place = staging / digest(str(folder.resolve()))
        """The folder of this run inside the staging folder."""
        self.console = console
        self._copy: CheckpointCopy | None = None
        self._last_bytes: int | None = None
        """Size of the last checkpoint on this node; None before the first one."""

    def begin(self, step: int, model: nn.Module, *, states_are_divided: bool) -> None:
        """Let the checkpoint that Trainer is about to save be written into the staging folder.

        All ranks call together. They wait until the checkpoint before is complete. If a node has no
        room for the files, the checkpoint is written into the run folder as without staging, and
        the first rank prints so.

        Args:
            step: The number of the optimizer step.
            model: The model that is saved.
            states_are_divided: True if the optimizer states are divided over the ranks.
        """
        self.wait()
        if _is_first_of_node():
            shutil.rmtree(self.place, ignore_errors=True)  # a run may have been killed
            self.place.mkdir(parents=True)
        num_bytes = self._last_bytes
        if num_bytes is None:
            share = _ranks_of_node() / world_size() if states_are_divided else 1.0
            num_bytes = first_checkpoint_bytes(model, share)
        barrier()
        num_free = shutil.disk_usage(self.place).free
        free_by_rank = gather(num_free if num_free < num_bytes else None)
        least_free = min((free for free in free_by_rank if free is not None), default=None)
        checkpoint = self.folder / f"checkpoint-{step}"
        if least_free is not None:
            if rank() == 0:
                self.console.print(
                    f"{checkpoint.name} is not staged: its files on a node take about "
                    f"{num_bytes:,} bytes, {least_free:,} are free in {self.place.parent}",
                    highlight=False,
                    soft_wrap=True,
                )
            return
        staged = self.place / checkpoint.name
        if _is_first_of_node():
            staged.mkdir()
        if rank() == 0:
            self._link(checkpoint, staged)
        barrier()

    def _link(self, checkpoint: Path, staged: Path) -> None:
        """Put a link to the staging folder in the place of a checkpoint, on the first rank.

        Results of the evaluation of this step, which comes before the save, move along. Files of
        an earlier checkpoint of the same step are removed, because they are written again.
        """
        shutil.rmtree(self.folder / f"{COPYING}{checkpoint.name}", ignore_errors=True)
        if checkpoint.is_dir():
            (checkpoint / COMPLETE).unlink(missing_ok=True)
            if (checkpoint / "eval").is_dir():
                shutil.move(checkpoint / "eval", staged / "eval")
            shutil.rmtree(checkpoint)
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        checkpoint.symlink_to(staged.resolve(), target_is_directory=True)

    def copy(self, checkpoint: Path, finish: Callable[[], None]) -> None:
        """Begin to copy a checkpoint whose files have all been written into the staging folder.

        All ranks call together, after every rank has written its files.

        Args:
            checkpoint: The checkpoint in the run folder, which is a link now.
            finish: Called on the first rank when the checkpoint is complete, by another thread.
        """
        staged = self.place / checkpoint.name
        self._last_bytes = folder_bytes(staged)
        self._copy = CheckpointCopy(staged, checkpoint, finish, self.console)
        barrier()  # every rank has listed its files, of which the others remove theirs
        self._copy.start()

    def check(self) -> None:
        """Raise the error with which the copy on this rank has failed, if it has."""
        if self._copy is not None and self._copy.error is not None:
            raise self._copy.error

    def wait(self) -> None:
        """Wait until the checkpoint that is being copied is complete.

        Raises:
            UserError: This rank could not copy its files.
        """
        if self._copy is None:
            return
        self._copy.join()
        self.check()
        self._copy.wait_until_complete()
        self._copy = None

    def end(self) -> None:
        """Wait for this rank's part of a copy, and remove the staging folder of this run.

        Call it when the run ends, for whatever reason. If the run has failed during a copy, other
        ranks may have ended, so the first rank waits for their parts for `LAST_WAIT` seconds only.
        The folder is then left, because other ranks of the node may still copy from it.
        """
        if self._copy is not None:
            self._copy.run_has_ended.set()
            self._copy.join()
            if self._copy.error is not None:
                print(f"rank {rank()}: {self._copy.error}", file=sys.stderr, flush=True)
        elif _is_first_of_node():
            shutil.rmtree(self.place, ignore_errors=True)


class CheckpointCopy(threading.Thread):
    """A thread that copies this rank's part of a checkpoint from the staging folder.

    On the first rank it also completes the checkpoint, when all ranks have copied their parts.
    """

    def __init__(
        self, staged: Path, checkpoint: Path, finish: Callable[[], None], console: Console
    ) -> None:
        super().__init__(name=f"copy of {checkpoint.name}")
        self.staged = staged
        self.checkpoint = checkpoint
        self.copying = checkpoint.with_name(f"{COPYING}{checkpoint.name}")
        self.finish = finish
        self.console = console
        self.rank = rank()
        self.world_size = world_size()
        self.own_files = _own_files(staged)
        self.began = time.monotonic()
        self.run_has_ended = threading.Event()
        self.error: UserError | None = None
        """The error with which this rank has failed; None if it has not."""

    def run(self) -> None:
        """Copy the files, leave the list of them, and complete the checkpoint on the first rank."""
        try:
            self._copy_own_files()
            if self.rank == 0:
                self._complete()
        except OSError as error:
            reason = error.strerror or str(error)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                reason = "the disk is full (output.keep_checkpoints is the number of checkpoints that are kept)"
            self.error = UserError(
                f"{self.checkpoint} could not be copied from {self.staged}: {reason}. It is not "
                "complete. Make the run folder writable again, then start again with --resume."
            )
        except UserError as error:
            self.error = error

    def _copy_own_files(self) -> None:
        """Copy this rank's files, and write the list of their sizes and digests.

        A file is removed from the staging folder at once, so that its memory is free again.
        """
        self.copying.mkdir(exist_ok=True)
        entries = {}
        for name in self.own_files:
            target = self.copying / name
            target.parent.mkdir(parents=True, exist_ok=True)
            entry = copy_file(self.staged / name, target)
            if not is_written_later(name):
                entries[name] = entry
            (self.staged / name).unlink()
        manifest = Manifest(self.checkpoint.name, entries)
        write_whole(self.copying / LIST_OF_RANK.format(self.rank), manifest.to_json())

    def _complete(self) -> None:
        """Wait for the lists of all ranks, and put the complete copy in the place of the link."""
        entries: dict[str, FileEntry] = {}
        for number in range(self.world_size):
            path = self.copying / LIST_OF_RANK.format(number)
            self._wait_for(path)
            list_of_rank = parse_manifest(read_bytes(path))
            assert list_of_rank is not None, "a list is written as a whole, and is never empty"
            entries |= list_of_rank.entries
        for number in range(self.world_size):
            (self.copying / LIST_OF_RANK.format(number)).unlink()
        self.checkpoint.unlink()
        self.copying.rename(self.checkpoint)
        write_whole(self.checkpoint / COMPLETE, Manifest(self.checkpoint.name, entries).to_json())
        self.finish()
        seconds = time.monotonic() - self.began
        step = int(self.checkpoint.name.rpartition("-")[2])
        self.console.print(
            f"step {step:>6}  {self.checkpoint.name} is complete, copied in {seconds:.1f} s",
            highlight=False,
        )

    def _wait_for(self, path: Path) -> None:
        """Wait for a file of another rank, for `LAST_WAIT` seconds at most if the run has ended.

        Raises:
            UserError: The file did not appear.
        """
        seconds_left = LAST_WAIT
        while not path.exists():
            if self.run_has_ended.is_set():
                seconds_left -= POLL
            if seconds_left < 0:
                raise UserError(
                    f"{self.checkpoint} is not complete, because another rank ended before it had "
                    f"copied its files: {path.name} is missing. Start again with --resume, which "
                    "continues from the last complete checkpoint."
                )
            time.sleep(POLL)

    def wait_until_complete(self) -> None:
        """Wait until the first rank has completed the checkpoint."""
        while self.checkpoint.is_symlink() or not (self.checkpoint / COMPLETE).exists():
            time.sleep(POLL)


def copy_file(source: Path, target: Path) -> FileEntry:
    """Copy a file, and return its size and digest, which are computed on the way.

    The content is on the disk when this returns, not only in the memory of the system.
    """
    sha256 = hashlib.sha256()
    size = 0
    with source.open("rb") as reader, target.open("wb") as writer:
        while chunk := reader.read(CHUNK):
            sha256.update(chunk)
            writer.write(chunk)
            size += len(chunk)
        writer.flush()
        os.fsync(writer.fileno())
    return FileEntry(size, sha256.hexdigest())


def _is_first_of_node() -> bool:
    """Return True on the first rank of each node."""
    return int(os.environ.get("LOCAL_RANK", "0")) == 0


def _ranks_of_node() -> int:
    """Return the number of ranks on this node."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _own_files(staged: Path) -> list[str]:
    """Return the files in the staging folder that this rank copies, largest first.

    The ranks of the node share the files: the largest goes to the first rank, and so on.
    """
    names_and_sizes = []
    for path in staged.rglob("*"):
        if path.is_file():
            names_and_sizes.append((-path.stat().st_size, str(path.relative_to(staged))))
    names = [name for _, name in sorted(names_and_sizes)]
    return names[int(os.environ.get("LOCAL_RANK", "0")) :: _ranks_of_node()]
