"""Served scores are those of an evaluation in whatever company and order requests arrive, and sharing saves what it should."""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest
import torch

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.loading import load_judge
from mmrm.eval.judges.packed_judge import Unit, UnitResult
from mmrm.eval.serving.request_limits import RequestLimits
from mmrm.eval.serving.service import JudgeToServe, Service
from tests.eval.doubles import watched
from tests.eval.serving.client import at_once, data_uri, group, opened, serving
from tests.eval.serving.conftest import BUDGETS
from tests.models.exactness import RELATIVE

pytestmark = [pytest.mark.usefixtures("module_in_float64"), pytest.mark.slow]

WORDS = [
    "A red square.",
    "Blue",
    "Yes, it is a picture.",
    "two of them",
    "None",
    "It is written there: 3.",
    "",
    "é",
]
CHAT = [
    {"role": "system", "content": "Be short."},
    {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": group(images=1)["images"][0]}}],
    },
    {"role": "assistant", "content": "A picture."},
    {"role": "user", "content": "And what is in it?"},
]


def groups(rng: random.Random, number: int, most: int) -> list[dict[str, Any]]:
    """Return groups on few prompts, so that equal ones meet."""
    asked = [group(f"What is in {n % 2}?", images=n // 2) for n in range(4)]
    asked += [
        {"messages": CHAT, "responses": []},
        group("What is in 0?") | {"images": [data_uri(9)]},
    ]
    return [
        {**rng.choice(asked), "responses": rng.choices(WORDS, k=rng.randint(2, most))}
        for _ in range(number)
    ]


@pytest.mark.numerics
@pytest.mark.parametrize(
    ("kind", "number", "most"), [("scalar", 24, 9), ("critic", 10, 4), ("generative", 4, 3)]
)
def test_scores_are_those_of_an_evaluation_in_any_order_of_arrival(
    judges: dict[str, JudgeToServe], places: dict[str, Any], kind: str, number: int, most: int
) -> None:
    rng = random.Random(1)
    offline = load_judge(places[kind], Runtime(torch.device("cpu"), BUDGETS[kind]))
    asked = groups(rng, number, most)
    expected = [
        offline.rank(one["messages"], one["responses"], one.get("images", ())) for one in asked
    ]

    async def use(client: httpx.AsyncClient, service: Service) -> None:
        async def ask(place: int) -> None:
            await asyncio.sleep(rng.random() / 50)
            [found] = (await client.post("/v1/rewards", json={"groups": [asked[place]]})).json()[
                "groups"
            ]
            assert found["scores"] == pytest.approx(expected[place].values, rel=RELATIVE)
            assert (found["judgements"], found["unread"]) == (
                expected[place].usage.judgements,
                expected[place].usage.unread,
            )

        await at_once(service, [ask(place) for place in rng.sample(range(number), number)], number)
        # A critic writes, so its groups are merged only if they share a quarter of their tokens.
        assert kind == "critic" or service.metrics.merged._value.get() > 0

    serving(judges[kind], use)


def test_eight_responses_to_a_prompt_take_a_third_of_the_tokens_of_single_requests(
    judges: dict[str, JudgeToServe],
) -> None:
    question = "What is in the picture? Name everything that you see there, from left to right and from top to bottom, please."
    asked = group(question, *(f"{n} squares" for n in range(8)), images=1)

    async def use(client: httpx.AsyncClient, service: Service) -> None:
        [found] = (await client.post("/v1/rewards", json={"groups": [asked]})).json()["groups"]
        singles = [{**asked, "responses": [response]} for response in asked["responses"]]
        taken = 0
        for one in singles:  # one request after the other
            taken += (await client.post("/v1/rewards", json={"groups": [one]})).json()["groups"][0][
                "tokens"
            ]
        assert found["tokens"] * 3 <= taken == found["tokens_unshared"]
        before = service.metrics.tokens._value.get()
        together = (await client.post("/v1/rewards", json={"groups": singles * 4})).json()["groups"]
        now = service.metrics.tokens._value.get() - before
        assert now == sum(one["tokens"] for one in together)  # each token is counted at one group
        assert now < 4 * taken
        assert service.metrics.saved_share() > 0.5

    serving(judges["scalar"], use)


def test_single_responses_that_wait_share_their_prompts_in_any_order(
    judges: dict[str, JudgeToServe],
) -> None:
    """A trainer's rollouts end in any order, each with a request of its own."""
    singles = []
    for number in range(8):
        asked = group(f"What is in picture {number}?", images=1) | {"images": [data_uri(number)]}
        for response in range(6):
            singles.append({**asked, "responses": [f"{response} squares"]})
    shuffled = random.Random(0).sample(singles, len(singles))

    async def tokens_of(groups: list[dict[str, Any]]) -> int:
        """Return the tokens that are computed for requests of one group each, all of which wait."""
        async with opened(judges["scalar"]) as (client, service):
            requests = [client.post("/v1/rewards", json={"groups": [one]}) for one in groups]
            answers = await at_once(service, requests, len(groups))
            return sum(answer.json()["groups"][0]["tokens"] for answer in answers)

    in_order = asyncio.run(tokens_of(singles))
    assert asyncio.run(tokens_of(shuffled)) <= 1.3 * in_order


def broken(judging: JudgeToServe, fails: Any) -> JudgeToServe:
    """Return a judge that calls `fails` with the row's units and what it found."""
    return replace(judging, judge=watched(judging.judge, after_run=fails))


@pytest.mark.parametrize("how", ["not finite", "fails"])
def test_a_group_that_breaks_its_row_harms_no_other(
    judges: dict[str, JudgeToServe], how: str
) -> None:
    """NaN of one group may reach others through a masked product; an out of memory is the whole row's."""

    def fails(units: Sequence[Unit], results: list[UnitResult]) -> list[UnitResult]:
        if not any("poison" in response.text for unit in units for response in unit.responses):
            return results
        if how == "fails":
            raise RuntimeError("out of memory, /secret/path")
        return [UnitResult((float("nan"),) * len(result.values)) for result in results]

    async def use(client: httpx.AsyncClient, service: Service) -> None:
        asked = [
            group("x", "fine", "well"),
            group("x", "fine", "poison"),
            group("y", "fine", "well"),
            group("z", "a"),
        ]
        [answer] = await at_once(service, [client.post("/v1/rewards", json={"groups": asked})], 4)
        second, first, *rest = answer.json()["groups"]
        assert answer.status_code == 200
        assert first["error"]["type"] == ("non_finite_score" if how == "not finite" else "internal")
        assert "secret" not in answer.text
        assert [len(one["scores"]) for one in (second, *rest)] == [2, 2, 1]
        alone = await client.post("/v1/rewards", json={"groups": asked[1:2]})
        assert (alone.status_code, alone.json()["error"]["type"]) == (500, first["error"]["type"])
        assert (
            await client.post("/rerank", json={"query": "x", "documents": ["poison"]})
        ).status_code == 500

    serving(broken(judges["scalar"], fails), use)


def test_what_is_larger_than_a_row_is_refused_alone(judges: dict[str, JudgeToServe]) -> None:
    async def use(client: httpx.AsyncClient, service: Service) -> None:
        asked = [group("x" * 3000), group("y")]
        first, second = (await client.post("/v1/rewards", json={"groups": asked})).json()["groups"]
        assert "allows 900" in first["error"]["message"]
        assert len(second["scores"]) == 2
        many = group(
            "y", *(f"{n} {'word ' * 20}" for n in range(40))
        )  # more than a row's budget: several rows
        [found] = (await client.post("/v1/rewards", json={"groups": [many]})).json()["groups"]
        assert len(found["scores"]) == 40
        assert service.metrics.fill._sum.get() > 4

    serving(judges["scalar"], use, limits=RequestLimits(tokens=900))


def test_work_that_nobody_waits_for_is_dropped(judges: dict[str, JudgeToServe]) -> None:
    seen: list[int] = []

    def slow(units: Sequence[Unit], results: list[UnitResult]) -> list[UnitResult]:
        seen.extend(len(unit.shown) for unit in units)
        time.sleep(0.2)
        return results

    async def use(client: httpx.AsyncClient, service: Service) -> None:
        assert service.running is not None
        batcher = service.running.batcher
        lane = batcher.new_lane()
        asked = [service.running.intake(group(f"{n}", *("ab"[: n + 1])), "row") for n in range(2)]
        first = asyncio.create_task(batcher.score(asked[0], lane))
        await asyncio.sleep(0.1)
        second = asyncio.create_task(batcher.score(asked[1], lane))
        await asyncio.sleep(0.05)
        second.cancel()
        await first
        assert len((await batcher.score(asked[0], lane)).scores.values) == 1
        assert seen == [1, 1]

    serving(broken(judges["scalar"], slow), use)


def test_a_small_request_does_not_wait_for_all_groups_of_a_large_one(
    judges: dict[str, JudgeToServe],
) -> None:
    judging = judges["scalar"]
    encoded: list[str] = []

    def slow(unit: Unit) -> None:
        encoded.append(unit.responses[0].text)
        time.sleep(0.01)

    async def use(client: httpx.AsyncClient, service: Service) -> None:
        async def ask(*groups: dict[str, Any]) -> None:
            answer = await client.post("/v1/rewards", json={"groups": groups})
            assert answer.status_code == 200

        large = asyncio.create_task(ask(*(group(f"{n}", "large") for n in range(100))))
        while not encoded:
            await asyncio.sleep(0.001)
        await ask(group("x", "small"))
        await large
        assert len(encoded) == 101
        assert encoded.index("small") < 50

    serving(replace(judging, judge=watched(judging.judge, before_encode=slow)), use)


def test_a_prompt_beyond_the_limit_is_tokenised_once_and_not_for_each_response(
    judges: dict[str, JudgeToServe],
) -> None:
    judging = judges["scalar"]
    num_responses: list[int] = []

    def counting(unit: Unit) -> None:
        num_responses.append(len(unit.shown))

    async def use(client: httpx.AsyncClient, service: Service) -> None:
        asked = group("x" * 3000, *"abcdefgh")
        answer = await client.post("/v1/rewards", json={"groups": [asked]})
        assert "allows 900" in answer.json()["error"]["message"]
        assert num_responses == [1]

    limits = RequestLimits(tokens=900)
    counted = replace(judging, judge=watched(judging.judge, before_encode=counting))
    serving(counted, use, limits=limits)
