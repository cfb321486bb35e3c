"""cal.py's rules on records made here; the reference below states each rule in the plainest way, one sample at a time."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrm.data.errors import PredictionsError
from mmrm.eval.benchmarks.vl_rewardbench_scoring import (
    dataset,
    named_answer,
    official_group,
    official_score,
    r1_group,
    unified_group,
)

ONE, TWO = "Overall Judgment: Answer 1 is better.", "Overall Judgment: Answer 2 is better."
IDS = (
    "wildvision-battle-1",
    "hallucination_pair-1",
    "RLAIF-V-1",
    "RLHF-V-1",
    "mathverse_1",
    "mmmu_pro_1",
    "svit-1",
    "other",
)


def sample(
    identity: str = "wildvision-battle-1",
    text: str = ONE,
    ranking: tuple[int, int] = (0, 1),
    shown: int = 0,
    query: str = "q",
) -> dict[str, Any]:
    """Return a record; with the defaults, answer 1 is the better one, and named."""
    meta = {"filter_choice": text, "random_number": shown, "flag_status": "not looked at"}
    return {
        "id": identity,
        "query": query,
        "response": ["one", "two"],
        "ranking": list(ranking),
        "meta": meta,
    }


WHOLE = [sample("wildvision-battle-1"), sample("RLHF-V-1"), sample("mmmu-1", TWO)]
"""One item of each group; the last one wrong."""


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (ONE, 1),
        ("I think so.\nTherefore, **Answer 2** is the slightly better one", 2),
        ("overall judgment: answer 2 IS BETTER", 2),
        ("Overall Judgment: Answer 1 is better here. In all, Answer 2 is better", 2),
        ("Answer 2 is better. Overall Judgment: Answer 1 is better", 1),
        ("Overall Judgment:\n\nAnswer\n1\nis\nbetter", 1),
        ("Overall Judgment: Answer 3 is better", 3),
        ("Overall Judgment: Answer 0 is better", 0),
        ("Overall Judgement: Answer 1 is better", None),
        ("Overall\nJudgment: Answer 1 is better", None),
        ("Overall *Judgment*: Answer 1 is better", 1),
        ("Answer 1 is better", None),
        ("Overall Judgment: Answer 1 is much better", None),
        ("Overall Judgment: Answer X is better", None),
        ("", None),
    ],
)
def test_the_official_pattern(text: str, number: int | None) -> None:
    assert named_answer(text) == number


@pytest.mark.parametrize(
    ("ranking", "shown", "text", "said"),
    [
        ((0, 1), 0, ONE, "agree"),
        ((0, 1), 0, TWO, "reject"),
        ((0, 1), 1, ONE, "reject"),
        ((1, 0), 0, ONE, "reject"),
        ((1, 0), 1, ONE, "agree"),
        ((1, 0), 1, "Overall Judgment: Answer 3 is better", "agree"),
        ((0, 1), 0, "Overall Judgment: Answer 12 is better", "agree"),
        ((0, 1), 0, "no verdict", "doesntMatch"),
    ],
)
def test_whatever_is_not_the_rejected_answer_agrees(
    ranking: tuple[int, int], shown: int, text: str, said: str
) -> None:
    figures = official_score([sample(text=text, ranking=ranking, shown=shown)])["detail"]["k=1"]
    assert figures["classes"][said] == 1


def test_unreadable_and_split_items_leave_the_denominator() -> None:
    split = [sample("RLAIF-V-1"), sample("RLAIF-V-1", TWO)]
    figures = official_score([*WHOLE, *split, sample("svit-9", "no verdict")])["detail"]["k=3"]
    assert figures["items"] == 5
    assert figures["classes"] == {"agree": 2, "reject": 1, "doesntMatch": 1, "other": 1}
    assert figures["group_total"] == {"general": 1, "hallucination": 1, "reasoning": 1}
    assert (figures["overall"], figures["macro"]) == (2 / 3, 2 / 3)


def test_double_ids_are_items_of_their_own_unless_question_and_responses_are_equal_too() -> None:
    assert (
        official_score([*WHOLE, sample("mmmu-1", query="another")])["detail"]["k=1"]["items"] == 4
    )
    swapped = {**sample("mmmu-1"), "response": ["two", "one"]}
    assert official_score([*WHOLE, swapped])["detail"]["k=1"]["items"] == 3


def test_few_samples_never_exclude_an_item_and_unreadable_ones_count_as_votes() -> None:
    records = [*WHOLE, *[sample("svit-9", text) for text in (ONE, "no verdict", "no verdict")]]
    figures = official_score(records)["detail"]
    assert figures["k=9"]["classes"] == {"agree": 2, "reject": 1, "doesntMatch": 1, "other": 0}
    assert figures["k=9"]["votes_used"] == {"agree": 3, "reject": 1, "doesntMatch": 2}


def test_wrapped_records_are_unwrapped_and_null_ones_only_shuffle() -> None:
    records: list[Any] = [
        sample(f"{name}{row}", text) for row in range(9) for name in IDS for text in (ONE, TWO, ONE)
    ]
    plain = official_score(records)["detail"]
    assert official_score([{"0": record} for record in records])["detail"] == plain
    with_null = official_score([*records, None])["detail"]
    assert with_null["k=9"]["items"] == plain["k=9"]["items"]
    assert (
        with_null["k=1"]["classes"] != plain["k=1"]["classes"]
    )  # another shuffle, other first votes
    assert official_score([{"0": record} for record in [*records, None]])["detail"] == with_null


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], "line 1 is empty or null"),
        ([None, sample()], "line 1 is empty or null"),
        ([{"0": sample()}, sample()], "line 2 is not"),
        ([sample(), {"id": "x"}], "line 2: KeyError"),
        (
            [{**sample(), "meta": {"filter_choice": None, "random_number": 0}}],
            "line 1: ValueError filter_choice is None",
        ),
        ([sample(ranking=(2, 0), shown=0)], "line 1: ValueError"),
    ],
)
def test_files_on_which_the_script_stops_are_refused(records: list[Any], message: str) -> None:
    with pytest.raises(PredictionsError, match=message):
        official_score(records)


def test_where_the_script_divides_by_zero_the_figure_is_none_and_named() -> None:
    figures = official_score([sample("svit-1"), sample("wildvision-2", "no verdict")])["detail"][
        "k=1"
    ]
    assert figures["group_acc"] == {"general": 1.0, "hallucination": None, "reasoning": None}
    assert (figures["overall"], figures["macro"]) == (1.0, None)
    assert figures["fails"] == [
        "data set wildvision-battle",
        "group hallucination",
        "group reasoning",
    ]
    assert figures["lines"][-1].startswith("Number of doesntMatch")


def test_the_printed_lines() -> None:
    lines = official_score([*WHOLE, sample("mmmu-2"), sample("mmmu-3")])["detail"]["k=1"]["lines"]
    assert lines == [
        "k=1 ----------------",
        "Number of total items: 5",
        "Number of agree items: 4, rate: 0.8, normalized rate: 0.8",
        "Number of reject items: 1, rate: 0.2, normalized rate: 0.2",
        "Number of doesntMatch items: 0, rate: 0.0",
        "====================",
        "general\t hallucination\t reasoning",
        "100.00\t 100.00\t 66.67",
        "Overall Accuracy: 80.00",
        "Macro Average Acc: 88.89",
        "====================",
    ]


def test_only_the_printed_reasoning_accuracy_has_the_small_addend() -> None:
    records = [*WHOLE[:2], *[sample(f"mmmu-{row}", ONE if row < 3 else TWO) for row in range(4)]]
    figures = official_score(records)["detail"]["k=1"]
    assert figures["group_acc"]["reasoning"] == 0.75
    assert figures["lines"][7] == f"100.00\t 100.00\t {100 * 3 / (4 + 1e-6):.2f}"


@pytest.mark.parametrize(
    ("identity", "source", "groups"),
    [
        ("RLAIF-V-14", "rlaif-v", ("hallucination", "general", "hallucination")),
        ("RLHF-V-3", "rlhf-v", ("hallucination", "general", "hallucination")),
        ("rlaif-v-3", "vlfeedback", ("general", "hallucination", "general")),
        ("hallucination_pair-9", "povid", ("hallucination", "hallucination", "general")),
        ("mathverse_12", "reasoning_tasks", ("reasoning", "reasoning", "reasoning")),
        ("mmmu_pro_vision_1", "reasoning_tasks", ("reasoning", "reasoning", "reasoning")),
        ("wildvision-battle-5", "wildvision-battle", ("general", "general", "general")),
        ("LRVInstruction-7", "vlfeedback", ("general", "general", "general")),
        ("jailbreak", "vlfeedback", ("general", "general", "general")),
    ],
)
def test_three_maps_of_ids_to_groups(
    identity: str, source: str, groups: tuple[str, str, str]
) -> None:
    assert dataset(identity) == source
    assert (official_group(identity), r1_group(identity), unified_group(identity)) == groups


def test_the_figures_at_the_top_use_as_many_votes_as_every_item_has() -> None:
    records = [
        sample(record["id"], record["meta"]["filter_choice"]) for record in WHOLE for _ in range(4)
    ]
    assert official_score(records)["k"] == 3
    assert official_score([*records, sample("svit-1")])["k"] == 1
    assert official_score(records)["groups"]["reasoning"] == {"n": 1, "right": 0, "accuracy": 0.0}


def reference(records: list[Any]) -> dict[int, dict[str, dict[str, int]]]:
    """Return for each K what every item's votes are, by the statement of the rules alone."""
    random.seed(1234)
    found = {}
    for limit in (1, 3, 5, 7, 9):
        order = list(records)
        for here in range(len(order)):
            there = random.randint(0, len(order) - 1)
            order[here], order[there] = order[there], order[here]
        votes: dict[str, dict[str, int]] = {}
        for record in order:
            if record is None:
                continue
            item = votes.setdefault(
                record["id"] + record["query"], {"agree": 0, "reject": 0, "doesntMatch": 0}
            )
            if sum(item.values()) == limit:
                continue
            number = {ONE: 1, TWO: 2}.get(record["meta"]["filter_choice"])
            best = (
                1 if (record["ranking"] == [0, 1]) == (record["meta"]["random_number"] == 0) else 2
            )
            item["doesntMatch" if number is None else "agree" if number == best else "reject"] += 1
        found[limit] = votes
    return found


SAMPLES = st.builds(
    sample,
    st.sampled_from(IDS),
    st.sampled_from([ONE, TWO, "no verdict"]),
    st.just((0, 1)) | st.just((1, 0)),
    st.integers(0, 1),
    st.sampled_from("qr"),
)


@given(st.lists(SAMPLES, min_size=1, max_size=1), st.lists(SAMPLES | st.none(), max_size=80))
def test_votes_are_the_first_k_of_the_official_shuffle(first: list[Any], rest: list[Any]) -> None:
    records = first + rest
    figures = official_score(records)["detail"]
    for limit, votes in reference(records).items():
        used = {
            name: sum(item[name] for item in votes.values())
            for name in ("agree", "reject", "doesntMatch")
        }
        classes = {"agree": 0, "reject": 0, "doesntMatch": 0, "other": 0}
        for item in votes.values():
            most = [name for name, count in item.items() if 2 * count > sum(item.values())]
            classes[most[0] if most else "other"] += 1
        assert figures[f"k={limit}"]["votes_used"] == used
        assert figures[f"k={limit}"]["classes"] == classes
        decided = classes["agree"] + classes["reject"]
        assert figures[f"k={limit}"]["overall"] == (classes["agree"] / decided if decided else None)
