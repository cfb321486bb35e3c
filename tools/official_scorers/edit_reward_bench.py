"""EditReward-Bench: eval_bench.py and inference_{2,3,4}pair_hf.py on generated predictions."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from mmrm.data.storage.files import write_json, write_json_lines
from mmrm.eval.benchmarks.edit_reward_bench import (
    LETTERS,
    NUM_EDITS,
    comparison_names,
    ranking_of,
)
from mmrm.eval.benchmarks.registry import BENCHMARKS
from mmrm.eval.results.official_scores import score_predictions_file
from tools.official_scorers.scorer import Comparison, OfficialScorer, official_functions

EVALUATE = Path("EditReward/evaluate")
NUM_GENERATED = 16
KINDS = ("fine", "coarse", "equal", "with ties only", "unreadable")
"""Kinds of generated scores. "coarse" scores are often equal, "equal" ones always."""
FILE_NAMES = {"2pair": "2-Pair", "3pair": "3-Pair", "4pair": "4-Pair"}
"""The names of the parts in the results of eval_bench.py."""
SCORER_FUNCTIONS = (
    *("suff_stats", "calc_acc", "calc_accuracy_without_ties", "get_pairwise_gt", "get_gt_ranking"),
    *("calc_accuracy_with_ties_for_edit_reward_bench", "evaluate_edit_reward_bench"),
)
VOTE_FUNCTIONS = (
    *("run_pairwise_comparison_embedded", "parse_pairwise_response", "process_single_hf_example"),
    "main",
)


class StableNumpy:
    """The module numpy, whose argsort keeps the order of equal numbers on every processor."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def argsort(self, values: Sequence[float]) -> Any:
        """Return the indices of the values in ascending order."""
        return np.argsort(values, kind="stable")


def compare(checkout: Path, scratch: Path) -> Iterator[Comparison]:
    """Yield the figures of generated predictions, by both rules.

    eval_bench.py takes the scores from a model, and the other scripts take the texts of a judge.
    Both are replaced by functions that return the generated predictions.
    """
    for seed in range(NUM_GENERATED):
        folder = scratch / str(seed)
        folder.mkdir()
        items = generated_items(seed)
        yield from compare_scores(checkout, folder, items, f"scores {seed}, {kind_of(seed)}")
        for part, texts in generated_texts(seed, items).items():
            yield from compare_votes(checkout, folder, part, texts, f"votes {seed}")


def kind_of(seed: int) -> str:
    """Return the kind of the scores that a seed generates."""
    return KINDS[seed % len(KINDS)]


def generated_items(seed: int) -> list[dict[str, Any]]:
    """Return lines of our format `official` with random rankings and scores."""
    draw = random.Random(seed)
    items = []
    for part, num_edits in NUM_EDITS.items():
        for number in range(draw.randint(1, 40)):
            ranks = list(range(num_edits))
            draw.shuffle(ranks)
            can_tie = part == "2pair"
            if can_tie and (kind_of(seed) == "with ties only" or draw.random() < 0.3):
                ranks = [0, 0]
            items.append(
                {
                    "id": f"{number}{part}",
                    "dataset": part,
                    "ranking": ranking_of(ranks),
                    "scores": [generated_score(draw, kind_of(seed)) for _ in ranks],
                }
            )
    return items


def generated_score(draw: random.Random, kind: str) -> float | None:
    """Return a random score of a kind; None for one that cannot be read."""
    if kind == "equal":
        return 0.25
    if kind == "coarse":
        return draw.choice([0.0, 0.5, 1.0])
    if kind == "unreadable" and draw.random() < 0.1:
        return None
    return draw.gauss(0, 1)


def compare_scores(
    checkout: Path, folder: Path, items: list[dict[str, Any]], name: str
) -> Iterator[Comparison]:
    """Yield the figures of scores by our rule `official` and by `evaluate_edit_reward_bench`."""
    predictions = folder / "official.jsonl"
    write_json_lines(predictions, items)
    ours, _ = score_predictions_file(predictions, BENCHMARKS["edit_reward_bench"])
    official = official_results(checkout, folder, items)
    for part, name_of_part in {**FILE_NAMES, "overall": "overall"}.items():
        if name_of_part not in official:
            continue
        strict = ours["micro"] if part == "overall" else ours["groups"][part]["accuracy"]
        figures = official[name_of_part]
        yield Comparison(
            name, f"{part} pairwise", ours["detail"]["pairwise"][part], figures["pairwise_accuracy"]
        )
        if part in ("2pair", "overall") and any(None in item["scores"] for item in items):
            # The script puts thresholds into a set. A set with several NaN has another order in
            # every process, and so has the threshold that counts for ties.
            continue
        yield Comparison(name, f"{part} strict", strict, figures["strict_ranking_accuracy"])


def official_results(
    checkout: Path, folder: Path, items: Sequence[dict[str, Any]]
) -> dict[str, dict[str, float]]:
    """Return the results that `evaluate_edit_reward_bench` writes for the scores of items."""
    score_by_path: dict[str, float] = {}
    rows_by_part: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for number, item in enumerate(items):
        paths = []
        for index, score in enumerate(item["scores"]):
            path = f"{number}_{LETTERS[index]}.png"
            score_by_path[path] = math.nan if score is None else score
            paths.append(path)
        ranking = item["ranking"].replace("A=B", "A=B=Good")  # the name of ties in these files
        rows_by_part[item["dataset"]].append(
            {
                "prompt": f"edit {number}",
                "path_src": f"{number}.png",
                "paths_generated": paths,
                "human_vote": {"ranking": ranking},
            }
        )
    for part, rows in rows_by_part.items():
        write_json(folder / f"EditReward_Bench_{part}.json", rows)

    def reward(
        prompts: list[str], image_src: list[str], image_paths: list[str]
    ) -> list[list[torch.Tensor]]:
        return [[torch.tensor(score_by_path[path], dtype=torch.float64)] for path in image_paths]

    definitions = {
        "combinations": combinations,
        "gc": SimpleNamespace(collect=lambda: None),  # a collection for each score takes minutes
        "json": json,
        "np": StableNumpy(),
        "os": os,
        "torch": torch,
        "tqdm": lambda rows, desc: rows,
    }
    file = checkout / EVALUATE / "eval_bench.py"
    functions = official_functions(file, SCORER_FUNCTIONS, definitions)
    result = folder / "result_accuracy.json"
    with contextlib.redirect_stdout(io.StringIO()):
        functions["evaluate_edit_reward_bench"](
            SimpleNamespace(reward=reward), io.StringIO(), str(result), str(folder)
        )
    results: dict[str, dict[str, float]] = json.loads(result.read_text(encoding="utf-8"))
    return results


def generated_texts(seed: int, items: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, str]]]:
    """Return comparisons with the texts of a judge, by the part of the benchmark.

    The judge is right on most comparisons, and some of its texts name no edit. Some items lack a
    comparison.
    """
    draw = random.Random(f"{seed}/texts")
    texts: dict[str, list[dict[str, str]]] = defaultdict(list)
    for item in items:
        part = item["dataset"]
        is_incomplete = part != "2pair" and draw.random() < 0.05
        for name in comparison_names(NUM_EDITS[part])[int(is_incomplete) :]:
            first, second = name.split("vs")
            ranking = item["ranking"]
            human_vote = f"{first}>{second}"
            if "=" in ranking:
                human_vote = "A=B"
            elif ranking.index(second) < ranking.index(first):
                human_vote = f"{second}>{first}"
            choices = ["[[A=B]]", "[[A>B]]", "[[B>A]]", "Both are fine.", ""]
            text = f"[[{human_vote}]]" if draw.random() < 0.8 else draw.choice(choices)
            texts[part].append(
                {
                    "dataset": part,
                    "id": f"{item['id']}_{name}",
                    "comparison_type": name,
                    "ranking": human_vote,
                    "text": text,
                }
            )
    return texts


def compare_votes(
    checkout: Path, folder: Path, part: str, texts: list[dict[str, str]], name: str
) -> Iterator[Comparison]:
    """Yield the figures of a judge's texts by our rule `votes` and by inference_Kpair_hf.py."""
    file = official_vote_results(checkout, folder, part, texts)
    official = json.loads(file.read_text(encoding="utf-8"))
    ours, _ = score_predictions_file(file, BENCHMARKS["edit_reward_bench"])
    individual = ours["detail"]["individual"][part]["accuracy"]
    accuracy = ours["groups"][part]["accuracy"]
    if part == "2pair":
        yield Comparison(name, "2pair", accuracy, official["accuracy"])
        return
    yield Comparison(name, f"{part} individual", individual, official["individual_accuracy"])
    yield Comparison(name, f"{part} groups", accuracy, official["group_accuracy"])


def official_vote_results(
    checkout: Path, folder: Path, part: str, texts: Sequence[dict[str, str]]
) -> Path:
    """Return the file that inference_Kpair_hf.py writes for the texts of a judge."""
    rows = []
    for comparison in texts:
        # The script passes the instruction on to the judge, which returns the text in it.
        images = dict.fromkeys(("source_image", "candidate_1", "candidate_2"))
        rows.append({**comparison, **images, "instruction": comparison["text"]})

    def judge(inputs: Sequence[dict[str, Any]]) -> str:
        text: str = inputs[0]["content"]
        return text

    definitions = {
        "MLLM_Models": lambda model_name: lambda: judge,
        "Path": Path,
        "ThreadPoolExecutor": ThreadPoolExecutor,
        "as_completed": as_completed,
        "defaultdict": defaultdict,
        "json": json,
        "load_dataset": lambda dataset_name: {"train": rows},
        "load_template": lambda task, template: (
            "<instruct_prompt><source_image><left_output_image><right_output_image>"
        ),
        "time": time,
        "tqdm": _SilentProgress,
    }
    file = checkout / EVALUATE / f"inference_{part}_hf.py"
    names = (*VOTE_FUNCTIONS, f"evaluate_{part}_hf_example")
    functions = official_functions(file, names, definitions)
    results = folder / f"{part}_results"
    with contextlib.redirect_stdout(io.StringIO()):
        functions["main"](model_name="judge", results_dir=str(results), max_workers=1)
    (written,) = results.glob("*.json")
    return written


class _SilentProgress:
    """A progress bar that shows nothing."""

    def __init__(self, total: int, desc: str) -> None:
        self.n = 0

    def __enter__(self) -> _SilentProgress:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def update(self, count: int) -> None:
        """Count finished comparisons."""
        self.n += count


EDIT_REWARD_BENCH = OfficialScorer(
    benchmark="edit_reward_bench",
    repository="TIGER-AI-Lab/EditReward",
    commit="edb027edde6080b8a9521ef8e87049b3797f8374",
    paths=("EditReward/evaluate",),
    compare=compare,
)
