"""What a server answers to whom: limits, keys, images, errors, and how it ends."""

import asyncio
import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

pytestmark = pytest.mark.slow


pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.judging_config import ComparisonsConfig
from mmrm.eval.judges.messages import candidates_of
from mmrm.eval.serving.app import application
from mmrm.eval.serving.request_limits import RequestLimits
from mmrm.eval.serving.service import JudgeToServe, Service, load_served
from mmrm.eval.suite.fingerprint import judge_digest
from tests.eval.serving.client import data_uri, group, png, serving


def asked(
    judging: JudgeToServe, body: Any, path: str = "/v1/rewards", **settings: Any
) -> tuple[int, Any]:
    """Return status and content of the answer to one request."""
    found: list[Any] = []

    async def use(client: httpx.AsyncClient, service: Service) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body)
        answer = await client.post(path, content=content)
        found.extend([answer.status_code, answer.json()])

    serving(judging, use, **settings)
    return found[0], found[1]


LIMITED = RequestLimits(body=100_000, groups=3, responses=3, compared=2, images=2, pixels=10_000)


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"{", 400, "no valid JSON"),
        (b'{"groups": [], "groups": []}', 400, "twice"),
        (b"[" * 200 + b"]" * 200, 400, "64 deep"),
        (b"\xff\xfe", 400, "no valid JSON"),
        (b'{"groups": ["\\ud800"]}', 400, "half of a character"),
        (b" " * 100_001, 413, "100,000 bytes"),
        ([], 422, "the body"),
        ({"groups": []}, 422, "at least 1"),
        ({"groups": [group()], "extra": 1}, 422, "extra"),
        ({"groups": [group()], "model": "other"}, 404, "served is 'scalar'"),
        ({"groups": [group()] * 4}, 422, "allows 3"),
        ({"groups": [group("x", *"abcd")]}, 422, "4 responses; this server allows 3 of a group"),
        ({"groups": [group(images=3)]}, 422, "3 images; this server allows 2"),
        ({"groups": [group() | {"images": [data_uri(0, 200, 60)]}]}, 422, "200 x 60 pixels"),
        ({"groups": [group() | {"images": ["data:image/png;base64,AAAA"]}]}, 422, "none of JPEG"),
        ({"groups": [group() | {"images": ["http://127.0.0.1/a.png"]}]}, 422, "nothing is fetched"),
        ({"groups": [group() | {"images": ["/etc/passwd"]}]}, 422, "reads no files"),
        ({"groups": [group() | {"messages": float("nan")}]}, 422, "messages"),
        ({"groups": [group("<|im_end|>")]}, 422, "control token"),
        (
            {
                "groups": [
                    {"messages": [{"role": "user", "content": [{"type": []}]}], "responses": ["a"]}
                ]
            },
            422,
            "a part of type",
        ),
        (
            {
                "groups": [
                    {
                        "messages": [
                            {"role": "user", "content": [{"type": "image_url", "image_url": {}}]}
                        ],
                        "responses": ["a"],
                    }
                ]
            },
            422,
            "without an image",
        ),
    ],
)
def test_what_is_malformed_or_too_large_is_refused(
    judges: dict[str, JudgeToServe], body: Any, status: int, said: str
) -> None:
    found, answer = asked(judges["scalar"], body, limits=LIMITED)
    assert (found, said in answer["error"]["message"]) == (status, True), answer


def test_a_bad_group_harms_no_other(judges: dict[str, JudgeToServe]) -> None:
    status, answer = asked(
        judges["scalar"], {"groups": [group(), {"messages": 3}, group(images=1), 7]}
    )
    assert status == 200
    assert [sorted(one) for one in answer["groups"][1::2]] == [["error"]] * 2
    assert [len(one["scores"]) for one in answer["groups"][::2]] == [2, 2]
    status, answer = asked(judges["scalar"], {"groups": [{"messages": 3}, 7]})
    assert (status, len(answer["groups"]), answer["error"]["type"]) == (422, 2, "invalid_request")
    assert "group 0" in answer["error"]["message"]
    assert "group 1" in answer["error"]["message"]


def test_the_answer_word_for_word(judges: dict[str, JudgeToServe]) -> None:
    status, answer = asked(
        judges["scalar"], {"model": "scalar", "groups": [group("x", "b", "a", images=1)]}
    )
    [one] = answer["groups"]
    assert (status, answer["model"], len(answer["fingerprint"])) == (200, "scalar", 64)
    names = [
        "scores",
        "normalised",
        "order",
        "margin",
        "tokens",
        "tokens_unshared",
        "judgements",
        "unread",
    ]
    assert list(one) == names
    best, other = (one["scores"][place] for place in one["order"])
    assert (one["margin"], one["normalised"], one["judgements"], one["unread"]) == (
        best - other,
        None,
        0,
        0,
    )
    assert one["tokens"] < one["tokens_unshared"]


def test_scores_are_normalised_by_the_checkpoints_own_reference(
    judges: dict[str, JudgeToServe],
) -> None:
    judging = judges["scalar"]
    scaled = replace(
        judging,
        served=replace(judging.served, reference={"mean": 2.0, "std": 4.0, "n": 9, "source": "x"}),
    )
    _, answer = asked(scaled, {"groups": [group()]})
    [one] = answer["groups"]
    assert one["normalised"] == pytest.approx([(score - 2) / 4 for score in one["scores"]])


def test_a_judge_that_compares_says_how_often(judges: dict[str, JudgeToServe]) -> None:
    limits = RequestLimits(compared=3)
    _, answer = asked(
        judges["generative"],
        {"groups": [group("x", "a", "b", "c"), group("x", *"abcd"), group("x", "a")]},
        limits=limits,
    )
    first, second, third = answer["groups"]
    assert first["judgements"] == 6
    assert first["verdicts"] == "hard"
    assert "allows 3 of a judge" in second["error"]["message"]
    assert "takes two at least" in third["error"]["message"]


def test_a_ranking_by_fewer_comparisons_is_the_judges_own(judges: dict[str, JudgeToServe]) -> None:
    """The rounds of a sort are computed in the batcher's rows, with the votes of an evaluation."""
    generative = judges["generative"]
    written: Any = generative.judge
    sparse = ComparisonsConfig(comparisons="sorted")
    judge = replace(written, comparisons=sparse)
    groups = [group("x", *"abcdef", images=1), group("y", *"abc"), group("x", "a")]
    _, answer = asked(
        replace(generative, judge=judge),
        {"groups": groups, "texts": True},
        limits=RequestLimits(compared=3),  # it limits judges that compare every two responses
    )
    first, second, third = answer["groups"]
    assert "takes two at least" in third["error"]["message"]
    for answered, sent in zip((first, second), groups[:2], strict=True):
        candidates = candidates_of(sent["messages"], sent["responses"], sent["images"])
        [scores] = judge.score_batch([candidates])
        assert answered["scores"] == list(scores.values)
        assert answered["attributes"] == {
            name: list(values) for name, values in scores.attributes.items()
        }
        assert answered["judgements"] == len(scores.votes) == len(answered["votes"])
        assert answered["tokens"] < answered["tokens_unshared"]
    assert first["judgements"] <= 2 * 10  # in place of 30


def test_a_judge_of_single_responses_is_served_like_a_reward_model(
    judges: dict[str, JudgeToServe], places: dict[str, Path], tmp_path: Path
) -> None:
    file = tmp_path / "points.yaml"
    checkpoint = json.loads(places["generative"].read_text())["checkpoint"]
    file.write_text(json.dumps({"type": "points", "checkpoint": checkpoint}))
    served = load_served(file, "points", Runtime(torch.device("cpu"), 2000))
    assert served.served.kind == "points"
    sent = group("What is it?", *"abc", images=1)
    _, answer = asked(served, {"groups": [sent, group("y", "alone")]})
    first, second = answer["groups"]
    candidates = candidates_of(sent["messages"], sent["responses"], sent["images"])
    [scores] = served.judge.score_batch([candidates])
    assert first["scores"] == pytest.approx(scores.values, rel=1e-5)
    assert first["attributes"].keys() == {"std", "mass"}
    assert (first["judgements"], first["unread"]) == (0, 0)
    assert first["tokens"] < first["tokens_unshared"]
    assert len(second["scores"]) == 1


def test_paths_of_images_stay_below_the_media_folder(
    judges: dict[str, JudgeToServe], tmp_path: Path
) -> None:
    root, outside = tmp_path / "media", tmp_path / "secret.png"
    root.mkdir()
    for file in (root / "a.png", outside):
        file.write_bytes(png())
    (root / "link.png").symlink_to(outside)
    (root / "text.png").write_text("the secret text")
    (root / "inside.png").symlink_to(root / "a.png")
    names = [
        "../secret.png",
        str(outside),
        "link.png",
        "nothing.png",
        "",
        "a\0b",
        "~/x.png",
        "file:///etc/passwd",
        "x" * 5000,
    ]

    async def use(client: httpx.AsyncClient, service: Service) -> None:
        for name in ("a.png", str(root / "a.png"), f"file://{root}/a.png", "inside.png"):
            found = await client.post(
                "/v1/rewards", json={"groups": [group() | {"images": [name]}]}
            )
            assert found.status_code == 200, found.text
        said = set()
        for name in names:
            answer = await client.post(
                "/v1/rewards", json={"groups": [group() | {"images": [name]}]}
            )
            message = answer.json()["error"]["message"]
            assert answer.status_code == 422
            said.add(
                message.replace(repr(name[:200]), "NAME")
                .replace("'/etc/passwd'", "NAME")
                .replace("'.'", "NAME")
            )
            assert str(tmp_path) not in message.replace(repr(name), "")
        assert len(said) == 1, said  # whether something is there outside cannot be told
        answer = await client.post(
            "/v1/rewards", json={"groups": [group() | {"images": ["text.png"]}]}
        )
        assert answer.status_code == 422
        assert "secret" not in answer.text

    serving(judges["scalar"], use, media_root=root)


def test_a_key_is_required_but_for_load_balancers(judges: dict[str, JudgeToServe]) -> None:
    async def use(client: httpx.AsyncClient, service: Service) -> None:
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "key"},
            {"Authorization": b"Bearer \xff"},
        ):
            answer = await client.post("/v1/rewards", json={"groups": [group()]}, headers=headers)  # type: ignore[arg-type]
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert (await client.get("/metrics", headers=headers)).status_code == 401  # type: ignore[arg-type]
        assert service.metrics.errors.labels("unauthorized")._value.get() == 8
        right = {"Authorization": "Bearer key"}
        assert (
            await client.post("/v1/rewards", json={"groups": [group()]}, headers=right)
        ).status_code == 200
        assert [(await client.get(path)).status_code for path in ("/health", "/ready")] == [
            200,
            200,
        ]

    serving(judges["scalar"], use, key="key")


def test_a_full_queue_says_when_to_come_again(judges: dict[str, JudgeToServe]) -> None:
    async def use(client: httpx.AsyncClient, service: Service) -> None:
        service.num_groups = 3
        answer = await client.post("/v1/rewards", json={"groups": [group()] * 2})
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        assert (await client.post("/v1/rewards", json={"groups": [group()]})).status_code == 200
        assert service.num_groups == 3
        service.num_requests = 4
        assert (await client.post("/v1/rewards", json={"groups": [group()]})).status_code == 429

    serving(judges["scalar"], use, limits=RequestLimits(queue=4, groups=4))


def test_states_and_what_is_served(judges: dict[str, JudgeToServe]) -> None:
    async def use(client: httpx.AsyncClient, service: Service) -> None:
        assert (await client.get("/ready")).json() == {"status": "ready"}
        [model] = (await client.get("/v1/models")).json()["data"]
        assert (model["id"], model["kind"], model["fingerprint"]) == (
            "scalar",
            "scalar",
            judges["scalar"].served.fingerprint,
        )
        await client.post("/v1/rewards", json={"groups": [group(), 1]})
        metrics = (await client.get("/metrics")).text
        for line in (
            'reward_errors_total{kind="invalid_request"} 1.0',
            "reward_queue_groups 0.0",
            "reward_row_fill_count 1.0",
        ):
            assert line in metrics
        assert (await client.get("/nothing")).json()["error"]["type"] == "not_found"
        running, service.running = service.running, None
        assert [
            (await client.get("/ready")).status_code,
            (await client.get("/v1/models")).status_code,
        ] == [503, 503]
        assert (await client.post("/v1/rewards", json={"groups": [group()]})).status_code == 503
        service.running, service.draining = running, True
        answer = await client.post("/v1/rewards", json={"groups": [group()]})
        assert (answer.status_code, answer.json()["error"]["type"]) == (503, "draining")
        assert [(await client.get(path)).status_code for path in ("/health", "/ready")] == [
            200,
            503,
        ]

    serving(judges["scalar"], use)


def test_what_a_client_that_went_away_asked_for_is_not_computed(
    judges: dict[str, JudgeToServe],
) -> None:
    sent: list[Any] = []

    async def use(client: httpx.AsyncClient, service: Service) -> None:
        messages = [
            {"type": "http.request", "body": json.dumps({"groups": [group()]}).encode()},
            {"type": "http.disconnect"},
        ]

        async def receive() -> Any:
            if len(messages) == 1:
                assert service.running is not None
                while not service.running.batcher.waiting:
                    await asyncio.sleep(0.001)
            return messages.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/rewards",
            "headers": [],
            "query_string": b"",
        }
        assert service.running is not None
        batcher, gone = service.running.batcher, threading.Event()
        batcher.model.submit(gone.wait)
        await application(service)(scope, receive, send)
        assert batcher.waiting[0].result.cancelled()
        gone.set()
        assert sent[0]["status"] == 400
        assert (service.num_requests, service.num_groups) == (0, 0)
        assert (await client.post("/v1/rewards", json={"groups": [group("y")]})).status_code == 200
        assert service.metrics.responses._value.get() == 2

    serving(judges["scalar"], use)


def test_a_judge_that_cannot_be_loaded_ends_the_server(judges: dict[str, JudgeToServe]) -> None:
    def load() -> JudgeToServe:
        raise ValueError("broken")

    async def main() -> None:
        service = Service(load)
        async with service.lifespan(None):  # type: ignore[arg-type]
            while service.failed is None:
                await asyncio.sleep(0.001)
        assert str(service.failed) == "broken"

    asyncio.run(main())


def test_a_fingerprint_is_of_the_weights(
    judges: dict[str, JudgeToServe], places: dict[str, Path]
) -> None:
    assert judge_digest(places["scalar"]) == judges["scalar"].served.fingerprint
    assert (
        judge_digest(places["scalar"].with_name("checkpoint-2"))
        != judges["scalar"].served.fingerprint
    )
