"""A judge behind an endpoint that fails in every way that endpoints fail."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mmrm.data.errors import EndpointError, RecipeError
from mmrm.eval.benchmarks.benchmark import Benchmark
from mmrm.eval.benchmarks.mm_rlhf_rewardbench import MM_RLHF_REWARDBENCH
from mmrm.eval.benchmarks.multimodal_rewardbench import GENERAL_PROMPT, MULTIMODAL_REWARDBENCH
from mmrm.eval.benchmarks.vl_rewardbench import VL_REWARDBENCH, ask
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.endpoint.client import (
    QUOTED_CHARACTERS,
    delay,
    open_client,
    read_answer,
)
from mmrm.eval.judges.endpoint.config import EndpointConfig
from mmrm.eval.judges.endpoint.judge import EndpointJudge
from mmrm.eval.judges.loading import load_judge
from mmrm.eval.judges.registry import judge_config
from mmrm.eval.protocol import ProtocolConfig
from tests.eval.doubles import JudgeOfBenchmark
from tests.eval.endpoint_server import RIGHT, Server, serve
from tests.eval.make import example, png

EXAMPLES = [
    example(
        name, 0, (f"{name} one", f"{name} two"), images=(png(),), query=f"What is {name}?", Text="?"
    )
    for name in "abc"
]


@pytest.fixture
def server() -> Iterator[Server]:
    with serve() as found:
        yield found


def config(server: Server, folder: Path, **changes: Any) -> EndpointConfig:
    settings = {
        "url": server.url,
        "cache": str(folder / "cache"),
        "first_delay_seconds": 0.001,
        "retries": 3,
        **changes,
    }
    return EndpointConfig(type="endpoint", model="judge", **settings)


def judge(
    server: Server, folder: Path, benchmark: Benchmark = VL_REWARDBENCH, **changes: Any
) -> JudgeOfBenchmark:
    protocol = ProtocolConfig(votes=changes.pop("votes", 1), order=changes.pop("order", "both"))
    asked = EndpointJudge(config(server, folder, **changes), GENERAL_PROMPT, ProtocolConfig())
    return JudgeOfBenchmark(asked, protocol, benchmark)


def files(folder: Path) -> list[Path]:
    return [path for path in (folder / "cache").rglob("*") if path.is_file()]


@pytest.mark.slow
def test_the_official_prompt_is_sent_with_the_picture_in_both_orders(
    server: Server, tmp_path: Path
) -> None:
    verdicts = judge(server, tmp_path).judge(EXAMPLES)
    assert [[(vote.shown[0], vote.named) for vote in verdict.votes] for verdict in verdicts] == [
        [(0, 0), (1, 1)]
    ] * 3
    assert verdicts[0].votes[0].text == RIGHT
    shown = {json.dumps(request["messages"]): request for request in server.requests}
    assert len(shown) == 6
    for one in EXAMPLES:
        for first in (0, 1):
            text = ask(one, 0 if first == 0 else 1)[0]["content"][0]
            assert text["type"] == "text"
            uri = "data:image/png;base64," + base64.b64encode(png()).decode()
            content = [
                {"type": "text", "text": text["text"]},
                {"type": "image_url", "image_url": {"url": uri}},
            ]
            request = shown[json.dumps([{"role": "user", "content": content}])]
            assert (request["temperature"], request["top_p"], request["max_tokens"]) == (
                0.2,
                0.2,
                2048,
            )


@pytest.mark.slow
def test_votes_have_seeds_of_their_own_and_the_same_ones_every_time(
    server: Server, tmp_path: Path
) -> None:
    judge(server, tmp_path / "one", votes=3, order="official").judge(EXAMPLES)
    seeds = [request["seed"] for request in server.requests]
    assert len(set(seeds)) == 9
    judge(server, tmp_path / "two", votes=3, order="official").judge(EXAMPLES)
    assert sorted(request["seed"] for request in server.requests[9:]) == sorted(seeds)


@pytest.mark.slow
def test_what_was_answered_is_not_asked_again(server: Server, tmp_path: Path) -> None:
    first = judge(server, tmp_path, dollars_per_million_input=2.0, dollars_per_million_output=10.0)
    verdicts = first.judge(EXAMPLES[:2])
    assert (
        "4 judgements (0 from the cache), 400 tokens in and 40 out; asked now: 400 and 40"
        in first.notes()[0]
    )
    again = judge(server, tmp_path, dollars_per_million_input=2.0, dollars_per_million_output=10.0)
    assert again.judge(EXAMPLES)[:2] == verdicts
    assert len(server.requests) == 6
    assert (
        "6 judgements (4 from the cache), 600 tokens in and 60 out; asked now: 200 and 20"
        in again.notes()[0]
    )
    assert "0.0018 dollars in all, 0.0006 of them now" in again.notes()[0]
    assert judge(server, tmp_path, retries=0).judge(EXAMPLES) == again.judge(EXAMPLES)
    assert len(server.requests) == 6
    judge(server, tmp_path, request={"temperature": 1.0}).judge(EXAMPLES)
    assert len(server.requests) == 12


@pytest.mark.slow
@pytest.mark.parametrize("failure", [429, 500, 503, 408, "garbage", "empty", "slow", "drip"])
def test_what_may_pass_is_tried_again_and_never_kept(
    server: Server, tmp_path: Path, failure: int | str
) -> None:
    server.failures = [failure, failure]
    asked = judge(server, tmp_path, concurrency=1, timeout_seconds=1.0)
    verdicts = asked.judge(EXAMPLES[:1])
    assert [vote.named for vote in verdicts[0].votes] == [0, 1]
    assert len(server.requests) == 4
    assert len(asked.judging.answers) == 2
    assert {json.loads(path.read_text())["text"] for path in files(tmp_path)} == {RIGHT}
    assert len(files(tmp_path)) == 2


@pytest.mark.slow
def test_an_endpoint_that_stays_broken_gives_no_figure_and_what_came_is_kept(
    server: Server, tmp_path: Path
) -> None:
    judge(server, tmp_path, concurrency=1).judge(EXAMPLES[:1])
    server.always = 500
    with pytest.raises(
        EndpointError,
        match=r"failed 4 times for one request, the last time with: HTTP 500: <html>busy",
    ):
        judge(server, tmp_path, concurrency=1).judge(EXAMPLES)
    assert len(server.requests) == 2 + 4
    server.always = None
    judge(server, tmp_path, concurrency=1).judge(EXAMPLES)
    assert len(server.requests) == 2 + 4 + 4


@pytest.mark.slow
def test_a_server_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EndpointError, match="ConnectError"):
        judge(Server(url="http://127.0.0.1:9/v1"), tmp_path).judge(EXAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_wrong_key_or_path_is_told_at_once(server: Server, tmp_path: Path, status: int) -> None:
    server.always = status
    with pytest.raises(EndpointError, match=rf"HTTP {status}.*Check `url`, `model` and the key"):
        judge(server, tmp_path, concurrency=1).judge(EXAMPLES)
    assert len(server.requests) == 1
    assert not files(tmp_path)


@pytest.mark.slow
def test_a_refused_request_is_an_unreadable_vote_that_is_counted_and_not_kept(
    server: Server, tmp_path: Path
) -> None:
    server.failures = [400]
    asked = judge(server, tmp_path, concurrency=1)
    verdicts = asked.judge(EXAMPLES)
    assert [vote.named for verdict in verdicts for vote in verdict.votes] == [None, 1, 0, 1, 0, 1]
    assert (
        "1 requests were refused and count as unreadable votes; the first: HTTP 400"
        in asked.notes()[1]
    )
    assert len(files(tmp_path)) == 5
    server.always = 400
    with pytest.raises(EndpointError, match="refused every request; the first: HTTP 400"):
        judge(server, tmp_path / "new").judge(EXAMPLES)


@pytest.mark.slow
def test_unreadable_and_cut_off_judgements_are_counted(server: Server, tmp_path: Path) -> None:
    server.text, server.failures = "I cannot say.", ["cut"]
    asked = judge(server, tmp_path, concurrency=1)
    assert [vote.named for vote in asked.judge(EXAMPLES[:1])[0].votes] == [None, None]
    assert asked.notes()[1] == "1 judgements were cut off at the limit of new tokens."


@pytest.mark.slow
def test_requests_run_together_but_not_more_than_allowed(server: Server, tmp_path: Path) -> None:
    many = [example(str(row), 0, (f"{row} one", "two"), query="?") for row in range(20)]
    judge(server, tmp_path, concurrency=3).judge(many)
    assert 1 < server.at_once["most"] <= 3


@pytest.mark.slow
def test_the_key_comes_from_the_environment_and_is_written_nowhere(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(EndpointError, match="the environment variable JUDGE_KEY is not set"):
        judge(server, tmp_path, key_variable="JUDGE_KEY").judge(EXAMPLES)
    monkeypatch.setenv("JUDGE_KEY", "secret")
    asked = judge(server, tmp_path, key_variable="JUDGE_KEY")
    asked.judge(EXAMPLES)
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer secret"}
    assert not any(
        "secret" in text
        for text in (*asked.notes(), *(path.read_text() for path in files(tmp_path)))
    )


@pytest.mark.slow
def test_a_key_that_the_endpoint_repeats_is_not_shown(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "secret-of-mine\n")
    server.repeats_key, server.always = True, 401
    with pytest.raises(EndpointError, match=r"wrong key: Bearer \*\*\*") as caught:
        judge(server, tmp_path, key_variable="JUDGE_KEY").judge(EXAMPLES[:1])
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(open_client(config(server, tmp_path, key_variable="JUDGE_KEY")))
    for broken in ("secret\nkey", "secret\u00e9"):
        monkeypatch.setenv("JUDGE_KEY", broken)
        with pytest.raises(EndpointError, match="JUDGE_KEY holds characters") as caught:
            judge(server, tmp_path, key_variable="JUDGE_KEY").judge(EXAMPLES[:1])
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["http://me:hush@host/v1", "https://host/v1?key=hush", "htp://me:hush@host"]
)
def test_a_secret_in_an_address_is_refused_and_not_shown(tmp_path: Path, url: str) -> None:
    file = tmp_path / "judge.yaml"
    file.write_text(f"type: endpoint\nurl: {url}\nmodel: judge\n")
    with pytest.raises(RecipeError, match="url") as caught:
        judge_config(file)
    assert "hush" not in str(caught.value)


@pytest.mark.slow
def test_an_answer_has_a_size(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmrm.eval.judges.endpoint.client.MOST_BYTES", 5000)
    server.text = "long" * 5000
    with pytest.raises(EndpointError, match="an answer of more than 5,000 bytes"):
        judge(server, tmp_path, concurrency=1).judge(EXAMPLES[:1])
    assert len(server.requests) == 1


@pytest.mark.slow
def test_a_benchmark_without_a_prompt_is_asked_in_words_of_another_and_says_so(
    server: Server, tmp_path: Path
) -> None:
    server.text = "So: [[B]]"
    asked = judge(server, tmp_path, MM_RLHF_REWARDBENCH)
    assert [vote.named for vote in asked.judge(EXAMPLES[:1])[0].votes] == [1, 0]
    assert "publishes no prompt" in asked.notes()[0]
    assert "[User Question]\nwhat?" in server.requests[0]["messages"][0]["content"][0]["text"]
    assert "publishes no prompt" not in judge(server, tmp_path, MULTIMODAL_REWARDBENCH).notes()[0]


@pytest.mark.slow
def test_a_provider_may_name_settings_otherwise(server: Server, tmp_path: Path) -> None:
    judge(server, tmp_path, request={"max_tokens": None, "max_completion_tokens": 9}).judge(
        EXAMPLES[:1]
    )
    assert "max_tokens" not in server.requests[0]
    assert server.requests[0]["max_completion_tokens"] == 9


@pytest.mark.slow
def test_a_yaml_file_is_a_judge(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "judge.yaml"
    file.write_text(
        f"type: endpoint\nurl: {server.url}\nmodel: judge\ncache: {tmp_path / 'cache'}\n"
    )
    loaded = load_judge(file, Runtime(device=None))  # type: ignore[arg-type]
    judge = JudgeOfBenchmark(loaded.judge, ProtocolConfig(), VL_REWARDBENCH)
    assert len(judge.judge(EXAMPLES)) == 3
    assert "6 judgements" in judge.notes()[0]


@pytest.mark.parametrize("attempt", range(12))
def test_the_wait_doubles_and_is_drawn_and_ends_at_a_minute(attempt: int) -> None:
    found = [delay(1.0, attempt) for _ in range(50)]
    most = min(60.0, 2.0**attempt)
    assert most / 2 <= min(found) < max(found) <= most


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"choices": [{"message": {"content": 3}}]}', b"\xff", b"null"]
)
def test_garbage_is_no_answer(content: bytes) -> None:
    assert read_answer(content) is None


def test_a_message_without_text_is_an_empty_one() -> None:
    found = read_answer(b'{"choices": [{"message": {"content": null}}], "usage": null}')
    assert found is not None
    assert (found.text, found.input_tokens) == ("", 0)


# Attacks

KEY = 'sk-"secret"/<part>&more'


@pytest.mark.slow
@pytest.mark.parametrize(
    "echoed", [KEY, json.dumps(KEY)[1:-1], KEY.replace("/", "\\/"), html.escape(KEY)]
)
@pytest.mark.parametrize("num_letters_before", [0, QUOTED_CHARACTERS - 5])
def test_a_key_that_a_proxy_sends_back_with_status_200_is_not_shown(
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    echoed: str,
    num_letters_before: int,
) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    server.failures = [("x" * num_letters_before + echoed).encode()] * 2
    asked = judge(server, tmp_path, key_variable="JUDGE_KEY", retries=0)
    with pytest.raises(EndpointError, match="no chat completion") as caught:
        asked.judge(EXAMPLES[:1])
    assert "sk-" not in str(caught.value)


@pytest.mark.slow
def test_a_key_in_a_judgement_is_not_kept(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    server.text = f"Bearer {KEY} {RIGHT}"
    verdicts = judge(server, tmp_path, key_variable="JUDGE_KEY").judge(EXAMPLES[:1])
    assert verdicts[0].votes[0].text == f"Bearer *** {RIGHT}"
    assert not any("sk-" in path.read_text() for path in files(tmp_path))


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b'{"choices": [{"message": {"content": ' + b"9" * 5000 + b"}}]}",
        b'{"choices": null}',
        b'{"choices": [null]}',
        b'{"choices": {"0": {}}}',
        b'{"choices": [{"message": null}]}',
        b'{"choices": [{"message": {"content": "x"}}], "usage": [1]}',
    ],
)
def test_an_attack_is_no_answer(content: bytes) -> None:
    assert read_answer(content) is None


@pytest.mark.parametrize("count", ["1e999", "-1e999", "NaN", "-1", "null", '"x"', "[]", "9" * 4000])
def test_a_number_of_tokens_that_cannot_be_counts_as_none(count: str) -> None:
    usage = f'{{"prompt_tokens": {count}, "completion_tokens": 7}}'
    found = read_answer(f'{{"choices": [{{"message": {{}}}}], "usage": {usage}}}'.encode())
    assert found is not None
    assert (found.input_tokens, found.output_tokens) == (0, 7)


@pytest.mark.slow
def test_half_of_a_surrogate_pair_is_kept_as_a_question_mark(
    server: Server, tmp_path: Path
) -> None:
    server.text = "\ud800 " + RIGHT
    first = judge(server, tmp_path)
    assert first.judge(EXAMPLES[:1])[0].votes[0].text == "? " + RIGHT
    assert judge(server, tmp_path).judge(EXAMPLES[:1])[0].votes[0].text == "? " + RIGHT
    half = judge(server, tmp_path, request={"user": "\ud800"})
    assert half.judge(EXAMPLES[:1])[0].votes[0].text == "? " + RIGHT


@pytest.mark.slow
@pytest.mark.parametrize(
    "retry_after", ["Wed, 21 Oct 2099 07:28:00 GMT", "9" * 5000, "nan", "-5", "", "\xb2", "1e999"]
)
def test_every_retry_after_is_read_and_the_request_is_repeated(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retry_after: str
) -> None:
    monkeypatch.setattr("mmrm.eval.judges.endpoint.client.LONGEST_DELAY", 0.001)
    server.failures = [503, 429]
    server.retry_after = retry_after
    assert len(judge(server, tmp_path).judge(EXAMPLES[:1])) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff",
        b'{"text": "x"}',
        b'{"text": null, "cut_off": false, "input_tokens": 1, "output_tokens": 1}',
        b'{"text": "x", "cut_off": false, "input_tokens": 1e999, "output_tokens": 1}',
        b'{"text": "\\ud800", "cut_off": false, "input_tokens": 1, "output_tokens": 1}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_file_in_the_cache_is_named(
    server: Server, tmp_path: Path, content: bytes
) -> None:
    judge(server, tmp_path).judge(EXAMPLES[:1])
    damaged = files(tmp_path)[0]
    damaged.write_bytes(content)
    with pytest.raises(EndpointError, match=f"{damaged.name} holds no answer.*Delete it"):
        judge(server, tmp_path).judge(EXAMPLES[:1])


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:99999/v1",
        "http://127.0.0.1:0/v1",
        "http://127.0.0.1:x/v1",
        "http://[::1/v1",
        "http://127.0.0.1:" + "9" * 5000,
    ],
)
@pytest.mark.parametrize("kind", ["endpoint", "server"])
def test_an_address_that_cannot_be_used_is_refused(tmp_path: Path, url: str, kind: str) -> None:
    file = tmp_path / "judge.yaml"
    model = "model: judge\n" if kind == "endpoint" else ""
    file.write_text(f"type: {kind}\nurl: {url}\n{model}")
    with pytest.raises(RecipeError, match=r"url(.|\n)*(port|address)"):
        judge_config(file)


@pytest.mark.parametrize("value", [".nan", ".inf"])
def test_a_request_that_json_cannot_hold_is_refused(tmp_path: Path, value: str) -> None:
    file = tmp_path / "judge.yaml"
    file.write_text(
        f"type: endpoint\nurl: http://host/v1\nmodel: judge\nrequest: {{top_k: {value}}}\n"
    )
    with pytest.raises(RecipeError, match="request"):
        judge_config(file)
