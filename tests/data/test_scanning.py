"""Scanners in linear time give what the quadratic ways give."""

from __future__ import annotations

import random
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrm.data.scanning import LONG_SEQUENCE, compatibility_form, contents_between
from tests.growth import superlinear

PIECES = ("<a>", "</a>", "<A>", "x", "\n", "<", "</a", ">")
MARKS = "\u0301\u0316\u0345\u0334\u0344\u0f73\u0f75\uff9e\uff9f\u3099\u05b0\u0e38"
LETTERS = "aéがﾊ각ﬁ\u0f71Å \u00c5"


@given(st.lists(st.sampled_from(PIECES)).map("".join), st.sampled_from([0, re.IGNORECASE]))
def test_contents_are_those_of_a_lazy_pattern(text: str, flags: int) -> None:
    expected = re.findall("<a>(.*?)</a>", text, re.DOTALL | flags)
    assert contents_between(text, re.compile("<a>", flags), re.compile("</a>", flags)) == expected


def test_the_compatibility_form_is_nfkc() -> None:
    draw = random.Random(0)
    num_changed = 0
    for _ in range(2000):
        parts = []
        for _ in range(draw.randint(1, 4)):
            parts += draw.choices(LETTERS, k=draw.randint(0, 3))
            parts += draw.choices(
                MARKS, k=draw.choice([0, 2, LONG_SEQUENCE, LONG_SEQUENCE + 1, 80])
            )
        text = "".join(parts)
        expected = unicodedata.normalize("NFKC", text)
        assert compatibility_form(text) == expected
        num_changed += expected != text
    assert num_changed > 1000


@given(st.text())
def test_the_compatibility_form_of_any_text_is_nfkc(text: str) -> None:
    assert compatibility_form(text) == unicodedata.normalize("NFKC", text)


@pytest.mark.parametrize("letter", ["", "a", "é"])
@pytest.mark.parametrize("marks", ["\u0301\u0316", "\u0345\u0301\u0316\u0334", "\u0f73\uff9e"])
def test_the_compatibility_form_takes_linear_time(letter: str, marks: str) -> None:
    def text_of(length: int) -> str:
        return letter + marks * (length // len(marks)) + "a"

    assert superlinear(compatibility_form, text_of) is None
