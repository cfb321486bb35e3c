"""What shortcuts count in a text, and how responses are compared by them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrm.data.preference import Preference, text, text_responses
from mmrm.data.text_shortcuts import (
    REFUSAL_PHRASES,
    SHORTCUTS,
    UNKNOWN,
    MeasuredResponse,
    compare,
    measured_pair,
    overlap,
    require_shortcuts,
    signs,
    words_of,
)

plain_words = st.lists(st.sampled_from(["cat", "dog", "red", "two"]), max_size=6)
MARKDOWN = """# Title

- one
* two
 3. three
4) four
-not an item
**bold** and __also bold__, not ** this **
| a | b |
|---|---|
```python
- in code
```
"""


def amount(name: str, content: str, prompt: str = "", position: int | None = None) -> float | None:
    """Return what a shortcut measures of a text."""
    response = MeasuredResponse(content, words_of(content), words_of(prompt), position)
    return SHORTCUTS[name].measure(response)


def test_markdown_is_counted() -> None:
    counts = {name: amount(name, MARKDOWN) for name in SHORTCUTS}
    assert counts["lists"] == 5  # also the one in the code
    assert counts["headings"] == 1
    assert counts["bold"] == 3
    assert counts["tables"] == 2
    assert counts["code"] == 1
    assert counts["length"] == len(MARKDOWN)
    assert counts["refusals"] == 0
    assert counts["first"] is None


@given(plain_words)
def test_plain_words_have_no_format(words: list[str]) -> None:
    content = " ".join(words)
    formats = ("lists", "headings", "bold", "code", "tables", "refusals")
    assert [amount(name, content) for name in formats] == [0] * 6


@given(plain_words, st.integers(0, 5), st.integers(0, 5), st.integers(0, 5), st.integers(0, 5))
def test_added_format_is_counted_once_each(
    words: list[str], items: int, headings: int, bold: int, rows: int
) -> None:
    lines = [" ".join(words), *["- item"] * items, *["## head"] * headings]
    lines += [*["**strong**"] * bold, *["| 1 | 2 |"] * rows]
    content = "\n".join(lines)
    counts = [amount(name, content) for name in ("lists", "headings", "bold", "tables")]
    assert counts == [items, headings, bold, rows]


@given(st.integers(0, 6))
def test_blocks_of_code_are_pairs_of_fences(fences: int) -> None:
    assert amount("code", "```\n" * fences) == (fences + 1) // 2


@given(st.lists(st.sampled_from(REFUSAL_PHRASES), max_size=4))
def test_phrases_of_refusals_are_counted(phrases: list[str]) -> None:
    content = ". ".join(phrases)
    assert amount("refusals", content) == len(phrases)
    assert amount("refusals", content.upper().replace("'", "’")) == len(phrases)


@given(plain_words, plain_words)
def test_overlap_with_the_prompt_is_a_share_of_the_response(
    prompt: list[str], words: list[str]
) -> None:
    shared = amount("prompt_words", " ".join(words), prompt=" ".join(prompt))
    different = set(words)
    expected = len(different & set(prompt)) / len(different) if different else 0.0
    assert shared == expected


@given(plain_words, plain_words)
def test_overlap_of_responses_is_symmetric_and_one_for_equal_words(
    first: list[str], second: list[str]
) -> None:
    share = overlap(frozenset(first), frozenset(second))
    assert share == overlap(frozenset(second), frozenset(first))
    assert 0 <= share <= 1
    assert (share == 1) == (set(first) == set(second))


@given(st.none() | st.integers(0, 3), st.none() | st.integers(0, 3))
def test_a_comparison_is_a_sign(more: int | None, less: int | None) -> None:
    if more is None or less is None:
        assert compare(more, less) == UNKNOWN
    else:
        assert compare(more, less) == -compare(less, more)
        assert (compare(more, less) == 1) == (more > less)


def record(chosen: str, rejected: str, positions: tuple[int, ...] = ()) -> Preference:
    """Return a pair about a red cat."""
    prompt = (text("user", "is the cat red?"),)
    return Preference("r", prompt, text_responses(chosen, rejected), positions=positions)


@given(st.text(max_size=40), st.text(max_size=40), st.sampled_from([(), (0, 1), (1, 0)]))
def test_exchanged_responses_have_opposite_signs(
    chosen: str, rejected: str, positions: tuple[int, ...]
) -> None:
    forward = signs(*measured_pair(record(chosen, rejected, positions)))
    backward = signs(*measured_pair(record(rejected, chosen, positions[::-1])))
    for sign, opposite in zip(forward, backward, strict=True):
        assert sign == opposite == UNKNOWN or sign == -opposite


def test_the_signs_of_a_pair() -> None:
    by_name = dict(
        zip(SHORTCUTS, signs(*measured_pair(record("no, **blue**", "the cat is red"))), strict=True)
    )
    assert by_name["length"] == -1
    assert by_name["bold"] == 1
    assert by_name["prompt_words"] == -1
    assert by_name["lists"] == 0
    assert by_name["first"] == UNKNOWN
    first = signs(*measured_pair(record("yes", "no", (0, 1))))
    assert first[list(SHORTCUTS).index("first")] == 1


@pytest.mark.parametrize(
    ("names", "words"), [(["lenght"], "'lenght' is no shortcut"), (["bold", "bold"], "twice")]
)
def test_unknown_and_repeated_names_are_refused(names: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        require_shortcuts(names)
