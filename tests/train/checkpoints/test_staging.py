"""Checkpoints are copied from a staging folder while the run goes on, and are complete at the end of the copy only."""

from __future__ import annotations

import errno
import io
import os
import shutil
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from transformers import TrainerControl, TrainerState, TrainingArguments

from mmrm.data.errors import UserError
from mmrm.data.storage.manifest import COMPLETE, parse_manifest
from mmrm.eval.cli import rank_device
from mmrm.models.distributed import rank
from mmrm.train.checkpoints import staging
from mmrm.train.checkpoints.integrity import damage, mark_complete
from mmrm.train.checkpoints.rotation import KeepCheckpoints, find_resume
from mmrm.train.checkpoints.sizes import first_checkpoint_bytes
from mmrm.train.checkpoints.staging import COPYING, PREFIX, Node, Staging, copy_file
from mmrm.train.runs.evaluation_loop import ANSWERS
from tests.train.ranks import run_ranks

MODEL = torch.nn.Linear(9, 10)
FILES = {
    "model.safetensors": b"w" * 5000,
    "global_step3/zero_pp_rank_0_mp_rank_00_optim_states.pt": b"o" * 3000,
    "latest": b"global_step3",
    "eval/vl_rewardbench.json": b"{}",
    "README.md": b"card",
}


def made(folder: Path, console: Console | None = None) -> Staging:
    console = console or Console(file=io.StringIO(), width=200)
    stage = Staging(folder / "run", folder / "memory", console)
    stage.open()
    return stage


def begin(stage: Staging, step: int) -> Path:
    stage.wait()
    stage.begin(step, first_checkpoint_bytes(MODEL))
    return stage.folder / f"checkpoint-{step}"


def save(checkpoint: Path) -> None:
    for name, content in FILES.items():
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_bytes(content)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != COMPLETE
    }


def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let copies wait for the event that is returned."""
    may_go_on = threading.Event()

    def waiting(source: Path, target: Path) -> Any:
        may_go_on.wait(timeout=60)
        return copy_file(source, target)

    monkeypatch.setattr(staging, "copy_file", waiting)
    return may_go_on


def test_a_copy_holds_what_was_saved_and_the_digests_of_a_save_without_staging(
    tmp_path: Path,
) -> None:
    text = io.StringIO()
    stage = made(tmp_path, Console(file=text, width=200))
    checkpoint = begin(stage, 3)
    save(checkpoint)
    assert checkpoint.is_symlink()
    assert checkpoint.resolve().is_relative_to(tmp_path / "memory")
    was_complete = []
    stage.copy(checkpoint, lambda: was_complete.append((checkpoint / COMPLETE).exists()))
    stage.wait()
    assert was_complete == [True]
    assert not checkpoint.is_symlink()
    assert contents(checkpoint) == FILES
    assert damage(checkpoint) == []
    manifest = (checkpoint / COMPLETE).read_bytes()
    mark_complete(checkpoint)
    assert (checkpoint / COMPLETE).read_bytes() == manifest
    assert "step      3  checkpoint-3 is complete, copied in" in text.getvalue()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["checkpoint-3"]
    assert contents(stage.place) == {}
    stage.end()
    assert list((tmp_path / "memory").iterdir()) == []


def test_the_run_goes_on_during_the_copy_and_the_next_save_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on = held(monkeypatch)
    stage = made(tmp_path)
    first = begin(stage, 3)
    save(first)
    stage.copy(first, lambda: None)
    assert first.is_symlink()  # this line is reached although no file has been copied
    assert not (first / COMPLETE).exists()
    timer = threading.Timer(0.3, may_go_on.set)
    timer.start()
    second = begin(stage, 6)
    timer.join()
    assert (first / COMPLETE).exists()
    assert second.is_symlink()
    assert not (second / COMPLETE).exists()


@pytest.mark.parametrize("is_saved_again", [False, True])
@pytest.mark.parametrize("folder", ["eval", ANSWERS])
def test_results_of_the_evaluation_before_the_save_move_along(
    folder: str, is_saved_again: bool, tmp_path: Path
) -> None:
    """Judges have results in `eval`, and policies answers of their own."""
    stage = made(tmp_path)
    results = tmp_path / "run" / "checkpoint-3" / folder / "journal.jsonl"
    results.parent.mkdir(parents=True)
    results.write_text("rows")
    if is_saved_again:
        (tmp_path / "run" / "checkpoint-3" / COMPLETE).touch()
    checkpoint = begin(stage, 3)
    assert results.read_text() == "rows"
    stage.copy(checkpoint, lambda: None)
    stage.wait()
    assert results.read_text() == "rows"


def test_a_checkpoint_that_is_saved_again_is_replaced(tmp_path: Path) -> None:
    """A run that continues from an earlier checkpoint comes to the same step again."""
    stage = made(tmp_path)
    checkpoint = tmp_path / "run" / "checkpoint-3"
    save(checkpoint)
    (checkpoint / "of_other_ranks.pt").write_bytes(b"old")
    mark_complete(checkpoint)
    begin(stage, 3)
    assert not (checkpoint / COMPLETE).exists()
    save(checkpoint)
    stage.copy(checkpoint, lambda: None)
    stage.wait()
    assert contents(checkpoint) == FILES


def test_without_room_on_the_node_the_run_folder_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = io.StringIO()
    stage = made(tmp_path, Console(file=text, width=200))
    needed = first_checkpoint_bytes(MODEL)
    assert needed == 100 * (4 + 12)
    free = [needed - 1]
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free[0]))
    assert not begin(stage, 3).exists()
    said = "checkpoint-3 is not staged: its files on a node take about 1,600 bytes, 1,599 are free"
    assert said in text.getvalue()
    free[0] = needed
    assert begin(stage, 6).is_symlink()


def test_the_size_of_the_last_checkpoint_is_expected_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = made(tmp_path)
    checkpoint = begin(stage, 3)
    save(checkpoint)
    stage.copy(checkpoint, lambda: None)
    num_bytes = sum(len(content) for content in FILES.values())
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=num_bytes - 1))
    assert not begin(stage, 6).exists()


def test_a_node_expects_its_share_of_divided_states() -> None:
    assert first_checkpoint_bytes(MODEL, share_of_states=0.25) == 100 * (4 + 3)
    frozen = torch.nn.Linear(9, 10)
    frozen.bias.requires_grad_(False)
    assert first_checkpoint_bytes(frozen) == 100 * 4 + 90 * 12
    assert first_checkpoint_bytes(frozen, only_adapters=True) == 90 * (4 + 12)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full"),
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
    ],
)
def test_an_error_of_the_copy_ends_the_run_and_leaves_nothing_complete(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: OSError,
    reason: str,
) -> None:
    def failing(source: Path, target: Path) -> Any:
        raise error

    monkeypatch.setattr(staging, "copy_file", failing)
    stage = made(tmp_path)
    checkpoint = begin(stage, 3)
    save(checkpoint)
    stage.copy(checkpoint, lambda: None)
    with pytest.raises(UserError, match=rf"checkpoint-3 could not be copied.*{reason}"):
        stage.wait()
    with pytest.raises(UserError, match="start again with --resume"):
        stage.check()
    assert not (checkpoint / COMPLETE).exists()
    stage.end()
    assert reason in capsys.readouterr().err


def test_a_new_checkpoint_stays_beside_those_of_later_steps(tmp_path: Path) -> None:
    """A run that continues from an earlier checkpoint finds later ones, and waited for ever for its own."""
    for step in (200, 300):
        save(tmp_path / "run" / f"checkpoint-{step}")
        mark_complete(tmp_path / "run" / f"checkpoint-{step}")
    stage = made(tmp_path)
    callback = KeepCheckpoints(2, lambda checkpoint, step: None, stage)
    checkpoint = begin(stage, 150)
    save(checkpoint)
    state = TrainerState(global_step=150, is_world_process_zero=True)
    arguments = TrainingArguments(output_dir=str(tmp_path / "run"), use_cpu=True, report_to=[])
    callback.on_save(arguments, state, TrainerControl())
    callback.on_train_end(arguments, state, TrainerControl())
    assert (checkpoint / COMPLETE).exists()


def test_an_error_of_the_rotation_is_no_error_of_the_copy(tmp_path: Path) -> None:
    def failing() -> None:
        raise OSError(errno.EACCES, "Permission denied")

    stage = made(tmp_path)
    checkpoint = begin(stage, 3)
    save(checkpoint)
    stage.copy(checkpoint, failing)
    with pytest.raises(UserError, match=r"checkpoint-3 is complete, but earlier checkpoints could"):
        stage.wait()
    assert damage(checkpoint) == []


def test_runs_share_a_staging_folder_and_remove_what_a_killed_one_left(tmp_path: Path) -> None:
    first = made(tmp_path)
    second = made(tmp_path)  # the same run folder, as in two containers on one machine
    assert first.place != second.place
    begin(first, 3)
    third = made(tmp_path)
    assert begin(third, 6).is_symlink()
    assert (first.place / "checkpoint-3").exists()
    killed = tmp_path / "memory" / f"{PREFIX}killed"
    killed.mkdir()
    killed.with_name(f"{killed.name}.lock").touch()
    failed = tmp_path / "memory" / f"{PREFIX}failed"
    failed.mkdir()  # its lock was removed when its process ended
    other = tmp_path / "memory" / "of_another_program"
    other.mkdir()
    fourth = made(tmp_path)
    assert not killed.exists()
    assert not failed.exists()
    assert other.exists()
    for stage in (first, second, third, fourth):
        stage.end()
    assert [path.name for path in (tmp_path / "memory").iterdir()] == ["of_another_program"]


def test_links_to_complete_checkpoints_stay(tmp_path: Path) -> None:
    """A user may move a checkpoint to a larger disk, and leave a link."""
    save(tmp_path / "large" / "checkpoint-3")
    mark_complete(tmp_path / "large" / "checkpoint-3")
    link = tmp_path / "run" / "checkpoint-3"
    link.parent.mkdir()
    link.symlink_to(tmp_path / "large" / "checkpoint-3")
    for resume in ("auto", str(link)):
        assert find_resume(tmp_path / "run", resume, Console(file=io.StringIO())) == link


def test_a_resume_removes_what_a_kill_left(tmp_path: Path) -> None:
    stage = made(tmp_path)
    whole = begin(stage, 3)
    save(whole)
    stage.copy(whole, lambda: None)
    interrupted = begin(stage, 6)
    save(interrupted)
    copying = tmp_path / "run" / f"{COPYING}checkpoint-6"
    copying.mkdir()
    for resume in ("auto", str(whole)):
        text = io.StringIO()
        assert find_resume(tmp_path / "run", resume, Console(file=text, width=200)) == whole
        assert [path.name for path in (tmp_path / "run").iterdir()] == ["checkpoint-3"]
        interrupted.symlink_to(tmp_path / "nowhere")  # a node that was started anew
        copying.mkdir()


def save_and_copy(folder: Path, nodes: bool) -> None:
    """Save a checkpoint on two ranks, of one node or of two, and copy it."""
    with rank_device():
        # DeepSpeed's launcher sets LOCAL_SIZE and not this.
        del os.environ["LOCAL_WORLD_SIZE"]
        place = folder / "memory"
        if nodes:
            name = f"node-{rank()}"
            socket.gethostname = lambda: name
            place = folder / f"memory-{rank()}"
        stage = Staging(folder / "run", place, Console())
        stage.open()
        assert stage.node == (Node(0, 1) if nodes else Node(rank(), 2))
        checkpoint = begin(stage, 3)
        # On another node the link of a shared folder leads to that node's own memory.
        own_place = stage.place / checkpoint.name
        (own_place / f"of-rank-{rank()}.pt").write_bytes(bytes(1000 + rank()))
        if rank() == 0:
            save(own_place)
        torch.distributed.barrier()
        stage.copy(checkpoint, lambda: None)
        stage.wait()
        assert damage(checkpoint) == []
        stage.end()
        torch.distributed.barrier()
        assert not list(place.iterdir())
        manifest = parse_manifest((checkpoint / COMPLETE).read_bytes())
        assert manifest is not None
        names = {"of-rank-0.pt", "of-rank-1.pt", *FILES} - {"eval/vl_rewardbench.json", "README.md"}
        assert set(manifest.entries) == names
        assert (checkpoint / "eval" / "vl_rewardbench.json").read_bytes() == b"{}"


@pytest.mark.parametrize("nodes", [False, True])
def test_two_ranks_copy_the_files_of_their_nodes(tmp_path: Path, nodes: bool) -> None:
    run_ranks(tmp_path / "log", save_and_copy, tmp_path, nodes)


def wait_for_an_ended_rank(folder: Path) -> None:
    """Copy on the first rank, while the second one ends before it has copied its files."""
    with rank_device():
        staging.LAST_WAIT = 0.5
        stage = Staging(folder / "run", folder / "memory", Console())
        stage.open()
        checkpoint = begin(stage, 3)
        if rank() == 0:
            save(checkpoint)
        torch.distributed.barrier()
        if rank() == 1:
            staging.CheckpointCopy.run = threading.Thread.run  # type: ignore[method-assign]
        stage.copy(checkpoint, lambda: None)
        stage.end()
        assert not (checkpoint / COMPLETE).exists()


def test_the_first_rank_does_not_wait_for_ever_for_a_rank_that_has_ended(tmp_path: Path) -> None:
    printed = run_ranks(tmp_path / "log", wait_for_an_ended_rank, tmp_path)
    assert "checkpoint-3 is not complete, because another rank ended" in printed
    assert ".copied-by-rank-1.json is missing" in printed
