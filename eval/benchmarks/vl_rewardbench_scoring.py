"""VL-RewardBench's scoring: cal.py at 9b10abd, and the rules of other published tables.

The rules differ in their maps from ids to groups. Over the 1,250 rows, the groups general,
hallucination and reasoning have these numbers of rows:

    183/749/318  by the official map
    484/448/318  by R1-Reward's, whose script looks for `rlaif` in ids that begin with `RLAIF-V-`
    631/301/318  by UnifiedReward's, which has no rule for `hallucination_` ids
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mmrm.data.errors import PredictionsError
from mmrm.eval.benchmarks.benchmark import (
    FileFormat,
    PredictionRecords,
    Record,
    ScoringRule,
    figures_by_group,
    group_figures,
    macro,
)
from mmrm.eval.benchmarks.prediction_records import (
    lmms_format,
    lmms_text,
    one_of,
    parse_records,
    parse_rewards,
    predictions_format,
    text,
)

CONCLUSION = re.compile(r"Overall Judgment|Therefore", re.IGNORECASE)
VERDICT = re.compile(
    r"Answer\s*+(\d++)\s*+is\s*+(?:the\s*+)?(?:slightly\s*+)?better", re.IGNORECASE
)
r"""The beginning and the end of the official pattern, which is

    (?:Overall Judgment|Therefore)\s*.*\s*-*\s*Answer\s*(\d+)\s*is\s*(?:the\s*)?(?:slightly\s*)?better

with re.IGNORECASE. Searching with it takes time that grows with the fifth power of a run of blanks.
`Judgment` has no e.
"""
MOST_DIGITS = 4300
"""The most digits of a number that Python reads. The official script stops at a longer one."""
VOTES = (1, 3, 5, 7, 9)
"""The numbers of votes an item, K, for which cal.py computes figures."""
VOTE_OUTCOMES = ("agree", "reject", "doesntMatch")
"""The outcomes of a vote in cal.py."""
CLASSES = (*VOTE_OUTCOMES, "other")
"""The outcomes of an item in cal.py. `other` means that no outcome has more than half of its
votes."""
SEED = 1234
"""The seed of cal.py's shuffles."""
GROUP_NAMES = ("general", "hallucination", "reasoning")
DATASETS = {
    "RLAIF": "rlaif-v",
    "RLHF": "rlhf-v",
    "hallucination": "povid",
    "mathverse": "reasoning_tasks",
    "mmmu": "reasoning_tasks",
    "wildvision": "wildvision-battle",
}
"""The data sets by the prefix of an id. All other ids are VLFeedback's."""
GROUPS = {
    "rlaif-v": "hallucination",
    "rlhf-v": "hallucination",
    "povid": "hallucination",
    "reasoning_tasks": "reasoning",
    "wildvision-battle": "general",
    "vlfeedback": "general",
}


# Maps from ids to groups


def dataset(identity: str) -> str:
    """Return the data set of an id, by the part before its first `_` or `-`; case matters."""
    prefix = re.split("[_-]", identity, maxsplit=1)[0]
    return DATASETS.get(prefix, "vlfeedback")


def official_group(identity: str) -> str:
    """Return the group of an id by the map of the official script cal.py."""
    return GROUPS[dataset(identity)]


def r1_group(identity: str) -> str:
    """Return the group of an id by R1-Reward's map, which BaseReward and Proxy-GRM use too."""
    if "mmmu" in identity or "mathverse" in identity:
        return "reasoning"
    if any(word in identity for word in ("hallucination", "rlhf", "rlaif")):
        return "hallucination"
    return "general"


def unified_group(identity: str) -> str:
    """Return the group of an id by UnifiedReward's map.

    It differs from the official map in one point: ids that begin with `hallucination` are general.
    """
    name = dataset(identity)
    return "general" if name == "povid" else GROUPS[name]


# The official score


def named_answer(judgement: str) -> int | None:
    """Return the answer number that the official pattern reads; None if it does not match.

    Newlines and asterisks are deleted, not replaced. A newline between Overall and Judgment makes
    them one word, and the pattern does not match.
    """
    # The middle of the official pattern matches every text without newlines, and is greedy. So the
    # pattern finds the last `Answer N is better` after the first conclusion.
    line = judgement.replace("\n", "").replace("*", "")
    conclusion = CONCLUSION.search(line)
    if conclusion is None:
        return None
    numbers = VERDICT.findall(line, conclusion.end())
    return int(numbers[-1][:MOST_DIGITS]) if numbers else None


def find_answer_number(judgement: str) -> int | None:
    """Return the index of the last digit of the number that `named_answer` reads, or None."""
    kept_indices = [index for index, letter in enumerate(judgement) if letter not in "\n*"]
    line = "".join(judgement[index] for index in kept_indices)
    conclusion = CONCLUSION.search(line)
    if conclusion is None:
        return None
    verdicts = list(VERDICT.finditer(line, conclusion.end()))
    return kept_indices[verdicts[-1].end(1) - 1] if verdicts else None


def agreement(number: int | None, rejected: int) -> str:
    """Return cal.py's outcome of a vote, one of VOTE_OUTCOMES.

    Args:
        number: The number of the answer that the vote names; None if it could not be read.
        rejected: The number of the worse answer.
    """
    if number is None:
        return "doesntMatch"
    return "reject" if number == rejected else "agree"


@dataclass(frozen=True, slots=True)
class VoteSample:
    """One vote about an item (a query with two responses), from the official predictions file."""

    item: str
    """The key of the item: its id and texts."""
    outcome: str
    """One of VOTE_OUTCOMES."""
    source: str
    """The data set of the item."""


@dataclass(frozen=True, slots=True)
class ItemVotes:
    """The votes about an item (a query with two responses), and its data set."""

    source: str
    counts: Counter[str]
    """Votes by outcome."""

    @property
    def outcome(self) -> str:
        """The outcome that more than half of the votes have, else `other`."""
        for outcome in VOTE_OUTCOMES:
            if self.counts[outcome] > self.counts.total() / 2:
                return outcome
        return "other"


def official_score(records: PredictionRecords) -> dict[str, Any]:
    """Return the figures that the official script cal.py computes from a predictions file.

    The script computes figures for K = 1, 3, 5, 7 and 9 votes an item. The headline figures are
    those of the largest K for which every item has enough votes. `detail` holds the figures of
    every K under `k=1`, `k=3` and so on, with the `lines` that the script prints.

    An accuracy is agree / (agree + reject). Unreadable and split items are not in the denominator.
    If the script divides by zero, the figure is None, and `fails` names the empty groups.

    Raises:
        PredictionsError: If the script stops before it prints anything.
    """
    samples = _samples(records)
    # As in the script, the generator is seeded once, and not again for each K.
    generator = random.Random(SEED)
    detail = {}
    groups_by_limit = {}
    for limit in VOTES:
        shuffled_samples = list(samples)
        _shuffle(shuffled_samples, generator)
        figures, groups = _figures(_first_votes(shuffled_samples, limit), limit)
        detail[f"k={limit}"] = figures
        groups_by_limit[limit] = groups
    num_votes_by_item = Counter(sample.item for sample in samples if sample is not None)
    fewest_votes = min(num_votes_by_item.values(), default=1)
    largest_limit = max(limit for limit in VOTES if limit <= fewest_votes)
    headline = detail[f"k={largest_limit}"]
    return {
        "k": largest_limit,
        "micro": headline["overall"],
        "macro": headline["macro"],
        "groups": groups_by_limit[largest_limit],
        "detail": detail,
    }


def _shuffle(samples: list[VoteSample | None], generator: random.Random) -> None:
    """Shuffle the samples in place by cal.py's algorithm; `random.shuffle` has another one."""
    for index in range(len(samples)):
        drawn = generator.randint(0, len(samples) - 1)
        samples[index], samples[drawn] = samples[drawn], samples[index]


def _first_votes(samples: Sequence[VoteSample | None], limit: int) -> list[ItemVotes]:
    """Return the first `limit` votes of each item, in the order of the items' first votes."""
    items: dict[str, ItemVotes] = {}
    for sample in samples:
        if sample is None:
            continue
        item_votes = items.setdefault(sample.item, ItemVotes(sample.source, Counter()))
        if item_votes.counts.total() < limit:
            item_votes.counts[sample.outcome] += 1
    return list(items.values())


def _samples(records: PredictionRecords) -> list[VoteSample | None]:
    """Return the vote of each line; None for a null line, which takes part in cal.py's shuffle.

    All records of a file may be wrapped as `{"0": …}`.

    Raises:
        PredictionsError: If cal.py stops at the file: it is empty, line 1 is null, or a wrapped
            file has a line without the wrapper.
    """
    if not records or records[0] is None:
        raise PredictionsError(
            "line 1 is empty or null, on which cal.py stops; required is a record. Move the line "
            "down."
        )
    if "0" in records[0]:
        records = _without_wrapper(records)
    required = (
        "id, query, response (2 texts), ranking ([0, 1] or [1, 0]), meta.filter_choice (the "
        "judgement, a text) and meta.random_number (0 or 1)"
    )
    return parse_records(records, _sample, required)


def _without_wrapper(records: PredictionRecords) -> list[Record]:
    """Return the records of a file whose lines are wrapped as `{"0": …}`.

    Raises:
        PredictionsError: If a line is not wrapped.
    """
    unwrapped = []
    for line, record in enumerate(records, start=1):
        if record is None or "0" not in record:
            raise PredictionsError(
                f'line 1 is wrapped as {{"0": …}} and line {line} is not, on which cal.py stops. '
                "Wrap all lines, or none."
            )
        unwrapped.append(record["0"])
    return unwrapped


def _sample(record: Record | None) -> VoteSample | None:
    """Return the vote of a line; None for a null line."""
    if record is None:
        return None
    first, second = record["response"]
    item = text(record, "id") + text(record, "query") + "\t".join(sorted((first, second)))
    shown_first = one_of(record["meta"]["random_number"], (0, 1), "random_number")
    ranking = one_of(record["ranking"], ([0, 1], [1, 0]), "ranking")
    # ranking[i] is 0 for the better response and 1 for the worse one.
    worse = ranking.index(1)
    rejected = 1 if worse == shown_first else 2
    number = named_answer(text(record["meta"], "filter_choice"))
    return VoteSample(item, agreement(number, rejected), dataset(record["id"]))


def _figures(items: Sequence[ItemVotes], limit: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return everything that cal.py computes for K = `limit` votes, and the figures by group."""
    counts_by_source: dict[str, Counter[str]] = {}
    decided = []  # the group of each item that is agree or reject, and True for agree
    for item in items:
        outcome = item.outcome
        counts_by_source.setdefault(item.source, Counter())[outcome] += 1
        if outcome in ("agree", "reject"):
            decided.append((GROUPS[item.source], outcome == "agree"))
    items_by_class = sum(counts_by_source.values(), Counter())
    votes_used = {}
    for outcome in VOTE_OUTCOMES:
        votes_used[outcome] = sum(item.counts[outcome] for item in items)
    by_group = figures_by_group(decided, GROUP_NAMES)
    groups = by_group["groups"]
    total = {name: group["n"] for name, group in groups.items()}
    # The mean is summed in cal.py's order of the groups, which decides its last digit.
    accuracies = [groups[name]["accuracy"] for name in reversed(GROUP_NAMES)]
    figures: dict[str, Any] = {
        "items": len(items),
        "classes": {name: items_by_class[name] for name in CLASSES},
        "votes_used": votes_used,
        "per_dataset": {
            source: _per_dataset(counts) for source, counts in counts_by_source.items()
        },
        "group_correct": {name: group["right"] for name, group in groups.items()},
        "group_total": total,
        "group_acc": {name: group["accuracy"] for name, group in groups.items()},
        "overall": by_group["micro"],
        "macro": macro(accuracies),
    }
    fails = []  # the denominators that are zero
    for source, counts in counts_by_source.items():
        if counts["agree"] + counts["reject"] == 0:
            fails.append(f"data set {source}")
    fails += [f"group {name}" for name in GROUP_NAMES if total[name] == 0]
    return {**figures, "fails": fails, "lines": _lines(figures, limit)}, groups


def _per_dataset(counts: Counter[str]) -> dict[str, Any]:
    """Return cal.py's figures of one data set from the number of its items by outcome."""
    decided = counts["agree"] + counts["reject"]
    numbers = {f"{name}_number": counts[name] for name in CLASSES}
    return {
        **numbers,
        "reject_rate": -1,  # a constant in cal.py
        "accept_rate": round(counts["agree"] / decided, 4) if decided else None,
    }


def _lines(figures: dict[str, Any], limit: int) -> list[str]:
    """Return the lines that cal.py prints for K = `limit` votes.

    They end before the first line for which the script divides by zero.
    """
    # The script adds 1e-6 to some denominators, and not to others.
    num_items = figures["items"] + 1e-6
    classes = figures["classes"]
    decided = classes["agree"] + classes["reject"] + 1e-6
    lines = [f"k={limit} ----------------", f"Number of total items: {figures['items']}"]
    for name in ("agree", "reject"):
        lines.append(
            f"Number of {name} items: {classes[name]}, rate: "
            f"{round(classes[name] / num_items, 4)}, normalized rate: "
            f"{round(classes[name] / decided, 4)}"
        )
    unread = classes["doesntMatch"]
    lines.append(f"Number of doesntMatch items: {unread}, rate: {round(unread / num_items, 4)}")
    rates = [values["accept_rate"] for values in figures["per_dataset"].values()]
    if None in rates:
        return lines
    lines += ["=" * 20, "general\t hallucination\t reasoning"]
    right = figures["group_correct"]
    total = figures["group_total"]
    if total["general"] == 0 or total["hallucination"] == 0:
        return lines
    general = 100.0 * right["general"] / total["general"]
    hallucination = 100.0 * right["hallucination"] / total["hallucination"]
    reasoning = 100.0 * right["reasoning"] / (total["reasoning"] + 1e-6)
    lines.append(f"{general:.2f}\t {hallucination:.2f}\t {reasoning:.2f}")
    if figures["macro"] is None:
        return lines
    lines += [
        f"Overall Accuracy: {figures['overall'] * 100:.2f}",
        f"Macro Average Acc: {figures['macro'] * 100:.2f}",
        "=" * 20,
    ]
    return lines


def at_votes(figures: dict[str, Any], limit: int) -> dict[str, Any]:
    """Return `figures`, a result of `official_score`, with K = `limit` votes as the headline.

    Raises:
        PredictionsError: If cal.py does not compute this K.
    """
    if f"k={limit}" not in figures["detail"]:
        raise PredictionsError(
            f"K is {limit}; cal.py computes K = {', '.join(map(str, VOTES))} votes an item. Choose "
            "one of these."
        )
    headline = figures["detail"][f"k={limit}"]
    groups = group_figures(headline["group_correct"], headline["group_total"])
    return {
        **figures,
        "k": limit,
        "micro": headline["overall"],
        "macro": headline["macro"],
        "groups": groups,
    }


# Scores of other published tables


def lmms_score(records: PredictionRecords) -> dict[str, Any]:
    """Return lmms-eval's figures from the scores in its sample log.

    lmms-eval reports `macro` as its main figure. `detail` has the number of answers that the
    official pattern cannot read. lmms-eval had gpt-4o-mini read such an answer, or tossed a coin.
    """
    required = "filtered_resps (a text) and vlreward_score (question_id, category, score 0 or 1)"
    rows = parse_records(records, _logged_row, required)
    num_unread = sum(is_unread for _, _, is_unread in rows)
    figures = figures_by_group((group, is_right) for group, is_right, _ in rows)
    return {**figures, "detail": {"not_read_by_the_pattern": num_unread}}


def _logged_row(record: Record) -> tuple[str, bool, bool]:
    """Return the group of a row that lmms-eval logged, with two flags.

    The first is True if the row is right, and the second if the pattern cannot read its answer.
    """
    logged = record["vlreward_score"]
    group = one_of(logged["category"], GROUP_NAMES, "category")
    is_right = bool(one_of(logged["score"], (0.0, 1.0, 0, 1), "score"))
    is_unread = named_answer(lmms_text(record)) is None
    return group, is_right, is_unread


def rewards_score(
    records: PredictionRecords, group: Callable[[str], str], ties_right: bool = False
) -> dict[str, Any]:
    """Return accuracies over all rows, from the rewards of the better and the other response.

    This is R1-Reward's get_acc.py with the one correction without which it cannot run: it takes
    `rewards[:1]` and then reads `rewards[1]`.

    Args:
        records: The lines of a predictions file.
        group: Returns the group of an id.
        ties_right: Equal rewards are wrong in get_acc.py. If this is True they are right, as in the
            same authors' script for IXC-2.5-Reward.
    """
    rows = parse_rewards(records, lambda record: group(text(record, "id")), "id", ties_right)
    figures = figures_by_group(rows, GROUP_NAMES)
    # The sum is in the script's order of groups, and an empty group counts as 0 there.
    accuracies = [figures["groups"][name]["accuracy"] or 0 for name in reversed(GROUP_NAMES)]
    macro_accuracy = sum(accuracies) / len(GROUP_NAMES)
    return {**figures, "micro": figures["micro"] or 0, "macro": macro_accuracy}


REWARDS = FileFormat(
    about="as R1-Reward writes rows: id and rewards, [of the better response, of the other]",
    marks=("rewards",),
)
FILES_SCORED = {
    "predictions": predictions_format("all_rows"),
    "lmms_eval": lmms_format("vlreward_score", lambda logged: text(logged, "category")),
    "official": FileFormat(
        about="as inference_hf.py writes votes, one a line: id, query, response, ranking, "
        "meta.filter_choice, meta.random_number",
        marks=("meta",),
        rules="official",
        votes=True,
    ),
    "rewards": REWARDS,
}
RULES = {
    "official": ScoringRule(
        about="cal.py: unreadable and split items leave the denominator; groups 183/749/318",
        reads="official",
        score=official_score,
        differs="a file on which it stops is refused, where it divides by zero a figure is left "
        "out",
        at_votes=at_votes,
    ),
    "all_rows": ScoringRule(
        about="the official groups over all rows, ties and unreadable wrong, as VLMEvalKit and "
        "lmms-eval divide",
        reads="rewards",
        score=partial(rewards_score, group=official_group),
        differs="no script: cal.py's groups with get_acc.py's arithmetic",
    ),
    "lmms_eval": ScoringRule(
        about="lmms-eval: the scores in its log; gpt-4o-mini or a coin reads what the pattern "
        "cannot; its headline is macro",
        reads="lmms_eval",
        score=lmms_score,
        differs="micro is added; an answer is not read again, its logged score counts",
    ),
    "r1_reward": ScoringRule(
        about="R1-Reward's get_acc.py (BaseReward's tables too): groups 484/448/318, all rows, "
        "ties wrong",
        reads="rewards",
        score=partial(rewards_score, group=r1_group),
        differs="it takes rewards[:1] and stops; here [:2]",
    ),
    "r1_reward_ties_right": ScoringRule(
        about="R1-Reward's groups with ties right, as their script for IXC-2.5-Reward stores them",
        reads="rewards",
        score=partial(rewards_score, group=r1_group, ties_right=True),
        differs="as r1_reward; that script stores [1, 0] for a tie, here it stays one and counts",
    ),
    "unified_reward": ScoringRule(
        about="UnifiedReward's qwen script: groups 631/301/318, all rows, ties and unreadable "
        "wrong",
        reads="rewards",
        score=partial(rewards_score, group=unified_group),
        differs="it reads answers' texts; here their rewards",
    ),
}
