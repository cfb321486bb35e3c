"""UniRL's and verl-omni's own reward clients, and our adapters inside them, against our server.

Each client runs in its own process. `make generators` downloads the clients.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.loading import LoadedJudge
from mmrm.eval.judges.packed_judge import Unit, UnitResult
from mmrm.eval.serving.request_limits import RequestLimits
from mmrm.eval.serving.service import JudgeToServe, load_served
from tests.eval.adapters.generators import run_probe, skip_unless_fetched
from tests.eval.adapters.test_client import Told, address, server  # noqa: F401
from tests.eval.serving.client import listening, png
from tests.eval.serving.test_batcher import broken
from tests.models.exactness import float64
from tests.models.heads.examples import saved_checkpoint

pytestmark = pytest.mark.slow

CLOSE = 1e-9
PROMPTS = ("A cat", "A dog", "A cat")
UNIRL_CLIENTS = ("backend", "service_client", "adapter")
WORKING_CLIENTS = [*(("unirl", client) for client in UNIRL_CLIENTS), ("verl_omni", "adapter")]


@pytest.fixture(autouse=True)
def _clients_are_fetched() -> None:
    skip_unless_fetched()


@pytest.fixture(scope="module")
def judging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeToServe]:
    """Yield a small untrained reward model in float64."""
    with float64():
        folder = tmp_path_factory.mktemp("served") / "saved"
        saved_checkpoint(folder, "score")
        yield load_served(folder, "small", Runtime(torch.device("cpu"), 600))


@contextmanager
def serving(judging: JudgeToServe, **limits: int) -> Iterator[str]:
    """Yield the address of a server of a reward model."""
    with listening(judging, RequestLimits(**limits)) as (_, port):
        yield f"http://127.0.0.1:{port}"


def rows_of(folder: Path, is_edit: bool) -> list[dict[str, Any]]:
    """Write images, and return a row for each of PROMPTS; see `run_probe`."""
    rows: list[dict[str, Any]] = []
    for seed, prompt in enumerate(PROMPTS):
        row = {"prompt": prompt, "image": str(folder / f"image{seed}.png")}
        Path(row["image"]).write_bytes(png(seed))
        if is_edit:
            row["source"] = str(folder / "source.png")
            Path(row["source"]).write_bytes(png(9))
        rows.append(row)
    return rows


def expected_scores(judging: JudgeToServe, rows: list[dict[str, Any]]) -> list[float]:
    """Return the scores of the rows' images by the judge itself."""
    judge = LoadedJudge(judging.judge)
    scores: list[float] = []
    for row in rows:
        images = [row["source"]] if "source" in row else []
        response = [{"type": "image", "image": row["image"]}]
        scores += judge.score(row["prompt"], [response], images)
    return scores


@pytest.mark.parametrize("is_edit", [False, True])
@pytest.mark.parametrize(("framework", "client"), WORKING_CLIENTS)
def test_rewards_are_the_scores_of_the_judge(
    judging: JudgeToServe, tmp_path: Path, framework: str, client: str, is_edit: bool
) -> None:
    rows = rows_of(tmp_path, is_edit)
    expected = expected_scores(judging, rows)
    assert len(set(expected)) == len(PROMPTS)
    with serving(judging) as url:
        result = run_probe(framework, client, tmp_path, rows, url)
    assert result.error == ""
    assert result.rewards == pytest.approx(expected, abs=CLOSE)


@pytest.mark.parametrize("client", ["http_scorer", "weighted_scorers"])
def test_the_pickles_of_verl_omni_end_the_run_with_advice(
    judging: JudgeToServe, tmp_path: Path, client: str
) -> None:
    with serving(judging) as url:
        result = run_probe("verl_omni", client, tmp_path, rows_of(tmp_path, False), url)
    assert result.rewards == []
    assert "HTTP 415" in result.error
    assert "copy eval/adapters/verl_omni_reward.py" in result.error


@pytest.mark.parametrize(("framework", "client"), WORKING_CLIENTS)
@pytest.mark.parametrize("fault", ["not finite", "fails", "timeout", "too large"])
def test_a_fault_of_one_image_ends_the_run(
    judging: JudgeToServe, tmp_path: Path, framework: str, client: str, fault: str
) -> None:
    def spoil(units: Sequence[Unit], results: list[UnitResult]) -> list[UnitResult]:
        """Break the results of rows that hold the prompt "A dog"."""
        if not any(is_about_dogs(unit) for unit in units):
            return results
        if fault == "fails":
            raise RuntimeError("out of memory")
        if fault == "timeout":
            time.sleep(3)
        if fault == "not finite":
            return [UnitResult((float("nan"),) * len(result.values)) for result in results]
        return results

    limits = {"pixels": 60 * 80 - 1} if fault == "too large" else {}
    settings: dict[str, Any] = {"timeout": 1, "tries": 2} if fault == "timeout" else {}
    if framework == "unirl" and client != "adapter":
        settings.pop("tries", None)
    with serving(broken(judging, spoil), **limits) as url:
        result = run_probe(framework, client, tmp_path, rows_of(tmp_path, False), url, **settings)
    assert result.rewards == []
    if client == "adapter":
        problem = {
            "not finite": "non_finite_score",
            "fails": "HTTP 500",
            "timeout": "Timeout",
            "too large": "60 x 80 pixels",
        }[fault]
        assert "RewardServerError" in result.error
        assert problem in result.error
    else:
        assert "Error" in result.error


def is_about_dogs(unit: Unit) -> bool:
    """Return True if the prompt of a unit is "A dog"."""
    [turn] = unit.candidates.prompt
    return {"type": "text", "text": "A dog"} in turn["content"]


@pytest.mark.parametrize("framework", ["unirl", "verl_omni"])
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((200, {}, {"fingerprint": "a", "groups": [{"scores": [1.0] * 9}]}), "responses; required"),
        ((200, {}, {"fingerprint": "a", "groups": [{"scores": []}]}), "responses; required"),
        ((200, {}, b'{"fingerprint": "a", "groups": [{"scores": [NaN]}]}'), "responses; required"),
        ((200, {}, b"<html>"), "is no answer of eval/serve.py"),
        ((500, {}, {"error": "out of memory"}), "HTTP 500"),
        ((422, {}, {"error": "broken image"}), "broken image"),
    ],
)
def test_an_unusable_answer_ends_the_run(
    server: Told,  # noqa: F811
    tmp_path: Path,
    framework: str,
    answer: Any,
    message: str,
) -> None:
    server.answers = [answer] * 3
    result = run_probe(framework, "adapter", tmp_path, rows_of(tmp_path, False), address(server))
    assert result.rewards == []
    assert "RewardServerError" in result.error
    assert message in result.error


@pytest.mark.parametrize("framework", ["unirl", "verl_omni"])
def test_a_busy_server_is_asked_again(server: Told, tmp_path: Path, framework: str) -> None:  # noqa: F811
    server.answers = [(503, {"Retry-After": "0"}, {})] * 3
    result = run_probe(framework, "adapter", tmp_path, rows_of(tmp_path, False), address(server))
    assert result.error == ""
    assert result.rewards == [1.0, 1.0, 1.0]  # the number of parts of each response


@pytest.mark.parametrize(
    ("output_type", "message"), [("latent", "torch.float32"), ("video", "[2, 3, 80, 60]")]
)
def test_what_is_no_image_is_refused_and_not_sent(
    server: Told,  # noqa: F811
    tmp_path: Path,
    output_type: str,
    message: str,
) -> None:
    rows = rows_of(tmp_path, False)
    result = run_probe(
        "verl_omni", "adapter", tmp_path, rows, address(server), output_type=output_type
    )
    assert "RewardServerError" in result.error
    assert message in result.error
    assert server.asked == []
