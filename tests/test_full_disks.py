"""Every command that writes ends in one message on a full and on a read-only disk.

The message names the path and the way out, and what was on the disk before is whole.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.disks import DiskRun, DiskState, run_on_disk, small_disks, why_not
from tests.eval import run_folders
from tests.forked_python import ForkedPython
from tests.train import worker

CLONE = Path(__file__).resolve().parents[1]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]

SHORT = ["evaluation.benchmarks=[]", "evaluation.best_metric=null", "output.keep_checkpoints=9"]


@dataclass(frozen=True)
class World:
    """What the commands read: all of it lies on another disk than what they write."""

    folder: Path
    recipe: Path
    content: Path
    """The content of the small disk: a run of four of six steps, and outputs of earlier calls."""


def python(*arguments: str) -> list[str]:
    """Return the command line of a script of the clone."""
    script, *others = arguments
    return [sys.executable, str(CLONE / script), *others]


@pytest.fixture(scope="module")
def python_on_disks() -> Iterator[ForkedPython]:
    """Yield a process in a namespace in which small disks can be mounted."""
    with small_disks() as python:
        yield python


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("world")
    recipe = worker.prepare(folder)
    content = folder / "content"
    for options in (
        [f"output.folder={content / 'run'}"],
        [f"output.folder={folder / 'lora'}", "optim.lora={rank: 4, quantise: none}"],
    ):
        done = subprocess.run(
            python("train/rm.py", str(recipe), *SHORT, *options), capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    shutil.copytree(content / "run", folder / "run", symlinks=True)
    shutil.rmtree(content / "run" / "checkpoint-6")
    for name in ("report.html", "page.html"):
        (content / name).write_text("of an earlier call")
    (content / "eval").mkdir()
    (content / "eval" / "summary.json").write_text("{}")
    (folder / "in").mkdir()
    records = run_folders.preferences(folder / "in")
    rows = [
        {"prompt": row["prompt"], "images": row["images"], "responses": ["A cat.", "No."]}
        for row in run_folders.lines(records)
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "in" / "in.jsonl").write_text(lines)
    return World(folder, recipe, content)


def command_of(name: str, world: World, disk: Path) -> list[str]:
    """Return the script and the arguments of a command that writes to the disk."""
    checkpoint = str(world.folder / "run" / "checkpoint-6")
    recipe = str(world.recipe)
    commands = {
        "a new run": ["train/rm.py", recipe, *SHORT, f"output.folder={disk}/new/run"],
        "a resumed run": ["train/rm.py", recipe, *SHORT, f"output.folder={disk}/run", "--resume"],
        "a run's cache": [
            *("train/rm.py", recipe, *SHORT, f"output.folder={disk.parent}/run"),
            f"data.sources=[{{type: project, path: {world.folder}/in/records.jsonl}}]",
            f"data.cache={disk}/cache",
        ],
        "eval": [
            *("eval/run.py", checkpoint, "--output", f"{disk}/eval"),
            *("--benchmarks", "vl_rewardbench=embedded,limit=7"),
        ],
        "score": [
            *("eval/score.py", checkpoint),
            *(f"{world.folder}/in/in.jsonl", f"{disk}/new/out.jsonl"),
        ],
        "report": ["eval/report.py", f"{world.folder}/run", "--output", f"{disk}/report.html"],
        "browse": ["data/browse.py", recipe, "--out", f"{disk}/page.html"],
        "export": ["train/export.py", checkpoint, f"{disk}/exported"],
        "merge": ["train/merge.py", f"{world.folder}/lora/checkpoint-6", f"{disk}/merged"],
        "data": ["data/mixture.py", recipe, "--save", f"{disk}/card.json"],
    }
    script, *arguments = commands[name]
    return [str(CLONE / script), *arguments]


COMMANDS = (
    "a new run",
    "a resumed run",
    "a run's cache",
    "eval",
    "score",
    "report",
    "browse",
    "export",
    "merge",
    "data",
)
SPARE_BYTES = {"full": 0, "almost full": 2**15, "read-only": 0}
"""Free space: 32 KiB hold a lock and a small file, but no weights and no page."""


@pytest.mark.parametrize("state", SPARE_BYTES)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_disk_that_cannot_be_written_ends_a_command_with_a_message(
    name: str, state: DiskState, world: World, python_on_disks: ForkedPython, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    command = command_of(name, world, disk)
    result = run_on_disk(python_on_disks, state, disk, world.content, command, SPARE_BYTES[state])
    if result.status == 0:
        assert state == "almost full", result
        assert name in ("score", "data", "eval", "a run's cache"), result
        return
    assert_clear(result, disk)


def assert_clear(result: DiskRun, disk: Path) -> None:
    """Assert that a command ended with one clear message and left everything as it was."""
    is_refused_recipe = "output.folder" in result.stderr or "data.cache" in result.stderr
    assert result.status == (2 if is_refused_recipe else 1), result
    assert "Traceback" not in result.stdout + result.stderr, result.stderr
    assert str(disk) in result.stderr, result.stderr
    assert re.search(
        r"Make room|another (disk|output|folder)|Free|may write there", result.stderr
    ), result.stderr
    # A resumed run continues its log before the save for which there is no space.
    of_a_resumed_run = {"run/log.jsonl", "run/recipe.yaml", "run/provenance.json"}
    assert set(result.changed) <= of_a_resumed_run, result
    unfinished = [name for name in result.new if name.endswith((".part", ".lock", ".tmp"))]
    assert unfinished == [], result
