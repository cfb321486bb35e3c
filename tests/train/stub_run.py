"""Stands in for training: `stub_run.py train/rm.py RUN/recipe.yaml` leaves what a run of two steps leaves.

`calls` in the list's folder tells of every start. A run whose name stands in `fail` fails; while its name stands in `hold`, it
waits after its first checkpoint.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def main() -> None:
    """Do as a run does."""
    script, recipe = map(Path, sys.argv[1:])
    assert script.is_file()
    folder, lists = recipe.parent, recipe.parents[2]
    name = f"{folder.parent.name}/{folder.name}"
    begun = "resumed" if (folder / "checkpoint-1").exists() else "begun"
    with (lists / "calls").open("a") as calls:
        calls.write(f"{script.stem} {name} {begun}\n")
    save(folder, 1)
    while name in said(lists / "hold"):
        time.sleep(0.02)
    if name in said(lists / "fail"):
        sys.exit("the loss is a teapot")
    save(folder, 2)
    speed = {"records_per_second": 32.0, "tokens_per_second": 6400.0}
    judged = {"eval_judging/seconds_per_pair": 0.25, "eval_judging/tokens_per_pair": 9.5}
    lines = [
        {"step": 1, **speed},
        {"step": 2, **speed},
        {"step": 2, **judged},
        {"step": 2, "train_runtime": 9.0},
    ]
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def save(folder: Path, step: int) -> None:
    """Leave a checkpoint whose accuracy is that of a head of so many layers: row i is right unless i % layers == 0."""
    place = folder / f"checkpoint-{step}"
    if (folder.parent.name.split("-")[0]) == "reward":
        save_answers(place / "answers", folder.parent.name)
        return
    (place / "eval" / "vl_rewardbench").mkdir(parents=True, exist_ok=True)
    layers = int(folder.parent.name.removeprefix("layers-"))
    rows = [
        {"key": f"row {i}", "credit": float((i + int(folder.name)) % (2 * layers) > 0)}
        for i in range(60)
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (place / "eval" / "vl_rewardbench" / "predictions.jsonl").write_text(lines)
    (place / f"global_step{step}").mkdir(exist_ok=True)
    for file in ("optimizer.pt", f"global_step{step}/states.pt", "model.safetensors", "complete"):
        (place / file).touch()


def save_answers(place: Path, variant: str) -> None:
    """Leave a policy's checkpoint: of ten questions four are right, of a reward by a verifier six, and no judge scored them."""
    place.mkdir(parents=True, exist_ok=True)
    judge = variant != "reward-verifier"
    rows = [
        {
            "id": f"q{i}",
            "credits": {"greedy": float(i < 4 + 2 * (not judge)), "sampled": 0.5}
            | ({"best": 1.0} if judge else {}),
        }
        for i in range(10)
    ]
    (place / "shapes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (place.parent / "complete").touch()


def said(file: Path) -> list[str]:
    """Return the names in a file."""
    return file.read_text().split() if file.exists() else []


if __name__ == "__main__":
    main()
