"""GenAI-Bench: show_results.py on the 54 released predictions files, and on generated ones."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from mmrm.eval.benchmarks.genai_bench import TASKS
from mmrm.eval.benchmarks.registry import BENCHMARKS
from mmrm.eval.results.official_scores import score_predictions_file
from tools.official_scorers.scorer import (
    Comparison,
    OfficialScorer,
    official_functions,
    our_figure,
)

HUMAN_VOTES = ("leftvote", "rightvote", "tievote", "bothbad_vote")
RESPONSES = (
    *("[[A>B]]", "[[B>A]]", "[[A=B]]", "[[A=B=Good]]", "[[A=B=Bad]]", "[[A>>B]]", "[[B>>A]]"),
    *("Both are fine.", "", "[[A > B]]", "[[A]] or [[B]]", "1. [[A>B]]\n2. [[B>A]]", "[[\n]]"),
)
"""Texts that a judge may write."""
NUM_GENERATED = 16


def compare(checkout: Path, scratch: Path) -> Iterator[Comparison]:
    """Yield the figures of all released files and of generated ones, by both rules.

    The averages of three tasks are those of the published table. show_results.py reads the column
    `correct`, which inference.py computed from `response`.
    """
    for result in official_results(checkout, checkout / "results"):
        file = checkout / "results" / result["task"] / result["model"] / "pairwise.json"
        name = f"{result['task']}/{result['model']}"
        yield Comparison(name, "accuracy", our_figure("genai_bench", file), result["acc"])
        again = our_figure("genai_bench", file, rules="responses")
        yield Comparison(name, "from responses", again, result["acc"])

    for judge, average in published_averages(checkout).items():
        file = scratch / "all_tasks.json"
        records = []
        for task in TASKS:
            results = checkout / "results" / task / judge / "pairwise.json"
            records += [{"task": task, **record} for record in json.loads(results.read_text())]
        file.write_text(json.dumps(records), encoding="utf-8")
        figures, _ = score_predictions_file(file, BENCHMARKS["genai_bench"])
        yield Comparison(judge, "average in percent", figures["detail"]["average"], average)

    parse_response = official_functions(
        checkout / "inference.py", ["parse_response"], {"re": import_module("regex")}
    )["parse_response"]
    for seed in range(NUM_GENERATED):
        folder = scratch / str(seed)
        file = folder / "video_generation" / "judge" / "pairwise.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(generated_records(seed, parse_response)), encoding="utf-8")
        try:
            official = official_results(checkout, folder)[0]["acc"]
        except (KeyError, TypeError, IndexError):
            official = None
        ours = our_figure("genai_bench", file)
        yield Comparison(f"generated {seed}", "accuracy", ours, official)
        if official is not None:
            again = our_figure("genai_bench", file, rules="responses")
            yield Comparison(f"generated {seed}", "from responses", again, official)
        shutil.rmtree(folder)


def published_averages(checkout: Path) -> dict[str, float]:
    """Return the column "Average" of genaibench_results.txt, in percent, by judge."""
    averages = {}
    for line in (checkout / "genaibench_results.txt").read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 8 and cells[2] == "pairwise":
            averages[cells[1]] = float(cells[6])
    return averages


def official_results(checkout: Path, results: Path) -> list[dict[str, Any]]:
    """Return the results that `load_results` of show_results.py reads in a folder, task by task."""
    definitions = {"json": json, "np": np, "Path": Path}
    functions = official_functions(checkout / "show_results.py", ["load_results"], definitions)
    results_of_tasks = []
    for task, results_of_task in functions["load_results"](results).items():
        for result in sorted(results_of_task, key=lambda result: str(result["model"])):
            results_of_tasks.append({"task": task, **result})
    return results_of_tasks


def generated_records(seed: int, parse_response: Any) -> list[Any]:
    """Return the records of a random file; some files have a malformed record.

    A malformed record is null, has no column `correct`, or holds a text or null in it.

    Args:
        seed: The seed of the file.
        parse_response: The function of inference.py that computes `correct`.
    """
    draw = random.Random(seed)
    records: list[Any] = []
    for number in range(draw.randint(1, 60)):
        response = draw.choice(RESPONSES)
        human_vote = draw.choice(HUMAN_VOTES)
        model_vote, is_right = parse_response(response, human_vote)
        records.append(
            {
                "idx": number,
                "prompt": f"a picture of {number} cats",
                "response": response,
                "model_vote": model_vote,
                "human_vote": human_vote,
                "correct": is_right,
            }
        )
    broken = draw.randrange(len(records))
    if seed % 8 == 4:
        records[broken] = None
    elif seed % 8 == 5:
        del records[broken]["correct"]
    elif seed % 8 == 6:
        records[broken]["correct"] = "true"
    elif seed % 8 == 7:
        records[broken]["correct"] = None
    return records


GENAI_BENCH = OfficialScorer(
    benchmark="genai_bench",
    repository="TIGER-AI-Lab/GenAI-Bench",
    commit="f0b0334d414074c6b1c97e2c60ad8d8a592bda9f",
    paths=("results", "show_results.py", "inference.py", "genaibench_results.txt"),
    compare=compare,
)
