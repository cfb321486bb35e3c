"""The README's part on use runs as it is written, on a small checkpoint in the place of the demo's."""

import json
import re
import shlex
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from data.storage.files import write_json_lines
from tests.eval import run_folders
from tests.models import tiny

CLONE = Path(__file__).resolve().parents[1]
README = (CLONE / "README.md").read_text(encoding="utf-8")
USE = README.partition("\n## Use it\n")[2].partition("\n## ")[0]


def blocks(language: str) -> list[str]:
    """Return the blocks of a language in the part on use."""
    return re.findall(rf"```{language}\n(.*?)```", USE, re.DOTALL)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with what the README names: the demo's checkpoint, an image, samples."""
    root = tmp_path_factory.mktemp("readme")
    run_folders.run_folder(root / "runs" / "shapes" / "naive", (1,), run_folders.recipe(root / "base", []))
    (root / "runs" / "shapes" / "naive" / "best").symlink_to("checkpoint-1")
    tiny.picture(60, 80).save(root / "photo.png")
    sample = {"prompt": "Which shapes are there?", "images": ["photo.png"], "responses": ["A red circle.", "A cat.", "No"]}
    write_json_lines(root / "samples.jsonl", [sample, {"prompt": "What is 2 + 2?", "responses": ["4", "5"]}])
    return root


def test_the_lengths_of_the_readme_and_of_its_part_on_use() -> None:
    assert len(README.splitlines()) <= 200
    assert len(USE.splitlines()) <= 45


def test_the_python_lines_run(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world)
    names: dict[str, Any] = {}
    ours, stock = blocks("python")
    exec(ours, names)
    scores = names["scores"]
    assert names["ranking"].scores == pytest.approx(scores[:2], abs=1e-5)
    assert names["better"] == int(scores[1] > scores[0])
    exec(stock, names)
    assert names["scores"] == pytest.approx(scores[:2], abs=1e-5)


def test_the_commands_run(world: Path) -> None:
    pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
    (lines,) = blocks("sh")
    commands = [shlex.split(line, comments=True) for line in lines.splitlines()]
    scoring, *selecting, serving, curl = commands
    for command in (scoring, *selecting):
        command[:2] = [sys.executable, str(CLONE / command[1])]
        if "--min-margin" in command:
            command[-1] = "0"  # an untrained model's margins are small
        subprocess.run(command, cwd=world, check=True, capture_output=True, timeout=120)
    scored = [json.loads(line) for line in (world / "scored.jsonl").read_text().splitlines()]
    best = [json.loads(line) for line in (world / "best.jsonl").read_text().splitlines()]
    assert [one["response"] for one in best] == [row["responses"][row["order"][0]] for row in scored]
    assert len((world / "pairs.jsonl").read_text().splitlines()) == 2
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, str(CLONE / serving[1]), *serving[2:], "--port", str(port)], cwd=world)
    try:
        assert curl[0] == "curl"
        address = f"http://{curl[1]}".replace("localhost:8000", f"127.0.0.1:{port}")
        with httpx.Client(timeout=60) as client:
            answer = httpx.Response(503)
            while answer.status_code == 503:  # it loads
                assert server.poll() is None
                time.sleep(0.1)
                with suppress(httpx.ConnectError):
                    answer = client.post(address, content=curl[3])
            assert len(answer.json()["groups"][0]["scores"]) == 2
    finally:
        server.terminate()
        assert server.wait(60) == 0
