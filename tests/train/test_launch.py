"""What a run finds in its environment before torch looks at it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from train.launch import SINGLE_PROCESS, free_port, prepare_environment, run_environment


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
    with socket.create_server(("127.0.0.1", 0)) as other:
        os.environ.update(SINGLE_PROCESS, MASTER_PORT=str(other.getsockname()[1]))
        with pytest.raises(SystemExit, match="--master_port"), run_environment(seed=0, deterministic=False, deepspeed=False):
            pass
