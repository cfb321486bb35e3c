"""A real vLLM that serves a checkpoint on the CPU with this project's plug-in, and tiny checkpoints of every family for it."""

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import torch

from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.loading import load_judge
from mmrm.models.backbone import load_encoder, load_scalar
from mmrm.models.config import BackboneConfig, HeadConfig
from mmrm.models.portable.head_columns import columns_of
from tests.models import tiny

SETTINGS = os.environ | {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else its thread waits for one core, whoever has it
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
STARTED_WITHIN = 1800
"""Seconds that a server may take until it is ready. It takes half a minute on an idle machine."""

# vLLM's attention on the CPU takes attention heads of 32 numbers and more.
WIDE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
MROPE = {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 10000.0}
TEXT: dict[str, dict[str, Any]] = {
    "qwen2_vl": {"rope_parameters": MROPE},
    "qwen2_5_vl": {"rope_parameters": MROPE},
    "qwen3_vl": {
        "head_dim": 32,
        "rope_parameters": {**MROPE, "mrope_interleaved": True, "mrope_section": [6, 5, 5]},
    },
    "internvl": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
}
"""What the language models have besides `WIDE`."""
VISION: dict[str, dict[str, Any]] = {
    "qwen2_vl": {"embed_dim": 64, "hidden_size": 64},
    "qwen2_5_vl": {"hidden_size": 64, "out_hidden_size": 64},
    "qwen3_vl": {"hidden_size": 64, "intermediate_size": 96, "out_hidden_size": 64},
    "internvl": {"hidden_size": 64, "intermediate_size": 96},
}
"""Sizes of the vision towers that differ from those of `tiny.VISION`."""
NAMED_TOKENS = {
    "internvl": {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    }
}
"""Special tokens that transformers' processor asks a tokenizer for by their roles. The tokenizers
of released checkpoints have these names."""


def save_checkpoint(folder: Path, family: str, head: HeadConfig) -> Path:
    """Save a tiny reward model of a family with random weights, as training saves it.

    Args:
        folder: An existing folder. The backbone becomes `base` in it, and the reward model `model`.
        family: `model_type` of the family.
        head: Settings of the reward head.

    Returns:
        The folder of the reward model.
    """
    text = {**WIDE, **TEXT[family]}
    vision = {**tiny.VISION[family], **VISION[family]}
    with patch.dict(tiny.TEXT, {family: text}), patch.dict(tiny.VISION, {family: vision}):
        base = tiny.checkpoint(folder / "base", family=family)
    settings = BackboneConfig(
        path=str(base), dtype="float32", min_pixels=4096, max_pixels=112 * 112
    )
    torch.manual_seed(0)
    model = load_scalar(settings, head, fresh_head=True)
    tiny.stir(model.head, 0.3)
    checkpoint = folder / "model"
    model.save_pretrained(checkpoint)
    load_encoder(settings).save_pretrained(checkpoint)
    if family in NAMED_TOKENS:
        file = checkpoint / "tokenizer_config.json"
        content = json.loads(file.read_text(encoding="utf-8"))
        content["extra_special_tokens"] = NAMED_TOKENS[family]
        file.write_text(json.dumps(content), encoding="utf-8")
    return checkpoint


def start(
    checkpoint: Path, port: int, log: Path, options: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """Start the program behind `vllm serve`, with the template that the plug-in's command prints.

    The build of vLLM for CPUs does not have the command `vllm serve` itself.
    """
    template = subprocess.run(
        [sys.executable, "-m", "mmrm.eval.serving.vllm_plugin", checkpoint],
        capture_output=True,
        check=True,
    )
    template_file = log.with_suffix(".jinja")
    template_file.write_bytes(template.stdout)
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(checkpoint), "--served-model-name", "reward", "--port", str(port)]
    command += ["--dtype", "float32", "--max-model-len", "1024", "--max-num-seqs", "4"]
    command += ["--enforce-eager", "--chat-template", str(template_file), *options]
    with log.open("wb") as file:
        return subprocess.Popen(
            command, env=SETTINGS, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )


@contextmanager
def serving(checkpoint: Path, folder: Path, options: Sequence[str] = ()) -> Iterator[httpx.Client]:
    """Serve a checkpoint by vLLM, and yield a client of the server.

    Args:
        checkpoint: The folder of the checkpoint.
        folder: An existing folder for the log and the chat template.
        options: Further options of `vllm serve`.

    Raises:
        AssertionError: The server ended or was not ready in time. The message has its log.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder / "server.log"
    server = start(checkpoint, port, log, options)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            deadline = time.monotonic() + STARTED_WITHIN
            while not is_ready(client):
                is_waiting = server.poll() is None and time.monotonic() < deadline
                assert is_waiting, log.read_text(encoding="utf-8", errors="replace")[-3000:]
                time.sleep(1)
            yield client
    finally:
        os.killpg(server.pid, signal.SIGKILL)  # with the processes that it started
        server.wait()


def is_ready(client: httpx.Client) -> bool:
    """Return True if the server answers."""
    try:
        return client.get("/health").is_success
    except httpx.ConnectError:
        return False


def classify_request(question: str, response: str, images: Sequence[bytes]) -> dict[str, Any]:
    """Return the request for a score: a conversation with its PNG images as data URIs."""
    content: list[dict[str, Any]] = []
    for image in images:
        uri = f"data:image/png;base64,{base64.b64encode(image).decode()}"
        content.append({"type": "image_url", "image_url": {"url": uri}})
    content.append({"type": "text", "text": question})
    turns = [{"role": "user", "content": content}, {"role": "assistant", "content": response}]
    return {"model": "reward", "messages": turns}


def numbers(client: httpx.Client, request: dict[str, Any]) -> list[float]:
    """Return the numbers of the answer to a request."""
    answer = client.post("/classify", json=request)
    assert answer.is_success, answer.text
    found: list[float] = answer.json()["data"][0]["probs"]
    return found


def picture(width: int, height: int) -> bytes:
    """Return a picture of noise as a PNG file."""
    file = BytesIO()
    tiny.picture(width, height, seed=width).save(file, "PNG")
    return file.getvalue()


QUESTION = "What is in the picture?"
ANSWERS = ("A red circle.", "Blue.\n\n")
PROMPTS = {
    "text": (),
    "1 image": (picture(112, 112),),
    "2 images": (picture(140, 84), picture(47, 61)),
}
"""The images of each kind of prompt. The first and the second image have sizes of whole tokens in
some families, and are resized in the others. The third is resized in all."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """The numbers of vLLM and of this project for a kind of prompt: a list for each answer."""

    served: list[list[float]]
    expected: list[list[float]]

    @property
    def difference(self) -> float:
        """The largest absolute difference of two numbers."""
        differences: list[float] = []
        for served, expected in zip(self.served, self.expected, strict=True):
            for served_number, expected_number in zip(served, expected, strict=True):
                differences.append(abs(served_number - expected_number))
        return max(differences)


def compare(folder: Path, family: str, head: HeadConfig) -> dict[str, Agreement]:
    """Return the numbers of vLLM and of `score()` for each kind of prompt in `PROMPTS`.

    The numbers are the score, and the further numbers that the head reports.

    Args:
        folder: An existing, empty folder for the checkpoint and vLLM's log.
        family: `model_type` of the family.
        head: Settings of the reward head.
    """
    checkpoint = save_checkpoint(folder, family, head)
    names = columns_of(head.model_dump()).reported_names
    judge = load_judge(checkpoint, Runtime(torch.device("cpu")))
    overrides = json.dumps({"served_numbers": ["score", *names]})
    agreements: dict[str, Agreement] = {}
    with serving(checkpoint, folder, ["--hf-overrides", overrides]) as client:
        for kind, images in PROMPTS.items():
            scores = judge.rank(QUESTION, ANSWERS, images)
            columns = [scores.values, *(scores.attributes[name] for name in names)]
            expected = [list(row) for row in zip(*columns, strict=True)]
            requests = [classify_request(QUESTION, answer, images) for answer in ANSWERS]
            served = [numbers(client, request) for request in requests]
            agreements[kind] = Agreement(served, expected)
    return agreements
