"""Estimates of best of n, pass@n and majority of n from N sampled answers to a question, n ≤ N.

Each function takes the scores or verdicts of the N answers to one question, and returns the mean
over all subsets of n answers, computed without listing the subsets. Averaged over questions it is
an unbiased estimate of the figure for n newly drawn answers.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import groupby, product
from math import comb, log


def best_of(scores: Sequence[float], right: Sequence[bool], n: int) -> float:
    """Return the probability that, of n answers, the one with the highest score is right.

    Among answers with equal scores each is chosen with the same probability.

    Args:
        scores: The scores of all N answers.
        right: True for each answer that is right.
        n: The number of answers that are drawn from the N without replacement.
    """
    indices = sorted(range(len(scores)), key=lambda index: scores[index])
    num_lower = 0
    num_right_subsets = 0.0  # subsets of n whose best answer is right; ties count in part
    for _, group in groupby(indices, key=lambda index: scores[index]):
        tied = list(group)
        # A subset has this score as its highest one if it is drawn from the answers of up to this
        # score, but not from those of lower scores alone.
        num_subsets = comb(num_lower + len(tied), n) - comb(num_lower, n)
        # Each of the tied answers is chosen in equally many of these subsets.
        num_right = sum(right[index] for index in tied)
        num_right_subsets += num_subsets * num_right / len(tied)
        num_lower += len(tied)
    return num_right_subsets / comb(len(scores), n)


def best_score(scores: Sequence[float], n: int) -> float:
    """Return the mean of the highest score among n answers, over all subsets of n of the scores."""
    total = 0.0
    for num_lower, score in enumerate(sorted(scores)):
        # This score is the highest in the subsets whose n - 1 other scores are lower.
        num_subsets = comb(num_lower, n - 1)
        total += score * num_subsets
    return total / comb(len(scores), n)


def in_group_auc(scores: Sequence[float], right: Sequence[bool]) -> float | None:
    """Return the share of pairs of a right and a wrong answer whose right one scores higher.

    Equal scores count half. This is the area under the ROC curve for the answers to one question.
    Returns None if all answers are right or all are wrong.
    """
    scores_of_right = [score for score, is_right in zip(scores, right, strict=True) if is_right]
    scores_of_wrong = [score for score, is_right in zip(scores, right, strict=True) if not is_right]
    if not scores_of_right or not scores_of_wrong:
        return None
    points = 0.0
    for right_score, wrong_score in product(scores_of_right, scores_of_wrong):
        if right_score > wrong_score:
            points += 1.0
        elif right_score == wrong_score:
            points += 0.5
    return points / (len(scores_of_right) * len(scores_of_wrong))


def pass_at(right: Sequence[bool], n: int) -> float:
    """Return the probability that at least one of n answers is right.

    `right` holds the verdicts on all sampled answers, of which n are drawn without replacement
    (Chen et al., arXiv 2107.03374, section 2.1).
    """
    num_wrong = len(right) - sum(right)
    return 1 - comb(num_wrong, n) / comb(len(right), n)


def majority(answers: Sequence[Hashable], right: Sequence[bool], n: int) -> float:
    """Return the probability that the most frequent one of n answers is right.

    Among equally frequent answers each is chosen with the same probability.

    Args:
        answers: All N answers. Equal answers must have equal verdicts.
        right: True for each answer that is right.
        n: The number of answers that are drawn from the N without replacement.
    """
    count_by_answer = Counter(answers)
    is_right_by_answer = dict(zip(answers, right, strict=True))
    num_right_subsets = 0.0  # subsets of n whose majority is right; ties count in part
    for answer, count in count_by_answer.items():
        if not is_right_by_answer[answer]:
            continue
        other_counts = [other for key, other in count_by_answer.items() if key != answer]
        # Count the subsets with this answer `times` times and no other answer more often.
        for times in range(1, min(count, n) + 1):
            num_draws_by_ties = _draws_by_ties(other_counts, times, n - times)
            # If `ties` other answers are as frequent, it is chosen with probability 1 / (ties + 1).
            num_draws = sum(draws / (ties + 1) for ties, draws in enumerate(num_draws_by_ties))
            num_right_subsets += comb(count, times) * num_draws
    return num_right_subsets / comb(len(answers), n)


def _draws_by_ties(counts: Sequence[int], most: int, size: int) -> list[int]:
    """Count the ways to draw `size` answers of which none is drawn more than `most` times.

    Element t of the returned list is the number of draws in which t different answers are drawn
    exactly `most` times.

    Args:
        counts: The number of copies of each different answer that can be drawn.
        most: The largest number of copies of one answer in a draw.
        size: The number of answers in a draw.
    """
    # num_draws[drawn][ties]: the number of draws of `drawn` answers with so many ties, from the
    # answers that the loop has reached.
    num_draws = [[0] * (len(counts) + 1) for _ in range(size + 1)]
    num_draws[0][0] = 1
    for count in counts:
        extended = [[0] * (len(counts) + 1) for _ in range(size + 1)]
        for drawn, draws_by_ties in enumerate(num_draws):
            for ties, draws in enumerate(draws_by_ties):
                if draws == 0:
                    continue
                for copies in range(min(count, most, size - drawn) + 1):
                    new_ties = ties + 1 if copies == most else ties
                    extended[drawn + copies][new_ties] += draws * comb(count, copies)
        num_draws = extended
    return num_draws[size]


def best_of_kl(n: int) -> float:
    """Return the KL divergence of the best of n answers from one answer, log n - (n - 1)/n.

    It is exact if no two scores are equal. With equal scores the divergence is less (Beirami et
    al., arXiv 2401.01879).
    """
    return log(n) - (n - 1) / n
