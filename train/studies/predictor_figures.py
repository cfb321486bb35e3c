"""Arithmetic of figures over questions: their items, and the two halves of the questions."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mmrm.data.arrays import Floats, Ints
from mmrm.eval.results.intervals import cluster_codes


def items_of_rows(rows: Sequence[Mapping[str, Any]]) -> Ints:
    """Return the number of each row's item, shape (rows,), for rows of eval/sample.py.

    Questions about one image are not independent, so they are of one item. Questions without an
    image are of one item if they have the same prompt.
    """
    names_by_row = []
    for row in rows:
        images = [("image", json.dumps(image)) for image in row.get("images") or []]
        names_by_row.append(images or [("prompt", json.dumps(row["prompt"]))])
    return cluster_codes(names_by_row)


def means_of_halves(by_question: Sequence[Mapping[str, float]], questions: Sequence[str]) -> Floats:
    """Return the mean of each half of the questions for each model, shape (2, models).

    A figure and a gain from the same answers correlate by the chance of these answers alone: the
    correlation over twelve equal models is about 0.5. Predicting from one half of the questions and
    measuring on the other half avoids it.

    Args:
        by_question: A figure of each question, for each model; models may lack questions.
        questions: All questions, for the figure and the gain alike. Every second one belongs to the
            second half.

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
    has_first_half = any(name in values_by_question for name in ordered[::2])
    has_second_half = any(name in values_by_question for name in ordered[1::2])
    return has_first_half and has_second_half
