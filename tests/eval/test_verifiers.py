"""Verifiers: what they read, and that they fail closed."""

from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrm.data.errors import RecordError, UserError
from mmrm.data.preference import Rule
from mmrm.eval.verifiers import (
    VERIFIERS,
    ResponseVerifier,
    exact,
    final_answer,
    multiple_choice,
    numeric,
)

BOXED_FRACTION = "so \\boxed{1} or rather \\boxed{\\frac{3}{4}}."


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("plain text", "plain text"),
        ("<think>2</think><answer>3</answer>", "3"),
        ("<answer>1</answer> no: <answer>\n4 </answer>, \\boxed{9}", "\n4 "),
        (BOXED_FRACTION, "\\frac{3}{4}"),
        ("\\boxed{cut {off", "cut {off"),
    ],
)
def test_final_answer(response: str, expected: str) -> None:
    assert final_answer(response) == expected


@pytest.mark.parametrize(
    ("response", "answer", "right"),
    [
        ("Paris", "paris", True),
        (" The  Eiffel\nTower. ", "the eiffel tower", True),
        ("**$12$**", "12", True),
        ("ｆｕｌｌ", "full", True),
        ("<answer>Yes!</answer>", "yes", True),
        ("Paris, France", "Paris", False),
        ("", "yes", False),
    ],
)
def test_exact(response: str, answer: str, right: bool) -> None:
    assert exact(response, answer) is right


@pytest.mark.parametrize(
    ("response", "answer", "right"),
    [
        ("B", "B", True),
        ("(b).", "B", True),
        ("**B**", "(B)", True),
        ("B. Paris", "B. Paris", True),
        ("\\boxed{\\text{C}}", "C", True),
        ("A is wrong, so the answer is (C).", "C", True),
        ("The answer is A. No: the correct answer is option **D**.", "D", True),
        ("Answer: B", "b", True),
        ("A cat sits there", "A", False),
        ("The answer is a dog", "A", False),
        ("I think so", "I", False),
        ("The answer is Berlin", "B", False),
        ("Not B", "B", False),
        ("B", "Paris", False),
        ("", "A", False),
    ],
)
def test_multiple_choice(response: str, answer: str, right: bool) -> None:
    assert multiple_choice(response, answer) is right


@pytest.mark.parametrize(
    ("response", "answer", "right"),
    [
        ("There are 1,234 of them.", "1234", True),
        ("x = -2.50", "−2.5", True),
        ("3 + 4 = 7.", "7", True),
        (BOXED_FRACTION, "0.75", True),
        ("3/4", "6/8", True),
        ("50 %", "50", True),
        ("1.5e3", "1500", True),
        ("from 2019-2024", "2024", True),
        ("1,2,3", "3", True),
        ("12", "21", False),
        ("none", "0", False),
        ("5", "five", False),
        ("1/0", "1", False),
        ("1e9999999999", "1", False),
        ("9" * 500, "9" * 500, False),
    ],
)
def test_numeric(response: str, answer: str, right: bool) -> None:
    assert numeric(response, answer) is right


def test_tolerance_is_relative_to_the_answer() -> None:
    assert numeric("104", "100", tolerance=0.05)
    assert not numeric("106", "100", tolerance=0.05)
    assert not numeric("0.001", "0", tolerance=0.05)


@settings(deadline=None)
@given(
    number=st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300),
    letter=st.sampled_from("ABCDEFGH"),
)
def test_what_states_the_answer_is_right(number: float, letter: str) -> None:
    for written in (repr(number), f"the result is {number!r}", f"<answer>{number!r}</answer>"):
        assert numeric(written, repr(number))
        assert exact(f"<answer>{number!r}</answer>", repr(number))
    assert multiple_choice(f"so the answer is ({letter}).", letter)
    assert not multiple_choice(f"so the answer is ({letter}).", "Z")


@settings(deadline=None)
@given(response=st.text(), answer=st.text())
def test_nothing_raises(response: str, answer: str) -> None:
    for verifier in VERIFIERS.values():
        assert verifier(response, answer) in (True, False)


SAMPLED = {"right": [True, False], "verifier": "numeric", "answer": ["3"]}
"""What eval/sample.py writes of two responses; by `exact` neither of RESPONSES is right."""
RESPONSES = ("I count 3 cats.", "I count 4 cats.")


@pytest.mark.parametrize("verifier", ["recorded", "numeric"])
def test_a_recorded_verdict_is_kept(verifier: Rule | Literal["recorded"]) -> None:
    response_verifier = ResponseVerifier(verifier, "answer", None)
    assert response_verifier.right(SAMPLED, RESPONSES) == [True, False]
    # An answer that was cut off is wrong, whatever it states.
    assert response_verifier.right(SAMPLED | {"right": [False, False]}, RESPONSES) == [False, False]


def test_without_verdicts_the_declared_rule_counts() -> None:
    declared = {"verifier": "numeric", "answer": ["3"]}
    assert ResponseVerifier("recorded", "answer", None).right(declared, RESPONSES) == [True, False]
    assert ResponseVerifier("exact", "answer", None).right({"answer": "3"}, ("3", "4")) == [
        True,
        False,
    ]
    with pytest.raises(RecordError, match="there are no verdicts"):
        ResponseVerifier("recorded", "answer", None).right({"answer": "3"}, RESPONSES)


@pytest.mark.parametrize(
    ("verifier", "column", "tolerance", "columns"),
    [
        ("exact", "answer", None, SAMPLED),  # another rule
        ("exact", "answer", None, {"verifier": "numeric", "answer": ["3"]}),
        ("exact", "answer", None, {"right": [True, False], "answer": ["3"]}),  # other verdicts
        ("numeric", "other", None, SAMPLED | {"other": "4"}),
        ("numeric", "answer", 0.5, SAMPLED),
    ],
)
def test_an_option_that_contradicts_the_record_is_refused(
    verifier: Rule, column: str, tolerance: float | None, columns: dict[str, object]
) -> None:
    with pytest.raises(UserError, match="contradicts") as error:
        ResponseVerifier(verifier, column, tolerance).right(columns, RESPONSES)
    assert not isinstance(error.value, RecordError)  # not one record: the command is refused
    assert "--verifier recorded" in str(error.value)


@pytest.mark.parametrize("right", [[True], [True, None], [1, 0]])
def test_verdicts_that_cannot_be_read_cost_the_record(right: list[object]) -> None:
    with pytest.raises(RecordError, match="required is a list of 2 booleans"):
        ResponseVerifier("recorded", "answer", None).right(SAMPLED | {"right": right}, RESPONSES)


@given(
    right=st.lists(st.booleans(), min_size=2, max_size=2),
    rule=st.sampled_from(list(VERIFIERS)),
    declared=st.sampled_from([*VERIFIERS, None]),
    answer=st.sampled_from(["3", "4", "I count 3 cats.", "B"]),
)
def test_there_are_no_two_truths(
    right: list[bool], rule: Rule, declared: str | None, answer: str
) -> None:
    """Whatever is asked for, the verdicts that a record holds are returned, or the option is refused."""
    columns = {"right": right, "verifier": declared, "answer": [answer]}
    verdicts, refusal = right, "contradicts"
    try:
        verdicts = ResponseVerifier(rule, "answer", None).right(columns, RESPONSES)
    except UserError as error:
        refusal = str(error)
    assert verdicts == right
    assert "contradicts" in refusal
