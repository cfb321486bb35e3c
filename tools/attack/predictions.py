"""Predictions files with a value that nobody expects: scored as they are meant, or refused with the line."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmrm.eval.benchmarks.registry import BENCHMARKS
from mmrm.eval.results.official_scores import score_predictions_file
from mmrm.eval.results.predictions import difference, read_predictions
from tools.attack.outcomes import Attempt, Tally, cause, kind_of
from tools.attack.values import VALUES, dotted, places, put

SECONDS = 5.0
ROW = {"id": "mmmu-1", "rewards": [1.0, 0.5], "chosen": "a", "rejected": "b"}
MULTIMODAL = {
    "ID": "MMBench_0000",
    "Category": "vqa",
    "Text": "q",
    "Output1": "a",
    "Output2": "b",
    "Better": "Output1",
}
OWN = {
    "key": "k",
    "identity": "vl_rewardbench:0 (mmmu-1)",
    "group": "mcq",
    "better": 0,
    "scores": [1.0, 0.0],
    "votes": [],
    "credit": 1.0,
}
VOTED = {**OWN, "key": "l", "scores": None, "votes": [{"text": "x", "first": 0, "names": 0}]}
META = {"filter_choice": "Overall Judgment: Answer 1 is better.", "random_number": 0}
SAMPLES: dict[str, tuple[str, str | None, Any]] = {
    "vl official": (
        "vl_rewardbench",
        None,
        {"id": "mmmu-1", "query": "q", "response": ["a", "b"], "ranking": [0, 1], "meta": META},
    ),
    "vl rewards": ("vl_rewardbench", "r1_reward", ROW),
    "vl lmms-eval": (
        "vl_rewardbench",
        None,
        {
            "filtered_resps": ["x"],
            "vlreward_score": {"question_id": "mmmu-1", "category": "reasoning", "score": 1.0},
        },
    ),
    "multimodal official": (
        "multimodal_rewardbench",
        None,
        {"ID": "x", "Label": "A", "output": "[[A]]", "Meta": MULTIMODAL},
    ),
    "multimodal rewards": (
        "multimodal_rewardbench",
        "r1_reward",
        {**MULTIMODAL, "rewards": [1, 0]},
    ),
    "multimodal lmms-eval": (
        "multimodal_rewardbench",
        None,
        {
            "filtered_resps": "[[A]]",
            "target": "Output1",
            "multimodal_rewardbench_accuracy": {"question_id": "x", "category": "vqa", "score": 1},
        },
    ),
    "mm_rlhf official": ("mm_rlhf_rewardbench", None, {**ROW, "image": "mcq/1.png"}),
    "folder rewards": ("preference_folder", None, {**ROW, "category": "x"}),
    **{f"{name} own": (name, None, OWN) for name in BENCHMARKS},
    **{f"{name} own votes": (name, None, VOTED) for name in BENCHMARKS},
}
"""Name to benchmark, rules and a line that they score."""


def attack(tally: Tally, folder: Path, count: int, seed: int, only: str | None = None) -> None:
    """Put a value at every place of a second line, `count` cases drawn from all; each file is scored, own ones compared too."""
    found = list(cases())
    drawn = random.Random(seed).sample(found, min(count, len(found)))
    file = folder / "predictions.jsonl"
    for kind, name, row in drawn:
        case = f"{kind} {name}"
        if only not in (None, case):
            continue
        benchmark, rules, good = SAMPLES[kind]
        file.write_text(f"{json.dumps(good)}\n{json.dumps(row)}\n", encoding="utf-8")
        scored = None
        with Attempt(SECONDS) as attempt:
            scored = score_predictions_file(file, BENCHMARKS[benchmark], rules)
            "\n".join(scored[1].lines()).encode()
        _count(tally, case, attempt, wrong=scored is not None and not plausible(row))
        if kind.endswith("own"):
            with Attempt(SECONDS) as attempt:
                lines = read_predictions(file)
                difference(lines, [{**lines[0]}, {**lines[1], "credit": 0.5}])
            _count(tally, case, attempt)


def _count(tally: Tally, case: str, attempt: Attempt, wrong: bool = False) -> None:
    error = attempt.error
    if error is not None:
        tally.add(kind_of(error), case, cause(error), str(error))
    else:
        tally.add(
            "silent" if wrong else "worked", case, "a score of what is no pair of finite numbers"
        )


def cases() -> Iterator[tuple[str, str, Any]]:
    """Yield kind, name and line of every case."""
    for kind, (_, _, good) in SAMPLES.items():
        for place in places(good):
            for value, new in VALUES.items():
                yield kind, f"{dotted(place)} = {value}", put(good, place, new)


def plausible(row: Any) -> bool:
    """Say whether what was scored may be: two finite numbers where there are rewards."""
    if not isinstance(row, dict) or "rewards" not in row:
        return True
    found = row["rewards"]
    return (
        isinstance(found, list)
        and len(found) == 2
        and all(type(one) in (int, float) and abs(one) < math.inf for one in found)
    )
