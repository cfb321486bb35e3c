"""The order of a pair by points: ties count half, and unreadable points nothing."""

from __future__ import annotations

from math import isnan, nan
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrm.data.point_prompt import PointPrompt
from mmrm.data.preparation.mixing import Mixture, MixtureConfig
from mmrm.data.synthetic.source import ShapesConfig
from mmrm.train.reinforce.points.order_reward import (
    OrderReward,
    order_rewards,
    pair_order,
    share_tied,
)
from mmrm.train.reinforce.points.response_prompts import ResponsePrompts
from tests.models import tiny

END = 0


def test_two_texts_about_each_response() -> None:
    # The better response has 3 and 1 points, the worse one 2 and 1.
    assert order_rewards([3.0, 1.0, 2.0, 1.0]) == [1.0, 0.25, 0.5, 0.75]
    assert share_tied([3.0, 1.0, 2.0, 1.0]) == 0.25
    # The second text about the better response cannot be read.
    assert order_rewards([3.0, nan, 2.0, 1.0]) == [1.0, 0.0, 0.5, 0.5]
    assert share_tied([nan, nan, nan, nan]) == 0.0


@given(st.lists(st.sampled_from([0.0, 1.0, 2.0, nan]), min_size=2, max_size=12))
def test_both_responses_are_paid_the_share_of_pairs_in_the_right_order(points: list[float]) -> None:
    points = points[: len(points) // 2 * 2]
    half = len(points) // 2
    num_right = 0.0
    for better in points[:half]:
        for worse in points[half:]:
            if better > worse:
                num_right += 1
            elif better == worse:
                num_right += 0.5
    rewards = order_rewards(points)
    assert sum(rewards[:half]) == pytest.approx(num_right / half)
    assert sum(rewards[half:]) == pytest.approx(num_right / half)
    for point, reward in zip(points, rewards, strict=True):
        assert reward == 0 or not isnan(point)


@given(st.floats(-9, 9), st.floats(-9, 9))
def test_exchanging_the_responses_turns_the_order_round(better: float, worse: float) -> None:
    assert pair_order(better, worse) == 1 - pair_order(worse, better)


def test_texts_are_read_by_the_form_of_the_question_and_counted() -> None:
    texts = ["Score: 4", "It is good.", "Score: 2", "Score: 4", "Score: 5", "Score: 1"]
    # The fourth text is cut off by the length limit.
    ids = [[index, 9 if index == 3 else END] for index in range(len(texts))]
    tokenizer = SimpleNamespace(decode=lambda ids: texts[ids[0]])
    encoder: Any = SimpleNamespace(tokenizer=tokenizer, end_of_turn=END)
    asked: list[Any] = [SimpleNamespace(record=record) for record in "aaaaaa"]
    log: dict[str, Any] = {}
    reward = OrderReward(PointPrompt(), 6, encoder)
    found = reward(ids, asked, log.__setitem__, log.__setitem__)
    # Better: 4, nothing, 2. Worse: nothing, 5, 1.
    assert found == pytest.approx([1 / 3, 0.0, 1 / 3, 0.0, 0.0, 2 / 3])
    assert log["rollouts/unreadable"] == pytest.approx(1 / 3)
    assert log["rollouts/cut_off"] == pytest.approx(1 / 6)
    assert log["rollouts/tied"] == 0.0
    assert log["response"] == ["better"] * 3 + ["worse"] * 3
    assert log["rewards/order"] == pytest.approx(sum(found) / 6)


def test_a_pair_has_a_question_about_each_response() -> None:
    source = ShapesConfig(type="shapes", level="demo", rows=4, text_only=0.5)
    mixture = Mixture(MixtureConfig(sources=[source]))
    prompts = ResponsePrompts(mixture, tiny.encoder(), 4096, PointPrompt())
    for place in range(4):
        better, worse = prompts[place]
        record = mixture[int(mixture.order(0)[place])]
        assert (better.record, worse.record) == (record.identity, record.identity)
        assert f"[Response]\n{record.chosen.text}\n" in better.shown
        assert f"[Response]\n{record.rejected.text}\n" in worse.shown
        assert record.rejected.text not in better.shown
