"""Benchmarks of generated images with judges that run a model: images in responses are seen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrm.eval.benchmarks.benchmark import Benchmark, Location
from mmrm.eval.benchmarks.edit_reward_bench import EDIT_REWARD_BENCH
from mmrm.eval.benchmarks.genai_bench import GENAI_BENCH
from mmrm.eval.benchmarks.mmrb2 import MMRB2
from mmrm.eval.benchmarks.videogen_rewardbench import VIDEOGEN_REWARDBENCH
from mmrm.eval.judges.generative.judge import GenerativeJudge, by_template
from mmrm.eval.judges.packed_inference import Packed
from mmrm.eval.protocol import ProtocolConfig, tournament_orders
from mmrm.eval.results.official_scores import score_predictions_file
from mmrm.eval.run import main
from mmrm.eval.suite.suite import evaluate
from mmrm.models.backbone import load_language_model
from mmrm.models.config import BackboneConfig, SamplingConfig
from tests.eval import run_folders
from tests.eval.benchmarks import (
    test_edit_reward_bench,
    test_genai_bench,
    test_mmrb2,
    test_videogen_rewardbench,
)
from tests.eval.doubles import JudgeOfBenchmark
from tests.models import tiny

BENCHMARKS = {
    "mmrb2": MMRB2,
    "genai_bench": GENAI_BENCH,
    "edit_reward_bench": EDIT_REWARD_BENCH,
    "videogen_rewardbench": VIDEOGEN_REWARDBENCH,
}
NUM_ROWS = {"mmrb2": 8, "genai_bench": 6, "edit_reward_bench": 6, "videogen_rewardbench": 3}
WITH_VIDEOS = ("genai_bench", "videogen_rewardbench")


def rows_of(name: str, folder: Path) -> Location:
    """Write a few rows of a benchmark, two of each task if it has tasks."""
    if name == "mmrb2":
        return test_mmrb2.write_tasks(folder, num_pairs=2)
    if name == "edit_reward_bench":
        return test_edit_reward_bench.on_hub(folder)
    if name == "videogen_rewardbench":
        # The last row of the table has no frames.
        return test_videogen_rewardbench.write_table(
            folder, test_videogen_rewardbench.table_rows()[:3]
        )
    return test_genai_bench.write_tasks(folder, num_rows=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_scalar_checkpoint_is_evaluated_and_its_files_scored_again(
    name: str, tmp_path: Path
) -> None:
    where = rows_of(name, tmp_path / "rows")
    base = tiny.checkpoint(tmp_path / "base")
    checkpoint = run_folders.checkpoint(base, tmp_path / "judge", seed=0)
    place = f"{name}={where.location}" + (",frames=2" if name in WITH_VIDEOS else "")
    main([str(checkpoint), "--benchmarks", place])
    folder = checkpoint / "eval"
    result = json.loads((folder / f"{name}.json").read_text())
    assert result["micro"]["n"] == NUM_ROWS[name]
    lines = [json.loads(line) for line in (folder / name / "predictions.jsonl").open()]
    # The two images of a pair differ, and so do their scores.
    assert all(line["scores"][0] != line["scores"][1] for line in lines)
    for file in ("predictions.jsonl", "official.jsonl"):
        figures, coverage = score_predictions_file(
            folder / name / file, BENCHMARKS[name], where=where
        )
        assert figures["micro"] == result["published"]["official"]["micro"]
        assert coverage.whole, coverage.lines()


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_generative_judge_sees_both_orders(name: str, tmp_path: Path) -> None:
    benchmark: Benchmark = BENCHMARKS[name]
    loaded = benchmark.load(rows_of(name, tmp_path / "rows"))
    model: Any = load_language_model(
        BackboneConfig(path=str(tiny.checkpoint(tmp_path / "base")), dtype="float32")
    ).eval()
    judge = GenerativeJudge(
        model=model,
        ask=by_template("short"),
        packed=Packed(tiny.encoder(), torch.device("cpu"), 8192),
        sampling=SamplingConfig(temperature=0.0, max_new_tokens=4),
    )
    scores = JudgeOfBenchmark(judge, benchmark=benchmark).judge(loaded.examples)
    for row, row_scores in zip(loaded.examples, scores, strict=True):
        shown = tuple(vote.shown for vote in row_scores.votes)
        assert shown == tournament_orders(len(row.responses))
    result = evaluate(loaded.examples, scores, benchmark, ProtocolConfig(), loaded.origin)
    assert result.micro.n == len(loaded.examples)
    assert "not_computed" not in result.published["official"]
