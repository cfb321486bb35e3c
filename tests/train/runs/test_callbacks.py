"""The console."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console
from transformers import TrainerControl, TrainerState, TrainingArguments

from mmrm.eval.results.run_folder import LOG
from mmrm.train.methods.method import Method
from mmrm.train.runs.callbacks import ConsoleProgress, LogFile


def state(step: int = 3, *, first: bool = True, best: Path | None = None) -> TrainerState:
    return TrainerState(
        global_step=step,
        max_steps=8,
        is_world_process_zero=first,
        best_model_checkpoint=None if best is None else str(best),
    )


def printed(*, first: bool, logs: dict[str, float]) -> str:
    text = io.StringIO()
    callback = ConsoleProgress(Console(file=text, width=200), Method.columns)
    control, args = TrainerControl(), None
    callback.on_train_begin(args, state(first=first), control)
    callback.on_log(args, state(first=first), control, logs)
    callback.on_step_end(args, state(4, first=first), control)
    if not first:
        callback.on_save(args, state(4, first=first), control)
    callback.on_train_end(args, state(first=first), control)
    return text.getvalue()


def test_a_line_shows_the_figures_that_there_are_in_the_stated_order() -> None:
    found = printed(
        first=True,
        logs={"tokens_per_second": 1234.4, "loss": 0.25, "accuracy": 0.5, "unknown": 1.0},
    )
    assert "step      3  loss 0.2500  accuracy 0.500  tokens_per_second 1234" in found
    assert "unknown" not in found
    assert "4/8" in found


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_log_file_has_the_remaining_steps_and_time_in_each_line(is_terminal: bool) -> None:
    text = io.StringIO()
    console = Console(file=text, width=200, force_terminal=is_terminal, color_system=None)
    callback = ConsoleProgress(console, Method.columns)
    callback.on_train_begin(None, state(2), TrainerControl())
    callback.on_log(None, state(2), TrainerControl(), {"loss": 0.5})
    callback.started -= 40  # two steps in 40 seconds: the remaining four take 80
    callback.on_log(None, state(4), TrainerControl(), {"loss": 0.25})
    callback.on_train_end(None, state(4), TrainerControl())
    lines = [line for line in text.getvalue().splitlines() if "loss" in line]
    assert any(line.endswith("  6 of 8 steps left") for line in lines) != is_terminal
    assert bool(re.search(r"4 of 8 steps left, 0:01:2\d", text.getvalue())) != is_terminal


def test_what_was_dropped_is_always_shown() -> None:
    assert "dropped/unusable 2" in printed(first=True, logs={"loss": 0.25, "dropped/unusable": 2.0})


def test_other_ranks_and_other_lines_print_nothing() -> None:
    assert printed(first=False, logs={"loss": 0.25}) == ""
    assert "step " not in printed(first=True, logs={"eval_vl_rewardbench/accuracy": 0.5})


@pytest.mark.parametrize("last_event", ["step", "log", "evaluation"])
def test_the_wait_for_a_save_begins_after_the_events_before_it(
    last_event: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = 100.0
    monkeypatch.setattr("mmrm.train.runs.callbacks.time.monotonic", lambda: seconds)
    text = io.StringIO()
    callback = ConsoleProgress(Console(file=text, width=200), Method.columns)
    callback.on_train_begin(None, state(), TrainerControl())
    callback.on_step_end(None, state(), TrainerControl())
    if last_event != "step":
        seconds += 5.0
        callback.on_log(None, state(), TrainerControl(), {"loss": 0.25})
    if last_event == "evaluation":
        seconds += 50.0
        callback.on_evaluate(None, state(), TrainerControl())
    seconds += 2.25
    callback.on_save(None, state(), TrainerControl())
    callback.on_train_end(None, state(), TrainerControl())
    assert "step      3  saved in 2.2 s" in text.getvalue()


def test_the_last_step_is_logged_whatever_the_interval_is() -> None:
    asked = []
    for step in (7, 8):
        control = TrainerControl()
        LogFile().on_step_end(None, state(step), control)
        asked.append(control.should_log)
    assert asked == [False, True]


def test_the_log_lies_in_the_run_folder_line_by_line_and_begins_with_what_a_checkpoint_knows(
    tmp_path: Path,
) -> None:
    callback, control, now = LogFile(), TrainerControl(), state()
    args = TrainingArguments(output_dir=str(tmp_path / "run"), use_cpu=True)
    now.log_history = [{"step": 1, "loss": 0.5}]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOG).write_text(
        '{"step": 2, "loss": 9.0}\n{"st'
    )  # behind the checkpoint, and cut off
    callback.on_train_begin(args, now, control)
    now.log_history.append({"step": 2, "loss": 0.25})
    callback.on_log(args, now, control)
    callback.on_log(args, state(first=False), control)
    assert (
        tmp_path / "run" / LOG
    ).read_text() == '{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 0.25}\n'
