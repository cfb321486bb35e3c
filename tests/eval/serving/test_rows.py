"""Rows of the server: what waits together and begins with one image is one tree, within the budget, and counted once."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

from mmrm.eval.judges.pointwise import PointJudge
from mmrm.eval.judges.released.templates import PointTemplate
from mmrm.eval.serving.batcher import Batcher, Part, PendingRow
from mmrm.eval.serving.service import JudgeToServe, Service
from mmrm.models.packing.segments import TokenisedConversation, prefix_tree
from tests.eval.serving.client import at_once, group, serving
from tests.models.exactness import RELATIVE

PAUSE = "word " * 80
"""Words with which all questions begin, so that together they are not much longer than one."""


def length_of(text: str) -> float:
    """Return a score that depends on what a judge has written."""
    return float(len(text))


def with_pointwise(judges: dict[str, JudgeToServe]) -> dict[str, JudgeToServe]:
    """Return the judges, and one that writes a score for each response."""
    generative = judges["generative"]
    written: Any = generative.judge
    pointwise = PointJudge(
        model=written.model,
        packed=written.packed,
        sampling=written.sampling,
        ask=PointTemplate("{question} {response}", length_of).ask,
        read=length_of,
    )
    return {**judges, "pointwise": replace(generative, judge=pointwise)}


@pytest.mark.slow
@pytest.mark.numerics
@pytest.mark.usefixtures("module_in_float64")
@pytest.mark.parametrize(
    ("kind", "num_parts"), [("scalar", 3), ("critic", 3), ("generative", 6), ("pointwise", 6)]
)
def test_questions_about_one_image_are_one_tree_with_the_scores_of_each_alone(
    judges: dict[str, JudgeToServe], kind: str, num_parts: int
) -> None:
    asked = [
        group(f"{PAUSE} What is it?", "a square", "two of them", images=1),
        group(f"{PAUSE} Where is it?", "here", "there and then", images=1),
        group(f"{PAUSE} What is it?", "a square", "a circle", images=1),
    ]

    async def use(client: httpx.AsyncClient, service: Service) -> None:
        async def ask(one: dict[str, Any]) -> dict[str, Any]:
            answer = await client.post("/v1/rewards", json={"groups": [one], "texts": True})
            assert answer.status_code == 200, answer.text
            [found] = answer.json()["groups"]
            return cast(dict[str, Any], found)

        alone = [await ask(one) for one in asked]
        metrics = service.metrics
        counters = (metrics.tokens, metrics.unshared, metrics.merged)
        before = [counter._value.get() for counter in counters]
        together = await at_once(service, [ask(one) for one in asked], num_parts)
        tokens, unshared, merged = (
            counter._value.get() - count for counter, count in zip(counters, before, strict=True)
        )

        for mine, wanted in zip(together, alone, strict=True):
            assert mine["scores"] == pytest.approx(wanted["scores"], rel=RELATIVE)
            assert mine.get("critiques") == wanted.get("critiques")
            assert mine.get("votes") == wanted.get("votes")
            assert mine["tokens_unshared"] == wanted["tokens_unshared"]
        # The first row has the parts that had arrived when it was made. The others are one tree.
        assert merged in (num_parts - 2, num_parts - 1)
        assert tokens == sum(one["tokens"] for one in together)
        assert unshared == sum(one["tokens_unshared"] for one in together)
        assert tokens < sum(one["tokens"] for one in alone) <= unshared

    serving(with_pointwise(judges)[kind], use)


def row_of(conversations_by_part: Sequence[Sequence[Sequence[int]]], budget: int) -> PendingRow:
    """Return the row that is made of waiting parts about one image."""

    async def next_row() -> PendingRow:
        loop = asyncio.get_running_loop()
        waiting: list[Part] = []
        for conversations in conversations_by_part:
            tree = prefix_tree([TokenisedConversation(tuple(ids)) for ids in conversations])
            waiting.append(Part(cast(Any, None), tree, "one image", loop.create_future()))
        judge = SimpleNamespace(
            packed=SimpleNamespace(token_budget=budget),
            row_cost=attrgetter("cost"),
            info=SimpleNamespace(writes=False),
        )
        return Batcher._next_row(cast(Any, SimpleNamespace(judge=judge)), waiting)

    return asyncio.run(next_row())


def test_a_row_is_within_the_budget_if_three_share_less_than_each_two() -> None:
    """The first two share 33 tokens; with the third they share 18, and the other 15 do not pay."""
    first = [[1] * 18 + [2] * 15 + [3] * 10]
    second = [[1] * 18 + [2] * 15 + [4] * 10]
    third = [[1] * 18 + [5] * 10]
    together = row_of([first, second, third], 1000)
    assert [tree.tokens for tree in together.trees] == [18 + 25 + 25 + 10]
    if_each_pair_were_shared = 43 + 10 + 10
    row = row_of([first, second, third], if_each_pair_were_shared)
    assert sum(tree.tokens for tree in row.trees) <= if_each_pair_were_shared


BEGINNINGS = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 14)), min_size=1, max_size=4)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(BEGINNINGS, min_size=1, max_size=3), min_size=2, max_size=6),
    st.integers(10, 150),
)
def test_a_row_of_several_parts_is_within_the_budget(
    parts: list[list[list[tuple[int, int]]]], budget: int
) -> None:
    conversations_by_part: list[list[list[int]]] = []
    for part in parts:
        conversations: list[list[int]] = []
        for runs in part:
            ids: list[int] = []
            for token, count in runs:
                ids += [token] * count + [2]
            conversations.append(ids)
        conversations_by_part.append(conversations)
    row = row_of(conversations_by_part, budget)
    assert 1 <= len(row.parts) <= len(parts)
    assert len(row.parts) == 1 or sum(tree.cost for tree in row.trees) <= budget
    num_outputs = [sum(part.num_outputs for part in group) for group in row.parts_by_tree]
    assert [len(tree.outputs) for tree in row.trees] == num_outputs
