"""Commands on a small disk of their own that is really full, almost full or read-only.

The disk is a tmpfs in a mount namespace of a user namespace, which needs no rights of root and is
gone with its processes. One process in the namespace is forked for every command.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from tests.forked_python import ForkedPython, forked_python

NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")
FILLER = "filler"
"""The file that takes up the space of a full disk."""
MAX_BYTES = 128 * 2**20

DiskState = Literal["full", "almost full", "read-only"]


@dataclass(frozen=True)
class DiskRun:
    """The end of a command that ran with a small disk."""

    status: int
    stdout: str
    stderr: str
    changed: list[str]
    """Files of before that are gone or have other contents, relative to the disk."""
    new: list[str]
    """Files and folders that were not there before, relative to the disk."""


@cache
def why_not() -> str:
    """Return why this machine cannot mount a disk in a namespace; empty if it can."""
    if shutil.which("unshare") is None:
        return "there is no command `unshare`"
    mount = ["mount", "-t", "tmpfs", "none", "/mnt"]
    done = subprocess.run([*NAMESPACE, *mount], capture_output=True, text=True, check=False)
    return f"the kernel allows no mount: {done.stderr.strip()}" if done.returncode else ""


@contextmanager
def small_disks() -> Iterator[ForkedPython]:
    """Start a process in a namespace of its own, in which disks can be mounted."""
    with forked_python(NAMESPACE) as python:
        yield python


def run_on_disk(
    python: ForkedPython,
    state: DiskState,
    disk: Path,
    content: Path,
    command: Sequence[str],
    spare_bytes: int = 0,
    seconds: float = 300.0,
) -> DiskRun:
    """Run a command while a small disk in some state is mounted at a folder.

    Args:
        python: The process that `small_disks` yields.
        state: The state of the disk. An almost full one has `spare_bytes` of space.
        disk: The folder at which the disk is mounted. It is made.
        content: A folder with the content of the disk before the command.
        command: The path of a script of the clone, and its arguments.
        spare_bytes: Free space of an almost full disk.
        seconds: Time after which the command is ended, and the test fails.
    """
    disk.mkdir(parents=True, exist_ok=True)
    task = {
        "state": state,
        "disk": str(disk),
        "content": str(content),
        "command": list(command),
        "spare_bytes": spare_bytes,
        "seconds": seconds,
    }
    printed = python.run(PERFORM, [json.dumps(task)])
    return DiskRun(**json.loads(printed.splitlines()[-1]))


PERFORM = """
import json, sys
from tests.disks import perform

done = perform(json.loads(sys.argv[1]))
if done is not None:
    print(json.dumps(done))
"""


def perform(task: dict[str, Any]) -> dict[str, Any] | None:
    """Mount the disk, run the command in a forked process, and return the fields of a DiskRun.

    In the forked process it returns None when the command has ended.
    """
    disk = Path(task["disk"])
    options = f"size={MAX_BYTES}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(disk)], check=True)
    shutil.copytree(task["content"], disk, symlinks=True, dirs_exist_ok=True)
    if task["state"] == "read-only":
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    else:
        fill(disk / FILLER, task["spare_bytes"])
    before = digests(disk)
    output = disk.with_name("output")
    output.mkdir()
    process = os.fork()
    if process == 0:
        run_script(task["command"], output)
        return None
    status = status_in_time(process, task["seconds"])
    stdout = (output / "stdout").read_text(encoding="utf-8")
    stderr = (output / "stderr").read_text(encoding="utf-8")
    after = digests(disk)
    changed = [name for name, digest in before.items() if after.get(name) != digest]
    new = [name for name in after if name not in before]
    subprocess.run(["umount", "--lazy", str(disk)], check=True)
    return {
        "status": status,
        "stdout": stdout,
        "stderr": stderr,
        "changed": changed,
        "new": new,
    }


def run_script(command: Sequence[str], output: Path) -> None:
    """Run a script in this process as Python does, with its output in two files."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(output / name, os.O_WRONLY | os.O_CREAT), number)
    script, *_ = command
    sys.argv = list(command)
    # The folder of a script is searched first.
    sys.path[0] = str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")


def status_in_time(process: int, seconds: float) -> int:
    """Return the exit status of a forked process, which is killed after a number of seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    raise TimeoutError(f"the command was still there after {seconds:.0f} seconds")


def fill(file: Path, spare_bytes: int) -> None:
    """Write a file until the disk is full, and then give `spare_bytes` of it back."""
    with file.open("wb", buffering=0) as filler:
        for size in (2**20, 2**12):
            try:
                while True:
                    filler.write(b"\0" * size)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
        filler.truncate(max(filler.tell() - spare_bytes, 0))


def digests(folder: Path) -> dict[str, str]:
    """Return a digest of every file in a folder, the target of every link, and "" for folders."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name == FILLER:
            continue
        if path.is_symlink():
            found[name] = str(path.readlink())
        elif path.is_dir():
            found[name] = ""
        else:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found
