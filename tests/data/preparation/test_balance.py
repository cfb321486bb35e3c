"""Records that are left out so that shortcuts predict nothing, and the shares in the data card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as np_st
from pydantic import ValidationError

from mmrm.data.errors import UserError
from mmrm.data.preparation.balance import balanced, signs_of
from mmrm.data.preparation.mixing import MixtureConfig
from mmrm.data.preparation.row_index import NUM_SHORTCUT_COLUMNS, ShortcutArrays
from mmrm.data.preparation.shortcut_card import ShortcutCounts, shortcut_card
from mmrm.data.text_shortcuts import SHORTCUTS, UNKNOWN
from tests.data.mixtures import everything, mixture, project, row

LENGTH = list(SHORTCUTS).index("length")
sign_arrays = np_st.arrays(
    np.int8,
    st.tuples(st.integers(0, 60), st.integers(1, 3)),
    elements=st.integers(-1, 1),
)


def keys(count: int) -> npt.NDArray[np.uint64]:
    return np.arange(1, count + 1, dtype=np.uint64) * np.uint64(977)


@given(sign_arrays, st.integers(0, 3))
def test_every_pattern_is_kept_as_often_as_its_opposite(
    signs: npt.NDArray[np.int8], seed: int
) -> None:
    is_kept = balanced(signs, keys(len(signs)), seed)
    kept = [tuple(pattern) for pattern in signs[is_kept].tolist()]
    for pattern in {tuple(pattern) for pattern in signs.tolist()}:
        opposite = tuple(-sign for sign in pattern)
        total = [tuple(other) for other in signs.tolist()]
        expected = total.count(pattern)
        if any(pattern):
            expected = min(expected, total.count(opposite))
        assert kept.count(pattern) == expected
    assert (signs[is_kept].sum(axis=0) == 0).all()


@given(sign_arrays, st.integers(0, 3), st.randoms())
def test_what_is_kept_depends_on_content_and_seed_alone(
    signs: npt.NDArray[np.int8], seed: int, random: Any
) -> None:
    order = list(range(len(signs)))
    random.shuffle(order)
    is_kept = balanced(signs, keys(len(signs)), seed)
    assert (balanced(signs[order], keys(len(signs))[order], seed) == is_kept[order]).all()


def test_another_seed_keeps_other_records() -> None:
    signs = np.repeat(np.array([[1], [-1]], np.int8), [200, 50], axis=0)
    first, again, other = (balanced(signs, keys(250), seed) for seed in (0, 0, 1))
    assert (first == again).all()
    assert first.sum() == other.sum() == 100
    assert 60 < (first[:200] & ~other[:200]).sum() * 2 < 100  # 50 · 3/4 = 37.5 on average
    assert first[200:].all()  # all of the rarer sign


def test_unknown_signs_count_as_equal() -> None:
    shortcuts = np.full((2, NUM_SHORTCUT_COLUMNS), UNKNOWN, np.int8)
    shortcuts[1] = 1
    assert signs_of(shortcuts, ["length", "first"]).tolist() == [[0, 0], [1, 1]]


def biased_rows(name: str, longer: int, shorter: int, equal: int) -> list[dict[str, Any]]:
    """Return rows whose chosen response is longer, shorter and equally long in so many of them."""
    pairs = [("a longer text", "text")] * longer + [("text", "a longer text")] * shorter
    pairs += [("text", "also")] * equal
    rows = []
    for index, (chosen, rejected) in enumerate(pairs):
        ending = f"{index:04}"
        rows.append(row(f"{name} {ending}", chosen=chosen + ending, rejected=rejected + ending))
    return rows


def length_of(card: list[ShortcutCounts]) -> ShortcutCounts:
    (counts,) = [counts for counts in card if counts.name == "length"]
    return counts


def test_a_balanced_mixture_has_half_of_the_longer_responses(tmp_path: Path) -> None:
    biased = project(tmp_path, "biased", biased_rows("biased", 60, 20, 10))
    fair = project(tmp_path, "fair", biased_rows("fair", 15, 15, 5))
    plain = mixture(tmp_path, [biased, fair])
    found = mixture(tmp_path, [biased, fair], balance=["length"])
    biased_card, fair_card = found.card().sources
    assert biased_card.left_out == {"unbalanced": 40}
    assert (biased_card.kept, fair_card.kept) == (50, 35)
    assert length_of(plain.card().sources[0].shortcuts.shortcuts).share == 65 / 90
    for card in (biased_card, fair_card):
        assert length_of(card.shortcuts.shortcuts).share == 0.5
    # The other source has its own records in their own order, as before.
    assert found.splits[1].rows.tolist() == plain.splits[1].rows.tolist()
    kept = [record.identity for record in everything(found)]
    before = [record.identity for record in everything(plain)]
    assert kept == [identity for identity in before if identity in set(kept)]
    # Again, the same records in the same order.
    again = mixture(tmp_path, [biased, fair], balance=["length"])
    assert again.splits[0].rows.tolist() == found.splits[0].rows.tolist()
    assert again.order(1).tolist() == found.order(1).tolist()


def test_several_shortcuts_are_balanced_together(tmp_path: Path) -> None:
    rows = biased_rows("one", 60, 40, 0)
    for index in range(50):  # among the longer ones only
        rows[index]["chosen"] = f"**{rows[index]['chosen']}**"
    source = project(tmp_path, "one", rows)
    with pytest.raises(UserError, match=r"two: data.balance \(bold\) would leave none"):
        mixture(tmp_path, [project(tmp_path, "two", rows[:50])], balance=["bold"])
    found = mixture(tmp_path, [source], balance=["length", "bold"])
    # The 50 with (more, more) have no opposite. Of (more, equal) there are 10.
    assert len(found) == 20
    (card,) = found.card().sources
    assert card.left_out == {"unbalanced": 80}


def test_wrong_keys_are_refused(tmp_path: Path) -> None:
    source = project(tmp_path, "one", biased_rows("one", 2, 2, 0))
    with pytest.raises(UserError, match="'first', which is not known in a single record"):
        mixture(tmp_path, [source], balance=["first"])
    with pytest.raises(ValidationError, match="'size' is no shortcut"):
        mixture(tmp_path, [source], balance=["size"])


def test_digests_without_the_key_are_those_of_earlier_versions(tmp_path: Path) -> None:
    settings = {"sources": [project(tmp_path, "one", biased_rows("one", 2, 2, 0))]}
    plain = MixtureConfig.model_validate(settings)
    assert "balance" not in plain.model_dump_json()
    assert MixtureConfig.model_validate({**settings, "balance": []}).digest == plain.digest
    assert MixtureConfig.model_validate({**settings, "balance": ["length"]}).digest != plain.digest


def test_a_generated_source_is_balanced(tmp_path: Path) -> None:
    source = {
        "type": "shapes",
        "level": "demo",
        "rows": 120,
        "courteous_right": 0.8,
        "text_only": 1,
    }
    found = mixture(tmp_path, [source], balance=["length"])
    (split,) = found.splits
    assert split.left_out["unbalanced"] + len(split.rows) == 120
    signs = []
    for record in everything(found):
        signs.append(np.sign(len(record.chosen.text) - len(record.rejected.text)))
    assert sum(signs) == 0
    assert 20 <= len(found) <= 90


def test_sources_state_the_order_of_their_responses(tmp_path: Path) -> None:
    rows = []
    for index in range(8):
        ratings = {"help": [5, 1] if index < 6 else [1, 5]}
        rows.append({"prompt": f"q {index}", "responses": ["one", "two"], "ratings": ratings})
    (card,) = mixture(tmp_path, [project(tmp_path, "one", rows)]).card().sources
    (first,) = [counts for counts in card.shortcuts.shortcuts if counts.name == "first"]
    assert (first.pairs, first.share, first.equal) == (8, 0.75, 0.0)


def test_ties_are_in_no_share(tmp_path: Path) -> None:
    rows = biased_rows("one", 3, 1, 0)
    rows.append({"prompt": "tie", "responses": ["a long text", "text"], "ranks": [0, 0]})
    (card,) = mixture(tmp_path, [project(tmp_path, "one", rows, ties="keep")]).card().sources
    assert length_of(card.shortcuts.shortcuts).pairs == 4


def test_the_card_says_and_saves_shortcuts(tmp_path: Path) -> None:
    card = mixture(tmp_path, [project(tmp_path, "one", biased_rows("one", 60, 30, 10))]).card()
    lines = card.sources[0].shortcut_lines
    assert lines[0] == "one: the longer response is preferred in 65.0 % [55.7, 73.3] (10 % equal)"
    assert "equal in all pairs: lists, headings, bold, code, tables, refusals" in lines[-1]
    card.save(tmp_path / "card.json")
    saved = json.loads((tmp_path / "card.json").read_text(encoding="utf-8"))
    (source,) = saved["sources"]
    assert source["shortcuts"]["shortcuts"][0]["name"] == "length"
    assert source["shortcuts"]["shortcuts"][0]["share"] == 0.65


def shortcut_arrays(signs: npt.NDArray[np.integer]) -> ShortcutArrays:
    """Return the arrays of records with these signs of the shortcut length."""
    arrays = np.full((len(signs), NUM_SHORTCUT_COLUMNS), UNKNOWN, np.int8)
    arrays[:, LENGTH] = signs
    return arrays


@pytest.mark.parametrize(
    ("share", "pairs_per_prompt"), [(0.5, 1), (0.63, 1), (0.63, 5), (0.9, 5), (0.97, 3)]
)
def test_intervals_hold_the_true_share(share: float, pairs_per_prompt: int) -> None:
    """With 95 %, also if the pairs of a prompt depend on one another, and ties count half.

    A prompt is one that favours longer responses in all its pairs with a probability of one half.
    """
    generator = np.random.default_rng(0)
    num_prompts = 120
    prompts = np.repeat(np.arange(1, num_prompts + 1), pairs_per_prompt).astype(np.uint64)
    no_images = np.zeros(len(prompts), np.uint64)
    num_held = 0
    for _ in range(400):
        of_prompt = generator.random(num_prompts) < share
        of_pair = generator.random(len(prompts)) < share
        is_copied = np.repeat(generator.random(num_prompts) < 0.5, pairs_per_prompt)
        is_longer = np.where(is_copied, np.repeat(of_prompt, pairs_per_prompt), of_pair)
        is_equal = generator.random(len(prompts)) < 0.1
        signs = np.where(is_equal, 0, np.where(is_longer, 1, -1))
        card = shortcut_card(shortcut_arrays(signs), no_images, prompts)
        counts = length_of(card.shortcuts)
        true_share = 0.9 * share + 0.05
        num_held += counts.low <= true_share <= counts.high
    assert 0.93 <= num_held / 400 <= 0.99


def test_pairs_of_one_image_are_one_cluster() -> None:
    signs = np.array([1] * 12 + [-1] * 8)
    prompts = np.arange(20, dtype=np.uint64) + np.uint64(1)
    images = np.repeat(np.arange(4, dtype=np.uint64) + np.uint64(1), 5)
    alone = length_of(
        shortcut_card(shortcut_arrays(signs), np.zeros(20, np.uint64), prompts).shortcuts
    )
    together = length_of(shortcut_card(shortcut_arrays(signs), images, prompts).shortcuts)
    assert alone.share == together.share == 0.6
    assert together.high - together.low > 1.5 * (alone.high - alone.low)


def test_no_records_have_no_shares() -> None:
    empty = np.empty((0, NUM_SHORTCUT_COLUMNS), np.int8)
    card = shortcut_card(empty, np.empty(0, np.uint64), np.empty(0, np.uint64))
    assert (card.shortcuts, card.overlap) == ([], None)
    assert card.lines("one") == []
