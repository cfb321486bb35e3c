"""Everything is imported as `mmrm`: after any command, no module is loaded under its folder's name."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.forked_python import ForkedPython, forked_python
from tests.test_structure import CLONE, COMMANDS, LAYERS

RUN_AND_LIST = """
import atexit, runpy, sys

def list_floors():
    names = {name.partition(".")[0] for name in sys.modules}
    print("loaded:", *sorted(names & {"data", "models", "eval", "train", "mmrm"}))

atexit.register(list_floors)
script = sys.argv[1]
sys.argv = sys.argv[1:]
# As Python does for a script: its own folder is searched first.
sys.path[0] = script.rpartition("/")[0]
runpy.run_path(script, run_name="__main__")
"""


@pytest.fixture(scope="module")
def python() -> Iterator[ForkedPython]:
    """Yield a process that is forked for every command, in which no module of mmrm is loaded."""
    with forked_python() as server:
        yield server


def floors_after(python: ForkedPython, script: str, *arguments: str) -> list[str]:
    """Run a command and return the names that it left in `sys.modules`, of mmrm and the four folders."""
    printed = python.run(RUN_AND_LIST, [str(CLONE / script), *arguments])
    (line,) = (line for line in printed.splitlines() if line.startswith("loaded:"))
    return line.split()[1:]


@pytest.mark.slow
@pytest.mark.parametrize(
    "script", [f"{floor}/{command}.py" for floor in COMMANDS for command in COMMANDS[floor]]
)
def test_a_command_imports_mmrm_alone(script: str, python: ForkedPython) -> None:
    assert floors_after(python, script, "--help") == ["mmrm"]


@pytest.mark.slow
def test_a_training_imports_mmrm_alone(tmp_path: Path, python: ForkedPython) -> None:
    floors = floors_after(
        python,
        "train/rm.py",
        str(CLONE / "recipes/shapes/naive.yaml"),
        "deepspeed=none",
        "optim.epochs=null",
        "optim.max_steps=1",
        "evaluation.benchmarks=[]",
        "evaluation.best_metric=null",
        f"output.folder={tmp_path}",
    )
    assert floors == ["mmrm"]


def test_folders_are_not_importable_from_another_project(tmp_path: Path) -> None:
    """An installation must not hide the packages `data`, `models`, `eval` and `train` of others."""
    code = (
        "import importlib.util, mmrm\n"
        f"print(*[name for name in {list(LAYERS)} if importlib.util.find_spec(name)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def test_a_clone_without_links_is_explained(tmp_path: Path) -> None:
    package = tmp_path / "mmrm"
    package.mkdir()
    source = (CLONE / "mmrm" / "__init__.py").read_text(encoding="utf-8")
    (package / "__init__.py").write_text(source, encoding="utf-8")
    (package / "data").write_text("../data", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", "import mmrm"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "core.symlinks=true" in done.stderr
