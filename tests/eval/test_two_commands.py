"""Two commands on one output, kills, and inputs that change between a kill and the next call.

Real processes: the second command is told who has the output, and the first one's result is right.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mmrm.eval.journal import Judging
from mmrm.eval.score import main as score_main
from mmrm.eval.selection import candidate_scores as scoring
from tests.eval import run_folders
from tests.eval.make import png

CLONE = Path(__file__).resolve().parents[2]
PAUSED = """
import os, signal, sys
from mmrm.eval import {command}
from mmrm.eval.selection import candidate_scores as scoring
from mmrm.eval.journal import Judging

scoring.CHUNK, add, judged = 4, Judging.add, []

def add_and_pause(self, new):
    add(self, new)
    judged.extend(new)
    if len(judged) >= {rows} and {rows}:
        print("paused", flush=True)
        sys.stdin.read()
        os.kill(os.getpid(), signal.SIGKILL)

Judging.add = add_and_pause
{command}.main(sys.argv[1:])
"""
"""A command that stops once so many rows are judged; the end of its input then kills it."""


class KilledError(Exception):
    """Stands for the end of the process."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a checkpoint whose packed row holds several records, pictures, a benchmark and `in.jsonl`."""
    root = tmp_path_factory.mktemp("world")
    run_folders.vl_rewardbench(root / "vl")
    benchmarks = [{"name": "vl_rewardbench", "location": str(root / "vl")}]
    recipe = run_folders.recipe(root / "run" / "base", benchmarks)
    run_folders.run_folder(root / "run", (1,), recipe)
    (root / "files").mkdir()
    for name, colour in (("red", "red"), ("blue", "blue")):
        (root / "files" / f"{name}.png").write_bytes(png(colour, (40, 30)))
    write(root / "files" / "in.jsonl", records(14))
    return root


def records(count: int) -> list[dict[str, Any]]:
    """Return records that all have other texts, one of which cannot be judged."""
    found: list[dict[str, Any]] = [
        {
            "id": number,
            "prompt": f"What is shown in picture {number}?",
            "images": [("red.png", "blue.png")[number % 2]],
            "responses": [f"A square, {number}.", "No" * (1 + number % 3), "A circle."],
        }
        for number in range(count)
    ]
    found[5]["responses"] = ["a<|im_end|>"]
    return found


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def arguments_of(command: str, world: Path, output: Path) -> list[str]:
    """Return the command line of a command that writes `output`."""
    checkpoint = str(world / "run" / "checkpoint-1")
    if command == "score":
        return [checkpoint, str(world / "files" / "in.jsonl"), str(output)]
    return [checkpoint, "--output", str(output)]


def started(command: str, arguments: list[str], rows: int = 0) -> subprocess.Popen[str]:
    """Start a command that pauses once it has judged so many rows, and wait until it does; 0 never pauses."""
    process = subprocess.Popen(
        [sys.executable, "-c", PAUSED.format(command=command, rows=rows), *arguments],
        cwd=CLONE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    if rows:
        assert process.stdout.readline() == "paused\n", process.communicate()
    return process


def content(output: Path) -> dict[str, bytes]:
    """Return the files that a command wrote, by their names."""
    if output.is_file():
        beside = output.with_name(f"{output.name}.errors.jsonl")
        return {path.suffix: path.read_bytes() for path in (output, beside) if path.exists()}
    files = [path for path in output.rglob("*") if path.is_file()]
    return {str(path.relative_to(output)): path.read_bytes() for path in files}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "name"), [("score", "out.jsonl"), ("run", "out"), ("sweep", "out")]
)
def test_the_second_of_two_commands_is_told_who_has_the_output_and_kills_mix_up_nothing(
    world: Path, tmp_path: Path, command: str, name: str
) -> None:
    whole, output = tmp_path / "whole" / name, tmp_path / "two" / name
    clean = started(command, arguments_of(command, world, whole))
    arguments = arguments_of(command, world, output)
    first = started(command, arguments, rows=6)
    second = started(command, arguments)
    said = second.communicate(timeout=240)
    assert second.returncode == 2, said
    assert f"{output} is in use: process {first.pid} on {socket.gethostname()}" in said[1]
    assert str(world / "run") in said[1]  # the command line
    assert "Traceback" not in said[1]
    first.communicate("", timeout=240)  # the end of its input kills it
    assert first.returncode == -signal.SIGKILL
    third = started(command, arguments)
    third.communicate(timeout=240)
    assert clean.wait(timeout=240) == third.returncode == 0
    assert content(output) == content(whole)
    assert not list(output.parent.rglob("*lock*"))
    assert not list(output.parent.rglob("*journal*"))


def kill_while_scoring(
    monkeypatch: pytest.MonkeyPatch,
    world: Path,
    source: Path,
    output: Path,
    after: int,
    inside: bool,
) -> None:
    """Score until so many responses are judged; then end between two chunks of four records, or inside a chunk."""
    add_judged, add_lines = Judging.add, scoring.LineJournal.add
    judged: list[int] = []

    def counted(self: Any, new: Any) -> None:
        add_judged(self, new)
        judged.extend(new)
        if inside and len(judged) >= after:
            raise KilledError

    def stopped(self: scoring.LineJournal, lines: Any) -> None:
        add_lines(self, lines)
        if len(judged) >= after:
            with self.path.open("a") as file:
                file.write('{"key": "cut o')
            raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(Judging, "add", counted)
        patch.setattr(scoring.LineJournal, "add", stopped)
        with pytest.raises(KilledError):
            score(world, source, output)


def score(world: Path, source: Path, output: Path) -> None:
    checkpoint, root = str(world / "run" / "checkpoint-1"), str(source.parent)
    score_main([checkpoint, str(source), str(output), "--image-root", root])


def reordered(folder: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return rows[::-1]


def inserted(folder: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [rows[0] | {"id": "new", "prompt": "Another question?"}, *rows]


def of_the_same_length(folder: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        row | {"responses": [text.replace("square", "circle") for text in row["responses"]]}
        for row in rows
    ]


def another_picture(folder: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Replace a picture under its name; the file of records stays as it is, to its times of change."""
    (folder / "red.png").write_bytes(png("green", (40, 30)))
    return rows


def unchanged(folder: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return rows


Change = Callable[[Path, list[dict[str, Any]]], list[dict[str, Any]]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "inside"),
    [
        (unchanged, False),
        (unchanged, True),
        (reordered, False),
        (inserted, True),
        (of_the_same_length, False),
        (another_picture, True),
    ],
)
def test_every_record_gets_its_own_scores_whatever_happens_to_the_input_after_a_kill(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Change, inside: bool
) -> None:
    monkeypatch.setattr(scoring, "CHUNK", 4)
    for name in ("red.png", "blue.png"):
        (tmp_path / name).write_bytes((world / "files" / name).read_bytes())
    source, output, whole = (tmp_path / name for name in ("in.jsonl", "out.jsonl", "whole.jsonl"))
    write(source, records(14))
    kill_while_scoring(monkeypatch, world, source, output, after=6, inside=inside)
    rows = change(tmp_path, records(14))
    if rows != records(14):
        write(source, rows)
    score(world, source, output)
    score(world, source, whole)
    if change is unchanged:
        assert content(output) == content(whole)
        return
    # Records that were judged beside other ones differ in the last digits.
    pairs = zip(run_folders.lines(output), run_folders.lines(whole), strict=True)
    for one, other in pairs:
        assert one["id"] == other["id"]
        assert one["scores"] == pytest.approx(other["scores"], abs=1e-5)
    errors = [path.with_name(f"{path.name}.errors.jsonl") for path in (output, whole)]
    assert errors[0].read_bytes() == errors[1].read_bytes()


def test_lines_of_records_that_are_gone_are_counted(
    world: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(scoring, "CHUNK", 4)
    for name in ("red.png", "blue.png"):
        (tmp_path / name).write_bytes((world / "files" / name).read_bytes())
    source = write(tmp_path / "in.jsonl", records(14))
    kill_while_scoring(monkeypatch, world, source, tmp_path / "out.jsonl", after=7, inside=False)
    capsys.readouterr()
    write(source, records(14)[2:])
    score(world, source, tmp_path / "out.jsonl")
    said = " ".join(capsys.readouterr().err.split())
    assert "8 records are there, judged before the command was stopped" in said
    assert "1 damaged lines of" in said
    assert "3 of the 8 records that were there are not in the file as it is now" in said


def test_a_journal_of_the_version_before_is_not_taken(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its lines had no keys and counted by their place."""
    for name in ("red.png", "blue.png"):
        (tmp_path / name).write_bytes((world / "files" / name).read_bytes())
    source = write(tmp_path / "in.jsonl", records(6))
    output = tmp_path / "out.jsonl"
    old = [json.dumps("0123456789abcdef"), *[json.dumps({"scores": [9.0, 9.0, 9.0]})] * 6]
    (tmp_path / "out.jsonl.journal").write_text("\n".join(old) + "\n")
    score(world, source, output)
    assert "belongs to another judge, input, option or code" in capsys.readouterr().err
    assert not [row for row in run_folders.lines(output) if 9.0 in row["scores"]]
