"""The figures of the embedded backbone by question type."""

from __future__ import annotations

from mmrm.eval.studies.answer_accuracy import figures_by_type, figures_table

SCORES = [
    {"answer": 1.0, "verdict": 0.5, "likelihood": 0.0},
    {"answer": 0.0, "verdict": 1.0, "likelihood": 1.0},
    {"answer": 1.0, "verdict": 1.0, "likelihood": 1.0},
]


def test_figures_are_means_by_question_type_and_of_all() -> None:
    figures = figures_by_type(["counting", "attribute", "counting"], SCORES)
    assert list(figures) == ["attribute", "counting", "all"]
    assert figures["counting"] == {"n": 2, "answer": 1.0, "verdict": 0.75, "likelihood": 0.5}
    assert figures["all"]["n"] == 3


def test_the_table_has_intervals() -> None:
    figures = figures_by_type(["counting", "attribute", "counting"], SCORES)
    table = figures_table(figures, "title")
    cells = table.records()[1]
    assert (cells["question"], cells["n"]) == ("counting", "2")
    assert cells["likelihood [95 %]"] == "50.0 [9.5, 90.5]"
