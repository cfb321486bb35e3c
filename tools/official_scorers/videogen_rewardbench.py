"""VideoGen-RewardBench: eval_videogen_rewardbench.py and calc_accuracy.py on generated rewards."""

from __future__ import annotations

import contextlib
import glob
import io
import json
import math
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas  # type: ignore[import-untyped]
import torch

from mmrm.eval.benchmarks.registry import BENCHMARKS
from mmrm.eval.benchmarks.tie_calibration import (
    PairLabel,
    accuracy_with_ties_one_by_one,
    accuracy_without_ties,
)
from mmrm.eval.benchmarks.videogen_rewardbench import ATTRIBUTES, num_frames_of_video
from mmrm.eval.results.official_scores import score_predictions_file
from tools.official_scorers.scorer import Comparison, OfficialScorer, official_functions

NUM_GENERATED = 16
KINDS = ("fine", "coarse", "equal", "all tied", "unreadable", "unlabelled")
"""Kinds of generated rewards and labels. "coarse" rewards are often equal, "equal" ones always."""
ACCURACY_FUNCTIONS = (
    *("suff_stats", "calc_acc", "calc_accuracy_with_ties", "calc_accuracy_without_ties"),
)


def compare(checkout: Path, scratch: Path) -> Iterator[Comparison]:
    """Yield the figures of generated rewards by the whole script, and the numbers of frames.

    The script takes the rewards from a model, which is replaced by a function that returns the
    generated ones. It divides by zero if all pairs are tied, so that the functions of
    calc_accuracy.py are called without it there.
    """
    for seed in range(NUM_GENERATED):
        folder = scratch / str(seed)
        (folder / "datasets" / "eval").mkdir(parents=True)
        name = f"generated {seed}, {kind_of(seed)}"
        if kind_of(seed) == "all tied":
            yield from compare_functions(checkout, seed, name)
            continue
        official = official_results(checkout, folder, generated_rows(seed))
        predictions = folder / "videogen-rewardbench-output" / "out_pair.csv"
        ours, _ = score_predictions_file(predictions, BENCHMARKS["videogen_rewardbench"])
        for attribute in ATTRIBUTES:
            for figure in ("with_ties", "without_ties"):
                yield Comparison(
                    name,
                    f"{attribute} {figure}",
                    ours["detail"][attribute][figure],
                    official[f"{attribute} Accuracy"][figure],
                )
    yield from compare_frames(checkout)


def kind_of(seed: int) -> str:
    """Return the kind of the rewards and labels that a seed generates."""
    return KINDS[seed % len(KINDS)]


def generated_rows(seed: int) -> list[dict[str, Any]]:
    """Return rows of the table with random labels and rewards, in the columns reward_NAME_A and _B.

    All videos are different, so that the rewards of one row are not those of another.
    """
    draw = random.Random(seed)
    kind = kind_of(seed)
    rows = []
    for number in range(draw.randint(20, 200)):
        row: dict[str, Any] = {"prompt": f"a cat, number {number}"}
        for side in ("A", "B"):
            row[f"path_{side}"] = f"videos/{number}_{side}.mp4"
            row[f"{side}_model"] = f"model {side}"
            row[f"fps_{side}"] = 24.0
            row[f"num_frames_{side}"] = 126.0
        for attribute in ATTRIBUTES:
            labels = ["same"] if kind == "all tied" else ["A", "B", "same"]
            if kind == "unlabelled":
                labels += ["", "invalid"]
            row[attribute] = draw.choice(labels)
            for side in ("A", "B"):
                row[f"reward_{attribute}_{side}"] = generated_reward(draw, kind)
        rows.append(row)
    return rows


def generated_reward(draw: random.Random, kind: str) -> float:
    """Return a random reward of a kind; NaN for one that cannot be read."""
    if kind == "equal":
        return 0.25
    if kind == "coarse":
        return draw.choice([0.0, 0.5, 1.0])
    if kind == "unreadable" and draw.random() < 0.1:
        return math.nan
    return draw.gauss(0, 1)


def official_results(
    checkout: Path, folder: Path, rows: Sequence[dict[str, Any]]
) -> dict[str, dict[str, float]]:
    """Return the figures that the script writes. Its other files are in `folder` as well."""
    rewards: dict[str, dict[str, float]] = {}
    annotations = []
    for row in rows:
        for side in ("A", "B"):
            path = f"datasets/eval/{row[f'path_{side}']}"
            rewards[path] = {name: row[f"reward_{name}_{side}"] for name in ATTRIBUTES}
        annotations.append({name: row[name] for name in row if not name.startswith("reward_")})
    table = folder / "datasets" / "eval" / "videogen-rewardbench.csv"
    pandas.DataFrame(annotations).to_csv(table, index=False)

    class Inferencer:
        """The model, which returns the generated rewards."""

        def __init__(self, checkpoint: str, device: torch.device, dtype: torch.dtype) -> None:
            pass

        def reward(self, videos: list[str], prompts: list[str]) -> list[dict[str, float]]:
            """Return the rewards of videos."""
            return [rewards[video] for video in videos]

    accuracy = official_functions(checkout / "calc_accuracy.py", ACCURACY_FUNCTIONS, {})
    definitions = {
        "VideoVLMRewardInference": Inferencer,
        "calc_accuracy_with_ties": accuracy["calc_accuracy_with_ties"],
        "calc_accuracy_without_ties": accuracy["calc_accuracy_without_ties"],
        "glob": glob,
        "json": json,
        "os": os,
        "pd": pandas,
        "torch": torch,
        "tqdm": lambda steps, total: steps,
    }
    functions = official_functions(
        checkout / "eval_videogen_rewardbench.py",
        ("convert_pair_to_single", "convert_single_to_pair", "main"),
        definitions,
    )
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
        functions["main"]()
    result = folder / "videogen-rewardbench-output" / "accuracy.json"
    results: dict[str, dict[str, float]] = json.loads(result.read_text(encoding="utf-8"))
    return results


def compare_functions(checkout: Path, seed: int, name: str) -> Iterator[Comparison]:
    """Yield the figures of Overall by the functions of calc_accuracy.py."""
    official = official_functions(checkout / "calc_accuracy.py", ACCURACY_FUNCTIONS, {})
    numbers: dict[str, PairLabel] = {"A": 1, "B": -1, "same": 0}
    rows = generated_rows(seed)
    labels = [numbers[row["Overall"]] for row in rows]
    differences = [row["reward_Overall_A"] - row["reward_Overall_B"] for row in rows]
    yield Comparison(
        name,
        "Overall with_ties",
        accuracy_with_ties_one_by_one(labels, differences),
        official["calc_accuracy_with_ties"](labels, differences),
    )
    without_ties = None
    with contextlib.suppress(ZeroDivisionError):
        without_ties = official["calc_accuracy_without_ties"](labels, differences)
    ours = accuracy_without_ties(labels, differences)
    yield Comparison(name, "Overall without_ties", ours, without_ties)


def compare_frames(checkout: Path) -> Iterator[Comparison]:
    """Yield numbers of frames of videos by `smart_nframes` of vision_process.py."""
    constants = {"FPS": 2.0, "FPS_MIN_FRAMES": 4, "FPS_MAX_FRAMES": 768, "FRAME_FACTOR": 2}
    official = official_functions(
        checkout / "vision_process.py",
        ("smart_nframes", "round_by_factor", "ceil_by_factor", "floor_by_factor"),
        {"math": math, **constants},
    )
    for total in (4, 7, 60, 126, 152, 2000, 100_000):
        for fps in (8.0, 16.0, 24.0, 29.97, 30.0):
            expected = official["smart_nframes"]({"fps": 2.0}, total, fps)
            ours = num_frames_of_video(total, fps)
            yield Comparison(f"{total} frames at {fps}", "frames shown", ours, expected)


VIDEOGEN_REWARDBENCH = OfficialScorer(
    benchmark="videogen_rewardbench",
    repository="KwaiVGI/VideoAlign",
    commit="219ab9db64c045e5181a2202d11f686439351292",
    paths=("calc_accuracy.py", "eval_videogen_rewardbench.py", "vision_process.py"),
    compare=compare,
)
