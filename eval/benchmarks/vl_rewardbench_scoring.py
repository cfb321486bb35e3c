"""VL-RewardBench's scoring: cal.py at 9b10abd, and the rules of other published tables.

Over the 1,250 rows general / hallucination / reasoning hold 183/749/318 rows by the official map of ids to groups, 484/448/318 by
R1-Reward's (its script looks for `rlaif` in ids that read `RLAIF-V-…`), 631/301/318 by UnifiedReward's (no rule for
`hallucination_…` ids).
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mmrm.data.errors import PredictionsError
from mmrm.eval.benchmarks.benchmark import (
    FileFormat,
    Record,
    Records,
    ScoringRule,
    figures_by_group,
    group_figures,
    macro,
)
from mmrm.eval.benchmarks.prediction_records import (
    lmms_format,
    lmms_text,
    one_of,
    own_format,
    parse_records,
    parse_rewards,
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
"""Python reads no longer number. The official script stops at such an answer."""
VOTES = (1, 3, 5, 7, 9)
CLASSES = ("agree", "reject", "doesntMatch", "other")
GROUP_NAMES = ("general", "hallucination", "reasoning")
DATASETS = {
    "RLAIF": "rlaif-v",
    "RLHF": "rlhf-v",
    "hallucination": "povid",
    "mathverse": "reasoning_tasks",
    "mmmu": "reasoning_tasks",
    "wildvision": "wildvision-battle",
}
"""Id prefix to data set; all other ids are VLFeedback's."""
GROUPS = {
    "rlaif-v": "hallucination",
    "rlhf-v": "hallucination",
    "povid": "hallucination",
    "reasoning_tasks": "reasoning",
    "wildvision-battle": "general",
    "vlfeedback": "general",
}


def dataset(identity: str) -> str:
    """Return the data set that an id's prefix, up to the first `_` or `-`, names; upper and lower case differ."""
    return DATASETS.get(re.split("[_-]", identity, maxsplit=1)[0], "vlfeedback")


def official_group(identity: str) -> str:
    """Return the group by cal.py's map: 183/749/318 over the 1,250 rows."""
    return GROUPS[dataset(identity)]


def r1_group(identity: str) -> str:
    """Return the group by R1-Reward's map, which BaseReward and Proxy-GRM use too: 484/448/318."""
    if "mmmu" in identity or "mathverse" in identity:
        return "reasoning"
    return (
        "hallucination"
        if any(word in identity for word in ("hallucination", "rlhf", "rlaif"))
        else "general"
    )


def unified_group(identity: str) -> str:
    """Return the group by UnifiedReward's map, which misses the prefix `hallucination`: 631/301/318."""
    found = dataset(identity)
    return "general" if found == "povid" else GROUPS[found]


def named_answer(text: str) -> int | None:
    r"""Return the answer number that the official pattern reads, None if it does not match.

    Newlines and asterisks are deleted, not replaced: a newline between Overall and Judgment makes them one word, no match.

    The middle of the official pattern, `\s*.*\s*-*\s*`, matches every text without newlines, and is
    greedy. So the pattern finds the last `Answer N is better` after the first conclusion.
    """
    line = text.replace("\n", "").replace("*", "")
    conclusion = CONCLUSION.search(line)
    if conclusion is None:
        return None
    verdicts = VERDICT.findall(line, conclusion.end())
    return int(verdicts[-1][:MOST_DIGITS]) if verdicts else None


def agreement(number: int | None, rejected: int) -> str:
    """Return what a vote says that names answer `number`, where the worse answer was shown as number `rejected`."""
    return "doesntMatch" if number is None else "reject" if number == rejected else "agree"


def official_score(records: Records) -> dict[str, Any]:
    """Return the official figures; those of the largest K that every item has votes for stand at the top.

    `detail` holds what cal.py computes, under `k=1`, `k=3` …, and in `lines` what it prints, to the character. Null lines are
    skipped but take part in the shuffle, whose generator is seeded once and runs on from K to K. Accuracies are
    agree / (agree + reject): unreadable and split items leave the denominator. Where the script divides by zero the figure
    is None and `fails` names the place; where it stops before it prints anything a PredictionsError says so.
    """
    samples, generator = _samples(records), random.Random(1234)
    detail, groups = {}, {}
    for limit in VOTES:
        order = list(samples)
        for here in range(len(order)):
            there = generator.randint(0, len(order) - 1)
            order[here], order[there] = order[there], order[here]
        items: dict[str, tuple[Counter[str], str]] = {}
        for key, vote, source in filter(None, order):
            counts, _ = items.setdefault(key, (Counter(), source))
            if counts.total() < limit:
                counts[vote] += 1
        detail[f"k={limit}"], groups[limit] = _figures(list(items.values()), limit)
    fewest = min(Counter(sample[0] for sample in samples if sample).values(), default=1)
    limit = max(count for count in VOTES if count <= fewest)
    top = detail[f"k={limit}"]
    return {
        "k": limit,
        "micro": top["overall"],
        "macro": top["macro"],
        "groups": groups[limit],
        "detail": detail,
    }


def _samples(records: Records) -> list[tuple[str, str, str] | None]:
    """Return for each vote its item's key, what it says (agree, reject, doesntMatch) and its item's data set.

    Records may be wrapped as `{"0": …}`.
    Raises: PredictionsError where cal.py stops: an empty file, null on line 1, a wrapped file with an unwrapped line.
    """
    if not records or records[0] is None:
        raise PredictionsError(
            "line 1 is empty or null, on which cal.py stops; required is a record. Move the line down."
        )
    if "0" in records[0]:
        for line, record in enumerate(records, start=1):
            if record is None or "0" not in record:
                raise PredictionsError(
                    f'line 1 is wrapped as {{"0": …}} and line {line} is not, on which cal.py stops.'
                )
        records = [record["0"] for record in records if record is not None]

    def sample(record: Record | None) -> tuple[str, str, str] | None:
        if record is None:
            return None
        one, two = record["response"]
        key = text(record, "id") + text(record, "query") + "\t".join(sorted((one, two)))
        first = one_of(record["meta"]["random_number"], (0, 1), "random_number")
        rejected = (
            one_of(record["ranking"], ([0, 1], [1, 0]), "ranking").index(1 if first == 0 else 0) + 1
        )
        return (
            key,
            agreement(named_answer(text(record["meta"], "filter_choice")), rejected),
            dataset(record["id"]),
        )

    required = "id, query, response (2 texts), ranking ([0, 1] or [1, 0]), meta.filter_choice (the judgement, a text) and "
    return parse_records(records, sample, required + "meta.random_number (0 or 1)")


def _figures(
    items: Sequence[tuple[Counter[str], str]], limit: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what cal.py computes for one K of the items' votes and data sets, and the figures by group."""
    by_source: dict[str, Counter[str]] = {}
    decided = []
    for votes, source in items:
        majority = next((name for name in CLASSES[:3] if votes[name] > votes.total() / 2), "other")
        by_source.setdefault(source, Counter())[majority] += 1
        if majority in ("agree", "reject"):
            decided.append((GROUPS[source], majority == "agree"))
    classes = sum(by_source.values(), Counter())
    found = figures_by_group(decided, GROUP_NAMES)
    right, total, accuracy = (
        {name: group[of] for name, group in found["groups"].items()}
        for of in ("right", "n", "accuracy")
    )
    figures: dict[str, Any] = {
        "items": len(items),
        "classes": {name: classes[name] for name in CLASSES},
        "votes_used": {name: sum(votes[name] for votes, _ in items) for name in CLASSES[:3]},
        "per_dataset": {source: _per_dataset(counts) for source, counts in by_source.items()},
        "group_correct": right,
        "group_total": total,
        "group_acc": accuracy,
        "overall": found["micro"],
        "macro": macro(
            [accuracy[name] for name in reversed(GROUP_NAMES)]
        ),  # the order of the sum decides the last digit
    }
    fails = [
        f"data set {source}"
        for source, counts in by_source.items()
        if not counts["agree"] + counts["reject"]
    ]
    fails += [f"group {name}" for name in GROUP_NAMES if not total[name]]
    return {**figures, "fails": fails, "lines": _lines(figures, limit)}, found["groups"]


def _per_dataset(counts: Counter[str]) -> dict[str, Any]:
    decided = counts["agree"] + counts["reject"]
    numbers = {f"{name}_number": counts[name] for name in CLASSES}
    return {
        **numbers,
        "reject_rate": -1,
        "accept_rate": round(counts["agree"] / decided, 4) if decided else None,
    }


def _lines(figures: dict[str, Any], limit: int) -> list[str]:
    """Return what cal.py prints for one K: up to where it stops, if it divides by zero."""
    n, classes = figures["items"] + 1e-6, figures["classes"]
    decided = classes["agree"] + classes["reject"] + 1e-6
    lines = [f"k={limit} ----------------", f"Number of total items: {figures['items']}"]
    lines += [
        f"Number of {name} items: {classes[name]}, rate: {round(classes[name] / n, 4)}, "
        f"normalized rate: {round(classes[name] / decided, 4)}"
        for name in ("agree", "reject")
    ]
    lines.append(
        f"Number of doesntMatch items: {classes['doesntMatch']}, rate: {round(classes['doesntMatch'] / n, 4)}"
    )
    if any(values["accept_rate"] is None for values in figures["per_dataset"].values()):
        return lines
    right, total = figures["group_correct"], figures["group_total"]
    lines += ["=" * 20, "general\t hallucination\t reasoning"]
    if not (total["general"] and total["hallucination"]):
        return lines
    shares = [
        100.0 * right[name] / (total[name] + (1e-6 if name == "reasoning" else 0))
        for name in GROUP_NAMES
    ]
    lines.append("{:.2f}\t {:.2f}\t {:.2f}".format(*shares))
    if figures["macro"] is None:
        return lines
    lines += [
        f"Overall Accuracy: {figures['overall'] * 100:.2f}",
        f"Macro Average Acc: {figures['macro'] * 100:.2f}",
        "=" * 20,
    ]
    return lines


def at_votes(found: dict[str, Any], limit: int) -> dict[str, Any]:
    """Return the official figures with those of K = `limit` votes an item at the top."""
    if f"k={limit}" not in found["detail"]:
        raise PredictionsError(
            f"K is {limit}; cal.py computes K = {', '.join(map(str, VOTES))} votes an item."
        )
    top = found["detail"][f"k={limit}"]
    groups = group_figures(top["group_correct"], top["group_total"])
    return {**found, "k": limit, "micro": top["overall"], "macro": top["macro"], "groups": groups}


def lmms_score(records: Records) -> dict[str, Any]:
    """Return lmms-eval's figures from the scores in its sample log: its headline is `macro`, in its order of summing.

    `detail` counts the answers that the official pattern cannot read: gpt-4o-mini read them, or a coin was tossed.
    """

    def judged(record: Record) -> tuple[str, bool, bool]:
        logged = record["vlreward_score"]
        group = one_of(logged["category"], GROUP_NAMES, "category")
        return (
            group,
            bool(one_of(logged["score"], (0.0, 1.0, 0, 1), "score")),
            named_answer(lmms_text(record)) is None,
        )

    rows = parse_records(
        records,
        judged,
        "filtered_resps (a text) and vlreward_score (question_id, category, score 0 or 1)",
    )
    unread = sum(unread for _, _, unread in rows)
    return {
        **figures_by_group((group, hit) for group, hit, _ in rows),
        "detail": {"not_read_by_the_pattern": unread},
    }


def rewards_score(
    records: Records, group: Callable[[str], str], ties_right: bool = False
) -> dict[str, Any]:
    """Return accuracies over all rows from `rewards` (the winner's first), with a given map of groups.

    Source: R1-Reward's get_acc.py, with the one correction without which it cannot run (it takes `rewards[:1]` and then
    reads `rewards[1]`). Equal rewards are wrong, or right as in the same authors' script for IXC-2.5-Reward.
    """
    found = figures_by_group(
        parse_rewards(records, lambda record: group(text(record, "id")), "id", ties_right),
        GROUP_NAMES,
    )
    # the sum in the script's order of groups; an empty group, and a file without rows, count as 0 there
    means = [found["groups"][name]["accuracy"] or 0 for name in reversed(GROUP_NAMES)]
    return {**found, "micro": found["micro"] or 0, "macro": sum(means) / 3}


REWARDS = FileFormat(
    "as R1-Reward writes rows: id and rewards, [of the better response, of the other]", ("rewards",)
)
FILES_SCORED = {
    "predictions": own_format("all_rows"),
    "lmms_eval": lmms_format("vlreward_score", lambda logged: text(logged, "category")),
    "official": FileFormat(
        "as inference_hf.py writes votes, one a line: id, query, response, ranking, meta.filter_choice, meta.random_number",
        ("meta",),
        "official",
        votes=True,
    ),
    "rewards": REWARDS,
}
RULES = {
    "official": ScoringRule(
        "cal.py: unreadable and split items leave the denominator; groups 183/749/318",
        "official",
        official_score,
        "a file on which it stops is refused, where it divides by zero a figure is left out",
        at_votes,
    ),
    "all_rows": ScoringRule(
        "the official groups over all rows, ties and unreadable wrong, as VLMEvalKit and lmms-eval divide",
        "rewards",
        partial(rewards_score, group=official_group),
        "no script: cal.py's groups with get_acc.py's arithmetic",
    ),
    "lmms_eval": ScoringRule(
        "lmms-eval: the scores in its log; gpt-4o-mini or a coin reads what the pattern cannot; its headline is macro",
        "lmms_eval",
        lmms_score,
        "micro is added; an answer is not read again, its logged score counts",
    ),
    "r1_reward": ScoringRule(
        "R1-Reward's get_acc.py (BaseReward's tables too): groups 484/448/318, all rows, ties wrong",
        "rewards",
        partial(rewards_score, group=r1_group),
        "it takes rewards[:1] and stops; here [:2]",
    ),
    "r1_reward_ties_right": ScoringRule(
        "R1-Reward's groups with ties right, as their script for IXC-2.5-Reward stores them",
        "rewards",
        partial(rewards_score, group=r1_group, ties_right=True),
        "as r1_reward; that script stores [1, 0] for a tie, here it stays one and counts",
    ),
    "unified_reward": ScoringRule(
        "UnifiedReward's qwen script: groups 631/301/318, all rows, ties and unreadable wrong",
        "rewards",
        partial(rewards_score, group=unified_group),
        "it reads answers' texts; here their rewards",
    ),
}
