"""Runs code in processes that are forked from one that has imported the packages of others only once.

Importing torch, transformers, TRL and DeepSpeed takes about ten seconds. A test that runs many short
programs pays for it once. No module of mmrm is loaded before the program starts, so that the test
sees what the program itself imports.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

CLONE = Path(__file__).resolve().parents[1]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled", "CUDA_VISIBLE_DEVICES": ""}

SERVER = """
import json, os, sys

# DeepSpeed prints while it is imported.
statuses = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
import datasets, deepspeed, fastapi, pandas, peft, requests, rich, scipy.stats, torch
import transformers, trl, uvicorn, wandb
import transformers.trainer, trl.trainer.grpo_trainer

# Programs that take the place of a script put its folder here. The clone is then not searched.
sys.path[0] = os.getcwd()
code = None
for line in sys.stdin:
    request = json.loads(line)
    process = os.fork()
    if process == 0:
        for number, path in ((1, request["stdout"]), (2, request["stderr"])):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.argv = request["argv"]
        code = request["code"]
        break
    _, status = os.waitpid(process, 0)
    print(os.waitstatus_to_exitcode(status), file=statuses, flush=True)

# Here is the end of the server, and the start of every program: it ends as any interpreter does,
# with its exit handlers.
if code is not None:
    exec(compile(code, "<program>", "exec"), {"__name__": "__main__"})
"""


class ForkedPython:
    """A process that has imported the packages of others, and is forked for every program."""

    def __init__(self, server: subprocess.Popen[str], folder: Path) -> None:
        assert server.stdin is not None
        assert server.stdout is not None
        self._requests: IO[str] = server.stdin
        self._statuses: IO[str] = server.stdout
        self._folder = folder

    def run(self, code: str, arguments: Sequence[str] = ()) -> str:
        """Run a program in the clone, and return what it printed.

        Raises: AssertionError with its errors, if it ends with anything but 0.
        """
        stdout = self._folder / "stdout"
        stderr = self._folder / "stderr"
        request = {
            "code": code,
            "argv": ["-c", *arguments],
            "stdout": str(stdout),
            "stderr": str(stderr),
        }
        self._requests.write(json.dumps(request) + "\n")
        self._requests.flush()
        status = self._statuses.readline().strip()
        assert status == "0", f"ended with {status}\n{stderr.read_text(errors='replace')[-4000:]}"
        return stdout.read_text(encoding="utf-8")


@contextmanager
def forked_python(launcher: Sequence[str] = ()) -> Iterator[ForkedPython]:
    """Start the process that is forked, and end it when the block is left.

    Args:
        launcher: The command line that starts the process, such as `unshare --mount`.
    """
    with tempfile.TemporaryDirectory() as name:
        errors = Path(name) / "server"
        with errors.open("w", encoding="utf-8") as log:
            server = subprocess.Popen(
                [*launcher, sys.executable, "-c", SERVER],
                cwd=CLONE,
                env={**os.environ, **ENVIRONMENT},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        with server:
            yield ForkedPython(server, Path(name))
            assert server.stdin is not None
            server.stdin.close()
            assert server.wait() == 0, errors.read_text(encoding="utf-8")
