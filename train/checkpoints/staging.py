"""Checkpoints that are written to a folder of the node first, and copied while training goes on.

The recipe names the folder in `output.staging`: memory such as /dev/shm, or a local disk. Trainer
and DeepSpeed write a checkpoint into it through a link, `checkpoint-N` in the run folder. Training
then goes on. A thread of every rank copies its part of the node's files into
`copying-checkpoint-N` in the run folder, computes their digests on the way, and leaves a list of
them there. When the lists of all ranks are there, the thread of the first rank writes the file
`complete` into the copy, and puts the copy in the place of the link.

The threads exchange nothing but these files. A collective operation of a second thread would meet
the operations of the training.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from rich.console import Console

from mmrm.data.errors import InUseError, UserError
from mmrm.data.regular_files import read_bytes
from mmrm.data.storage.files import write_whole
from mmrm.data.storage.manifest import COMPLETE, FileEntry, Manifest, parse_manifest
from mmrm.data.storage.output_lock import locked_file
from mmrm.models.distributed import barrier, gather, rank, world_size
from mmrm.train.checkpoints.integrity import is_written_later
from mmrm.train.checkpoints.sizes import folder_bytes

PREFIX = "mmrm-"
"""Start of the names of the folders that runs make in a staging folder, and of their locks."""
OF_EVALUATIONS = ("eval", "answers")
"""Folders of a checkpoint into which evaluations write, before it is saved."""
COPYING = "copying-"
"""Start of the name of the folder into which a checkpoint is copied. It ends with the name of the
checkpoint."""
LIST_OF_RANK = ".copied-by-rank-{}.json"
"""Name of the list of the files that a rank has copied."""
CHUNK = 16 * 2**20
"""Number of bytes that are copied at once."""
POLL = 0.2
"""Seconds between two looks for a file of another rank."""
LAST_WAIT = 600.0
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
        self.staging = staging.absolute()
        self.console = console
        self.place = self.staging
        """The folder of this run inside the staging folder, once `open` has been called."""
        self.node = Node(0, 1)
        self._lock = ExitStack()
        self._copy: CheckpointCopy | None = None
        self._last_bytes: int | None = None
        """Size of the last checkpoint on this node; None before the first one."""

    def open(self) -> None:
        """Make the folder of this run on each node, and remove those of runs that were killed.

        All ranks call together, before the first step. The folder has a random name, because two
        containers on one machine may have the same run folder and share /dev/shm.
        """
        name = gather(f"{PREFIX}{uuid4().hex[:12]}")[0]
        self.node = Node.of_this_rank()
        self.place = self.staging / name
        if self.node.index == 0:
            self._remove_leftovers()
            self._lock.enter_context(locked_file(self.place))
            self.place.mkdir(parents=True)
        barrier()

    def _remove_leftovers(self) -> None:
        """Remove the folders of other runs in the staging folder, unless their runs go on.

        The lock of a folder is free if the process that held it has ended, also if it was killed.
        A run that failed has removed its lock, and may have left its folder.
        """
        leftovers = {path.with_suffix("") for path in self.staging.glob(f"{PREFIX}*")}
        for leftover in leftovers:
            with suppress(InUseError), locked_file(leftover):
                shutil.rmtree(leftover, ignore_errors=True)

    def begin(self, step: int, expected_bytes: int) -> None:
        """Let the checkpoint that Trainer is about to save be written into the staging folder.

        All ranks call together, after `wait`. If a node has no room for the files, the checkpoint
        is written into the run folder as without staging, and the first rank prints so.

        Args:
            step: The number of the optimizer step.
            expected_bytes: The expected size of the node's files, if none were staged before.
        """
        num_bytes = self._last_bytes or expected_bytes
        num_free = shutil.disk_usage(self.place).free
        free_by_rank = gather(num_free if num_free < num_bytes else None)
        least_free = min((free for free in free_by_rank if free is not None), default=None)
        checkpoint = self.folder / f"checkpoint-{step}"
        if least_free is not None:
            if rank() == 0:
                self.console.print(
                    f"{checkpoint.name} is not staged: its files on a node take about "
                    f"{num_bytes:,} bytes, {least_free:,} are free in {self.staging}",
                    highlight=False,
                    soft_wrap=True,
                )
            return
        staged = self.place / checkpoint.name
        if self.node.index == 0:
            shutil.rmtree(staged, ignore_errors=True)
            staged.mkdir()
        if rank() == 0:
            self._link(checkpoint, staged)
        barrier()

    def _link(self, checkpoint: Path, staged: Path) -> None:
        """Put a link to the staging folder in the place of a checkpoint, on the first rank.

        What the evaluation of this step has written, which comes before the save, moves along.
        Files of an earlier checkpoint of the same step are removed, because they are written again.
        """
        shutil.rmtree(self.folder / f"{COPYING}{checkpoint.name}", ignore_errors=True)
        if checkpoint.is_dir():
            is_earlier = (checkpoint / COMPLETE).exists()
            (checkpoint / COMPLETE).unlink(missing_ok=True)
            for path in checkpoint.iterdir():
                if path.name in OF_EVALUATIONS or not is_earlier:
                    shutil.move(path, staged / path.name)
            shutil.rmtree(checkpoint)
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        checkpoint.symlink_to(staged, target_is_directory=True)

    def copy(self, checkpoint: Path, finish: Callable[[], None]) -> None:
        """Begin to copy a checkpoint whose files have all been written into the staging folder.

        All ranks call together, after every rank has written its files.

        Args:
            checkpoint: The checkpoint in the run folder, which is a link now.
            finish: Called on the first rank when the checkpoint is complete, by another thread.
        """
        staged = self.place / checkpoint.name
        self._last_bytes = folder_bytes(staged)
        self._copy = CheckpointCopy(staged, checkpoint, self.node, finish, self.console)
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
        The folder is then left, and locked until this process ends, because other ranks of the node
        may still copy from it. The next run that uses the staging folder removes it.
        """
        copy = self._copy
        self._copy = None
        if copy is not None:
            if copy.is_alive():
                print(
                    f"rank {rank()}: the run ends when {copy.checkpoint.name} has been copied",
                    file=sys.stderr,
                    flush=True,
                )
            copy.run_has_ended.set()
            copy.join()
            if copy.error is not None:
                print(f"rank {rank()}: {copy.error}", file=sys.stderr, flush=True)
            return
        if self.node.index == 0 and self.place != self.staging:
            shutil.rmtree(self.place, ignore_errors=True)
        self._lock.close()


@dataclass(frozen=True, slots=True)
class Node:
    """The place of this rank among the ranks of its node."""

    index: int
    """0 for the first rank of the node."""
    num_ranks: int

    @classmethod
    def of_this_rank(cls) -> Node:
        """Return the place of this rank; all ranks call together.

        Ranks are on one node if their machines have one name. Launchers set different variables for
        this: DeepSpeed's sets no LOCAL_WORLD_SIZE.
        """
        names = gather(socket.gethostname())
        own_name = names[rank()]
        return cls(names[: rank()].count(own_name), names.count(own_name))


class CheckpointCopy(threading.Thread):
    """A thread that copies this rank's part of a checkpoint from the staging folder.

    On the first rank it also completes the checkpoint, when all ranks have copied their parts.
    """

    def __init__(
        self,
        staged: Path,
        checkpoint: Path,
        node: Node,
        finish: Callable[[], None],
        console: Console,
    ) -> None:
        super().__init__(name=f"copy of {checkpoint.name}")
        self.staged = staged
        self.checkpoint = checkpoint
        self.copying = checkpoint.with_name(f"{COPYING}{checkpoint.name}")
        self.finish = finish
        self.console = console
        self.rank = rank()
        self.world_size = world_size()
        self.own_files = _own_files(staged, node)
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
                reason = "the disk is full (output.keep_checkpoints is how many are kept)"
            self.error = UserError(
                f"{self.checkpoint} could not be copied from {self.staged}: {reason}. It is not "
                "complete. Make the run folder writable again, then start again with --resume."
            )
            return
        except UserError as error:
            self.error = error
            return
        if self.rank == 0:
            self._finish()

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
        manifest = Manifest(self.checkpoint.name, entries)
        write_whole(self.copying / COMPLETE, manifest.to_json())
        self.checkpoint.unlink()
        self.copying.rename(self.checkpoint)

    def _finish(self) -> None:
        """Call the function for a complete checkpoint, and print that it is complete."""
        try:
            self.finish()
        except OSError as error:
            self.error = UserError(
                f"{self.checkpoint} is complete, but earlier checkpoints could not be removed: "
                f"{error}. Remove them, then start again with --resume."
            )
            return
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
        """Wait until the first rank has put the copy in the place of the link."""
        while self.checkpoint.is_symlink() or self.copying.exists():
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
    shutil.copymode(source, target)
    return FileEntry(size, sha256.hexdigest())


def _own_files(staged: Path, node: Node) -> list[str]:
    """Return the files in the staging folder that this rank copies, largest first.

    The ranks of the node share the files: the largest goes to the first rank, and so on.
    """
    names_and_sizes = []
    for path in staged.rglob("*"):
        if path.is_file():
            names_and_sizes.append((-path.stat().st_size, str(path.relative_to(staged))))
    names = [name for _, name in sorted(names_and_sizes)]
    return names[node.index :: node.num_ranks]
