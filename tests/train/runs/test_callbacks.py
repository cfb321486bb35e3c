"""The `best` link and the console."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from rich.console import Console
from transformers import TrainerControl, TrainerState, TrainingArguments

from train.runs.callbacks import BEST, BestLink, ConsoleProgress, point_link


def state(step: int = 3, *, first: bool = True, best: Path | None = None) -> TrainerState:
    return TrainerState(
        global_step=step, max_steps=8, is_world_process_zero=first, best_model_checkpoint=None if best is None else str(best)
    )


def arguments(folder: Path) -> Any:
    return TrainingArguments(output_dir=str(folder), use_cpu=True, report_to=[])


def test_a_link_is_relative_and_moves_with_its_folder(tmp_path: Path) -> None:
    for name in ("checkpoint-1", "checkpoint-2"):
        (tmp_path / "run" / name).mkdir(parents=True)
    link = tmp_path / "run" / "best"
    point_link(link, tmp_path / "run" / "checkpoint-1")
    point_link(link, tmp_path / "run" / "checkpoint-2")
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    assert (tmp_path / "elsewhere" / "best").resolve() == tmp_path / "elsewhere" / "checkpoint-2"
    assert sorted(path.name for path in (tmp_path / "elsewhere").iterdir()) == ["best", "checkpoint-1", "checkpoint-2"]


def test_what_a_kill_left_half_made_does_not_stop_the_next_link(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-1").mkdir()
    (tmp_path / "best.new").symlink_to("nowhere")
    point_link(tmp_path / "best", tmp_path / "checkpoint-1")
    assert (tmp_path / "best").resolve().name == "checkpoint-1"


def test_best_follows_the_state_on_the_first_rank_only(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-2").mkdir()
    callback, control = BestLink(), TrainerControl()
    callback.on_save(arguments(tmp_path), state(), control)
    callback.on_save(arguments(tmp_path), state(first=False, best=tmp_path / "checkpoint-2"), control)
    assert not (tmp_path / BEST).is_symlink()
    callback.on_save(arguments(tmp_path), state(best=tmp_path / "checkpoint-2"), control)
    assert (tmp_path / BEST).resolve().name == "checkpoint-2"


def test_a_resume_sets_a_link_that_the_kill_came_before(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-2").mkdir()
    BestLink().on_train_begin(arguments(tmp_path), state(best=Path("written/elsewhere/checkpoint-2")), TrainerControl())
    assert (tmp_path / BEST).resolve() == tmp_path / "checkpoint-2"


def printed(*, first: bool, logs: dict[str, float]) -> str:
    text = io.StringIO()
    callback = ConsoleProgress(Console(file=text, width=200))
    control, args = TrainerControl(), None
    callback.on_train_begin(args, state(first=first), control)
    callback.on_log(args, state(first=first), control, logs)
    callback.on_step_end(args, state(4, first=first), control)
    callback.on_train_end(args, state(first=first), control)
    return text.getvalue()


def test_a_line_shows_the_figures_that_there_are_in_the_stated_order() -> None:
    found = printed(first=True, logs={"tokens_per_second": 1234.4, "loss": 0.25, "accuracy": 0.5, "unknown": 1.0})
    assert "step      3  loss 0.2500  accuracy 0.500  tokens_per_second 1234" in found
    assert "unknown" not in found
    assert "4/8" in found


def test_what_was_dropped_is_always_shown() -> None:
    assert "dropped/unusable 2" in printed(first=True, logs={"loss": 0.25, "dropped/unusable": 2.0})


def test_other_ranks_and_other_lines_print_nothing() -> None:
    assert printed(first=False, logs={"loss": 0.25}) == ""
    assert "step " not in printed(first=True, logs={"eval_vl_rewardbench/accuracy": 0.5})
