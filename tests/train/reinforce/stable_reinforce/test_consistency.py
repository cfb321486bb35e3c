"""Whether a reasoning agrees with its answer: by a rule, a model, or a server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from mmrm.data.prompts import (
    RUBRIC_FORM,
    THINK_FORM,
    Judgement,
    read_judgement,
    write_judgement,
)
from mmrm.data.rubric import Check, Rubric, write_rubric
from mmrm.models.backbone import load_language_model
from mmrm.models.config import BackboneConfig
from mmrm.train.reinforce.stable_reinforce.consistency import (
    consistency_by_model,
    consistency_by_rule,
    consistency_of_reply,
    consistency_question,
    model_replies,
    rule_check,
    server_check,
)
from mmrm.train.reinforce.stable_reinforce.judgement_term_config import (
    CheckpointJudge,
    ConsistencyTerm,
    RuleJudge,
    ServerJudge,
)
from mmrm.train.reinforce.stable_reinforce.judgement_terms import ConsistencyReward
from tests.models import tiny
from tests.train.reinforce.stable_reinforce.settings import setting_of


def test_the_rule_compares_conclusion_and_answer() -> None:
    said = "Response 1 is better."
    assert consistency_by_rule(
        THINK_FORM,
        [
            read_judgement(write_judgement(said, 1)),
            read_judgement(write_judgement(said, 2)),
            read_judgement("<answer>1</answer>"),
        ],
    ) == [1, -1, 0]


def test_the_conclusion_of_a_rubric_is_the_response_that_meets_more_criteria() -> None:
    rationale = write_rubric(Rubric(("Response 2 is better.",), (Check((True, False)),)))
    judgements = [RUBRIC_FORM.read(RUBRIC_FORM.write(rationale, answer)) for answer in (1, 2)]
    check, model = rule_check(RuleJudge(type="rule"), setting_of(None, "rubric_turns"))
    assert check(judgements) == [1, -1]
    assert model is None


def test_a_model_that_checks_is_that_of_its_path(tmp_path: Path) -> None:
    judge = CheckpointJudge(type="checkpoint", path=str(tiny.checkpoint(tmp_path)))
    term = ConsistencyTerm(type="consistency", judge=judge)
    reward = ConsistencyReward(term, setting_of(tiny.encoder()))
    assert reward.model is not None
    reward.model.eval()
    assert reward.check([read_judgement(write_judgement("a", 2))]) == [0]
    assert list(term.model_paths("method.rewards.1")) == [
        ("method.rewards.1.judge.path", judge.path)
    ]


@pytest.mark.parametrize(
    ("said", "meant"), [("1", 1), (" 0.\n", -1), ("", 0), ("10", 0), ("Output: 1", 0), ("yes", 0)]
)
def test_only_a_lone_digit_is_a_reply(said: str, meant: int) -> None:
    assert consistency_of_reply(said) == meant


def test_the_question_shows_the_last_lines_and_is_not_asked_without_an_answer() -> None:
    asked = consistency_question(Judgement("one\ntwo\n\nthree\nfour", 2, True))
    assert asked is not None
    assert "two\nthree\nfour" in asked
    assert "one" not in asked.replace("none", "").replace("alone", "")
    assert consistency_question(Judgement("one", None, True)) is None


@contextmanager
def server(replies: list[tuple[int, bytes]]) -> Iterator[str]:
    """Serve the replies one after the other, the last one for ever."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            status, body = replies.pop(0) if len(replies) > 1 else replies[0]
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            pass

    found = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{found.server_port}/v1"
    finally:
        found.shutdown()


def chat(text: str) -> bytes:
    return json.dumps({"choices": [{"message": {"content": text}}]}).encode()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "body", "opinion"),
    [
        (200, chat("1"), 1),
        (200, chat("0"), -1),
        (200, chat("maybe 1"), 0),
        (404, b"no such model", 0),
    ],
)
def test_a_server_that_gives_no_clear_answer_never_pays(
    status: int, body: bytes, opinion: int, tmp_path: Path
) -> None:
    with server([(status, body)]) as url:
        judge = ServerJudge(type="server", url=url, model="m", timeout_seconds=5.0)
        judgements = [
            read_judgement(write_judgement("Response 1 is better.", 1)),
            read_judgement("nothing"),
        ]
        check, _ = server_check(judge, replace(setting_of(None), folder=tmp_path))
        assert check(judgements) == [opinion, 0]


def test_a_model_that_babbles_is_unclear(tmp_path: Path) -> None:
    judgements = [
        read_judgement(write_judgement("Response 1 is better.", 1)),
        read_judgement("nothing"),
        read_judgement(write_judgement("a\nb", 2)),
    ]
    model = load_language_model(
        BackboneConfig(path=str(tiny.checkpoint(tmp_path)), dtype="float32")
    ).eval()
    for budget in (4096, 1):
        assert consistency_by_model(
            partial(model_replies, model, tiny.encoder(), budget), judgements
        ) == [
            0,
            0,
            0,
        ]
    assert consistency_by_model(partial(model_replies, model, tiny.encoder(), 4096), []) == []


def test_replies_go_to_the_judgements_they_were_asked_about() -> None:
    asked: list[str] = []

    def replies(questions: Sequence[str]) -> list[str]:
        asked.extend(questions)
        return ["1" if "first" in question else "0" for question in questions]

    judgements = [
        read_judgement("nothing"),
        read_judgement(write_judgement("first", 1)),
        read_judgement(write_judgement("second", 2)),
    ]
    assert consistency_by_model(replies, judgements) == [0, 1, -1]
    assert len(asked) == 2
