"""Scalar checkpoints served by a real vLLM: `make test-vllm` installs it for CPUs, and this project's plug-in, and runs these."""

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.slow


pytest.importorskip("vllm", reason="vLLM is not installed here: make test-vllm")

import torch
from safetensors.torch import load_file, save_file

from mmrm.data.errors import UserError
from mmrm.data.preference import texts
from mmrm.eval.candidates import Example
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.loading import load_judge
from mmrm.eval.serving.vllm_plugin import SERVED_MODELS
from mmrm.models.backbone import load_encoder, load_scalar
from mmrm.models.config import BackboneConfig, HeadConfig
from mmrm.models.families.registry import FAMILIES
from mmrm.models.heads.score_head import ScoreHeadConfig
from mmrm.models.portable.head_columns import columns_of
from tests.eval.doubles import scores_under
from tests.eval.make import example
from tests.eval.serving.vllm_server import (
    ANSWERS,
    SETTINGS,
    classify_request,
    compare,
    numbers,
    picture,
    save_checkpoint,
    serving,
)
from tests.models import tiny
from tests.models.heads.examples import HEADS

CLOSE = 1e-4
"""Seen: 2e-5, of scores up to 2.2. Images resized by torchvision instead of PIL make it 1e-3 and more, a newline after the answer
another number altogether."""
BACKBONE = BackboneConfig(path="embedded", dtype="float32", max_pixels=112 * 112)
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


@pytest.fixture(scope="module")
def served(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Return a client of the server, which takes half a minute to start."""
    with serving(checkpoint, tmp_path_factory.mktemp("log")) as client:
        yield client


def asked(row: Example, response: str) -> dict[str, Any]:
    """Return the request for the score of a response in a row."""
    images = [image for image in row.images if isinstance(image, bytes)]
    return classify_request("".join(texts(row.prompt)), response, images)


def score(client: httpx.Client, request: dict[str, Any]) -> float:
    [value] = numbers(client, request)
    return value


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


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("family", SERVED_MODELS)
def test_a_family_is_served_within_rounding(tmp_path: Path, family: str, head: str) -> None:
    agreements = compare(tmp_path, family, HEADS[head])
    for agreement in agreements.values():
        assert agreement.difference < CLOSE
    scores = [agreement.expected[0][0] for agreement in agreements.values()]
    gaps = [abs(scores[0] - scores[1]), abs(scores[1] - scores[2])]
    assert min(gaps) > 10 * CLOSE  # the images change the score, so what was read is the images


def start_vllm(checkpoint: Path) -> str:
    """Start vLLM on a checkpoint that it has to refuse, and return what it printed."""
    load = "import sys, vllm; vllm.LLM(sys.argv[1], dtype='float32', max_model_len=256, enforce_eager=True)"
    settings = SETTINGS | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    found = subprocess.run(
        [sys.executable, "-c", load, checkpoint],
        env=settings,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert found.returncode
    return found.stderr + found.stdout


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - set(SERVED_MODELS)))
def test_another_family_is_refused_by_name(tmp_path: Path, family: str) -> None:
    base = tiny.checkpoint(tmp_path / "base", family=family)
    settings = BackboneConfig(path=str(base), dtype="float32")
    load_scalar(settings, ScoreHeadConfig(), fresh_head=True).save_pretrained(tmp_path / "model")
    load_encoder(settings).save_pretrained(tmp_path / "model")
    printed = start_vllm(tmp_path / "model")
    assert f"is a '{family}' model, of the family {FAMILIES[family].title}. vLLM serves" in printed


def test_numbers_that_the_head_does_not_have_are_refused(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path, "internvl", HEADS["gaussian"])
    file = checkpoint / "config.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(content | {"served_numbers": ["hexagon"]}), encoding="utf-8")
    assert "served_numbers asks for hexagon" in start_vllm(checkpoint)


def test_an_incomplete_checkpoint_is_not_served(checkpoint: Path, tmp_path: Path) -> None:
    for file in checkpoint.iterdir():
        (tmp_path / file.name).symlink_to(file)
    lost = "model.language_model.layers.3.self_attn.q_proj.weight"
    tensors = load_file(checkpoint / "model.safetensors")
    del tensors[lost]
    (tmp_path / "model.safetensors").unlink()
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    assert f"1 tensors are missing: {lost}" in start_vllm(tmp_path)


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
    with pytest.raises(UserError, match="asks for hexagon"):
        ServedHead(config)
