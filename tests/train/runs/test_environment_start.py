"""From the command line: the four launchers, what a run says that cannot begin, and what leaves the machine at its end."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.train import worker
from tests.train.ranks import run_ranks
from train.runs.environment import free_port

RM = Path(__file__).resolve().parents[3] / "train" / "rm.py"
BIN = Path(sys.executable).parent
LAUNCHERS = {
    "python": [sys.executable, str(RM)],
    "torchrun": [str(BIN / "torchrun"), "--nproc_per_node=2", "--master_port={port}", str(RM)],
    "deepspeed": [str(BIN / "deepspeed"), "--master_port={port}", str(RM)],
    "accelerate": [str(BIN / "accelerate"), "launch", "--cpu", "--num_processes=1", "--main_process_port={port}", str(RM)],
}
SHORT = ["optim.max_steps=1", "output.save_every_steps=1", "evaluation.benchmarks=[]", "evaluation.best_metric=null"]
"""One step and nothing evaluated."""


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_every_launcher_starts_the_script_by_path_from_another_folder(tmp_path: Path, launcher: str) -> None:
    recipe = worker.prepare(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    command = [part.format(port=free_port()) for part in LAUNCHERS[launcher]]
    changes = [*SHORT, "deepspeed=zero2", "output.folder=run"]
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    environment |= {"PATH": f"{BIN}:{environment['PATH']}", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(recipe), *changes],
        cwd=elsewhere,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=400,
        check=False,
    )
    checkpoint = elsewhere / "run" / "checkpoint-1"
    assert (checkpoint / "complete").exists(), done.stdout
    assert "step      1  loss" in done.stdout
    assert "built successfully" not in done.stdout  # nothing is compiled on a CPU: that would need g++
    parts = list(checkpoint.glob("global_step1/*optim_states.pt"))
    assert len(parts) == (2 if launcher == "torchrun" else 1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ("backbone.path=/no/such/folder", "there is no folder /no/such/folder"),
        ("optim.lora={quantise: nf4}", "4-bit weights need a CUDA device and there is none; set optim.lora.quantise=none"),
        ("output.resume=checkpoint-9", "checkpoint-9 is not a whole checkpoint"),
        ("optim.records_per_step=32", "The data set has 16 records and a step takes 32"),
    ],
)
def test_a_run_that_cannot_begin_says_so_once_without_a_traceback(tmp_path: Path, changes: str, said: str) -> None:
    recipe = worker.prepare(tmp_path)
    printed = run_ranks(tmp_path / "log", worker.recipe_run, [str(recipe), changes], ranks=1, status=2)
    assert printed.count(said) == 1
    assert "Traceback" not in printed


class Listener:
    """A server that counts who calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        threading.Thread(target=self._count, daemon=True).start()

    def _count(self) -> None:
        while True:
            self.socket.accept()[0].close()
            self.calls += 1


def test_without_a_login_wandb_stays_on_disk_and_the_hub_gets_the_best(tmp_path: Path) -> None:
    recipe, server = worker.prepare(tmp_path), Listener()
    changes = [*SHORT, "output.wandb_project=tests", "output.push_to_hub=me/model"]
    command = [str(recipe), *changes]
    printed = run_ranks(tmp_path / "log", worker.published_run, command, tmp_path / "calls", server.address, ranks=1)
    (offline,) = (tmp_path / "run" / "wandb").glob("offline-run-*")
    assert list(offline.glob("*.wandb"))
    assert server.calls == 0
    created, uploaded = (json.loads(line) for line in (tmp_path / "calls").read_text(encoding="utf-8").splitlines())
    assert (created["call"], created["args"], created["private"]) == ("create_repo", ["me/model"], "True")
    assert uploaded["call"] == "upload_folder"
    assert Path(uploaded["folder_path"]).name == "checkpoint-1"
    assert "checkpoint-1 is on the hub as me/model" in printed.replace("\n", "")
