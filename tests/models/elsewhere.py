"""Programs that know transformers but not this repository, each in a process of its own.

The processes are forked from a server that imported torch and transformers once, which takes four
seconds of processor time. This file is also the program of the server.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

SECONDS = 240
"""A program that takes longer is killed, and its test fails."""
OUTPUT = "stdout.txt"
"""The file in the program's folder that holds its standard output."""
ERRORS = "stderr.txt"
"""The file in the program's folder that holds its error output."""


@dataclass(frozen=True)
class Program:
    """The source of a program and what it is started with."""

    source: str
    arguments: list[str]
    """They are `sys.argv[1:]` of the program."""
    folder: str
    """Its working directory."""


def run_elsewhere(source: str, arguments: list[str], folder: Path) -> str:
    """Run a program without this repository, and return what it printed to its standard output.

    Remote code is copied from a checkpoint into the folder of HF_HOME, which is empty when a
    program starts.

    Args:
        source: The source of the program.
        arguments: Its arguments.
        folder: Its working directory. What it prints is written there.

    Raises:
        AssertionError: The program did not end with status 0.
    """
    server = _running_server()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(asdict(Program(source, arguments, str(folder)))) + "\n")
    server.stdin.flush()
    status = server.stdout.readline().strip()
    assert status == "0", f"ended with status {status}:\n{(folder / ERRORS).read_text()}"
    return (folder / OUTPUT).read_text()


@cache
def _running_server() -> subprocess.Popen[str]:
    """Start the server of this process; it ends with this process, which closes its input."""
    home = tempfile.mkdtemp(prefix="elsewhere-")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.Popen(
        # Without -P, the folder of this file would be on the server's path.
        [sys.executable, "-P", __file__],
        cwd=home,
        env=environment | {"HF_HOME": home},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def next_program() -> Program | None:
    """Fork a process for each program that is read, and print its status.

    Return the program in the process that has to run it, and None in the server at the end of its
    input.
    """
    home = Path(os.environ["HF_HOME"])
    for line in sys.stdin:
        process_id = os.fork()
        if process_id == 0:
            return Program(**json.loads(line))
        _, wait_status = os.waitpid(process_id, 0)
        print(os.waitstatus_to_exitcode(wait_status), flush=True)
        for left in home.iterdir():
            shutil.rmtree(left)
    home.rmdir()
    return None


def become(program: Program) -> None:
    """Give this process the surroundings of `python -c SOURCE ARGUMENTS` in the program's folder."""
    signal.alarm(SECONDS)
    os.chdir(program.folder)
    for descriptor, name in ((0, os.devnull), (1, OUTPUT), (2, ERRORS)):
        flags = os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        os.dup2(os.open(name, flags), descriptor)
    sys.argv = ["-c", *program.arguments]
    sys.path.insert(0, "")


if __name__ == "__main__":
    import torch  # noqa: F401
    from transformers import (  # noqa: F401
        AutoModelForImageTextToText,
        AutoModelForSequenceClassification,
        AutoProcessor,
    )

    next_one = next_program()
    if next_one is not None:
        become(next_one)
        exec(compile(next_one.source, "<string>", "exec"), {"__name__": "__main__"})
