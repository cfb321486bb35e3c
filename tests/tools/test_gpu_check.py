"""The command on a CPU: every line that needs no GPU is made, the others say why not, and what goes wrong stays in its line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from mmrm.models.config import CheckpointingMode
from mmrm.train.studies.speed import tree_speed
from mmrm.train.studies.speed.tree_cases import CASES, SMALL_IMAGE
from mmrm.train.studies.speed.workload import EMBEDDED
from tests.train.test_throughput import TINY
from tools.gpu_check import memory_and_speed
from tools.gpu_check.lines import Check
from tools.gpu_check.run import CHECKS, CLONE, PARADIGMS, SURROUNDINGS, last_words, main

HERE = "tests.tools.gpu_check_doubles"


@pytest.mark.slow
def test_on_a_cpu_each_line_passes_or_says_that_there_is_no_gpu(tmp_path: Path) -> None:
    command = [sys.executable, "tools/gpu_check/run.py", "--output", str(tmp_path)]
    surroundings = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=CLONE, env=surroundings, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = json.loads((tmp_path / "gpu_check.json").read_text())["lines"]
    assert [line["check"] for line in lines] == [check.name for check in CHECKS]
    for line, check in zip(lines, CHECKS, strict=True):
        assert (line["result"], line["said"]) == ("SKIPPED", "no CUDA device") or line[
            "result"
        ] == "PASS", line
        assert (line["result"] == "PASS") == (check.gib is None), line
        assert f"\n| {check.name} | {line['result']} | {line['said']} |" in done.stdout
    found = {line["check"]: line["values"] for line in lines}
    assert found["attention, fp32"]["largest_relative_difference"] > 0
    assert (
        0
        < found["scores, fp32 and bf16"]["fp32_difference"]
        < found["scores, fp32 and bf16"]["bf16_error"]
    )
    assert found["throughput"]["training_pairs_per_second"] > 0
    assert found["a step: judge by StableReinforce"]["grad_norm"] > 0
    assert found["memory plan"]["planned_gib"] == pytest.approx(
        found["memory plan"]["counted_gib"], rel=0.05
    )


def checks(*names: str, seconds: float = 0.1) -> list[Check]:
    return [Check(name, f"{HERE}:{name}", seconds) for name in names]


def lines_of(folder: Path) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = json.loads((folder / "gpu_check.json").read_text())["lines"]
    return lines


def results(folder: Path) -> list[list[str]]:
    return [[line["result"], line["said"]] for line in lines_of(folder)]


@pytest.mark.slow
def test_what_goes_wrong_stays_in_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = checks(
        "right", "without_a_package", "wrong", "refused", "not_here", "crash", "right_again"
    )
    assert main(["--output", str(tmp_path)], made) == 1
    assert results(tmp_path) == [
        ["PASS", "as | it should be"],
        [
            "FAIL",
            "ModuleNotFoundError: No module named 'package_that_nobody_has' (ended with status 1)",
        ],
        ["FAIL", "0.9 (limit 0.1)"],
        ["FAIL", "error: the recipe is wrong (ended with status 1)"],
        ["SKIPPED", "vLLM is not installed"],
        ["FAIL", "nothing was printed (ended by signal 9)"],
        ["PASS", "as | it should be"],
    ]
    assert "| right | PASS | as / it should be | 0 |" in capsys.readouterr().out
    assert (tmp_path / "gpu_check.md").read_text().count("| FAIL |") == 4


@pytest.mark.slow
def test_the_budget_ends_what_runs_and_what_does_not_fit_is_not_begun(tmp_path: Path) -> None:
    made = [*checks("right", "endless"), *checks("right_again", seconds=50)]
    assert main(["--output", str(tmp_path), "--minutes", "0.1"], made) == 1
    _, cut, late = results(tmp_path)
    assert cut[0] == "FAIL"
    assert cut[1].endswith("(cut off at the end of the budget)")
    assert late == ["SKIPPED", "takes up to 50 s, and 0 s of the budget are left"]
    child = int(cut[1].split()[1])
    assert (
        not Path(f"/proc/{child}").exists()
        or "Z" in Path(f"/proc/{child}/stat").read_text().split()[2]
    )


@pytest.mark.slow
def test_single_lines_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = checks("right", "wrong")
    assert main(["--output", str(tmp_path), "--only", "right"], made) == 0
    assert len(results(tmp_path)) == 1
    with pytest.raises(SystemExit):
        main(["--only", "wrnog"], made)
    assert "no line is called wrnog; lines are: right; wrong" in capsys.readouterr().err


@pytest.mark.slow
def test_it_continues_where_the_last_start_ended(tmp_path: Path) -> None:
    """A line that has passed is kept, unless --restart is given or the machine is another one."""
    made = [
        Check("machine", f"{HERE}:machine", 0.1),
        Check("counted", f"{HERE}:counted", 0.1, (str(tmp_path / "count"), "3")),
        Check("counted too", f"{HERE}:counted", 0.1, (str(tmp_path / "second"), "1")),
    ]

    def start(*options: str, machine: str = "one") -> tuple[int, list[int]]:
        (tmp_path / "machine").write_text(machine)
        checks = [replace(made[0], arguments=(str(tmp_path / "machine"),)), *made[1:]]
        status = main(["--output", str(tmp_path / "out"), *options], checks)
        names = [line["check"] for line in lines_of(tmp_path / "out")]
        assert names == [check.name for check in made]
        return status, [len((tmp_path / name).read_text()) for name in ("count", "second")]

    # The first check passes at its third call.
    assert start() == (1, [1, 1])
    assert start() == (1, [2, 1])
    assert start() == (0, [3, 1])
    assert start() == (0, [3, 1])
    assert start("--restart") == (0, [4, 2])
    assert start(machine="another") == (0, [5, 3])


def test_the_last_error_is_the_reason_whatever_follows_it() -> None:
    printed = [
        "Traceback",
        "[rank0]: torch.OutOfMemoryError: CUDA out of memory.",
        "[rank0]:[W1] Warning: destroy",
        "",
    ]
    assert last_words(printed) == "torch.OutOfMemoryError: CUDA out of memory."
    assert last_words(["step 1", "Killed"]) == "Killed"


@pytest.mark.slow
def test_a_step_with_adapters_on_random_weights_of_a_shape(tmp_path: Path) -> None:
    """What a GPU does at 3B, at a shape for a CPU: the vocabulary is larger than the tokenizer's there, too."""
    made = [Check(name, f"{HERE}:small_3b", 1, (name,)) for name in (PARADIGMS[0], PARADIGMS[-1])]
    assert main(["--output", str(tmp_path)], made) == 0, (tmp_path / "log.txt").read_text()


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take back what the command sets for its processes."""
    for name in (*SURROUNDINGS, "GPU_CHECK_SCRATCH"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.mark.slow
def test_modes_and_trees_are_measured_at_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU measures at the embedded shape what a GPU measures at 7B."""
    monkeypatch.setitem(memory_and_speed.SIZES, EMBEDDED, TINY)
    monkeypatch.setattr(memory_and_speed, "matrix_rate", lambda *_: 1e9)
    monkeypatch.setattr(tree_speed, "LARGE_IMAGE", SMALL_IMAGE)

    modes = memory_and_speed.checkpointing_modes()
    trees = memory_and_speed.trees()

    assert modes.right
    for mode in get_args(CheckpointingMode):
        assert modes.values[f"{mode}: pairs_per_second"] > 0
        assert f"{mode}: " in modes.said
    assert len(trees.values) == len(CASES) + 2
    assert trees.right


@pytest.mark.slow
def test_a_whole_training_is_held_to_an_accuracy(tmp_path: Path) -> None:
    made = [Check(least, f"{HERE}:short_training", 1, (least,)) for least in ("0", "101")]
    assert main(["--output", str(tmp_path)], made) == 1, (tmp_path / "log.txt").read_text()
    low, high = lines_of(tmp_path)
    assert (low["result"], high["result"]) == ("PASS", "FAIL")
    assert low["values"].keys() == {"seconds", "vl_rewardbench", "multimodal_rewardbench"}
