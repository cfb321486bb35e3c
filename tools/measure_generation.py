"""Measure how fast a judge writes under ZeRO-3, which divides the weights among processes.

The weights are gathered once for the whole evaluation, gathered layer by layer, or not divided.

    python tools/measure_generation.py [--rounds 3]

Two ranks on the CPU judge the embedded benchmark with a tiny critic's own critiques, in turn in each way; prints tokens a second
and the ratio to ZeRO-2. Other work on the machine slows all three.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from mmrm.train.supervised import whole_weights
from tests.models import tiny
from tests.train.ranks import run_ranks
from tests.train.test_critic_runs import RECIPE
from tests.train.worker import recipe_run

WAYS = {
    "zero2": ("zero2", True),
    "zero3, gathered once": ("zero3", True),
    "zero3, by layer": ("zero3", False),
}
TOKENS = "eval_judging/generated_tokens_per_second"


def judge(arguments: Sequence[str], fits: bool) -> None:
    """Evaluate before the first step, with whole weights if they are said to fit."""
    if not fits:
        whole_weights.fits_everywhere = lambda size, device: False
    recipe_run(arguments)


def tokens_per_second(base: Path, folder: Path, stage: str, fits: bool) -> float:
    """Return the speed of one evaluation."""
    folder.mkdir()
    (folder / "recipe.yaml").write_text(RECIPE.format(base=base, folder=folder), encoding="utf-8")
    changes = [
        f"deepspeed={stage}",
        "method.critique_max_tokens=64",
        "optim.max_steps=1",
        "method.warmup_steps=1",
    ]
    changes += ["evaluation.benchmarks.0.limit=14", "output.save_every_steps=1"]
    run_ranks(folder / "logs", judge, [str(folder / "recipe.yaml"), *changes], fits)
    log = json.loads((folder / "run" / "checkpoint-1" / "trainer_state.json").read_text())[
        "log_history"
    ]
    return next(float(line[TOKENS]) for line in log if TOKENS in line)


def main() -> None:
    """Measure each way once a round and print the medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    found: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as place:
        base = tiny.checkpoint(Path(place) / "base")
        for number in range(rounds):
            for name, (stage, fits) in WAYS.items():
                found[name].append(
                    tokens_per_second(base, Path(place) / f"{number}-{stage}-{fits}", stage, fits)
                )
    plain = statistics.median(found["zero2"])
    for name, speeds in found.items():
        speed = statistics.median(speeds)
        print(
            f"{name:<22}{speed:8.1f} tokens/s, {plain / speed:5.2f} times the time of zero2   {[round(one, 1) for one in speeds]}"
        )


if __name__ == "__main__":
    main()
