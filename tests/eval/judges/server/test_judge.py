"""A reward model behind a server as a judge: scores in order, over ranks, and what it says where there are none."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmrm.data.errors import EndpointError
from mmrm.eval.judges.loading import load_judge
from tests.eval.adapters.test_client import Told
from tests.models import tiny

pytestmark = pytest.mark.slow


@pytest.fixture
def told() -> Iterator[Told]:
    """Serve the lengths of responses as their scores."""
    server = Told()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


def test_a_judge_file_names_a_server(told: Told, tmp_path: Path) -> None:
    file = tmp_path / "judge.yaml"
    file.write_text(f"type: server\nurl: http://127.0.0.1:{told.server_port}\n")
    judge = load_judge(file)
    question = [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Which?"}]}
    ]
    ranking = judge.rank(question, ["a", "abc", "ab"], [tiny.picture(30, 30)])
    assert ranking.values == (1.0, 3.0, 2.0)
    assert ranking.order == [1, 2, 0]
    (group,) = told.asked[0]["groups"]
    assert group["messages"][0]["content"][0]["image"].startswith("data:image")
    answer = [{"type": "video", "video": b"of a response"}]
    judge.score("What happens?", ["a", answer], videos=[b"of the prompt"])
    (group,) = told.asked[1]["groups"]
    assert group["messages"][0]["content"][0]["video"].startswith("data:video")
    assert group["responses"][1][0]["video"].startswith("data:video")
    told.answers.append((400, {}, {"error": "no"}))
    with pytest.raises(EndpointError, match="gave no scores: HTTP 400"):
        judge.score("What?", ["a"])


def test_a_key_file_that_is_missing_is_named(
    told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REWARD_API_KEY_FILE", str(tmp_path / "missing"))
    file = tmp_path / "judge.yaml"
    file.write_text(f"type: server\nurl: http://127.0.0.1:{told.server_port}\n")
    with pytest.raises(EndpointError, match="missing cannot be read: FileNotFoundError"):
        load_judge(file)
