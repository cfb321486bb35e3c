"""The command: its options, what it refuses to serve, and a real server that is asked to end under load."""

import asyncio
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import torch

from mmrm.data.errors import CheckpointError
from mmrm.eval import serve
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.serving.dialects import DIALECTS
from mmrm.eval.serving.service import load_served
from tests.eval import run_folders
from tests.eval.serving.client import group

CLONE = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["nowhere"], "nowhere: there is no such folder or file"),
        ([".", "--media-root", "nowhere"], "--media-root nowhere is no folder"),
        ([".", "--api-key-file", "empty"], "empty: required is one line of visible ASCII"),
        ([".", "--api-key-file", "nowhere"], "No such file"),
        ([".", "--max-images", "0"], "images: Input should be greater than or equal to 1"),
        ([".", "--max-queue", "10"], "--max-groups 256 is more than --max-queue 10"),
    ],
)
def test_wrong_options_end_with_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], said: str
) -> None:
    (tmp_path / "empty").write_text("two words\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=re.escape(said)):
        serve.main(options)


def test_the_help_shows_every_form() -> None:
    assert not [
        path
        for path in DIALECTS
        if f"localhost:8000{path}" not in str(serve.__doc__) and path != "/v1/rerank"
    ]


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("::1", "http://[::1]:8000"),
        ("gpu-box", "http://gpu-box:8000"),
    ],
)
def test_the_printed_address_opens_in_a_browser_of_this_machine(host: str, address: str) -> None:
    assert serve.browser_address(host, 8000) == address


def test_a_folder_that_is_no_judge_ends_the_server_with_a_message(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"there is no config.json"):
        serve.main([str(tmp_path), "--port", "0"])


def test_judges_that_run_elsewhere_or_are_several_are_refused(tmp_path: Path) -> None:
    (tmp_path / "judge.yaml").write_text(json.dumps({"type": "ensemble", "members": ["a", "b"]}))
    with pytest.raises(
        CheckpointError,
        match="of the type 'ensemble'; served are scalar, joint, critic, generative, rubric, points and released",
    ):
        load_served(tmp_path / "judge.yaml", "x", Runtime(torch.device("cpu")))


@pytest.mark.slow
def test_a_signal_under_load_loses_nothing_that_was_accepted(tmp_path: Path) -> None:
    run_folders.run_folder(
        tmp_path / "run", (1,), run_folders.recipe(tmp_path / "run" / "base", [])
    )
    command = [
        sys.executable,
        "eval/serve.py",
        str(tmp_path / "run" / "checkpoint-1"),
        "--port",
        "0",
        "--token-budget",
        "400",
    ]
    log = tmp_path / "log"
    with log.open("w") as errors:
        server = subprocess.Popen(
            command, cwd=CLONE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        assert server.stdout is not None
        url = server.stdout.readline().split(";")[0].split()[-1]
        body = {
            "groups": [
                group(f"What is in {n}?", *("word " * n for n in range(12)), images=1)
                for n in range(6)
            ]
        }
        answered, late = asyncio.run(under_load(server, url, body))
        assert server.wait(60) == 0, log.read_text()
    lines = re.findall(r"POST /v1/rewards (\d+)", log.read_text())
    assert set(lines) <= {"200", "503"}
    assert lines.count("200") == answered  # every answer of the server arrived
    assert late  # among them some that were being computed when the signal came


async def under_load(server: "subprocess.Popen[str]", url: str, body: object) -> tuple[int, int]:
    """Ask by 8 clients and end the server meanwhile; return how many answers came, and how many of them after the signal."""
    answers, late = list[int](), 0
    async with httpx.AsyncClient(
        base_url=url, timeout=60, limits=httpx.Limits(max_keepalive_connections=0)
    ) as client:
        while (await client.get("/ready")).status_code != 200:
            await asyncio.sleep(0.1)

        async def ask() -> None:
            nonlocal late
            while True:
                try:
                    answer = await client.post("/v1/rewards", json=body)
                except httpx.TransportError:  # it listens no more
                    return
                if answer.status_code == 503:
                    return
                assert len(answer.json()["groups"]) == 6
                answers.append(answer.status_code)
                late += asked_to_end.is_set()

        asked_to_end = asyncio.Event()
        clients = asyncio.gather(*(ask() for _ in range(8)))
        while len(answers) < 8:
            await asyncio.sleep(0.01)
        server.send_signal(signal.SIGTERM)
        asked_to_end.set()
        await clients
    return len(answers), late
