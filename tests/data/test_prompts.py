"""What names a response and what does not: a judgement that leaves room for doubt must never be read as a choice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrm.data.preference import Message, text, text_pair
from mmrm.data.prompts import (
    Answer,
    conclusion,
    judge_conversation,
    question,
    read_judgement,
    write_judgement,
)
from mmrm.data.rationales import swapped
from mmrm.data.synthetic.world import ShapesGenerator

ANSWERS: tuple[Answer, Answer] = (1, 2)

UNREADABLE = (
    "",
    "1",
    "Response 1 is better.",
    "<answer></answer>",
    "<think>a</think><answer></answer>",
    "<think>a</think><answer>1 or 2</answer>",
    "<think>a</think><answer>1/2</answer>",
    "<think>a</think><answer>12</answer>",
    "<think>a</think><answer>1.0</answer>",
    "<think>a</think><answer>+1</answer>",
    "<think>a</think><answer>0</answer>",
    "<think>a</think><answer>3</answer>",
    "<think>a</think><answer>-1</answer>",
    "<think>a</think><answer>one</answer>",
    "<think>a</think><answer>Response 1</answer>",
    "<think>a</think><answer>１</answer>",
    "<think>a</think><answer>¹</answer>",
    "<think>a</think><answer>tie</answer>",
    "<think>a</think><answer>1</answer><answer>2</answer>",
    "<think>a</think><answer>1</answer><answer>1</answer>",
    "<think>a</think><answer>1</answer>2",
    "<think>a</think><answer>1</answer> no, 2",
    "<think>a</think><answer><answer>1</answer></answer>",
    "<think>a</think><answer>1<answer></answer>",
    "<think><answer>1</answer></think>",
    "<think>a</think></answer>1<answer>",
    "<answer>1</answer><think>a</think>",
    "<think>a<answer>1</answer>",
    "a</think><answer>1</answer>",
    "<think>a</think><think>b</think><answer>1</answer>",
    "<think>a<think>b</think></think><answer>1</answer>",
    "<think>a</think><answer>1",
    "<think>a</think>1</answer>",
    "<think>a</think><Answer>1</Answer>",
    "<think>a</think><answer>1</answer></ANSWER>",
    "<think>a</think>< answer>2</answer><answer>1</answer>",
    "<think>a</think><answer x='2'>2</answer><answer>1</answer>",
)


@pytest.mark.parametrize("written", UNREADABLE)
def test_what_is_not_one_choice_names_nobody(written: str) -> None:
    assert read_judgement(written).answer is None


@given(st.text(max_size=60))
def test_arbitrary_text_is_read_without_an_error_and_never_answers_without_tags(
    written: str,
) -> None:
    assert read_judgement(written).answer is None
    conclusion(written)


@given(
    st.text(max_size=40).filter(lambda reasoning: "<" not in reasoning), st.sampled_from(ANSWERS)
)
def test_a_written_judgement_is_read_back(reasoning: str, answer: Answer) -> None:
    found = read_judgement(write_judgement(reasoning, answer))
    assert (found.reasoning, found.answer, found.formatted) == (reasoning, answer, True)


@pytest.mark.parametrize(
    ("written", "answer", "formatted"),
    [
        ("<think>a</think>\n<answer>1</answer>", 1, False),
        ("<think>a</think><answer> 2 </answer>", 2, True),
        ("<answer>2</answer>", 2, False),
        ("well <think>a</think><answer>1</answer>", 1, False),
        ("<think>a</think><answer>1</answer>\n", 1, False),
        ("<think>a\nb</think><answer>3</answer>", None, True),
    ],
)
def test_answer_and_form_are_judged_apart(
    written: str, answer: Answer | None, formatted: bool
) -> None:
    found = read_judgement(written)
    assert (found.answer, found.formatted) == (answer, formatted)


@pytest.mark.parametrize(
    ("reasoning", "chosen"),
    [
        ("Response 1 is right. Response 2 is better.", 2),
        ("Response 1 is better than Response 2.", 1),
        ("While Response 1 is vivid, Response 2 is better.", 2),
        ("Response 1 is worse", 2),
        ("Overall, the better one is Response 2.", 2),
        ("Response 2 is better in style.\nIn sum Response 1 is the best", 1),
        ("Compared with Response 1, Response 2 is superior.", 2),
        ("Both are better than nothing", None),
        ("Response 1 is not better", None),
        ("If so, Response 1 is better if it rains", None),
        ("Neither Response 1 nor Response 2 is better.", None),
        ("Response 1 and Response 2 compete, each is better somewhere", None),
        ("Response 1 is a red circle.", None),
        ("", None),
    ],
)
def test_the_conclusion_is_the_last_clear_comparison(reasoning: str, chosen: Answer | None) -> None:
    assert conclusion(reasoning) == chosen


def test_rationales_of_the_embedded_world_are_consistent_in_both_orders() -> None:
    world = ShapesGenerator("hard", seed=3, split="train")
    for index in range(200):
        item = world.item(index)
        assert swapped(item.rationale(chosen_first=True)) == item.rationale(chosen_first=False)
        for answer in ANSWERS:
            rationale = item.rationale(chosen_first=answer == 1)
            assert (
                read_judgement(write_judgement(rationale, answer)).answer
                == conclusion(rationale)
                == answer
            )


def test_the_request_shows_every_image_once_and_takes_braces_as_they_are() -> None:
    turn: Message = {
        "role": "user",
        "content": [{"type": "text", "text": "What {second}?"}, {"type": "image"}],
    }
    (asked,) = judge_conversation("r1_reward", [turn], *text_pair("{question} \\1", "b"))
    assert [part["type"] for part in asked["content"]] == ["image", "text"]
    shown = question([asked])
    assert "[Question]:\nWhat {second}?  \n" in shown
    assert "[Response 1]:\n{question} \\1  \n" in shown
    assert "[Response 2]:\nb  \n" in shown
    assert (
        question(judge_conversation("short", [turn], *text_pair("a", "b")))
        == "What {second}?\nResponse 1: a\nResponse 2: b\nWhich response is better?"
    )


def test_turns_show_each_response_as_the_assistants_own() -> None:
    turn: Message = {
        "role": "user",
        "content": [{"type": "image"}, {"type": "text", "text": "What {second}?"}],
    }
    opening, *later = judge_conversation("turns", [turn], *text_pair("a {first}", "b"))
    assert opening == turn
    assert later == [
        text("assistant", "a {first}"),
        text("user", "What {second}?"),
        text("assistant", "b"),
        text("user", "judge the response. Which of the two is better?"),
    ]


def test_a_conversation_is_labelled_by_its_turns() -> None:
    turns = [
        text("system", "Be kind."),
        text("user", "Hi"),
        text("assistant", "Hello"),
        text("user", "Why?"),
    ]
    assert question(turns) == "System: Be kind.\nUser: Hi\nAssistant: Hello\nUser: Why?"


def test_a_tag_that_begins_inside_another_counts_as_one() -> None:
    """Rollouts do write it; a reward that read it in another way would change every seeded run."""
    assert read_judgement("<think <think>both fit</think><answer>1</answer>").answer == 1
