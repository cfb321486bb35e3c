"""Every RL framework's own reward path with our adapter, and vLLM, against `score()`: one table of the largest differences.

    python tools/adapters/table.py CHECKPOINT --environments FOLDER [--only trl verl …]

FOLDER holds a venv for each framework, as `tools/adapters/environments.sh FOLDER` makes them; TRL is in this one. Each adapter
is copied into an empty folder, and runs there in its framework's environment, without this project, against eval/serve.py.
vLLM, in the environment that `make test-vllm` makes (--vllm PYTHON), serves the checkpoint itself.
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the clone, installed or not

from mmrm.data.synthetic.rng import Rng
from mmrm.data.synthetic.scenes import LEVELS, draw, sample
from mmrm.eval.adapters.reward_client import sendable
from mmrm.eval.judges.loading import load_judge

CLONE = Path(__file__).resolve().parents[2]
QUESTIONS = (
    "How many shapes are there?",
    "Which colour has the shape in the middle?",
    "What differs between the two pictures?",
)
RESPONSES = (
    "Three.",
    "There are two red circles.",
    "None",
    "It is blue.",
    "A green square and a word.",
    "I can't see.",
    "7",
    "Two, I think.",
)
LIMIT = 1e-3
"""The largest difference of two scores that counts as the same."""
PROBES: dict[str, tuple[str, list[str]]] = {
    "trl": ("trl_reward.py", ["reward"]),
    "verl": ("verl_reward.py", ["Reward", "TOKENIZER"]),
    "openrlhf": ("openrlhf_reward.py", ["agent", "TOKENIZER"]),
    "ms_swift": ("ms_swift_reward.py", ["reward_model"]),
    "slime": ("slime_reward.py", ["reward"]),
}
"""Framework to its adapter and to what its probe is called with beside the adapter's file and the rows."""


def write_rows(folder: Path) -> list[dict[str, Any]]:
    """Write scenes of the embedded world, and return a row for each kind of prompt and each number of responses."""
    images = []
    for number in range(2):
        images.append(str(folder / f"{number}.png"))
        draw(sample(Rng(number), LEVELS["demo"])).save(images[-1])
    return [
        {"question": question, "images": images[:number], "responses": list(RESPONSES[:count])}
        for number, question in enumerate(QUESTIONS)
        for count in (1, len(RESPONSES))
    ]


@contextmanager
def serving(
    command: Sequence[str | Path], path: str, log: Path, **settings: str
) -> Iterator[httpx.Client]:
    """Start a server on a free port, and wait until it answers at `path`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with log.open("wb") as file:
        server = subprocess.Popen(
            [*command, "--port", str(port)],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=os.environ | settings,
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=300) as client:
            for _ in range(600):
                try:
                    if client.get(path).is_success:
                        break
                except httpx.TransportError:
                    pass
                if server.poll() is not None:
                    sys.exit(log.read_text(encoding="utf-8", errors="replace")[-3000:])
                time.sleep(1)
            yield client
    finally:
        server.terminate()
        server.wait(60)


def by_framework(
    name: str, python: Path, folder: Path, checkpoint: Path, url: str
) -> tuple[str, list[list[float]]]:
    """Return versions, and the rewards that a framework's own code gets from our adapter, alone in an empty folder."""
    adapter, arguments = PROBES[name]
    alone = folder / name
    alone.mkdir()
    shutil.copy(CLONE / "eval" / "adapters" / adapter, alone)
    shutil.copy(CLONE / "tools" / "adapters" / f"{name}_probe.py", alone)
    call = [
        str(python),
        f"{name}_probe.py",
        adapter,
        *(str(checkpoint) if one == "TOKENIZER" else one for one in arguments),
    ]
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if name == "openrlhf":  # it imports vLLM, whose torchvision lacks two operators on a CPU
        kept["PYTHONPATH"] = str(CLONE / "tools" / "vllm_cpu")
    done = subprocess.run(
        [*call, str(folder / "rows.json")],
        cwd=alone,
        env=kept | {"REWARD_URL": url},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        return f"failed: {done.stderr.strip().splitlines()[-1][:200]}", []
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return ", ".join(f"{one} {version}" for one, version in found["versions"].items()), found[
        "rewards"
    ]


def by_vllm(
    python: Path, folder: Path, checkpoint: Path, rows: Sequence[dict[str, Any]]
) -> tuple[str, list[list[float]]]:
    """Return the version, and what vLLM itself serves for a checkpoint, with the plug-in and its template."""
    template = subprocess.run(
        [python, "-m", "mmrm.eval.serving.vllm_plugin", checkpoint],
        capture_output=True,
        check=True,
        cwd=CLONE,
    )
    (folder / "reward.jinja").write_bytes(template.stdout)
    command: list[str | Path] = [
        python,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        checkpoint,
        "--served-model-name",
        "reward",
    ]
    command += [
        "--dtype",
        "float32",
        "--max-model-len",
        "2048",
        "--max-num-seqs",
        "4",
        "--enforce-eager",
    ]
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONPATH": str(CLONE / "tools" / "vllm_cpu"),
    }
    with serving(
        [*command, "--chat-template", folder / "reward.jinja"],
        "/health",
        folder / "vllm.log",
        **settings,
    ) as client:
        version = client.get("/version").json()["version"]
        found = []
        for row in rows:
            asked = sendable([{"role": "user", "content": row["question"]}], row["images"])
            for part in asked[0]["content"]:
                if part["type"] == "image":
                    part |= {
                        "type": "image_url",
                        "image_url": {"url": part.pop("image").replace("image/x", "image/png")},
                    }
            chats = [
                [*asked, {"role": "assistant", "content": response}]
                for response in row["responses"]
            ]
            answers = [
                client.post("/classify", json={"model": "reward", "messages": chat}).json()
                for chat in chats
            ]
            found.append([answer["data"][0]["probs"][0] for answer in answers])
    return f"vllm {version}", found


def main() -> None:
    """Read the command line, ask everybody, and print the table; status 1 where a score differs or a cell is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--environments", type=Path, required=True)
    parser.add_argument(
        "--vllm", type=Path, help="the Python of an environment with vLLM and this project"
    )
    parser.add_argument("--only", nargs="+", choices=[*PROBES, "vllm"], default=[*PROBES, "vllm"])
    options = parser.parse_args()
    checkpoint = options.checkpoint.resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = write_rows(folder)
        (folder / "rows.json").write_text(json.dumps(rows))
        judge = load_judge(checkpoint)
        wanted = [judge.score(row["question"], row["responses"], row["images"]) for row in rows]
        found: dict[str, tuple[str, list[list[float]]]] = {}
        with serving(
            [sys.executable, CLONE / "eval" / "serve.py", checkpoint],
            "/ready",
            folder / "server.log",
        ) as client:
            for one in [one for one in PROBES if one in options.only]:
                python = (
                    Path(sys.executable)
                    if one == "trl"
                    else options.environments / one / "bin" / "python"
                )
                found[one] = by_framework(one, python, folder, checkpoint, str(client.base_url))
        if "vllm" in options.only and options.vllm:
            found["vllm"] = by_vllm(options.vllm, folder, checkpoint, rows)
    table = Table(
        "framework",
        *(
            f"{kind}, {count}"
            for kind in ("text", "1 image", "2 images")
            for count in ("one", "group of 8")
        ),
        "versions",
    )
    wrong = False
    for one, (said, rewards) in found.items():
        cells = []
        for scores, right in zip(rewards or [[]] * len(rows), wanted, strict=True):
            apart = (
                max((abs(a - b) for a, b in zip(scores, right, strict=True)), default=None)
                if scores
                else None
            )
            wrong |= apart is None or apart > LIMIT
            cells.append("–" if apart is None else f"{apart:.0e}")
        table.add_row(one, *cells, said)
    console = Console(width=200)
    console.print(
        table,
        f"Largest difference to score(), whose scores span {min(map(min, wanted)):.2f} to {max(map(max, wanted)):.2f}.",
    )
    sys.exit(int(wrong))


if __name__ == "__main__":
    main()
