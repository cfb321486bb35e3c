"""What judgements earn: the paper's formula and lists of terms, and nothing for errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrm.data.prompts import Answer, write_judgement
from mmrm.train.reinforce.stable_reinforce.config import RewardsConfig, StableReinforceConfig
from mmrm.train.reinforce.stable_reinforce.consistency import Consistency
from mmrm.train.reinforce.stable_reinforce.judgement_reward import JudgementReward
from mmrm.train.reinforce.stable_reinforce.judgement_terms import ConsistencyReward, agreements
from tests.data.test_prompts import UNREADABLE
from tests.train.reinforce.stable_reinforce.settings import setting_of

PAPER, RELEASED = RewardsConfig(), RewardsConfig(variant="r1_released")
FIRST = write_judgement("Response 1 is better.", 1)
SECOND = write_judgement("Response 2 is better.", 2)
END = 0


def rewards_of(
    rewards: RewardsConfig | list[dict[str, Any]],
    texts: Sequence[str],
    winners: Sequence[Answer],
    group_size: int = 1,
    check: Any = None,
    log: dict[str, Any] | None = None,
) -> list[float]:
    """Return the rewards of judgements, one token each; a text that ends with … is cut off.

    Consistency is checked by the rule, or by `check` if there is one.
    """
    settings: dict[str, Any] = {
        "type": "stable_reinforce",
        "rewards": rewards,
        "num_generations": group_size,
        "max_new_tokens": 10,
    }
    tokenizer = SimpleNamespace(decode=lambda ids: texts[ids[0]].rstrip("…"))
    encoder: Any = SimpleNamespace(tokenizer=tokenizer, end_of_turn=END)
    config = StableReinforceConfig.model_validate(settings)
    setting = replace(setting_of(encoder), template=config.template)
    reward = JudgementReward(config, setting)
    if check is not None:
        [consistency] = [term for term in reward.terms if isinstance(term, ConsistencyReward)]
        consistency.check = check
    # The last token is cut off if the judgement did not end by itself.
    ids = [[index, 99 if text.endswith("…") else END] for index, text in enumerate(texts)]
    asked: list[Any] = [SimpleNamespace(winner=winner, record="a") for winner in winners]
    seen: dict[str, Any] = {} if log is None else log
    reads: list[Any] = [None] * len(ids)  # only the term on calibration reads the policy
    return reward(ids, asked, reads, seen.__setitem__, seen.__setitem__)


@pytest.mark.parametrize(
    ("answer", "consistency", "config", "total"),
    [
        (1, 1, PAPER, 2.0),  # 1 (1 + 0.5) + 0.5
        (1, 0, PAPER, 1.5),
        (1, -1, PAPER, 1.5),
        (2, 1, PAPER, 0.5),  # wrong: the form alone
        (1, -1, RELEASED, 1.0),  # 1 (1 - 0.5) + 0.5
        (1, 1, RELEASED, 2.0),
        (1, 1, RewardsConfig(consistency_weight=0.0, format_weight=0.25), 1.25),
    ],
)
def test_the_formula(
    answer: Answer, consistency: Consistency, config: RewardsConfig, total: float
) -> None:
    found = rewards_of(
        config, [write_judgement("because", answer)], [1], check=lambda read: [consistency]
    )
    assert found == [total]


WEIGHTS = st.floats(0, 1e4)


@given(WEIGHTS, WEIGHTS, st.sampled_from([-1, 0, 1]), st.sampled_from(["paper", "r1_released"]))
def test_the_formula_as_a_list_is_the_paper_s_to_the_last_bit(
    consistency_weight: float, format_weight: float, consistency: Consistency, variant: Any
) -> None:
    """The expected numbers are computed as the formula is written in the paper."""
    formula = RewardsConfig(
        variant=variant, consistency_weight=consistency_weight, format_weight=format_weight
    )
    listed = [
        {"type": "result"},
        {"type": "consistency", "weight": consistency_weight, "variant": variant},
        {"type": "format", "weight": format_weight},
    ]
    value = float(consistency if variant == "r1_released" else max(consistency, 0))
    wanted = []
    for result in (1.0, 0.0):
        wanted.append(result * (1 + consistency_weight * value) + format_weight * 1.0)
    for rewards in (formula, listed):
        found = rewards_of(rewards, [FIRST, SECOND], [1, 1], check=lambda read: [consistency] * 2)
        assert found == wanted


def test_a_right_answer_in_the_wrong_form_earns_its_result_only() -> None:
    assert rewards_of(PAPER, ["<answer>1</answer>"], [1]) == [1.0]


@pytest.mark.parametrize("config", [PAPER, RELEASED])
def test_no_unclear_judgement_earns_a_result(config: RewardsConfig) -> None:
    for winner in (1, 2):
        log: dict[str, Any] = {}
        found = rewards_of(config, UNREADABLE, [winner] * len(UNREADABLE), log=log)
        assert set(log["result"]) == {0.0}
        assert max(found) <= config.format_weight


def test_a_judgement_that_was_cut_off_earns_nothing_and_parts_are_logged() -> None:
    log: dict[str, Any] = {}
    found = rewards_of(PAPER, [FIRST, FIRST, "nonsense", f"{FIRST}…"], [1, 2, 1, 1], log=log)
    assert found == [2.0, 0.5, 0.0, 0.0]
    assert log["rollouts/cut_off"] == 0.25
    assert log["rollouts/unreadable"] == 0.25
    assert log["result"] == [1.0, 0.0, 0.0, 0.0]
    assert log["consistency"] == [1.0, 1.0, 0.0, 0.0]
    assert log["winner"] == [1, 2, 1, 1]
    assert log["record"] == ["a"] * 4


def test_agreement_is_paid_for_the_same_response_in_the_other_order() -> None:
    """Four judgements with the better response first, and four with it second."""
    texts = [FIRST, FIRST, SECOND, "nonsense", FIRST, SECOND, SECOND, f"{SECOND}…"]
    winners: list[Answer] = [1, 1, 1, 1, 2, 2, 2, 2]
    log: dict[str, Any] = {}
    found = rewards_of([{"type": "agreement"}], texts, winners, 8, log=log)
    # In the first order two name the better response and one the other. In the second order two
    # name the better response, one the other, and one is cut off.
    assert found == [0.5, 0.5, 0.25, 0.0, 0.25, 0.5, 0.5, 0.0]
    assert log["agreement"] == found
    assert log["rewards/agreement"] == sum(found) / 8
    # A second pair changes nothing for the first one.
    both = rewards_of([{"type": "agreement"}], texts * 2, winners * 2, 8)
    assert both == found * 2


def test_a_judge_that_names_always_the_same_position_has_no_agreement() -> None:
    assert rewards_of([{"type": "agreement"}], [FIRST] * 4, [1, 1, 2, 2], 4) == [0.0] * 4
    assert rewards_of([{"type": "agreement"}], [FIRST] * 4, [1, 1, 1, 1], 4) == [1.0] * 4


@given(st.lists(st.sampled_from([True, False, None]), min_size=2, max_size=16))
def test_agreement_is_the_mean_over_all_pairs_of_judgements(choices: list[bool | None]) -> None:
    choices = choices[: len(choices) // 2 * 2]
    half = len(choices) // 2
    pairs_alike = 0
    for first in choices[:half]:
        for second in choices[half:]:
            if first is not None and first == second:
                pairs_alike += 1
    found = agreements(choices)
    # Both orders are paid the same, and together the share of pairs that agree.
    assert sum(found[:half]) == pytest.approx(pairs_alike / half)
    assert sum(found[half:]) == pytest.approx(pairs_alike / half)
    assert all(reward == 0 for reward, choice in zip(found, choices, strict=True) if choice is None)


def test_length_is_free_up_to_a_bound_and_costs_most_if_cut_off() -> None:
    """A judgement has two tokens here, and the limit is 10."""
    terms = [{"type": "length", "free_tokens": 1, "weight": 9.0}]
    log: dict[str, Any] = {}
    assert rewards_of(terms, [FIRST, f"{FIRST}…"], [1, 1], log=log) == [-1.0, -9.0]
    assert log["length"] == [-1 / 9, -1.0]
    assert rewards_of([{"type": "length", "free_tokens": 2}], [FIRST], [1]) == [0.0]
