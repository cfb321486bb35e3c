"""One rule for exit statuses over all commands: 2 for wrong arguments, 1 for the other errors."""

from __future__ import annotations

import runpy
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmrm.commands import modules_by_command

QUESTIONS = "{type: shapes, level: demo, split: validation, rows: 2}"
RATED_QUESTIONS = "{type: shapes_rated, level: demo, split: validation, rows: 2}"
DRAWN_QUESTIONS = "{type: shapes_drawn, level: demo, split: validation, rows: 2}"
MOTION_QUESTIONS = "{type: shapes_motion, level: demo, split: validation, rows: 2}"
WRONG_ARGUMENTS = 2
OTHER_ERROR = 1

ERRORS: dict[str, tuple[int, list[str]]] = {
    "rm": (WRONG_ARGUMENTS, ["nowhere.yaml"]),
    "sft": (WRONG_ARGUMENTS, ["nowhere.yaml"]),
    "rl": (WRONG_ARGUMENTS, ["nowhere.yaml"]),
    "ablate": (WRONG_ARGUMENTS, ["nowhere.yaml"]),
    "on-policy": (
        WRONG_ARGUMENTS,
        ["nowhere.yaml", "--policy", "embedded", "--questions", QUESTIONS, "--folder", "new/out"],
    ),
    "merge": (OTHER_ERROR, ["nowhere", "new/out"]),
    "export": (OTHER_ERROR, ["nowhere", "new/out"]),
    "eval": (OTHER_ERROR, ["nowhere"]),
    "sweep": (OTHER_ERROR, ["nowhere"]),
    "report": (OTHER_ERROR, ["nowhere"]),
    "score": (OTHER_ERROR, ["nowhere", "in.jsonl", "new/out.jsonl"]),
    "score-records": (WRONG_ARGUMENTS, ["nowhere.yaml", "nowhere", "new/out.jsonl"]),
    "serve": (OTHER_ERROR, ["nowhere"]),
    "sample": (OTHER_ERROR, ["nowhere", "new/out.jsonl", "--source", QUESTIONS]),
    "select-responses": (OTHER_ERROR, ["best", "nowhere.jsonl", "new/out.jsonl"]),
    "select-pairs": (
        WRONG_ARGUMENTS,
        ["tries", "nowhere.yaml", "nowhere.jsonl", "--out", "new/out.jsonl"],
    ),
    "data": (OTHER_ERROR, ["nowhere.jsonl"]),
    "browse": (WRONG_ARGUMENTS, ["nowhere.yaml", "--out", "new/page.html"]),
    "clean": (WRONG_ARGUMENTS, ["nowhere.yaml", "--steps", "2"]),
    "clean-planted": (WRONG_ARGUMENTS, ["nowhere.yaml", "--steps", "2"]),
    "overlap": (
        WRONG_ARGUMENTS,
        ["nowhere.yaml", "--benchmarks", "vl_rewardbench=embedded", "--output", "new/overlap.txt"],
    ),
    "annotate": (WRONG_ARGUMENTS, ["nowhere.yaml", "endpoint.yaml", "--out", "new/out.jsonl"]),
    "frames": (OTHER_ERROR, ["nowhere", "new/out", "--frames", "4"]),
    "shapes": (OTHER_ERROR, ["--write", "file/inside", "--rows", "2"]),
    "overoptimisation": (OTHER_ERROR, ["nowhere"]),
    "compare-rankings": (OTHER_ERROR, ["a=nowhere.jsonl", "--output", "new"]),
    "critique-ablation": (OTHER_ERROR, ["nowhere", "--output", "new/out.json"]),
    "shortcuts": (OTHER_ERROR, ["nowhere", "--output", "new/out.json"]),
    "predictors": (
        WRONG_ARGUMENTS,
        ["nowhere.yaml", "--policy", "embedded", "--questions", QUESTIONS],
    ),
    "compare-objectives": (WRONG_ARGUMENTS, ["nowhere.yaml", "--questions", RATED_QUESTIONS]),
    "picture-faults": (WRONG_ARGUMENTS, ["nowhere.yaml", "--questions", DRAWN_QUESTIONS]),
    "frame-order": (WRONG_ARGUMENTS, ["nowhere.yaml", "--questions", MOTION_QUESTIONS]),
    "which-source": (WRONG_ARGUMENTS, ["nowhere.yaml", "--steps", "2"]),
    "answers": (OTHER_ERROR, ["nowhere", "--output", "new/answers.json"]),
    "stress": (WRONG_ARGUMENTS, ["nowhere.yaml"]),
    "throughput": (OTHER_ERROR, ["--json", "file/inside.json"]),
}
"""For each command the arguments of a call that cannot work, and its exit status.

A recipe or list that does not exist is a wrong argument, because it is read with the command line.
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning"),
]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run a test in a folder that holds one file, and restore the handlers of signals."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def status_of(command: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the exit status of a command, which is started as `mmrm COMMAND` starts it."""
    monkeypatch.setattr(sys, "argv", [f"mmrm {command}", *arguments])
    with pytest.raises(SystemExit) as end:
        runpy.run_module(modules_by_command()[command], run_name="__main__")
    # A text is printed by the interpreter, which then ends with status 1.
    return 1 if isinstance(end.value.code, str) else int(end.value.code or 0)


def test_every_command_is_here() -> None:
    assert ERRORS.keys() == modules_by_command().keys()


@pytest.mark.parametrize("command", ERRORS)
def test_an_unknown_option_ends_with_status_2(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [*ERRORS[command][1], "--no-such-option"]
    assert status_of(command, arguments, monkeypatch) == WRONG_ARGUMENTS
    assert [path.name for path in Path().iterdir()] == ["file"]


@pytest.mark.parametrize("command", ERRORS)
def test_an_error_has_the_status_of_its_kind_and_leaves_nothing_behind(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, arguments = ERRORS[command]
    assert status_of(command, arguments, monkeypatch) == status
    assert [path.name for path in Path().iterdir()] == ["file"]
