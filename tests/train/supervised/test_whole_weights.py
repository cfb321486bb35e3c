"""Writing under ZeRO-3: the weights travel once for all tokens where they fit, and what is written is the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import deepspeed
import psutil
import pytest
import torch

from eval.judges.critic import CriticJudge
from models.distributed import rank
from tests.train.ranks import run_ranks
from tests.train.test_critic_runs import RECIPE, critiques
from tests.train.worker import recipe_run
from train.supervised import whole_weights

GATHERS = "gathers.json"


def counted_run(arguments: Sequence[str], folder: str, fits: bool) -> None:
    """Train with all gathers of parameters counted inside and outside of writing, into a file."""
    counts, inside = {"writing": 0, "else": 0}, [0]
    gather, judge = deepspeed.runtime.zero.partition_parameters._dist_allgather_fn, whole_weights.fits_everywhere

    def counted(*arguments: Any, **keywords: Any) -> Any:
        counts["writing" if inside[0] else "else"] += 1
        return gather(*arguments, **keywords)

    critic: Any = CriticJudge
    written = critic._own

    def own(self: CriticJudge, *arguments: Any) -> Any:
        inside[0] += 1
        found = written(self, *arguments)
        inside[0] -= 1
        return found

    deepspeed.runtime.zero.partition_parameters._dist_allgather_fn = counted
    critic._own = own
    whole_weights.fits_everywhere = lambda size, device: fits and judge(size, device)
    recipe_run(arguments)
    if rank() == 0:
        (Path(folder) / GATHERS).write_text(json.dumps(counts))


@pytest.mark.slow
def test_weights_are_gathered_once_where_they_fit(base: Path, tmp_path: Path) -> None:
    """The end token is as likely as in the other runs, but the limit differs: the gathers must not."""
    gathers: dict[tuple[bool, int], int] = {}
    texts = {}
    for fits, limit in ((True, 3), (True, 9), (False, 9)):
        folder = tmp_path / f"{fits}-{limit}"
        folder.mkdir()
        (folder / "recipe.yaml").write_text(RECIPE.format(base=base, folder=folder), encoding="utf-8")
        changes = ["deepspeed=zero3", f"method.critique_max_tokens={limit}", "optim.max_steps=3", "method.warmup_steps=0"]
        run_ranks(folder / "logs", counted_run, [str(folder / "recipe.yaml"), *changes], str(folder), fits)
        found = json.loads((folder / GATHERS).read_text())
        assert found["else"] > 0
        gathers[fits, limit] = found["writing"]
        texts[fits, limit] = critiques(folder / "run" / "checkpoint-3")
    assert gathers[True, 3] == gathers[True, 9] == 0
    assert gathers[False, 9] > 9
    assert texts[True, 9] == texts[False, 9]


def test_whole_weights_must_leave_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert whole_weights.fits_everywhere(1000, cpu)
    assert not whole_weights.fits_everywhere(2**60, cpu)
    free = psutil.virtual_memory().available
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1000")
    assert not whole_weights.fits_everywhere(free // 100, cpu)
