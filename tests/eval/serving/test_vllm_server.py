"""Scalar checkpoints served by a real vLLM: `make test-vllm` installs it for CPUs, and this project's plug-in, and runs these."""

import base64
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.slow


pytest.importorskip("vllm", reason="vLLM is not installed here: make test-vllm")

import torch
from safetensors.torch import load_file, save_file

from mmrm.data.preference import texts
from mmrm.eval.candidates import Example
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.loading import load_judge
from mmrm.models.backbone import load_encoder, load_scalar
from mmrm.models.config import BackboneConfig, HeadConfig
from mmrm.models.heads.score_head import ScoreHeadConfig
from mmrm.models.portable.head_columns import columns_of
from tests.eval.doubles import scores_under
from tests.eval.make import example
from tests.models import tiny
from tests.models.heads.examples import HEADS

CLOSE = 1e-4
"""Seen: 2e-5, of scores up to 2.2. Images resized by torchvision instead of PIL make it 1e-3 and more, a newline after the answer
another number altogether."""
BACKBONE = BackboneConfig(path="embedded", dtype="float32", max_pixels=112 * 112)
SETTINGS = os.environ | {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else its thread waits for one core, whoever has it
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
ANSWERS = ("A red circle.", "Blue.\n\n")


def picture(width: int, height: int) -> bytes:
    file = BytesIO()
    tiny.picture(width, height, seed=width).save(file, "PNG")
    return file.getvalue()


EXAMPLES = [
    example("text", responses=ANSWERS),
    example("one", responses=ANSWERS, images=(picture(112, 112),)),
    example("two", responses=ANSWERS, images=(picture(140, 84), picture(47, 31))),
    example("beyond the limit", responses=ANSWERS, images=(picture(400, 300),)),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint of the embedded backbone with a random head, as training saves it."""
    folder = tmp_path_factory.mktemp("scalar")
    torch.manual_seed(0)
    model, encoder = (
        load_scalar(BACKBONE, ScoreHeadConfig(layers=2, activation="silu"), fresh_head=True),
        load_encoder(BACKBONE),
    )
    tiny.stir(model.head, 0.3)
    model.save_pretrained(folder)
    encoder.save_pretrained(folder)
    return folder


def start(checkpoint: Path, port: int, log: Path) -> subprocess.Popen[bytes]:
    """Start what `vllm serve` starts, which the build for CPUs lacks, with the template that the plug-in's command prints."""
    template = subprocess.run(
        [sys.executable, "-m", "mmrm.eval.serving.vllm_plugin", checkpoint],
        capture_output=True,
        check=True,
    )
    log.with_suffix(".jinja").write_bytes(template.stdout)
    command = [
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(checkpoint),
        "--port",
        str(port),
    ]
    command += [
        "--dtype",
        "float32",
        "--max-model-len",
        "1024",
        "--max-num-seqs",
        "4",
        "--enforce-eager",
    ]
    command += ["--chat-template", str(log.with_suffix(".jinja")), "--served-model-name", "reward"]
    with log.open("wb") as file:
        return subprocess.Popen(
            command, env=SETTINGS, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )


@pytest.fixture(scope="module")
def served(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Return a client of the server, which takes half a minute to start."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("log") / "server.log"
    server = start(checkpoint, port, log)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            deadline = time.monotonic() + 600
            while not ready(client):
                if server.poll() is not None or time.monotonic() > deadline:
                    pytest.fail(log.read_text(encoding="utf-8")[-3000:])
                time.sleep(1)
            yield client
    finally:
        os.killpg(server.pid, signal.SIGKILL)  # with the processes that it started
        server.wait()


def ready(client: httpx.Client) -> bool:
    try:
        return client.get("/health").is_success
    except httpx.ConnectError:
        return False


def asked(row: Example, response: str) -> dict[str, Any]:
    """Return the request for a score: a conversation with its images as data URIs."""
    uris = [
        f"data:image/png;base64,{base64.b64encode(image).decode()}"
        for image in row.images
        if isinstance(image, bytes)
    ]
    content = [{"type": "image_url", "image_url": {"url": uri}} for uri in uris]
    content += [{"type": "text", "text": one} for one in texts(row.prompt)]
    turns = [{"role": "user", "content": content}, {"role": "assistant", "content": response}]
    return {"model": "reward", "messages": turns}


def score(client: httpx.Client, request: dict[str, Any]) -> float:
    found = client.post("/classify", json=request)
    assert found.is_success, found.text
    [value] = found.json()["data"][0]["probs"]
    return float(value)


def test_served_scores_are_those_of_our_judge(checkpoint: Path, served: httpx.Client) -> None:
    judge = load_judge(checkpoint, Runtime(torch.device("cpu"))).judge
    wanted = [value for scores in scores_under(judge, EXAMPLES) for value in scores.values]
    requests = [asked(row, response.text) for row in EXAMPLES for response in row.responses]
    raw = [one | {"use_activation": flag} for one in requests for flag in (False, True)]
    with ThreadPoolExecutor(8) as clients:
        together = list(clients.map(lambda request: score(served, request), raw * 2))
    assert max(map(abs, wanted)) > 0.3
    assert together == pytest.approx([one for one in wanted for _ in "ab"] * 2, abs=CLOSE)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ({"messages": [{"role": "user", "content": "What?"}]}, "must be the answer"),
        (
            {
                "messages": [
                    {"role": "user", "content": "<|image_pad|>"},
                    {"role": "assistant", "content": "A."},
                ]
            },
            "vision token",
        ),
        (
            {"input": "<|im_start|>user\nWhat?<|im_end|>\n<|im_start|>assistant\nA.<|im_end|>\n"},
            "Out of range float",
        ),
        ({"input": "What?"}, "Out of range float"),
    ],
)
def test_what_cannot_be_scored_is_refused_and_harms_no_other(
    served: httpx.Client, request_: Any, reason: str
) -> None:
    found = served.post("/classify", json={"model": "reward", **request_})
    assert found.status_code == 400
    assert reason in found.text
    assert score(served, asked(EXAMPLES[0], "A."))


def test_an_incomplete_checkpoint_is_not_served(checkpoint: Path, tmp_path: Path) -> None:
    for file in checkpoint.iterdir():
        (tmp_path / file.name).symlink_to(file)
    lost = "model.language_model.layers.3.self_attn.q_proj.weight"
    tensors = load_file(checkpoint / "model.safetensors")
    del tensors[lost]
    (tmp_path / "model.safetensors").unlink()
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    load = "import sys, vllm; vllm.LLM(sys.argv[1], dtype='float32', max_model_len=256, enforce_eager=True)"
    settings = SETTINGS | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    found = subprocess.run(
        [sys.executable, "-c", load, tmp_path],
        env=settings,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert found.returncode
    assert f"1 tensors are missing: {lost}" in found.stderr + found.stdout


@pytest.mark.parametrize(
    "shape",
    [
        ScoreHeadConfig(layers=1),
        ScoreHeadConfig(layers=3, width=24, activation="tanh", dropout=0.1),
        *HEADS.values(),
    ],
)
def test_a_head_is_what_training_has(shape: HeadConfig, tmp_path: Path) -> None:
    from mmrm.eval.serving.vllm_model import ACTIVATIONS, ServedHead
    from mmrm.models.portable import reward

    config = tiny.config(reward_head=shape.model_dump())
    ours, served = reward.RewardHead(config).eval(), ServedHead(config)
    tiny.stir(ours, 0.5)
    served.load_state_dict(ours.state_dict())
    hidden = torch.randn(3, 32)
    numbers = ours(hidden)
    columns = columns_of(config.reward_head)
    scores = columns.ranking_scores(numbers)
    assert torch.equal(served(hidden), scores[:, None])
    assert ACTIVATIONS == reward.ACTIVATIONS

    config.served_numbers = ["score", *columns.reported_names]
    served = ServedHead(config)
    served.load_state_dict(ours.state_dict())
    attributes = columns.attributes(numbers)
    assert torch.equal(served(hidden), torch.stack([scores, *attributes.values()], dim=-1))
    config.served_numbers = ["hexagon"]
    with pytest.raises(ValueError, match="asks for hexagon"):
        ServedHead(config)
