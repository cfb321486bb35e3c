"""Checks that go right, wrong or nowhere, for the tests of the command; each is named by the process that makes it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tools.gpu_check.lines import Found, SkippedError


def right() -> Found:
    return Found(True, "as | it should be", {"figure": 1.0})


def right_again() -> Found:
    return right()


def machine(file: str) -> Found:
    """Say that the machine is the one whose name is in a file."""
    return Found(True, Path(file).read_text())


def counted(file: str, least: str) -> Found:
    """Count the calls in a file, and pass from call `least` on."""
    with Path(file).open("a") as calls:
        calls.write("x")
    return Found(len(Path(file).read_text()) >= int(least), "as it should be")


def wrong() -> Found:
    return Found(False, "0.9 (limit 0.1)")


def not_here() -> Found:
    raise SkippedError("vLLM is not installed")


def without_a_package() -> Found:
    import package_that_nobody_has  # type: ignore[import-not-found]

    return Found(True, str(package_that_nobody_has))


def refused() -> Found:
    sys.exit("error: the recipe is wrong")


def crash() -> Found:
    os.kill(os.getpid(), 9)
    return right()


def endless() -> Found:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print(f"child {child.pid}", flush=True)
    time.sleep(600)
    return right()


def small_3b(paradigm: str) -> Found:
    """Train at a shape that a CPU can, in the place of 3B."""
    from mmrm.models.families.qwen2_5_vl import Qwen2_5_VLShape, Qwen2_5_VLTowerShape
    from mmrm.train.studies.speed import workload
    from tools.gpu_check import steps

    tower = Qwen2_5_VLTowerShape(64, 2, intermediate_size=96)
    workload.SHAPES["3b"] = Qwen2_5_VLShape(
        512, 2, 4, 2, 96, 2000, tie_word_embeddings=True, vision_config=tower
    )
    return steps.large(paradigm)


def short_training(least: str) -> Found:
    """Train for two steps, and evaluate a few rows."""
    from tools.gpu_check import steps

    steps.WHOLE = (
        "data.sources.0.rows=128",
        "evaluation.benchmarks.0.limit=8",
        "evaluation.benchmarks.1.limit=8",
    )
    return steps.whole_training("2", least, "none")
