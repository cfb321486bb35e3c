"""Whole training runs that several test files look at; made once, whichever process asks first."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from filelock import FileLock

from tests.train import worker
from tests.train.ranks import run_ranks

CURVES = (
    (1, "none"),
    (2, "none"),
    (2, "zero1"),
    (2, "zero2"),
    (2, "zero3"),
    (2, "zero3_hpz"),
    (2, "zero2_offload"),
    (2, "zero3_offload"),
)
"""Ranks and stage of the whole runs."""


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the recipe of six steps, with AdamW and evaluation, into a folder `RANKS-STAGE` for each of CURVES.

    One rank computes a step in one row, two ranks in several. The folder belongs to all test processes: read it only.
    """
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "runs"
    with FileLock(folder.with_name("runs.lock")):
        if not (folder / "made").exists():
            recipe = worker.prepare(folder)
            for ranks, stage in CURVES:
                budget = 10**6 if ranks == 1 else 400
                changes = [f"deepspeed={stage}", f"output.folder={folder}/{ranks}-{stage}", f"optim.token_budget={budget}"]
                run_ranks(folder / f"log-{ranks}-{stage}", worker.recipe_run, [str(recipe), *changes], ranks=ranks)
            (folder / "made").touch()
    return folder
