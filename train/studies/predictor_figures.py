"""Which figures of reward models go with what the models gain: the arithmetic of train/predictors.py."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mmrm.data.arrays import Floats, Ints
from mmrm.eval.results.correlation import Correlation
from mmrm.eval.results.intervals import cluster_codes


def items_of_rows(rows: Sequence[Mapping[str, Any]]) -> Ints:
    """Return the number of each row's item, shape (rows,), for rows of eval/sample.py.

    Questions about one image are not independent, so they are of one item. A question without an
    image is of an item with the same prompt.
    """
    names_by_row = []
    for row in rows:
        images = [("image", json.dumps(image)) for image in row.get("images") or []]
        names_by_row.append(images or [("prompt", json.dumps(row["prompt"]))])
    return cluster_codes(names_by_row)


def means_of_halves(by_question: Sequence[Mapping[str, float]], questions: Sequence[str]) -> Floats:
    """Return the mean of each half of the questions for each model, shape (2, models).

    A figure and a gain from the same answers go together by the chance of these answers alone: of twelve equal models as 0.5.
    Predicting from one half and measuring on the other avoids it.

    Args:
        by_question: A figure of each question, for each model; models may lack questions.
        questions: All questions, for the figure and the gain alike; every second one is of the second half.

    Raises:
        ValueError: If a model has no question of a half.
    """
    half_by_question = {name: index % 2 for index, name in enumerate(sorted(questions))}
    means = np.zeros((2, len(by_question)))
    for model, values_by_question in enumerate(by_question):
        for half in (0, 1):
            values = [
                value
                for question, value in values_by_question.items()
                if half_by_question[question] == half
            ]
            if not values:
                raise ValueError("a model has no question of one half; required is at least one.")
            means[half, model] = np.mean(values)
    return means


def has_both_halves(values_by_question: Mapping[str, float], questions: Sequence[str]) -> bool:
    """Return True if a model has a value for a question of either half."""
    ordered = sorted(questions)
    return any(name in values_by_question for name in ordered[::2]) and any(
        name in values_by_question for name in ordered[1::2]
    )


def coefficients(found: Correlation) -> list[str]:
    """Return Pearson's and Spearman's coefficients with their intervals as texts, and the range without one recipe."""
    pearson, spearman = (
        f"{point:+.2f} [{low:+.2f}, {high:+.2f}]"
        for point, low, high in (found.pearson, found.spearman)
    )
    return [pearson, spearman, range_without_one(found.without)]


def range_without_one(without: Mapping[str, Sequence[float]]) -> str:
    """Return the lowest and the highest of Pearson's coefficients without one recipe, with the recipes that are left out."""
    if not without:
        return "–"
    lowest = min(without, key=lambda name: without[name][0])
    highest = max(without, key=lambda name: without[name][0])
    return f"{without[lowest][0]:+.2f} (without {lowest}) to {without[highest][0]:+.2f} (without {highest})"


def table_without_each(correlations: Mapping[str, Correlation]) -> list[list[str]]:
    """Return the cells of a table in Markdown with Pearson's coefficient of each figure without each recipe in turn."""
    recipes = list(dict.fromkeys(name for one in correlations.values() for name in one.without))
    rows = [["without", *correlations], ["---", *["--:"] * len(correlations)]]
    for recipe in recipes:
        cells = [
            f"{one.without[recipe][0]:+.2f}" if recipe in one.without else "–"
            for one in correlations.values()
        ]
        rows.append([recipe, *cells])
    return rows
