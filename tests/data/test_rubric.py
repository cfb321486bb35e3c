"""Rubrics as text: what is written is read back, and anything else is no rubric."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrm.data.prompts import RUBRIC_FORM, Answer, read_rubric_judgement
from mmrm.data.rationales import obstacle, swapped
from mmrm.data.rubric import (
    Check,
    Rubric,
    better_by_checks,
    fault_of_criterion,
    read_criteria,
    read_rubric,
    write_criteria,
    write_rubric,
)

RUBRIC = Rubric(
    ("The car is red.", "It is polite."),
    (Check((True, False), "Response 2 says blue."), Check((True, True))),
)
WRITTEN = """<rubric>
1. The car is red.
2. It is polite.
</rubric>
<eval>
1. Response 2 says blue. Response 1: yes. Response 2: no.
2. Response 1: yes. Response 2: yes.
</eval>
"""
LINES = st.text(max_size=20).map(str.strip).filter(lambda line: fault_of_criterion(line) is None)
CHECKS = st.builds(Check, st.tuples(st.booleans(), st.booleans()), st.one_of(st.just(""), LINES))
RUBRICS = st.lists(st.tuples(LINES, CHECKS), min_size=1, max_size=12).map(
    lambda rows: Rubric(tuple(row[0] for row in rows), tuple(row[1] for row in rows))
)
PIECES = (
    *("<rubric>", "</rubric>", "<eval>", "</eval>", "<answer>", "</answer>", "\n", "1. ", "2. "),
    *("a", "Response 1: yes. Response 2: no.", "<think>", "1"),
)


def test_a_rubric_is_written_in_the_documented_form() -> None:
    assert write_rubric(RUBRIC) == WRITTEN
    assert read_rubric(WRITTEN) == RUBRIC
    assert WRITTEN.startswith(write_criteria(RUBRIC.criteria))


@given(RUBRICS)
def test_a_written_rubric_is_read_back(rubric: Rubric) -> None:
    written = write_rubric(rubric)
    assert read_rubric(written) == rubric
    assert read_criteria(write_criteria(rubric.criteria)) == rubric.criteria


@given(RUBRICS, st.sampled_from([1, 2]))
def test_a_written_judgement_is_read_back(rubric: Rubric, answer: Answer) -> None:
    judgement = RUBRIC_FORM.write(write_rubric(rubric), answer)
    found = read_rubric_judgement(judgement)
    assert found.reasoning == write_rubric(rubric).strip()
    assert (found.answer, found.formatted) == (answer, True)


JUDGEMENT = RUBRIC_FORM.write(WRITTEN, 1)
UNREADABLE = {
    "nothing": "",
    "an answer alone": "<answer>1</answer>",
    "thoughts": "<think>a</think><answer>1</answer>",
    "thoughts before": f"<think>a</think>{JUDGEMENT}",
    "words before": f"So: {JUDGEMENT}",
    "words after": f"{JUDGEMENT} or 2",
    "words between": JUDGEMENT.replace("<eval>", "so <eval>"),
    "no criteria": JUDGEMENT.replace("1. The car is red.\n2. It is polite.\n", ""),
    "a check too few": JUDGEMENT.replace("2. Response 1: yes. Response 2: yes.\n", ""),
    "a check too many": JUDGEMENT.replace("</eval>", "3. Response 1: no. Response 2: no.\n</eval>"),
    "a wrong number": JUDGEMENT.replace("2. It is", "3. It is"),
    "no number": JUDGEMENT.replace("2. It is", "It is"),
    "an unclear result": JUDGEMENT.replace("Response 2: no.", "Response 2: partly."),
    "the second response first": JUDGEMENT.replace(
        "Response 1: yes. Response 2: yes.", "Response 2: yes. Response 1: yes."
    ),
    "words after a result": JUDGEMENT.replace("Response 2: yes.", "Response 2: yes. Both are."),
    "two rubrics": JUDGEMENT.replace("</rubric>", "</rubric>\n<rubric>\n1. a\n</rubric>"),
    "a tag in a criterion": JUDGEMENT.replace("polite", "<eval>"),
    "an answer in a criterion": JUDGEMENT.replace("polite", "<answer>2</answer>"),
    "a misspelt answer in a criterion": JUDGEMENT.replace("polite", "< answer>2"),
    "checks first": JUDGEMENT.replace("rubric", "x").replace("eval", "rubric").replace("x", "eval"),
    "cut off": JUDGEMENT.removesuffix("</answer>"),
    "no choice": JUDGEMENT.replace("<answer>1", "<answer>1 or 2"),
    "another choice": JUDGEMENT.replace("<answer>1", "<answer>3"),
    "another script": JUDGEMENT.replace("<answer>1", "<answer>１"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_what_is_not_in_the_form_names_nobody(case: str) -> None:
    assert UNREADABLE[case] != JUDGEMENT
    found = read_rubric_judgement(UNREADABLE[case])
    assert (found.reasoning, found.answer, found.formatted) == (None, None, False)


@pytest.mark.parametrize(
    "judgement", [JUDGEMENT, JUDGEMENT + "\n", JUDGEMENT.replace("\n", "\n\n ")]
)
def test_white_space_around_lines_changes_nothing(judgement: str) -> None:
    found = read_rubric_judgement(judgement)
    assert found.answer == 1
    assert found.reasoning is not None
    assert read_rubric(found.reasoning) == RUBRIC


@given(st.lists(st.sampled_from(PIECES), max_size=20))
def test_pieces_of_the_form_are_read_without_an_error(pieces: list[str]) -> None:
    found = read_rubric_judgement("".join(pieces))
    assert (found.answer is None) == (found.reasoning is None)
    if found.reasoning is not None:
        assert RUBRIC_FORM.holds(found.reasoning)


@pytest.mark.parametrize(
    ("checks", "better"),
    [
        (((True, False),), 1),
        (((False, True), (True, True)), 2),
        (((False, True), (True, False)), None),
        (((False, False),), None),
    ],
)
def test_the_response_that_meets_more_criteria_is_better(
    checks: tuple[tuple[bool, bool], ...], better: Answer | None
) -> None:
    rubric = Rubric(("a",) * len(checks), tuple(Check(meets) for meets in checks))
    assert better_by_checks(rubric) == better
    assert RUBRIC_FORM.conclusion(write_rubric(rubric)) == better


def test_a_text_without_a_rubric_has_no_conclusion() -> None:
    assert RUBRIC_FORM.conclusion("Response 1 is better.") is None
    assert not RUBRIC_FORM.holds("Response 1 is better.")


@pytest.mark.parametrize("criterion", ["", " a", "a\nb", "a</rubric>", "<answer>", "a\u2028b"])
def test_a_criterion_is_one_line_without_tags(criterion: str) -> None:
    assert fault_of_criterion(criterion) is not None


def test_a_rubric_is_rewritten_for_the_other_order() -> None:
    other = swapped(WRITTEN)
    assert other is not None
    assert read_rubric(other) == Rubric(
        RUBRIC.criteria,
        (Check((False, True), "Response 1 says blue."), Check((True, True))),
    )
    assert swapped(other) == WRITTEN


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("The car is red", "Response 1 says red"),
        ("The car is red", "The first one is red"),
        ("Response 2 says blue", "The latter says blue"),
    ],
)
def test_what_may_name_a_response_by_order_keeps_the_order(old: str, new: str) -> None:
    rationale = WRITTEN.replace(old, new)
    assert read_rubric(rationale) is not None
    assert obstacle(rationale) is not None
    assert swapped(rationale) is None
