"""The place of the verdict in every template's judgements agrees with the template's reader."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrm.data.prompts import TEMPLATES
from mmrm.eval.benchmarks.multimodal_rewardbench import GENERAL_PROMPT, MULTIMODAL_REWARDBENCH
from mmrm.eval.benchmarks.registry import BENCHMARKS
from mmrm.eval.benchmarks.vl_rewardbench import VL_REWARDBENCH
from mmrm.eval.candidates import Side
from mmrm.eval.judges.generative.judge import reader_of
from mmrm.eval.judges.released.models import RELEASED
from mmrm.eval.judges.released.templates import PairTemplate
from mmrm.eval.verdict_form import VerdictForm, verdict_form_of

Reader = Callable[[str], Side | None]

FORMS: dict[str, tuple[Reader, VerdictForm]] = {}
for template in TEMPLATES:
    FORMS[template] = (reader_of(template), verdict_form_of(template))
for benchmark in BENCHMARKS.values():
    if benchmark.prompt is not None:
        FORMS[benchmark.name] = (benchmark.prompt.read, benchmark.prompt.form)
for name, released in RELEASED.items():
    if isinstance(released.prompt_or_head, PairTemplate):
        FORMS[name] = (released.prompt_or_head.read, released.prompt_or_head.form)

CAN_ANSWER_AT_ONCE = [
    name for name, (_, form) in FORMS.items() if form.without_rationale is not None
]
"""The forms that are read without a rationale: all but those with a rubric."""
CHECKS = "<rubric>\n1. a\n</rubric>\n<eval>\n1. Response 1: yes. Response 2: no.\n</eval>\n"

FRAGMENTS = st.sampled_from(
    [
        *("<think>", "</think>", "<answer>", "</answer>", "1", "2", " ", "\n", "*", "12", "3"),
        *("Answer ", "Answer 1 is better", "Answer 2 is better", "Overall Judgment: ", "Therefore"),
        *("Answer 2 is the slightly better", "\\boxed{", "}", "[[A]]", "[[B]]", "[[", "A", "é"),
        *("<rubric>", "</rubric>", "<eval>", CHECKS, f"{CHECKS}<answer>2</answer>"),
        *("<answer>1</answer>", "<answer> 2 </answer>", "\\boxed{1}", "\\boxed{Answer 2}"),
    ]
)


def test_the_prompts_are_those_of_the_benchmarks_that_have_one() -> None:
    assert {VL_REWARDBENCH.name, MULTIMODAL_REWARDBENCH.name} <= FORMS.keys()
    assert FORMS[MULTIMODAL_REWARDBENCH.name] == (GENERAL_PROMPT.read, GENERAL_PROMPT.form)


@pytest.mark.parametrize("name", FORMS)
def test_words_are_different_and_equally_long(name: str) -> None:
    _, form = FORMS[name]
    first, second = form.words
    assert first != second
    assert len(first) == len(second)


@pytest.mark.parametrize("name", CAN_ANSWER_AT_ONCE)
def test_a_judgement_at_once_is_read_as_its_side(name: str) -> None:
    read, form = FORMS[name]
    for side, word in enumerate(form.words):
        judgement = form.judgement_at_once(0 if side == 0 else 1)
        assert read(judgement) == side
        start = form.find(judgement)
        assert start is not None
        assert judgement.startswith(word, start)
        # At once, the verdict follows the text that an empty judgement is continued with.
        assert form.kept_and_added("") == (0, judgement[:start])


@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=300)
@given(pieces=st.lists(FRAGMENTS, max_size=12))
def test_the_verdict_is_found_where_the_reader_reads_it(name: str, pieces: list[str]) -> None:
    read, form = FORMS[name]
    judgement = "".join(pieces)
    side = read(judgement)
    if side is None:
        return
    start = form.find(judgement)
    assert start is not None
    assert judgement.startswith(form.words[side], start)


@pytest.mark.parametrize("name", CAN_ANSWER_AT_ONCE)
@pytest.mark.parametrize(
    "rationale", ["", "I like it.", "<think>The first one", "<think>r</think>"]
)
def test_a_continued_judgement_can_be_read(name: str, rationale: str) -> None:
    read, form = FORMS[name]
    assert read(rationale) is None
    for side, word in enumerate(form.words):
        num_kept, added = form.kept_and_added(rationale)
        judgement = rationale[:num_kept] + added + word + form.closing
        assert judgement.startswith(rationale)
        assert read(judgement) == side


@pytest.mark.parametrize("name", FORMS)
def test_a_verdict_of_another_word_is_cut_off(name: str) -> None:
    read, form = FORMS[name]
    judgement = f"<think>r</think>{form.opening}Z{form.closing}"
    assert read(judgement) is None
    num_kept, added = form.kept_and_added(judgement)
    assert added == form.separator + form.opening
    expected = "<think>r</think>" if form.mark else judgement
    assert judgement[:num_kept] == expected


@pytest.mark.parametrize("name", FORMS)
def test_the_rationale_is_a_judgement_without_its_verdict(name: str) -> None:
    _, form = FORMS[name]
    verdict = form.opening + form.words[1] + form.closing
    assert form.rationale(f"It is red.{form.separator}{verdict}") == "It is red."
    assert form.rationale(f"<think> It is red.</think>{form.separator}{verdict}") == "It is red."
    assert form.rationale(form.judgement_at_once(0)) == ""


@pytest.mark.parametrize("name", ["rubric", "rubric_turns"])
def test_a_rubric_that_was_cut_off_is_closed_before_the_verdict(name: str) -> None:
    read, form = FORMS[name]
    assert form.kept_and_added("<rubric>\n1. a") == (13, "</rubric>\n<answer>")
    open_checks = CHECKS.removesuffix("</eval>\n")
    assert form.kept_and_added(open_checks) == (len(open_checks), "</eval>\n<answer>")
    num_kept, added = form.kept_and_added(CHECKS)
    assert num_kept == len(CHECKS)
    assert read(f"{CHECKS}{added}1{form.closing}") == 0
    assert form.kept_and_added("") == (0, "<answer>")
