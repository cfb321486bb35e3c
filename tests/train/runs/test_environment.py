"""What a run finds in its environment before torch looks at it."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from train.runs.environment import FILES, SINGLE_PROCESS, free_port, prepare_environment, raise_file_limit

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """Take back whatever a test sets."""
    before = dict(os.environ)
    for name in (*SINGLE_PROCESS, "MASTER_PORT", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_CPU"):
        os.environ.pop(name, None)
    yield
    os.environ.clear()
    os.environ.update(before)


def test_a_script_started_alone_is_the_only_rank() -> None:
    prepare_environment(deepspeed=False)
    assert {name: os.environ[name] for name in SINGLE_PROCESS} == SINGLE_PROCESS
    assert 0 < int(os.environ["MASTER_PORT"]) < 65536


def test_what_a_launcher_set_stays() -> None:
    os.environ.update(RANK="3", LOCAL_RANK="1", WORLD_SIZE="4", MASTER_ADDR="node", MASTER_PORT="1234")
    prepare_environment(deepspeed=False)
    assert [os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")] == [
        *("3", "1", "4", "node", "1234")
    ]


@pytest.mark.parametrize("deepspeed", [True, False])
def test_the_recipe_decides_on_deepspeed_whatever_the_launcher_says(deepspeed: bool) -> None:
    os.environ.update(ACCELERATE_USE_DEEPSPEED=str(not deepspeed).lower(), ACCELERATE_USE_CPU="True")
    prepare_environment(deepspeed)
    assert os.environ["ACCELERATE_USE_DEEPSPEED"] == str(deepspeed).lower()
    assert os.environ["ACCELERATE_USE_CPU"] == "false"


def test_a_free_port_can_be_taken() -> None:
    with socket.create_server(("127.0.0.1", free_port())):
        pass


def test_a_port_that_another_run_has_is_named_with_a_way_out() -> None:
    """In a process of its own: this one may have met its ranks already, in another test."""
    program = (
        "from train.runs.environment import run_environment\n"
        "with run_environment(seed=0, deterministic=False, deepspeed=False):\n"
        "    print('they met')"
    )
    with socket.create_server(("127.0.0.1", 0)) as other:
        environment = {**os.environ, **SINGLE_PROCESS, "MASTER_PORT": str(other.getsockname()[1])}
        found = subprocess.run([sys.executable, "-c", program], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 1
    assert "--master_port" in found.stderr
    assert "they met" not in found.stdout


def test_as_many_files_may_be_open_as_the_machine_allows() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(FILES, hard) if hard > 0 else FILES, hard)
        raise_file_limit()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


ENTERED = """
import io, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
from train.runs.environment import run_environment
with run_environment(seed=0, deterministic=False, deepspeed=False):
    import torch
    file = io.BytesIO()
    torch.save(torch.arange(3), file)
    file.seek(0)
    found = torch.load(file, map_location=torch.device("cpu", 0), weights_only=True).tolist()
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 256, found)
"""


def test_a_run_may_open_files_and_loads_states_on_a_numbered_cpu() -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    found = subprocess.run([sys.executable, "-c", ENTERED], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert found.stdout.splitlines()[-1:] == ["True [0, 1, 2]"], found.stderr
