"""Figures over questions: which questions are independent, and means over halves of them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mmrm.data.arrays import Floats, Ints
from mmrm.eval.results.intervals import cluster_codes


def items_of_rows(rows: Sequence[Mapping[str, Any]]) -> Ints:
    """Return the number of the item to which each question belongs, shape (rows,).

    Questions of one item are not independent. Questions about one image are of one item. Questions
    without an image are of one item if they have the same prompt.

    Args:
        rows: Rows of eval/sample.py, one for each question.
    """
    names_by_row = []
    for row in rows:
        image_names = [("image", json.dumps(image)) for image in row.get("images") or []]
        names_by_row.append(image_names or [("prompt", json.dumps(row["prompt"]))])
    return cluster_codes(names_by_row)


def means_of_halves(by_question: Sequence[Mapping[str, float]], questions: Sequence[str]) -> Floats:
    """Return each model's mean of a figure over either half of the questions, shape (2, models).

    A figure and a gain that come from the same answers correlate even if all models are equal: the
    correlation over twelve equal models is about 0.5. A study avoids this if it takes the figure
    from one half of the questions and the gain from the other half.

    Args:
        by_question: The figure of each question, for each model. Models may lack questions.
        questions: The names of all questions. In sorted order, every second one belongs to the
            second half.

    Raises:
        ValueError: If a model has no question of a half.
    """
    half_by_question = {name: index % 2 for index, name in enumerate(sorted(questions))}
    means = np.zeros((2, len(by_question)))
    for model_index, values_by_question in enumerate(by_question):
        for half in (0, 1):
            values = [
                value
                for question, value in values_by_question.items()
                if half_by_question[question] == half
            ]
            if not values:
                raise ValueError("a model has no question of one half; required is at least one.")
            means[half, model_index] = np.mean(values)
    return means


def has_both_halves(values_by_question: Mapping[str, float], questions: Sequence[str]) -> bool:
    """Return True if a model has values in both halves of the questions of `means_of_halves`."""
    ordered = sorted(questions)
    has_first_half = any(name in values_by_question for name in ordered[::2])
    has_second_half = any(name in values_by_question for name in ordered[1::2])
    return has_first_half and has_second_half
