"""What the first rank does alone: it locks an output or works while others wait, and all get its refusal."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import pytest
from torch import distributed

from mmrm.data.errors import InUseError, UserError
from mmrm.data.storage.output_lock import locked_folder
from mmrm.models.distributed import (
    barrier,
    locked_by_first_rank,
    on_first_rank,
    rank,
    world_size,
)
from tests.train.ranks import run_ranks

pytestmark = pytest.mark.slow


def refused(folder: str) -> None:
    """Try to lock a folder that the test holds."""
    distributed.init_process_group("gloo")
    with (
        pytest.raises(InUseError, match="is in use"),
        locked_by_first_rank(locked_folder(Path(folder))),
    ):
        pass
    print(f"rank {rank()} was refused")
    distributed.destroy_process_group()


def hold_together(folder: str) -> None:
    """Lock a folder on two ranks of one run, and find that another process cannot have it."""
    distributed.init_process_group("gloo")
    with locked_by_first_rank(locked_folder(Path(folder))):
        with pytest.raises(InUseError), locked_folder(Path(folder)):
            pass
        barrier()
    distributed.destroy_process_group()


def work_alone(folder: str) -> None:
    """Let the first rank work for longer than a collective operation of the default group may take."""
    distributed.init_process_group("gloo", timeout=timedelta(seconds=2))
    file = Path(folder) / "written"

    def work() -> None:
        time.sleep(4)
        file.write_text(f"by rank {rank()} of {world_size()}")

    def fail() -> None:
        raise UserError("there is no room")

    on_first_rank(work, timedelta(minutes=5))
    assert file.read_text() == "by rank 0 of 2"
    with pytest.raises(UserError, match="there is no room"):
        on_first_rank(fail, timedelta(minutes=5))
    barrier()
    distributed.destroy_process_group()


def test_all_ranks_of_a_second_run_are_refused_together(tmp_path: Path) -> None:
    with locked_folder(tmp_path / "run"):
        printed = run_ranks(tmp_path / "logs", refused, str(tmp_path / "run"))
    assert "rank 0 was refused" in printed
    assert "rank 1 was refused" in printed


def test_the_ranks_of_one_run_are_not_in_each_others_way(tmp_path: Path) -> None:
    run_ranks(tmp_path / "logs", hold_together, str(tmp_path / "run"))
    assert list((tmp_path / "run").iterdir()) == []


def test_the_others_wait_for_the_first_rank_and_get_its_error(tmp_path: Path) -> None:
    run_ranks(tmp_path / "logs", work_alone, str(tmp_path))


def test_a_single_process_works_at_once() -> None:
    done = []
    on_first_rank(lambda: done.append(rank()), timedelta(seconds=1))
    assert done == [0]
