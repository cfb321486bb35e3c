"""Which checkpoints are whole, which stay, and where a run continues."""

from __future__ import annotations

import errno
import io
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from transformers import TrainerControl, TrainerState, TrainingArguments

from mmrm.data.errors import UserError
from mmrm.data.storage.manifest import COMPLETE
from mmrm.train.checkpoints import rotation as checkpoints
from mmrm.train.checkpoints.integrity import mark_complete
from mmrm.train.checkpoints.rotation import (
    BEST,
    KeepCheckpoints,
    find_resume,
    point_link,
    room_for_checkpoint,
    whole_checkpoints,
)
from mmrm.train.runs.evaluation_loop import evaluation_folder


def keep(count: int) -> KeepCheckpoints:
    def write(checkpoint: Path, step: str) -> None:
        (checkpoint / "README.md").write_text(step)

    return KeepCheckpoints(count, write)


def make(folder: Path, *steps: int, whole: bool = True) -> None:
    for step in steps:
        (folder / f"checkpoint-{step}").mkdir(parents=True)
        (folder / f"checkpoint-{step}" / "model.safetensors").touch()
        if whole:
            (folder / f"checkpoint-{step}" / COMPLETE).touch()


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def quiet() -> Console:
    return Console(file=io.StringIO(), width=200)


def saved(
    folder: Path,
    callback: KeepCheckpoints,
    step: int,
    *,
    first: bool = True,
    best: str | None = None,
) -> None:
    found = None if best is None else f"somewhere/{best}"
    state = TrainerState(global_step=step, is_world_process_zero=first, best_model_checkpoint=found)
    arguments = TrainingArguments(output_dir=str(folder), use_cpu=True, report_to=[])
    callback.on_save(arguments, state, TrainerControl())


def test_checkpoints_are_ordered_by_step_and_the_cut_off_do_not_count(tmp_path: Path) -> None:
    make(tmp_path, 100, 20, 3)
    make(tmp_path, 200, whole=False)
    (tmp_path / "checkpoint-best").mkdir()
    assert names(checkpoints.checkpoints(tmp_path)) == [
        "checkpoint-3",
        "checkpoint-20",
        "checkpoint-100",
        "checkpoint-200",
    ]
    assert names(whole_checkpoints(tmp_path)) == ["checkpoint-3", "checkpoint-20", "checkpoint-100"]


def test_the_mark_holds_the_files(tmp_path: Path) -> None:
    make(tmp_path, 5, whole=False)
    saved(tmp_path, keep(9), 5)
    assert names(whole_checkpoints(tmp_path)) == ["checkpoint-5"]
    assert list(json.loads((tmp_path / "checkpoint-5" / COMPLETE).read_text())["files"]) == [
        "model.safetensors"
    ]


def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_it_taken(tmp_path: Path) -> None:
    make(tmp_path, 2, 4, 6, whole=False)
    for step in (2, 4, 6):
        mark_complete(tmp_path / f"checkpoint-{step}")
    for step in (4, 6):
        (tmp_path / f"checkpoint-{step}" / "model.safetensors").write_text("x")
    with pytest.raises(
        UserError,
        match=r"checkpoint-6 is damaged: model.safetensors has 1 bytes.*of this run: checkpoint-2, ch",
    ):
        find_resume(tmp_path, str(tmp_path / "checkpoint-6"), quiet())
    console = quiet()
    assert find_resume(tmp_path, "auto", console) == tmp_path / "checkpoint-2"
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert (
        "checkpoint-6 is damaged and set aside as damaged-checkpoint-6: model.safetensors has 1 bytes, 0 were written"
        in said
    )
    assert (tmp_path / "damaged-checkpoint-4" / "model.safetensors").exists()
    (tmp_path / "checkpoint-2" / "model.safetensors").unlink()
    for _ in range(2):  # a run never begins anew in their place
        with pytest.raises(
            UserError,
            match=r"no checkpoint of this run is undamaged\. checkpoint-2: model\.safetensors: No",
        ):
            find_resume(tmp_path, "auto", quiet())
    (tmp_path / "checkpoint-2" / "model.safetensors").touch()
    shutil.copytree(tmp_path / "damaged-checkpoint-4", tmp_path / "checkpoint-4")
    assert find_resume(tmp_path, "auto", quiet()) == tmp_path / "checkpoint-2"
    assert (tmp_path / "damaged-checkpoint-4-1").exists()


def test_a_disk_without_room_is_named_before_and_while_saving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = [10_000]
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free[0]))
    with room_for_checkpoint(1600, tmp_path):
        pass
    free[0] = 1599
    too_little = (
        r"about 1,600 bytes, 1,599 are free. Nothing was saved. There is no complete checkpoint"
    )
    with pytest.raises(UserError, match=too_little), room_for_checkpoint(1600, tmp_path):
        raise AssertionError
    make(tmp_path, 5)
    (tmp_path / "checkpoint-5" / "model.safetensors").write_bytes(bytes(1500))

    def save(error: Exception, left: int) -> None:
        free[0] = 1599
        with room_for_checkpoint(1600, tmp_path):
            free[0] = left
            raise error

    full = OSError(errno.ENOSPC, "No space left on device")
    for error, left in ((full, 1599), (RuntimeError("PytorchStreamWriter failed writing file"), 0)):
        said = rf"disk was full .* {left:,} bytes are free. The last complete checkpoint is .*checkpoint-5"
        with pytest.raises(UserError, match=said):
            save(error, left)
    with pytest.raises(RuntimeError, match="of another kind"):
        save(RuntimeError("of another kind"), 1599)


def test_a_full_staging_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = tmp_path / "memory"
    run = tmp_path / "run"
    memory.mkdir()
    free = {memory: 5_000, run: 90_000}
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free[folder]))
    with (
        pytest.raises(UserError, match=r"memory: the disk was full .* 5,000 bytes are free"),
        room_for_checkpoint(1600, run, memory),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")


@settings(deadline=None)
@given(st.sets(st.integers(1, 30), min_size=1, max_size=6), st.integers(1, 4), st.integers(1, 30))
def test_the_newest_and_the_best_stay(
    tmp_path_factory: pytest.TempPathFactory, steps: set[int], count: int, best: int
) -> None:
    folder = tmp_path_factory.mktemp("run")
    make(folder, *steps)
    stay = {*sorted(steps)[-count:], *({best} & steps)}
    saved(folder, keep(count), max(steps), best=f"checkpoint-{best}")
    assert names(checkpoints.checkpoints(folder)) == [f"checkpoint-{n}" for n in sorted(stay)]


def test_rotation_removes_on_the_first_rank_and_never_a_cut_off_one(tmp_path: Path) -> None:
    make(tmp_path, 1, 2, 3)
    make(tmp_path, 4, whole=False)
    saved(tmp_path, keep(1), 3, first=False, best="checkpoint-1")
    assert len(whole_checkpoints(tmp_path)) == 3
    saved(tmp_path, keep(1), 3, best="checkpoint-1")
    assert names(checkpoints.checkpoints(tmp_path)) == [
        "checkpoint-1",
        "checkpoint-3",
        "checkpoint-4",
    ]


def test_a_removal_that_is_cut_off_leaves_nothing_that_looks_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, 1, 2)
    monkeypatch.setattr("mmrm.train.checkpoints.rotation.shutil.rmtree", lambda path: None)
    saved(tmp_path, keep(1), 2)
    assert names(whole_checkpoints(tmp_path)) == ["checkpoint-2"]


def test_a_run_continues_from_the_last_whole_checkpoint_and_removes_the_rest(
    tmp_path: Path,
) -> None:
    make(tmp_path, 10, 20)
    make(tmp_path, 30, 40, whole=False)
    console = quiet()
    assert find_resume(tmp_path, "auto", console) == tmp_path / "checkpoint-20"
    assert names(checkpoints.checkpoints(tmp_path)) == ["checkpoint-10", "checkpoint-20"]
    assert console.file.getvalue().count("was cut off") == 2  # type: ignore[attr-defined]


def test_without_a_whole_checkpoint_a_run_begins_anew(tmp_path: Path) -> None:
    assert find_resume(tmp_path / "none", "auto", quiet()) is None
    make(tmp_path, 10, whole=False)
    assert find_resume(tmp_path, "auto", quiet()) is None
    make(tmp_path, 20)
    assert find_resume(tmp_path, "never", quiet()) is None


def test_a_named_checkpoint_must_be_whole(tmp_path: Path) -> None:
    make(tmp_path, 10)
    make(tmp_path, 20, whole=False)
    assert (
        find_resume(tmp_path, str(tmp_path / "checkpoint-10"), quiet())
        == tmp_path / "checkpoint-10"
    )
    with pytest.raises(UserError, match=r"checkpoint-20 is not a whole checkpoint.*or `auto`"):
        find_resume(tmp_path, str(tmp_path / "checkpoint-20"), quiet())


def test_figures_before_the_first_step_are_no_checkpoint(tmp_path: Path) -> None:
    evaluation_folder(tmp_path, 0).mkdir(parents=True)
    assert checkpoints.checkpoints(tmp_path) == []
    assert evaluation_folder(tmp_path, 7) == tmp_path / "checkpoint-7" / "eval"


def test_a_link_is_relative_and_moves_with_its_folder(tmp_path: Path) -> None:
    for name in ("checkpoint-1", "checkpoint-2"):
        (tmp_path / "run" / name).mkdir(parents=True)
    link = tmp_path / "run" / "best"
    point_link(link, tmp_path / "run" / "checkpoint-1")
    point_link(link, tmp_path / "run" / "checkpoint-2")
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    assert (tmp_path / "elsewhere" / "best").resolve() == tmp_path / "elsewhere" / "checkpoint-2"
    assert sorted(path.name for path in (tmp_path / "elsewhere").iterdir()) == [
        "best",
        "checkpoint-1",
        "checkpoint-2",
    ]


def test_what_a_kill_left_half_made_does_not_stop_the_next_link(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-1").mkdir()
    (tmp_path / "best.new").symlink_to("nowhere")
    point_link(tmp_path / "best", tmp_path / "checkpoint-1")
    assert (tmp_path / "best").resolve().name == "checkpoint-1"


def test_best_follows_the_state_on_the_first_rank_only(tmp_path: Path) -> None:
    make(tmp_path, 2, 3, 4)
    saved(tmp_path, keep(9), 3)
    saved(tmp_path, keep(9), 3, first=False, best="checkpoint-2")
    assert not (tmp_path / BEST).is_symlink()
    saved(tmp_path, keep(9), 3, best="checkpoint-2")
    assert (tmp_path / BEST).resolve().name == "checkpoint-2"


def test_a_resume_sets_a_link_that_the_kill_came_before(tmp_path: Path) -> None:
    make(tmp_path, 2)
    state = TrainerState(
        is_world_process_zero=True, best_model_checkpoint="written/elsewhere/checkpoint-2"
    )
    arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[])
    keep(1).on_train_begin(arguments, state, TrainerControl())
    assert (tmp_path / BEST).resolve() == tmp_path / "checkpoint-2"
