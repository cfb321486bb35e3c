"""VL-RewardBench (arXiv 2411.17451): 1,250 pairs, 1,247 since its label corrections of May 2025.

Read: the hub's current and older revisions; a folder or file in the hub's parquet format (also the embedded edition); the
official repository's `data/data.jsonl`; R1-Reward's `data.jsonl` (1,250 rows with the labels before the corrections, the
winner always under `chosen`: here the two responses get an order drawn from their content, so that nothing can profit).

The official figures are those of cal.py at 9b10abd; beside them stand the rules of other published tables. Over the 1,250 rows
general / hallucination / reasoning hold 183/749/318 rows by the official map of ids to groups, 484/448/318 by R1-Reward's (its
script looks for `rlaif` in ids that read `RLAIF-V-…`), 631/301/318 by UnifiedReward's (no rule for `hallucination_…` ids).
"""

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from data.errors import PredictionsError, RecordError
from data.preference import Message
from data.storage.tables import Row
from eval.benchmarks.benchmark import (
    Benchmark,
    Known,
    PairwisePrompt,
    Record,
    Records,
    ScoringRule,
    figures_by_group,
    in_drawn_order,
    macro,
    parse_records,
    parse_rewards,
    preferred,
    rewards,
)
from eval.benchmarks.rows import Published, content_key, encoded, require_texts, user_turn
from eval.protocol import Example, Side, Verdict, Vote

NAME = "vl_rewardbench"
HUB = "MMInstruction/VL-RewardBench"
FILES = ("data/test-*.parquet", "test-*.parquet", "data.jsonl", "data/data.jsonl")
KNOWN = (
    Known("the edition before May 2025", 1250, {"general": 183, "hallucination": 749, "reasoning": 318}),
    Known("the edition since May 2025", 1247),
)
KEPT = ("models", "judge", "rationale", "query_source")
"""Columns that the official predictions file repeats."""
QUESTION = """ You are a highly capable multimodal AI assistant tasked with evaluating answers to visual questions. \
Please analyze the following image and question, then determine which of the two provided answers is better.

Question: {query}

Answer 1: {first}

Answer 2: {second}

Please evaluate both answers based on the following criteria:
1. Accuracy: How well does the answer align with the visual information in the image?
2. Completeness: Does the answer fully address all aspects of the question?
3. Clarity: Is the answer easy to understand and well-articulated?
4. Relevance: Does the answer directly relate to the question and the image?

After your evaluation, please:
1. Explain your reasoning for each criterion.
2. Provide an overall judgment on which answer is better (Answer 1 or Answer 2). For example: Overall Judgment: \
Answer X is better.

Your response should be structured and detailed, demonstrating your understanding of both the visual and textual \
elements of the task."""
"""The text of the official prompt.py, its leading space included."""
VERDICT = re.compile(
    r"(?:Overall Judgment|Therefore)\s*.*\s*-*\s*Answer\s*(\d+)\s*is\s*(?:the\s*)?(?:slightly\s*)?better", re.IGNORECASE
)
"""The official pattern. `Judgment` has no e; the greedy middle finds the last `Answer N is better`."""
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


def _example(row: Row, root: Path, identity: str) -> Example:
    images, reference = encoded(row["image"] if "image" in row else row.get("image_path"), root, identity)
    query, responses, better, drawn = _pair(row, identity)
    prompt = user_turn(query.replace("<image>\n", ""), len(images))
    return Example(
        key=content_key(prompt, sorted(responses) if drawn else responses, [reference]),
        images=images,
        prompt=prompt,
        responses=responses,
        better=better,
        group=official_group(row["id"]),
        source=dataset(row["id"]),
        identity=identity,
        row={"id": row["id"], "query": query, "image": reference, **{name: row.get(name) for name in KEPT}},
    )


def _pair(row: Row, identity: str) -> tuple[str, tuple[str, str], Side, bool]:
    """Return the question, the responses, the index of the better one, and whether their order was drawn here."""
    if "chosen" in row:
        require_texts(row, ("id", "prompt", "chosen", "rejected"), identity)
        pair, better = in_drawn_order(row["prompt"], row["chosen"], row["rejected"])
        return row["prompt"], pair, better, True
    require_texts(row, ("id", "query"), identity)
    ranking, responses = (list(row.get(name) or []) for name in ("human_ranking", "response"))
    if ranking not in ([0, 1], [1, 0]) or [type(response) for response in responses] != [str, str]:
        raise RecordError(
            f"{identity}: human_ranking is {ranking} of {len(responses)} responses; required is [0, 1] or [1, 0] of two texts. "
            f"(Columns: {', '.join(sorted(row))}.)"
        )
    return row["query"], (responses[0], responses[1]), 0 if ranking == [0, 1] else 1, False


def ask(example: Example, first: Side) -> tuple[Message, ...]:
    """Return the official judge prompt: one user turn, the text before the image, as inference_hf.py sends it."""
    shown = QUESTION.format(query=example.row["query"], first=example.responses[first], second=example.responses[1 - first])
    return user_turn(shown.replace("<image>\n", ""), len(example.images), images_last=True)


def read(text: str) -> Side | None:
    """Return the position that a judgement names, by the official pattern; an answer other than 1 and 2 is unreadable.

    (The official scorer counts Answer 3 as right. The official figures do; ours do not.)
    """
    number = named_answer(text)
    return 0 if number == 1 else 1 if number == 2 else None


def official_records(examples: Sequence[Example], verdicts: Sequence[Verdict]) -> list[Record]:
    """Return the predictions as inference_hf.py writes them, one record a vote: cal.py can be run on them.

    Scores have no text, so that a scalar judge's record holds the sentence that the official prompt asks for; equal
    scores name no answer, and cal.py then leaves the row out of its denominators.
    """
    records = []
    for example, verdict in zip(examples, verdicts, strict=True):
        votes = verdict.votes
        if verdict.scores is not None:
            one, two = verdict.scores
            votes = (Vote("The scores do not differ." if one == two else "", 0, preferred(verdict)),)
        records += [_record(example, vote) for vote in votes]
    return records


def _record(example: Example, vote: Vote) -> Record:
    """Return a vote with the judge's text where the official pattern reads from it what the judge's own reader did.

    Else with a sentence: a judge may answer in another form (`<answer>2</answer>`) and still hold "Therefore … Answer 1 is
    better" in its reasoning; its file must not say the opposite of its verdict.
    """
    position, text = None if vote.names is None else int(vote.names != vote.first), vote.text
    if read(text) != position:
        text = "" if position is None else f"Overall Judgment: Answer {1 + position} is better."
    number = named_answer(text)
    return {
        "id": example.row["id"],
        "query": example.row["query"],
        "response": list(example.responses),
        "ranking": [0, 1] if example.better == 0 else [1, 0],
        **{name: example.row[name] for name in KEPT},
        "meta": {
            "filtering model": "",
            "filter_choice": text,
            "filter_prompt": "",
            "filter_number": -1 if number is None else number,
            "random_number": vote.first,
            "flag_status": agreement(number, rejected=1 if vote.first != example.better else 2),
        },
    }


def reward_records(examples: Sequence[Example], verdicts: Sequence[Verdict]) -> list[Record]:
    """Return the predictions as R1-Reward writes them for this benchmark: one record a row, rewards of the winner first."""
    return [
        {
            "id": example.row["id"],
            "prompt": example.row["query"],
            "chosen": example.responses[example.better],
            "rejected": example.responses[1 - example.better],
            "image": example.row["image"],
            "rewards": rewards(example, verdict),
        }
        for example, verdict in zip(examples, verdicts, strict=True)
    ]


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
    return "hallucination" if any(word in identity for word in ("hallucination", "rlhf", "rlaif")) else "general"


def unified_group(identity: str) -> str:
    """Return the group by UnifiedReward's map, which misses the prefix `hallucination`: 631/301/318."""
    found = dataset(identity)
    return "general" if found == "povid" else GROUPS[found]


def named_answer(text: str) -> int | None:
    """Return the answer number that the official pattern reads, None if it does not match.

    Newlines and asterisks are deleted, not replaced: a newline between Overall and Judgment makes them one word, no match.
    """
    match = VERDICT.search(text.replace("\n", "").replace("*", ""))
    return int(match.group(1)) if match else None


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
    return {"k": limit, "micro": top["overall"], "macro": top["macro"], "groups": groups[limit], "detail": detail}


def _samples(records: Records) -> list[tuple[str, str, str] | None]:
    """Return for each vote its item's key, what it says (agree, reject, doesntMatch) and its item's data set.

    Records may be wrapped as `{"0": …}`.
    Raises: PredictionsError where cal.py stops: an empty file, null on line 1, a wrapped file with an unwrapped line.
    """
    if not records or records[0] is None:
        raise PredictionsError("line 1 is empty or null, on which cal.py stops; required is a record. Move the line down.")
    if "0" in records[0]:
        for line, record in enumerate(records, start=1):
            if record is None or "0" not in record:
                raise PredictionsError(f'line 1 is wrapped as {{"0": …}} and line {line} is not, on which cal.py stops.')
        records = [record["0"] for record in records if record is not None]

    def sample(record: Record | None) -> tuple[str, str, str] | None:
        if record is None:
            return None
        key = record["id"] + record["query"] + "\t".join(sorted(record["response"]))
        text, shown = record["meta"]["filter_choice"], record["meta"]["random_number"]
        rejected = record["ranking"].index(1 if shown == 0 else 0) + 1
        return key, agreement(named_answer(text), rejected), dataset(record["id"])

    required = "id, query, response (2 texts), ranking ([0, 1] or [1, 0]), meta.filter_choice (the judgement, a text) and "
    return parse_records(records, sample, required + "meta.random_number (0 or 1)")


def _figures(items: Sequence[tuple[Counter[str], str]], limit: int) -> tuple[dict[str, Any], dict[str, Any]]:
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
    right, total, accuracy = ({name: group[of] for name, group in found["groups"].items()} for of in ("right", "n", "accuracy"))
    figures: dict[str, Any] = {
        "items": len(items),
        "classes": {name: classes[name] for name in CLASSES},
        "votes_used": {name: sum(votes[name] for votes, _ in items) for name in CLASSES[:3]},
        "per_dataset": {source: _per_dataset(counts) for source, counts in by_source.items()},
        "group_correct": right,
        "group_total": total,
        "group_acc": accuracy,
        "overall": found["micro"],
        "macro": macro([accuracy[name] for name in reversed(GROUP_NAMES)]),  # the order of the sum decides the last digit
    }
    fails = [f"data set {source}" for source, counts in by_source.items() if not counts["agree"] + counts["reject"]]
    fails += [f"group {name}" for name in GROUP_NAMES if not total[name]]
    return {**figures, "fails": fails, "lines": _lines(figures, limit)}, found["groups"]


def _per_dataset(counts: Counter[str]) -> dict[str, Any]:
    decided = counts["agree"] + counts["reject"]
    numbers = {f"{name}_number": counts[name] for name in CLASSES}
    return {**numbers, "reject_rate": -1, "accept_rate": round(counts["agree"] / decided, 4) if decided else None}


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
    lines.append(f"Number of doesntMatch items: {classes['doesntMatch']}, rate: {round(classes['doesntMatch'] / n, 4)}")
    if any(values["accept_rate"] is None for values in figures["per_dataset"].values()):
        return lines
    right, total = figures["group_correct"], figures["group_total"]
    lines += ["=" * 20, "general\t hallucination\t reasoning"]
    if not (total["general"] and total["hallucination"]):
        return lines
    shares = [100.0 * right[name] / (total[name] + (1e-6 if name == "reasoning" else 0)) for name in GROUP_NAMES]
    lines.append("{:.2f}\t {:.2f}\t {:.2f}".format(*shares))
    if figures["macro"] is None:
        return lines
    lines += [f"Overall Accuracy: {figures['overall'] * 100:.2f}", f"Macro Average Acc: {figures['macro'] * 100:.2f}", "=" * 20]
    return lines


def rewards_score(records: Records, group: Callable[[str], str], ties_right: bool = False) -> dict[str, Any]:
    """Return accuracies over all rows from `rewards` (the winner's first), with a given map of groups.

    Source: R1-Reward's get_acc.py, with the one correction without which it cannot run (it takes `rewards[:1]` and then
    reads `rewards[1]`). Equal rewards are wrong, or right as in the same authors' script for IXC-2.5-Reward.
    """
    found = figures_by_group(parse_rewards(records, lambda record: group(record["id"]), "id", ties_right), GROUP_NAMES)
    # the sum in the script's order of groups; an empty group, and a file without rows, count as 0 there
    means = [found["groups"][name]["accuracy"] or 0 for name in reversed(GROUP_NAMES)]
    return {**found, "micro": found["micro"] or 0, "macro": sum(means) / 3}


RULES = {
    "official": ScoringRule(
        "cal.py: unreadable and split items leave the denominator; groups 183/749/318", "official", official_score
    ),
    "all_rows": ScoringRule(
        "the official groups over all rows, ties and unreadable wrong, as VLMEvalKit and lmms-eval divide",
        "rewards",
        partial(rewards_score, group=official_group),
    ),
    "r1_reward": ScoringRule(
        "R1-Reward's get_acc.py (BaseReward's tables too): groups 484/448/318, all rows, ties wrong",
        "rewards",
        partial(rewards_score, group=r1_group),
    ),
    "r1_reward_ties_right": ScoringRule(
        "R1-Reward's groups with ties right, as their script for IXC-2.5-Reward stores them",
        "rewards",
        partial(rewards_score, group=r1_group, ties_right=True),
    ),
    "unified_reward": ScoringRule(
        "UnifiedReward's qwen script: groups 631/301/318, all rows, ties and unreadable wrong",
        "rewards",
        partial(rewards_score, group=unified_group),
    ),
}
VL_REWARDBENCH = Benchmark(
    name=NAME,
    load=Published(NAME, "VL-RewardBench", HUB, FILES, "image", KNOWN, _example).load,
    formats={"official": official_records, "rewards": reward_records},
    rules=RULES,
    known=KNOWN,
    prompt=PairwisePrompt(ask, read, temperature=0.2, top_p=0.2, max_new_tokens=2048),
)
