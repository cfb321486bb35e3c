"""Estimates of best of n, pass@n and majority of n from N sampled answers to a question, n ≤ N.

Each function takes the scores or verdicts of the N answers to one question, and returns the mean over all
subsets of n answers, computed without listing the subsets. Averaged over questions it is an unbiased
estimate of the figure for n newly drawn answers.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import groupby
from math import comb, log


def best_of(scores: Sequence[float], right: Sequence[bool], n: int) -> float:
    """Return the probability that the best of n answers by `scores` is right.

    Among equally good answers each is chosen with the same probability.

    The best of a subset is among the answers of score s in C(up to s, n) - C(below s, n) of the C(N, n) subsets.
    """
    order = sorted(range(len(scores)), key=lambda place: scores[place])
    below = 0
    found = 0.0
    for _, tied in groupby(order, key=lambda place: scores[place]):
        places = list(tied)
        subsets = comb(below + len(places), n) - comb(below, n)
        found += subsets * sum(right[place] for place in places) / len(places)
        below += len(places)
    return found / comb(len(scores), n)


def best_score(scores: Sequence[float], n: int) -> float:
    """Return the mean of the highest score among n answers."""
    ordered = sorted(scores)
    return sum(score * comb(place, n - 1) for place, score in enumerate(ordered)) / comb(
        len(ordered), n
    )


def in_group_auc(scores: Sequence[float], right: Sequence[bool]) -> float | None:
    """Return the share of (right, wrong) pairs of answers in which the right one has the higher score.

    Equal scores count half. This is the area under the ROC curve for the answers to one question.
    Returns None if all answers are right or all are wrong.
    """
    of_right = [score for score, is_right in zip(scores, right, strict=True) if is_right]
    of_wrong = [score for score, is_right in zip(scores, right, strict=True) if not is_right]
    won = sum((one > other) + 0.5 * (one == other) for one in of_right for other in of_wrong)
    return won / (len(of_right) * len(of_wrong)) if of_right and of_wrong else None


def pass_at(right: Sequence[bool], n: int) -> float:
    """Return the probability that at least one of n answers is right.

    `right` holds the verdicts on all sampled answers, of which n are drawn without replacement
    (Chen et al., arXiv 2107.03374, section 2.1).
    """
    num_wrong = len(right) - sum(right)
    return 1 - comb(num_wrong, n) / comb(len(right), n)


def majority(answers: Sequence[Hashable], right: Sequence[bool], n: int) -> float:
    """Return how often the answer that most of n give is right; of equally frequent ones each is chosen equally often.

    Equal answers must be alike in `right`. Counted are, for each answer and each number of times t that it comes, the subsets in
    which no other comes more often, by how many others come t times too.
    """
    held = Counter(answers)
    known = dict(zip(answers, right, strict=True))
    found = 0.0
    for answer, number in held.items():
        if not known[answer]:
            continue
        others = [count for other, count in held.items() if other != answer]
        for times in range(1, min(number, n) + 1):
            ways = _ways(others, times, n - times)
            found += comb(number, times) * sum(
                count / (ties + 1) for ties, count in enumerate(ways)
            )
    return found / comb(len(answers), n)


def _ways(counts: Sequence[int], most: int, size: int) -> list[int]:
    """Return in how many ways `size` are drawn with at most `most` of each kind, by how many kinds come `most` times."""
    table = [[0] * (len(counts) + 1) for _ in range(size + 1)]
    table[0][0] = 1
    for count in counts:
        new = [[0] * (len(counts) + 1) for _ in range(size + 1)]
        for drawn, by_ties in enumerate(table):
            for ties, ways in enumerate(by_ties):
                if ways:
                    for more in range(min(count, most, size - drawn) + 1):
                        new[drawn + more][ties + (more == most)] += ways * comb(count, more)
        table = new
    return table[size]


def best_of_kl(n: int) -> float:
    """Return the KL divergence of the best of n from one sample: log n - (n - 1)/n, what it is where no two scores are equal.

    With equal scores it is less (Beirami et al., arXiv 2401.01879).
    """
    return log(n) - (n - 1) / n
