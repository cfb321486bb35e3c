"""Rated answers: known truth, claims and wording that are independent, ratings by the stated rule."""

from __future__ import annotations

import hashlib
import io
import re
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mmrm.data.preference import CONTROL_TOKENS, validate
from mmrm.data.synthetic.rated_world import (
    CLAIMS,
    MAX_RESPONSES,
    RATED_REVISION,
    SURE_SHARE,
    RatedItem,
    RatedResponse,
    RatedShapesGenerator,
    RatingRule,
)
from mmrm.data.synthetic.scenes import LEVELS, SPLITS, bucket, draw
from mmrm.data.synthetic.wording import location, with_article

levels = st.sampled_from(sorted(LEVELS))
splits = st.sampled_from(sorted(SPLITS))

STYLE = re.compile(r"(?P<sure>sure, )?(?P<hedge>i think )?(?P<sentence>.*)")


def generator(
    level: str = "demo",
    seed: int = 0,
    split: str = "train",
    num_responses: int = 4,
    courtesy: float = 0.0,
    noise: float = 0.0,
    ties: bool = True,
) -> RatedShapesGenerator:
    """Return a generator with these settings."""
    rule = RatingRule(courtesy, noise)
    return RatedShapesGenerator(level, seed, split, num_responses, rule, ties)


def claims_read_from_text(item: RatedItem, response: RatedResponse) -> tuple[bool, ...]:
    """Return whether each claim of an answer is right, read from its text and the scene."""
    colour = re.search(r"the (\w+) thing", item.question)
    assert colour is not None
    subjects = [thing for thing in item.scene.things if thing.colour == colour[1]]
    assert len(subjects) == 1  # the question is about one thing
    shape_right = f" {with_article(subjects[0].what)}, " in response.text
    count_right = f" {len(item.scene.things)} things" in response.text
    place = location(item.scene, subjects[0].cell)
    place_right = re.search(rf" {place}(, and|$)", response.text) is not None
    return shape_right, count_right, place_right


@settings(max_examples=150, deadline=None)
@given(
    levels,
    splits,
    st.integers(0, 1000),
    st.integers(0, 1 << 40),
    st.integers(2, MAX_RESPONSES),
    st.sampled_from([0.0, 0.5, 1.5]),
    st.sampled_from([0.0, 0.5, 2.0]),
)
def test_every_index_holds_a_whole_record(
    level: str, split: str, seed: int, index: int, num_responses: int, courtesy: float, noise: float
) -> None:
    world = generator(level, seed, split, num_responses, courtesy, noise)
    item = world.item(index)
    assert bucket(item.scene) in SPLITS[split]
    texts = [response.text for response in item.responses]
    assert len(set(texts)) == num_responses
    for response in item.responses:
        assert claims_read_from_text(item, response) == response.is_right
        assert (response.text in item.answers) == (response.quality == len(CLAIMS))
        style = STYLE.fullmatch(response.text)
        assert style is not None
        assert (style["sure"] is not None) == response.style.is_courteous
        assert (style["hedge"] is not None) == response.style.is_hedged
    record = validate(item.preference(), CONTROL_TOKENS)
    assert sorted(response.text for response in record.responses) == sorted(texts)
    assert list(record.attributes) == [*CLAIMS, "wording", "quality", "rating"]
    assert list(record.attributes["rating"]) == sorted(record.attributes["rating"], reverse=True)
    by_text = {response.text: response for response in item.responses}
    for place, shown in enumerate(record.responses):
        response = by_text[shown.text]
        stated = [values[place] for values in record.attributes.values()]
        wording = float(response.style.is_courteous)
        assert stated == [
            *map(float, response.is_right),
            wording,
            response.quality,
            response.rating,
        ]
    assert world.item(index) == item


@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize("courtesy", [0.0, 0.5, 1.5])
def test_claims_are_right_half_of_the_time_whatever_the_wording(
    ties: bool, courtesy: float
) -> None:
    """Chi-square over the 4 x 12 combinations of quality and wording; 33 degrees of freedom."""
    world = generator(courtesy=courtesy, ties=ties)
    num_records = 1500
    responses = [
        response for index in range(num_records) for response in world.item(index).responses
    ]
    for claim in range(len(CLAIMS)):
        share = np.mean([response.is_right[claim] for response in responses])
        assert abs(share - 0.5) < 0.03, (CLAIMS[claim], share)
    for wording in ("is_courteous", "is_hedged"):
        share = np.mean([getattr(response.style, wording) for response in responses])
        assert abs(share - 0.5) < 0.03, (wording, share)
    counts = Counter((response.quality, tuple(response.style)) for response in responses)
    qualities = Counter(response.quality for response in responses)
    styles = Counter(tuple(response.style) for response in responses)
    chi_square = 0.0
    for quality, num_of_quality in qualities.items():
        for style, num_of_style in styles.items():
            expected = num_of_quality * num_of_style / len(responses)
            chi_square += (counts[quality, style] - expected) ** 2 / expected
    degrees = (len(qualities) - 1) * (len(styles) - 1)
    assert degrees == 3 * 11
    assert chi_square < 70  # the chance of more is 2e-4 for independent draws


def test_claims_of_one_answer_are_independent_of_each_other_and_of_other_answers() -> None:
    world = generator(num_responses=2)
    combinations_of_claims: Counter[tuple[bool, ...]] = Counter()
    for index in range(2000):
        first, second = world.item(index).responses
        combinations_of_claims[first.is_right + second.is_right] += 1
    expected = 2000 / 64
    assert len(combinations_of_claims) == 64
    chi_square = sum(
        (count - expected) ** 2 / expected for count in combinations_of_claims.values()
    )
    assert chi_square < 111  # 63 degrees of freedom: the chance of more is 2e-4


def test_ties_have_the_stated_share() -> None:
    world = generator(num_responses=4)
    num_pairs = 0
    num_tied = 0
    for index in range(1000):
        record = world.item(index).preference()
        for first, second in combinations(record.ranks, 2):
            num_pairs += 1
            num_tied += first == second
    assert abs(num_tied / num_pairs - 5 / 16) < 0.025


@pytest.mark.parametrize(
    ("num_responses", "courtesy", "noise"), [(2, 0, 0), (4, 0.5, 0), (8, 0, 1)]
)
def test_without_ties_all_ranks_differ(num_responses: int, courtesy: float, noise: float) -> None:
    world = generator(num_responses=num_responses, courtesy=courtesy, noise=noise, ties=False)
    for index in range(100):
        record = world.item(index).preference()
        assert record.ranks == tuple(range(num_responses))
        assert list(record.attributes["rating"]) == sorted(
            set(record.attributes["rating"]), reverse=True
        )


def test_ratings_follow_the_rule() -> None:
    """Rating minus its mean is normal, with the deviation of the answer's wording."""
    rule = RatingRule(courtesy=0.75, noise=0.8)
    world = generator(courtesy=rule.courtesy, noise=rule.noise)
    errors_by_hedge: dict[bool, list[float]] = {True: [], False: []}
    for index in range(1000):
        for response in world.item(index).responses:
            mean = response.quality + 0.75 * response.style.is_courteous
            errors_by_hedge[response.style.is_hedged].append(response.rating - mean)
    for is_hedged, errors in errors_by_hedge.items():
        deviation = 0.8 if is_hedged else 0.8 * SURE_SHARE
        standardised = np.array(errors) / deviation
        assert abs(standardised.mean()) < 0.05
        assert abs(standardised.std() - 1) < 0.05
        assert abs(np.mean(np.abs(standardised) < 1) - 0.683) < 0.02
        assert abs(np.mean(np.abs(standardised) < 2) - 0.954) < 0.01


def test_splits_share_no_scene() -> None:
    scenes_by_split: dict[str, set[str]] = {}
    for split in SPLITS:
        things = set()
        for seed in (0, 1):
            world = generator(seed=seed, split=split)
            things |= {repr(world.item(index).scene.things) for index in range(300)}
        scenes_by_split[split] = things
    for first, second in combinations(SPLITS, 2):
        assert not scenes_by_split[first] & scenes_by_split[second]


def test_right_and_wrong_facts_cannot_be_told_apart_without_the_image() -> None:
    """Every shape, count and place is claimed as often rightly as wrongly."""
    world = generator("medium")
    rights: Counter[str] = Counter()
    claimed: Counter[str] = Counter()
    words = [with_article(shape) for shape in LEVELS["medium"].shapes]
    words += [f"{count} things" for count in (2, 3, 4)]
    words += [f"at the {place}" for place in LEVELS["medium"].places or ()]
    index_of_claim = {**dict.fromkeys(words[:4], 0), **dict.fromkeys(words[4:7], 1)}
    for index in range(2000):
        for response in world.item(index).responses:
            for word in words:
                if re.search(rf" {word}(,|$)", response.text):
                    claimed[word] += 1
                    rights[word] += response.is_right[index_of_claim.get(word, 2)]
    assert set(claimed) == set(words)
    for word in words:
        assert abs(rights[word] / claimed[word] - 0.5) < 0.06, word


def test_the_image_is_of_the_scene() -> None:
    item = generator().item(3)
    image = Image.open(io.BytesIO(item.preference().images[0]))  # type: ignore[arg-type]
    assert image.tobytes() == draw(item.scene).tobytes()


def digest_of_rated_records() -> str:
    """Return a digest of records of every level and of several settings."""
    digest = hashlib.blake2b(digest_size=8)
    for level in sorted(LEVELS):
        for world in (
            generator(level),
            generator(level, 3, "benchmark", 8, 0.5, 0.7, ties=False),
            generator(level, 1, "validation", 2, 0.0, 0.0, ties=False),
        ):
            for index in range(15):
                record = world.item(index).preference()
                image = Image.open(io.BytesIO(record.images[0]))  # type: ignore[arg-type]
                texts = tuple(response.text for response in record.responses)
                digest.update(repr((record.prompt, texts, record.ranks)).encode())
                digest.update(repr((dict(record.attributes), record.truth)).encode())
                digest.update(image.tobytes())
    return digest.hexdigest()


def test_the_rated_records_belong_to_their_revision() -> None:
    """If this fails, change `RATED_REVISION` too: a run must not resume with other data."""
    assert (RATED_REVISION, digest_of_rated_records()) == ("7c1d40e2a95b8f36", "5aaaf13a755aca02")


def test_the_fingerprint_depends_on_every_setting_but_seed_and_split() -> None:
    first = generator().fingerprint()
    assert generator(seed=5, split="benchmark").fingerprint() == first
    others = [
        generator("medium"),
        generator(num_responses=3),
        generator(courtesy=0.5),
        generator(noise=0.5),
        generator(ties=False),
    ]
    fingerprints = {world.fingerprint() for world in others}
    assert len(fingerprints | {first}) == len(others) + 1
