"""Two trainings in one folder: the second is told who has it, and the first one's run is not lost."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mmrm.train.runs.environment import SINGLE_PROCESS

pytestmark = pytest.mark.slow


CLONE = Path(__file__).resolve().parents[2]
RECIPE = """\
backbone: {{path: embedded, dtype: float32}}
data: {{sources: [{{type: shapes, level: demo, rows: 12, text_only: 0.0}}]}}
method: {{type: naive}}
optim: {{learning_rate: 1.0e-3, records_per_step: 2, max_steps: 4}}
output: {{folder: {folder}, save_every_steps: 2, log_every_steps: 1}}
workers: 1
"""
PAUSED = """
import os, signal, sys
from mmrm.train.runs.callbacks import LogFile
from mmrm.train.runs.environment import start

end_of_step = LogFile.on_step_end

def pause(self, args, state, control, **rest):
    end_of_step(self, args, state, control, **rest)
    if state.global_step == 3:
        print("paused", flush=True)
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGKILL)

LogFile.on_step_end = pause
start(sys.argv[1:], "rm", "")
"""
"""A training that stops after its third step; the end of its input then kills it."""


def started(*arguments: str) -> subprocess.Popen[str]:
    """Start a process that is a run of its own: a test before may have left its process group here."""
    of_a_launcher = (*SINGLE_PROCESS, "MASTER_PORT")
    environment = {name: value for name, value in os.environ.items() if name not in of_a_launcher}
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=CLONE,
        env={**environment, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_second_of_two_runs_is_refused_and_the_first_one_resumes_after_a_kill(
    tmp_path: Path,
) -> None:
    recipe = tmp_path / "recipe.yaml"
    folder, whole = tmp_path / "two", tmp_path / "whole"
    recipe.write_text(RECIPE.format(folder=folder), encoding="utf-8")
    first = started("-c", PAUSED, str(recipe))
    assert first.stdout is not None
    lines = iter(first.stdout.readline, "")
    assert "paused\n" in lines
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    second = started("train/rm.py", str(recipe), "--resume")
    said = second.communicate(timeout=400)
    assert second.returncode == 2, said
    assert f"{folder} is in use: process {first.pid} on {socket.gethostname()}" in said[1]
    assert str(recipe) in said[1]  # the command line
    assert "Traceback" not in said[1]
    after = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert after == before  # the second run has touched nothing
    first.communicate(timeout=400)  # the end of its input kills it
    assert first.returncode == -signal.SIGKILL
    assert (folder / "lock").exists()  # it is not locked any more, and is taken over
    resumed = started("train/rm.py", str(recipe), "--resume")
    clean = started("train/rm.py", str(recipe), f"output.folder={whole}")
    said = resumed.communicate(timeout=400)
    assert resumed.returncode == 0, said
    said = clean.communicate(timeout=400)
    assert clean.returncode == 0, said
    weights = [run / "checkpoint-4" / "model.safetensors" for run in (folder, whole)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert not (folder / "lock").exists()
