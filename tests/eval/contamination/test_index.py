"""Words, shingles and hashes: what counts as equal, and how alike two things are."""

from __future__ import annotations

import io
import math
import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mmrm.eval.contamination.index import (
    MIN_SIMILARITY,
    TextIndex,
    correlation,
    fingerprint_image,
    fingerprint_text,
    jaccard,
    perceptual_hash,
    pixel_key,
    shingles,
    similarity,
    words,
)

WORDS = st.lists(st.text("abcäöü0123", min_size=1, max_size=6), min_size=1, max_size=30)
GAPS = st.sampled_from([" ", "\n", ", ", " <image> ", "...\t", " -- ", "\u00a0", "_", " [IMG]\n"])


def as_set(found: list[str]) -> set[tuple[str, ...]]:
    padded = ["", "", *found, "", ""]
    return {tuple(padded[place : place + 3]) for place in range(len(padded) - 2)}


@given(WORDS, st.data())
def test_case_punctuation_and_space_do_not_count(found: list[str], data: st.DataObject) -> None:
    written = [word.upper() if data.draw(st.booleans()) else word for word in found]
    gaps = [data.draw(GAPS) for _ in written]
    assert words("".join(gap + word for gap, word in zip(gaps, written, strict=True))) == found


@given(st.text())
def test_normalising_again_changes_nothing(content: str) -> None:
    once = words(content)
    assert [word for one in once for word in words(one)] == once


def test_forms_of_the_same_character_are_equal() -> None:
    assert words("ﬁne Ｆｕｌｌ ½ e\u0301 Straße") == words("fine full 1⁄2 é STRASSE")
    assert words("图中有几只猫?") == list("图中有几只猫")
    assert words("2.5 cm") != words("25 cm")
    assert fingerprint_text("?! <image>") is None
    assert fingerprint_text("✓", "no") is None


@given(WORDS, WORDS)
def test_jaccard_is_that_of_the_sets(one: list[str], other: list[str]) -> None:
    left, right = as_set(one), as_set(other)
    assert math.isclose(
        jaccard(shingles(one), shingles(other)), len(left & right) / len(left | right)
    )


@given(WORDS, st.integers(0, 29))
def test_one_changed_word_leaves_the_stated_similarity(found: list[str], place: int) -> None:
    distinct = [f"{word}{number}" for number, word in enumerate(found)]
    n = len(distinct)
    other = [*distinct]
    other[place % n] = "zzz"
    assert math.isclose(jaccard(shingles(distinct), shingles(other)), (n - 1) / (n + 5))


@given(WORDS, WORDS)
def test_a_pair_has_no_order_but_both_responses_count(one: list[str], other: list[str]) -> None:
    straight = fingerprint_text(" ".join(one), " ".join(other))
    swapped = fingerprint_text(" ".join(other).upper(), " ".join(one))
    assert straight is not None
    assert swapped is not None
    assert straight.key == swapped.key
    assert similarity(straight, swapped) == 1
    half = fingerprint_text(" ".join(one), "something else")
    assert half is not None
    assert half.key != straight.key
    (a, b), (c, d) = straight.parts, half.parts
    best = max(min(jaccard(a, c), jaccard(b, d)), min(jaccard(a, d), jaccard(b, c)))
    assert math.isclose(similarity(straight, half), best)


def test_the_text_index_finds_what_comparing_all_finds() -> None:
    generator = random.Random(0)
    vocabulary = [f"w{number}" for number in range(60)]
    originals = [
        [generator.choice(vocabulary) for _ in range(generator.randint(3, 60))] for _ in range(60)
    ]
    texts = [
        text for text in (fingerprint_text(" ".join(one)) for one in originals) if text is not None
    ]
    index = TextIndex("question", texts)
    found = 0
    for original in originals:
        edited = [word for word in original if generator.random() > 0.04] + [
            "end"
        ] * generator.randint(0, 2)
        text = fingerprint_text(" ".join(edited))
        assert text is not None
        best = max(similarity(text, other) for other in texts)
        hit = index.find(text)
        assert (hit is not None) == (best >= MIN_SIMILARITY)
        found += hit is not None
        assert hit is None or math.isclose(hit.similarity, best, abs_tol=1e-4)
    assert 10 < found < 60
    assert TextIndex("question", []).find(texts[0]) is None


def test_the_perceptual_hash_is_the_published_one() -> None:
    luma = np.random.default_rng(0).uniform(0, 255, (32, 32)).astype(np.float32)
    turns = [[math.cos(math.pi * k * (2 * x + 1) / 64) for x in range(32)] for k in range(8)]
    lowest = [
        sum(float(luma[y, x]) * turns[v][y] * turns[u][x] for y in range(32) for x in range(32))
        for v in range(8)
        for u in range(8)
    ]
    bits = "".join(str(int(value > np.median(lowest))) for value in lowest)
    assert perceptual_hash(luma) == int(bits, 2)
    assert bits.count("1") == 32


def test_pictures_are_compared_upright_and_by_their_pixels() -> None:
    pixels = (
        np.random.default_rng(1).integers(0, 255, (6, 9, 3), np.uint8).repeat(8, 0).repeat(8, 1)
    )
    image = Image.fromarray(pixels)
    plain, turned, bitmap = io.BytesIO(), io.BytesIO(), io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(plain, "PNG")
    image.transpose(Image.Transpose.ROTATE_90).save(turned, "WEBP", lossless=True, exif=exif)
    image.save(bitmap, "BMP")
    assert len({pixel_key(file.getvalue(), "test") for file in (plain, turned, bitmap)}) == 1
    one, other = (
        fingerprint_image(plain.getvalue(), "test"),
        fingerprint_image(turned.getvalue(), "test"),
    )
    assert one is not None
    assert other is not None
    assert one.hash == other.hash
    assert correlation(one.thumbnail, other.thumbnail) > 0.999
    assert fingerprint_image(_one_colour(), "test") is None


def _one_colour() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (40, 40), "red").save(buffer, "PNG")
    return buffer.getvalue()
