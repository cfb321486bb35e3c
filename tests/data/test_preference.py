"""What a record must be: each rule refuses its own fault and names the record."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrm.data.errors import RecordError
from mmrm.data.preference import (
    CONTROL_TOKENS,
    Message,
    Part,
    Preference,
    dense_ranks,
    num_image_parts,
    shown_words,
    text,
    text_responses,
    validate,
)

IMAGE: Message = {
    "role": "user",
    "content": [{"type": "image"}, {"type": "text", "text": "What is this?"}],
}
GOOD = Preference("set:7", (IMAGE,), text_responses("A cat.", "A dog."), (b"image",))


def test_a_good_record_comes_back_unchanged() -> None:
    assert validate(GOOD) is GOOD
    turns = (
        text("system", "Be brief."),
        IMAGE,
        text("assistant", "A cat."),
        text("user", "Which colour?"),
    )
    assert validate(dataclasses.replace(GOOD, prompt=turns)).prompt == turns
    assert (
        validate(
            Preference("set:8", (text("user", "Hello?"),), text_responses("Hi.", "Bye."))
        ).images
        == ()
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": ()}, "1 image parts for 0 images"),
        ({"images": (b"1", b"2")}, "1 image parts for 2 images"),
        ({"responses": text_responses(" \n", "A dog.")}, "the chosen response is empty"),
        ({"responses": text_responses("A cat.", "")}, "the rejected response is empty"),
        ({"responses": text_responses("A", "B", " "), "ranks": (0, 1, 1)}, "response 3 is empty"),
        (
            {"responses": text_responses("A"), "ranks": (0,)},
            "has 1 responses; at least two are required",
        ),
        ({"ranks": (0, 1, 2)}, "has 3 ranks for 2 responses"),
        ({"ranks": (0, 2)}, r"the ranks are \[0, 2\]; required are ranks from 0 on without gaps"),
        ({"ranks": (1, 0)}, "in the order of the responses, which begin with the best one"),
        ({"attributes": {"wit": (1.0,)}}, "attribute 'wit' has 1 numbers for 2 responses"),
        ({"attributes": {"wit": (1.0, float("inf"))}}, "attribute 'wit' has an infinite number"),
        ({"prompt": ()}, "beginning and ending with the user"),
        ({"prompt": (text("system", "Be brief."),)}, "beginning and ending with the user"),
        (
            {"prompt": (text("user", "Draw."), text("assistant", "So:", 1), text("user", "?"))},
            r"turn 1 .* holds an image",
        ),
        ({"prompt": (IMAGE, text("assistant", "A cat."))}, "beginning and ending with the user"),
        ({"prompt": (IMAGE, text("user", "And this?"))}, "in alternation"),
        ({"prompt": (text("assistant", "Hello."), IMAGE)}, "in alternation"),
        ({"prompt": (IMAGE, text("system", "Be brief."), text("user", "?"))}, "in alternation"),
        (
            {"prompt": (text("user", "  "),), "images": ()},
            r"turn 0 of the prompt \(user\) is empty",
        ),
        ({"margin": float("nan")}, "the margin is nan"),
        ({"margin": float("inf")}, "the margin is inf"),
        (
            {"margin": -3.5e38},
            r"the margin is -3.5e\+38; required is a finite number of at most 3.403e\+38",
        ),
    ],
)
def test_a_fault_names_the_record(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RecordError, match=f"^set:7: .*{message}"):
        validate(dataclasses.replace(GOOD, **changes))


@pytest.mark.parametrize("token", CONTROL_TOKENS)
@pytest.mark.parametrize(
    "field", ["responses", "chosen_critique", "rejected_critique", "rationale"]
)
def test_control_tokens_are_refused_everywhere(token: str, field: str) -> None:
    spoiled: Any = f"before {token} after"
    if field == "responses":
        spoiled = text_responses("A cat.", spoiled)
    with pytest.raises(RecordError, match=r"^set:7: .* control token"):
        validate(dataclasses.replace(GOOD, **{field: spoiled}))
    with pytest.raises(RecordError, match=r"^set:7: the prompt holds"):
        validate(dataclasses.replace(GOOD, prompt=(text("user", token),), images=()))


def test_control_tokens_are_the_tokenizers() -> None:
    """What the chat template of Qwen2.5-VL uses; a token missing here would let a record end its own turn."""
    assert {
        "<|im_start|>",
        "<|im_end|>",
        "<|vision_start|>",
        "<|image_pad|>",
        "<|vision_end|>",
    } <= set(CONTROL_TOKENS)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=5), st.integers(0, 15))
def test_images_are_counted_over_all_turns(parts: list[int], images: int) -> None:
    turns: list[Message] = []
    for position, count in enumerate(parts):
        turns += [text("assistant", "yes")] if position else []
        shown: list[Part] = [{"type": "image"} for _ in range(count)]
        turns.append({"role": "user", "content": [*shown, {"type": "text", "text": "x"}]})
    record = Preference("set:1", tuple(turns), text_responses("a", "b"), (b"x",) * images)
    assert num_image_parts(record.prompt) == sum(parts)
    if sum(parts) == images:
        assert validate(record) is record
    else:
        with pytest.raises(RecordError, match="set:1"):
            validate(record)


@pytest.mark.parametrize("token", CONTROL_TOKENS)
@pytest.mark.parametrize("pieces", [2, 3])
def test_control_tokens_are_refused_over_the_parts_of_a_turn(token: str, pieces: int) -> None:
    """The chat template writes the parts of a turn one behind the other."""
    size = -(-len(token) // pieces)
    parts: list[Part] = [
        {"type": "text", "text": token[start : start + size]}
        for start in range(0, len(token), size)
    ]
    with pytest.raises(RecordError, match=r"^set:7: the prompt holds .* control token"):
        validate(dataclasses.replace(GOOD, prompt=({"role": "user", "content": parts},), images=()))


@pytest.mark.parametrize(
    "unseen",
    [
        "\u200b\u200d\u2060",
        "\ufeff",
        "\u00ad",
        "\u3164",
        "\u2800",
        "\ufe0f",
        "\U000e0041",
        "\u202e \n",
    ],
)
def test_a_text_that_nobody_can_see_is_empty(unseen: str) -> None:
    with pytest.raises(RecordError, match="the chosen response is empty"):
        validate(dataclasses.replace(GOOD, responses=text_responses(unseen, "A dog.")))
    with pytest.raises(RecordError, match="turn 0 of the prompt"):
        validate(dataclasses.replace(GOOD, prompt=(text("user", unseen),), images=()))
    assert (
        validate(
            dataclasses.replace(GOOD, responses=text_responses(f"{unseen}!", "\U0001f600"))
        ).chosen.text
        == f"{unseen}!"
    )


@pytest.mark.parametrize(
    "invisible",
    ["\u200b", "\u200d", "\ufeff", "\u00ad", "\u2060", "\u202e", "\0", "\ufe0f", "\U000e0001"],
)
def test_invisible_characters_change_no_shown_word(invisible: str) -> None:
    assert shown_words(f"A {invisible}c{invisible}at.{invisible}") == ["A", "cat."]


def test_white_space_and_fillers_part_words_and_accents_count() -> None:
    assert shown_words("A\u3164cat.\u2800 \u00a0\n") == ["A", "cat."]
    assert shown_words("cafe\u0301") == shown_words("caf\u00e9") != shown_words("cafe")
    assert shown_words("\u200b") == []


@given(st.text(), st.text())
def test_texts_with_equal_words_have_equal_shown_words(first: str, second: str) -> None:
    assert shown_words(first) == shown_words("\n".join(first.split(" ")))
    if first.isalnum() and second.isalnum() and first.isascii() and second.isascii():
        assert (shown_words(first) == shown_words(second)) == (first == second)


def test_a_record_may_hold_ties_lists_and_unknown_attributes() -> None:
    tie = dataclasses.replace(GOOD, ranks=(0, 0))
    ranking = dataclasses.replace(
        GOOD,
        responses=text_responses("A", "B", "C"),
        ranks=(0, 1, 1),
        attributes={"wit": (1.0, 0.5, float("nan"))},
    )
    assert validate(tie) is tie
    assert validate(ranking) is ranking
    assert [record.is_pair for record in (GOOD, tie, ranking)] == [True, False, False]
    assert (ranking.chosen.text, ranking.rejected.text) == ("A", "C")


@given(st.lists(st.integers(-3, 3)))
def test_dense_ranks_keep_order_and_ties_and_have_no_gaps(values: list[int]) -> None:
    ranks = dense_ranks(values)
    assert set(ranks) == set(range(len(set(values))))
    for first, second in zip(values, ranks, strict=True):
        for other_value, other_rank in zip(values, ranks, strict=True):
            assert (first < other_value) == (second < other_rank)
