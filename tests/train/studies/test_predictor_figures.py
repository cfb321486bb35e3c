"""The arithmetic of predictors: which questions are independent, their halves, and figures of rows."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrm.data.preference import Preference, text, text_pair
from mmrm.eval.results.statistics import calibration
from mmrm.train.studies.predictor_figures import (
    QuestionClusters,
    items_of_rows,
    names_of_question,
    names_of_row,
    values_of_benchmark,
)


def data_uri(content: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


def test_questions_about_one_image_are_of_one_item() -> None:
    rows: list[dict[str, Any]] = [
        {"prompt": "how many?", "images": [data_uri(b"one")]},
        {"prompt": "which colour?", "images": [data_uri(b"one")]},
        {"prompt": "which colour?", "images": [data_uri(b"two")]},
        {"prompt": "what is 2 + 2?", "images": []},
        {"prompt": "What is  2 + 2?"},
        {"prompt": "what is 3 + 3?"},
    ]
    items = items_of_rows(rows)
    assert items[0] == items[1]
    assert items[3] == items[4]
    assert len(set(items.tolist())) == 4


def test_a_record_and_a_row_of_its_answers_have_the_same_names() -> None:
    """A benchmark row, a question, and the file of its answers are the same question."""
    content: Any = [{"type": "image"}, {"type": "text", "text": "how many?"}]
    record = Preference(
        "one", ({"role": "user", "content": content},), text_pair("1", "2"), (b"picture",)
    )
    row = {"prompt": "how many?", "images": [data_uri(b"picture")]}
    assert names_of_question(record) == names_of_row(row)
    without = Preference("two", (text("user", "How many?"),), text_pair("1", "2"))
    assert names_of_question(without) == names_of_row({"prompt": "how  many?"})


@given(
    st.lists(st.lists(st.sampled_from("abcdefghijklmnop"), min_size=1, max_size=2), min_size=1),
    st.randoms(),
)
def test_no_image_is_in_both_halves_whatever_the_order(
    questions: list[list[str]], random: Any
) -> None:
    names = [tuple(dict.fromkeys(question)) for question in questions]
    clusters = QuestionClusters.of_questions(names)
    half_by_image: dict[str, int] = {}
    for question, cluster in zip(names, clusters.clusters_of(names).tolist(), strict=True):
        for image in question:
            assert (
                half_by_image.setdefault(image, clusters.halves[cluster])
                == clusters.halves[cluster]
            )
    counts = np.bincount(clusters.halves, minlength=2)
    assert counts[0] - counts[1] in (0, 1)
    shuffled = random.sample(names, len(names))
    again = QuestionClusters.of_questions(shuffled)
    for question in names:
        [one] = clusters.clusters_of([question])
        [other] = again.clusters_of([question])
        assert clusters.halves[one] == again.halves[other]


def record(key: str, **columns: Any) -> dict[str, Any]:
    plain = {"key": key, "better": 0, "votes": [], "margin": None, "tie": False, "correct": False}
    return plain | columns


def figure(records: list[dict[str, Any]], name: str) -> float:
    clusters = {one["key"]: index for index, one in enumerate(records)}
    values = values_of_benchmark(records, clusters)[name]
    return float(values.figures(np.ones((1, len(records))))[0])


def test_an_accuracy_counts_half_a_point_for_a_tie() -> None:
    records = [record("a", correct=True), record("b", tie=True), record("c"), record("d")]
    assert figure(records, "accuracy") == 1.5 / 4
    names = values_of_benchmark(records, dict.fromkeys("abcd", 0)).keys()
    assert list(names) == ["accuracy"]  # without margins and votes there is nothing else


def test_the_calibration_error_is_that_of_the_result() -> None:
    margins = np.random.default_rng(0).normal(0.3, 1.5, 60)
    margins[0] = 0.0
    records = [record(str(index), margin=margin) for index, margin in enumerate(margins.tolist())]
    expected = calibration(margins)
    assert expected is not None
    assert figure(records, "ECE") == pytest.approx(expected.ece)


def test_confidence_is_the_probability_of_a_soft_verdict_or_of_stated_deviations() -> None:
    soft = [record("a", margin=0.6, probabilities=[0.8, 0.2])]
    assert figure(soft, "ECE") == pytest.approx(1 - 0.8)
    stated = [record("a", margin=-1.0, std=[0.6, 0.8])]
    assert figure(stated, "ECE") == pytest.approx(0.8413, abs=1e-4)  # one standard deviation


def test_orders_are_consistent_if_both_prefer_the_same_response() -> None:
    def votes(first: Any, second: Any) -> list[dict[str, Any]]:
        return [{"first": 0, "names": first}, {"first": 1, "names": second}]

    records = [
        record("a", votes=votes(0, 0)),
        record("b", votes=votes(0, 1)),
        record("c", votes=votes(None, None)),
        record("d", votes=votes(1, 1) + votes(1, 0)),
    ]
    assert figure(records, "order consistency") == (1 + 0 + 0 + 0.5) / 4
    softly = [
        {"first": 0, "names": None, "probability_first": 0.7},
        {"first": 1, "names": None, "probability_first": 0.4},
    ]
    assert figure([record("a", votes=softly)], "order consistency") == 1.0
    one_order = [record("a", votes=[{"first": 0, "names": 0}, {"first": 0, "names": 0}])]
    assert "order consistency" not in values_of_benchmark(one_order, {"a": 0})
