"""MMRB2: compute_accuracy.py on the released sample files, and on generated ones."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrm.eval.benchmarks.benchmark import Location
from mmrm.eval.benchmarks.mmrb2 import TASKS
from tools.official_scorers.scorer import (
    Comparison,
    OfficialScorer,
    official_functions,
    our_figure,
)

SAMPLES = "evaluate/generate_judgements/outputs"
SCRIPT = "evaluate/compute_scores/compute_accuracy.py"
NUM_GENERATED = 16
NUM_PAIRS = 40
"""Number of pairs that the generated files of a task are about."""


def compare(checkout: Path, scratch: Path) -> Iterator[Comparison]:
    """Yield the figures of the sample files, alone and together, and of generated files.

    The labels of the sample files are those of the repository's `*_response_only.json`.
    """
    benchmark = checkout / "benchmark"
    samples = {task: checkout / SAMPLES / f"sample_{name}.json" for task, name in TASKS.items()}
    for task, sample in samples.items():
        labels = benchmark / f"{task}_response_only.json"
        ours = our_figure("mmrb2", sample, where=Location(location=str(labels)))
        official = official_accuracy(checkout, {task: sample}, {task: labels})
        yield Comparison(sample.stem, "accuracy", ours, official)
    all_labels = {task: benchmark / f"{task}_response_only.json" for task in TASKS}
    ours = our_figure("mmrb2", checkout / SAMPLES, where=Location(location=str(benchmark)))
    official = official_accuracy(checkout, samples, all_labels)
    yield Comparison("all four sample files", "overall", ours, official)

    for seed in range(NUM_GENERATED):
        draw = random.Random(seed)
        folder = scratch / str(seed)
        predictions_folder = folder / "predictions"
        predictions_folder.mkdir(parents=True)
        predictions: dict[str, Path] = {}
        labels_by_task: dict[str, Path] = {}
        for task, name in TASKS.items():
            ids = [f"{task}_{number}" for number in range(NUM_PAIRS)]
            labels_by_task[task] = folder / f"{task}.json"
            labels_by_task[task].write_text(json.dumps(generated_labels(draw, ids)))
            predictions[task] = predictions_folder / f"{name}.json"
            predictions[task].write_text(json.dumps(generated_predictions(draw, ids, seed)))
        ours = our_figure("mmrb2", predictions_folder, where=Location(location=str(folder)))
        official = official_accuracy(checkout, predictions, labels_by_task)
        yield Comparison(f"generated {seed}", "overall", ours, official)


def official_accuracy(
    checkout: Path, predictions: dict[str, Path], labels: dict[str, Path]
) -> float | None:
    """Return the overall accuracy of compute_accuracy.py; None if the script ends with an error.

    Args:
        checkout: The folder of the repository.
        predictions: The predictions file of each task.
        labels: The benchmark file of each task.
    """
    # The script's own dataclass and annotations need these names.
    definitions = {"dataclass": dataclass, "Dict": dict, "List": list, "__name__": __name__}
    names = ["TaskResult", "flip_judgement", "compute_task_accuracy"]
    functions = official_functions(checkout / SCRIPT, names, definitions)
    num_correct = 0
    num_evaluated = 0
    for task, file in predictions.items():
        predictions_of_task = json.loads(file.read_text())
        pairs_of_task = json.loads(labels[task].read_text())
        try:
            result = functions["compute_task_accuracy"](predictions_of_task, pairs_of_task)
        except (AttributeError, KeyError, TypeError):
            return None
        num_correct += result.total_correct
        num_evaluated += result.total_evaluated
    # As `evaluate_all_tasks` adds the tasks up.
    return num_correct / num_evaluated if num_evaluated > 0 else 0.0


def generated_labels(draw: random.Random, ids: list[str]) -> dict[str, Any]:
    """Return the content of a benchmark file with these pairs, whose responses are texts."""
    pairs = []
    for row_id in ids:
        pairs.append(
            {
                "id": row_id,
                "response_a": {"model_name": "a", "response_content": [["text", "yes"]]},
                "response_b": {"model_name": "b", "response_content": [["text", "no"]]},
                "chosen": draw.choice("AB"),
            }
        )
    return {"pairs": pairs}


def generated_predictions(draw: random.Random, ids: list[str], seed: int) -> dict[str, Any]:
    """Return the content of a random predictions file; some files have a malformed prediction.

    Pairs may be missing, and so may judgements. Some pairs are in no benchmark file. A malformed
    prediction is null, or holds a text, null or an object in place of a list of judgements.
    """
    predictions: dict[str, Any] = {}
    for row_id in [*ids, "unknown"]:
        if draw.random() < 0.1:
            continue
        prediction: dict[str, Any] = {}
        for order in ("forward", "reverse"):
            if draw.random() < 0.1:
                continue
            judgements: list[dict[str, Any]] = []
            for _ in range(draw.randint(0, 2)):
                name = draw.choice(["A", "B", "A", "B", "tie", "", None])
                judgements.append({"judgement": name, "evaluator": "generated", "metadata": {}})
            prediction[order] = judgements
        # The ids of the four tasks differ, except for that of a pair that is in no file.
        predictions[row_id if row_id in ids else f"{ids[0]}_unknown"] = prediction
    broken_id = next(row_id for row_id in predictions if row_id in ids)
    if seed % 8 == 4:
        predictions[broken_id] = None
    elif seed % 8 == 5:
        predictions[broken_id] = {"forward": "A"}
    elif seed % 8 == 6:
        predictions[broken_id] = {"reverse": None}
    elif seed % 8 == 7:
        predictions[broken_id] = {"forward": {"judgement": "A"}}
    return predictions


MMRB2 = OfficialScorer(
    benchmark="mmrb2",
    repository="facebookresearch/MMRB2",
    commit="7ff0552cf298441af5ebbabea634b682ef04afee",
    paths=(SCRIPT, SAMPLES, *(f"benchmark/{task}_response_only.json" for task in TASKS)),
    compare=compare,
)
