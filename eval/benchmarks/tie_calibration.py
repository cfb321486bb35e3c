"""Accuracies of score differences on pairs that may be labelled as ties.

A pair of responses has a label: the first is better, the second is better, or both are equally
good. A judge has a score for each response, and its verdict on a pair is the difference of the two
scores. The accuracy with ties calls a pair a tie if the difference is at most a threshold, and
takes the threshold at which most verdicts are right (Deutsch et al., 2023, arXiv 2305.14324). The
accuracy without ties leaves tied pairs out.

Two released scorers compute the accuracy with ties in different ways:

- `calc_accuracy_with_ties_for_edit_reward_bench` in EditReward/evaluate/eval_bench.py of
  github.com/TIGER-AI-Lab/EditReward at edb027e tries the threshold 0 and every difference:
  `best_tie_threshold`.
- `calc_accuracy_with_ties` in calc_accuracy.py of github.com/KwaiVGI/VideoAlign at 219ab9d, of
  which EditReward has a copy, calls the pairs ties one after another: `accuracy_with_ties_one_by_one`.
  The two agree if all differences are distinct and the highest accuracy needs a tie.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mmrm.data.arrays import Floats

Flags = NDArray[np.bool_]

PairLabel = Literal[1, -1, 0] | None
"""The label of a pair: 1 if the first response is better, -1 if the second is, 0 for a tie. None is
a missing label, which no verdict agrees with."""


@dataclass(frozen=True, slots=True)
class TieThreshold:
    """The threshold at which most verdicts are right, and the accuracy at this threshold."""

    accuracy: float
    threshold: float | None
    """The largest difference that is a tie. None if no pair is a tie, not even one of equal
    scores."""


def best_tie_threshold(labels: Sequence[PairLabel], differences: Sequence[float]) -> TieThreshold:
    """Return the threshold at which most verdicts are right; the lowest of several equal ones.

    The thresholds are 0 and the absolute value of every difference. A NaN difference is never a tie
    and never right. If there is one, the released scorer also tries a threshold at which no pair is
    a tie. It is tried last here, and at no certain place there.

    Args:
        labels: The label of each pair, at least one.
        differences: The score of the first response of each pair minus the score of the second.
    """
    differences_array = np.array(differences, dtype=np.float64)
    sizes = np.abs(differences_array)
    sizes_of_ties = _sorted_numbers(sizes[_is_tie(labels)])
    sizes_of_right = _sorted_numbers(sizes[_names_the_better(labels, differences)])

    thresholds = np.unique(np.append(_sorted_numbers(sizes), 0.0))
    # At a threshold, tied pairs up to it are right, and pairs in the right order above it.
    num_right_ties = np.searchsorted(sizes_of_ties, thresholds, side="right")
    num_no_longer_right = np.searchsorted(sizes_of_right, thresholds, side="right")
    num_right = num_right_ties + len(sizes_of_right) - num_no_longer_right
    best = int(np.argmax(num_right))  # the first of several
    if np.isnan(sizes).any() and len(sizes_of_right) > num_right[best]:
        return TieThreshold(len(sizes_of_right) / len(labels), None)
    return TieThreshold(int(num_right[best]) / len(labels), float(thresholds[best]))


def accuracy_with_ties_one_by_one(
    labels: Sequence[PairLabel], differences: Sequence[float]
) -> float:
    """Return the accuracy with ties as VideoAlign's script computes it.

    The pairs become ties one after another, from the smallest difference on, and the result is the
    highest accuracy on the way. Two properties of the script follow:

    - If several pairs have equal differences, some of them are ties at a time when others are not.
      The result then depends on the order of the pairs, and it may be higher than the accuracy at
      any threshold. Example: labels (0, 1) and differences (0.5, 0.5) give 1.0, and labels (1, 0)
      give 0.5.
    - At least one pair is a tie. Example: labels (1, -1) and differences (0.5, -0.6) give 0.5.

    A NaN difference is never a tie and never right.

    Args:
        labels: The label of each pair, at least one.
        differences: The score of the first response of each pair minus the score of the second.
    """
    num_right = int(_names_the_better(labels, differences).sum())
    highest = -math.inf
    pairs = zip(labels, differences, strict=True)
    # The same sort as in the script, because NaN differences decide the order of other pairs.
    for label, difference in sorted(pairs, key=lambda pair: abs(pair[1])):
        if label == 0 and not math.isnan(difference):
            num_right += 1
        elif label is not None and label * difference > 0:
            num_right -= 1
        highest = max(highest, num_right / len(labels))
    return highest


def accuracy_without_ties(
    labels: Sequence[PairLabel], differences: Sequence[float]
) -> float | None:
    """Return the share of pairs in the right order among the pairs that are not labelled as ties.

    A pair of equal scores is wrong. The released scorers count a pair without a label as wrong, and
    so does this function. The result is None if all pairs are labelled as ties; the scorers then
    divide by zero.

    Args:
        labels: The label of each pair.
        differences: The score of the first response of each pair minus the score of the second.
    """
    num_not_tied = len(labels) - int(_is_tie(labels).sum())
    if num_not_tied == 0:
        return None
    return int(_names_the_better(labels, differences).sum()) / num_not_tied


def _is_tie(labels: Sequence[PairLabel]) -> Flags:
    """Return True for each pair that is labelled as a tie, shape (pairs,)."""
    return np.array([label == 0 for label in labels], dtype=np.bool_)


def _names_the_better(labels: Sequence[PairLabel], differences: Sequence[float]) -> Flags:
    """Return True for each pair whose better response has the higher score, shape (pairs,)."""
    is_right = []
    for label, difference in zip(labels, differences, strict=True):
        is_right.append(label is not None and label * difference > 0)
    return np.array(is_right, dtype=np.bool_)


def _sorted_numbers(values: Floats) -> Floats:
    """Return the values without NaN, in ascending order."""
    return np.sort(values[~np.isnan(values)])
