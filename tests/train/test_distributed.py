"""One step is one step: on any number of ranks, under any stage of ZeRO, in any rows, with pictures wherever they fall."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrm.data.preparation.mixing import Mixture
from mmrm.models.families.registry import FAMILIES
from mmrm.train.methods.naive.config import NaiveConfig
from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.supervised.steps import MixtureRecords, ResponseEncoder, StepDataset
from tests.models import tiny
from tests.models.exactness import assert_exact, float64
from tests.train import worker
from tests.train.conftest import CURVES
from tests.train.ranks import run_ranks
from tests.train.worker import assert_same_steps, best_of, difference, ended, lines, weights

KINDS = "titi" + "itit" + "tttt" + "iiii" + "tiit" + "tdte" + "diet"
"""Seven steps of four records; on two ranks the first and third of a step are rank 0's. So: one rank only text and the other
only pictures, the other way about, no picture anywhere, pictures everywhere, both kinds on both; then pictures in responses
(d, e) on one rank beside texts on the other, and on both ranks."""
STAGES = ("none", "zero2", "zero3")
BUDGET = 190
"""Tokens of a row, so that one rank needs two rows and the other one, in either order."""
CASES = [
    ("none", 1),
    ("none", BUDGET),
    ("none", 10**6),
    ("zero2", 1),
    ("zero2", BUDGET),
    ("zero3", 1),
    ("zero3", BUDGET),
]
"""Stage and budget; with a budget of 1 every record has a row of its own."""
EQUAL = (
    "loss",
    "grad_norm",
    "accuracy",
    "ties",
    "margin",
    "reward_mean",
    "reward_spread",
    "learning_rate",
    "data_epoch",
)


@pytest.fixture(scope="module")
def descended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train on one rank with everything in one row, and on two ranks in every other way."""
    folder = tmp_path_factory.mktemp("descend")
    with float64():
        recipe = worker.prepare(folder)
    run_ranks(
        folder / "one",
        worker.descend,
        recipe,
        KINDS,
        [(str(folder / "alone"), "none", 10**6)],
        ranks=1,
        in_float64=True,
    )
    cases = [(str(folder / f"{stage}-{budget}"), stage, budget) for stage, budget in CASES]
    run_ranks(folder / "two", worker.descend, recipe, KINDS, cases, in_float64=True)
    return folder


@pytest.mark.slow
@pytest.mark.numerics
@pytest.mark.parametrize(("stage", "budget"), CASES)
def test_steps_equal_those_of_one_process_with_one_row(
    descended: Path, stage: str, budget: int
) -> None:
    assert difference(descended / "alone", descended / "base") > 1e-3
    assert_exact(weights(descended / f"{stage}-{budget}"), weights(descended / "alone"))
    expected, found = lines(descended / "alone"), lines(descended / f"{stage}-{budget}")
    assert len(found) == len(KINDS) // 4
    assert_same_steps(found, expected, EQUAL, stage)
    assert any(line["grad_norm"] > 0.4 for line in found)  # so the clipping took part


FEWER = "titi" + "itit" + "tttt" + "tiit" + "tdte" + "diet"
OTHERS = [family for family in FAMILIES if family != tiny.FAMILY]


def train_families(folder: Path, families: Sequence[str], kinds: str) -> None:
    """Train families on one rank, and on two under ZeRO-2 and ZeRO-3; all share the starts of their ranks."""
    alone = []
    on_two_ranks = []
    for family in families:
        with float64():
            recipe = worker.prepare(folder / family, family)
        alone.append((recipe, [(str(folder / family / "alone"), "none", 10**6)]))
        cases = [(str(folder / family / stage), stage, BUDGET) for stage in STAGES[1:]]
        on_two_ranks.append((recipe, cases))
    run_ranks(folder / "one", worker.descend_all, alone, kinds, ranks=1, in_float64=True)
    run_ranks(folder / "two", worker.descend_all, on_two_ranks, kinds, in_float64=True)


def assert_steps_are_those_of_one_process(
    folder: Path, stage: str, kinds: str, run: str | None = None
) -> None:
    """Assert that a family's weights and figures on several ranks are those of one process.

    `folder` is that of the family, as `train_families` fills it with the records `kinds`. `run` is
    the folder in it of the run under `stage`; if it is not given, it is named as the stage.
    """
    alone = folder / "alone"
    sharded = folder / (run or stage)
    assert difference(alone, folder / "base") > 1e-3
    assert_exact(weights(sharded), weights(alone))
    found = lines(sharded)
    assert len(found) == len(kinds) // 4
    assert_same_steps(found, lines(alone), EQUAL, stage)


@pytest.fixture(scope="module")
def other_families(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("families")
    train_families(folder, OTHERS, FEWER)
    return folder


@pytest.mark.slow
@pytest.mark.numerics
@pytest.mark.parametrize("stage", STAGES[1:])
@pytest.mark.parametrize("family", OTHERS)
def test_steps_of_every_family_equal_those_of_one_process(
    other_families: Path, family: str, stage: str
) -> None:
    assert_steps_are_those_of_one_process(other_families / family, stage, FEWER)


TOGETHER = "tiit" + "tttt" + "iiii" + "tdte"
"""Four steps for ranks that compute rows together: with pictures, without, and with pictures in responses."""
DIVIDED = (tiny.FAMILY, "qwen3_vl_moe")
"""Families whose rows two ranks compute together; the second has routers. Rows of all families are compared in
tests/models/packing/test_sequence_parallel.py."""


@pytest.fixture(scope="module")
def divided_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train families on one rank, and on two and four ranks of which two compute a row together."""
    folder = tmp_path_factory.mktemp("divided")
    alone = []
    on_two_ranks = []
    on_four_ranks = []
    for family in DIVIDED:
        with float64():
            recipe = worker.prepare(folder / family, family)
        alone.append((recipe, [(str(folder / family / "alone"), "none", 10**6)]))
        cases = [(str(folder / family / stage), stage, BUDGET) for stage in STAGES]
        on_two_ranks.append((recipe, cases))
        if family == tiny.FAMILY:
            cases = [(str(folder / family / f"four-{stage}"), stage, BUDGET) for stage in STAGES]
            on_four_ranks.append((recipe, cases))
    run_ranks(folder / "one", worker.descend_all, alone, TOGETHER, ranks=1, in_float64=True)
    run_ranks(folder / "two", worker.descend_together, on_two_ranks, TOGETHER, in_float64=True)
    run_ranks(
        folder / "four", worker.descend_together, on_four_ranks, TOGETHER, ranks=4, in_float64=True
    )
    return folder


@pytest.mark.slow
@pytest.mark.numerics
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("family", DIVIDED)
def test_steps_of_divided_rows_equal_those_of_one_process(
    divided_rows: Path, family: str, stage: str
) -> None:
    assert_steps_are_those_of_one_process(divided_rows / family, stage, TOGETHER)


@pytest.mark.slow
@pytest.mark.numerics
@pytest.mark.parametrize("stage", STAGES)
def test_steps_of_two_groups_of_ranks_equal_those_of_one_process(
    divided_rows: Path, stage: str
) -> None:
    folder = divided_rows / tiny.FAMILY
    assert_steps_are_those_of_one_process(folder, stage, TOGETHER, run=f"four-{stage}")


@pytest.mark.slow
def test_each_rank_computes_its_part_of_a_divided_row(tmp_path: Path) -> None:
    run_ranks(tmp_path / "ranks", worker.look_into_divided_row, worker.prepare(tmp_path / "recipe"))


FILMS = "tvvt" + "vtvt" + "tttt" + "wtvd" + "vwiv"
"""Five steps: videos on either rank beside texts on the other, none, and videos in prompts and in responses on both."""
WITH_FILMS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5")
"""The families with tokens of videos."""


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("av")
    folder = tmp_path_factory.mktemp("films")
    train_families(folder, WITH_FILMS, FILMS)
    return folder


@pytest.mark.slow
@pytest.mark.numerics
@pytest.mark.parametrize("stage", STAGES[1:])
@pytest.mark.parametrize("family", WITH_FILMS)
def test_steps_with_videos_equal_those_of_one_process(films: Path, family: str, stage: str) -> None:
    assert_steps_are_those_of_one_process(films / family, stage, FILMS)


def test_the_rows_of_the_ranks_are_unequal() -> None:
    """What the test above stands on."""
    shape: dict[str, Any] = {
        "records_per_step": 4,
        "steps": 5,
        "token_budget": BUDGET,
        "world_size": 2,
    }
    ranks = [
        StepDataset(worker.Written(KINDS), tiny.encoder().pack, rank=rank, **shape)
        for rank in range(2)
    ]
    rows = [tuple(len(data[step]["rows"]) for data in ranks) for step in range(5)]
    assert {(1, 2), (2, 1)} <= set(rows)


@pytest.mark.slow
def test_pairs_of_the_whole_runs_share_prompts(runs: Path) -> None:
    """What the tests below stand on: on two ranks, too, a step's pairs make fewer trees, some of more than two responses."""
    recipe = read_recipe(runs / "recipe.yaml")
    mixture = Mixture(recipe.data)
    records = MixtureRecords(
        mixture,
        ResponseEncoder(tiny.encoder(), "end_of_turn"),
        NaiveConfig(type="naive").pairs_together,
    )
    shape: dict[str, Any] = {
        "records_per_step": 4,
        "steps": 6,
        "token_budget": 400,
        "world_size": 2,
    }
    for number in range(2):
        data = StepDataset(records, tiny.encoder().pack, rank=number, **shape)
        sizes = [
            size
            for step in range(6)
            for row in data[step]["rows"]
            for size in row.batch.output_counts
        ]
        assert len(sizes) < 12
        assert max(sizes) > 2


@pytest.mark.slow
@pytest.mark.parametrize("case", CURVES[1:])
def test_whole_runs_are_alike(runs: Path, case: tuple[int, str]) -> None:
    found, expected = lines(ended(runs / f"2-{case[1]}")), lines(ended(runs / "1-none"))
    assert len(found) == 6
    for line, other in zip(found, expected, strict=True):
        assert {name: line[name] for name in EQUAL} == pytest.approx(
            {name: other[name] for name in EQUAL}, abs=2e-5
        )
    assert difference(ended(runs / f"2-{case[1]}"), ended(runs / "1-none")) < 2e-4


@pytest.mark.slow
@pytest.mark.parametrize("case", CURVES)
def test_deepspeed_runs_where_the_recipe_says_so_and_only_there(
    runs: Path, case: tuple[int, str]
) -> None:
    """Without an engine there is an optimizer.pt of Trainer's own; an engine writes one part for each rank."""
    ranks, stage = case
    folder = ended(runs / f"{ranks}-{stage}")
    parts = list(folder.glob("global_step6/*optim_states.pt"))
    assert len(parts) == (0 if stage == "none" else 2)
    assert (folder / "optimizer.pt").exists() == (stage == "none")


@pytest.mark.slow
@pytest.mark.parametrize("case", CURVES)
def test_the_figures_on_disk_are_those_logged_at_every_save(
    runs: Path, case: tuple[int, str]
) -> None:
    folder = runs / f"{case[0]}-{case[1]}"
    state = json.loads((ended(folder) / "trainer_state.json").read_text(encoding="utf-8"))
    logged = {
        line["step"]: line
        for line in state["log_history"]
        if "eval_vl_rewardbench/accuracy" in line
    }
    assert list(logged) == [0, 2, 4, 6]
    for step, line in logged.items():
        file = folder / (f"checkpoint-{step}" if step else "start") / "eval" / "vl_rewardbench.json"
        if not file.exists():  # removed with its checkpoint
            assert step not in (0, 6, state["best_global_step"])
            continue
        result = json.loads(file.read_text(encoding="utf-8"))
        assert result["micro"]["accuracy"] == line["eval_vl_rewardbench/accuracy"]
        assert result["macro"] == line["eval_vl_rewardbench/macro"]
        assert result["micro"]["n"] == 7
        predictions = (file.parent / "vl_rewardbench" / "predictions.jsonl").read_text(
            encoding="utf-8"
        )
        assert len(predictions.splitlines()) == 7


@pytest.mark.slow
@pytest.mark.parametrize("case", CURVES)
def test_best_is_the_best_and_the_others_are_gone(runs: Path, case: tuple[int, str]) -> None:
    folder = runs / f"{case[0]}-{case[1]}"
    assert (folder / "best").resolve().name == best_of(folder)
    whole = sorted(path.parent.name for path in folder.glob("checkpoint-*/complete"))
    assert whole == sorted({"checkpoint-6", (folder / "best").resolve().name})


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_checkpoint_of_any_stage_scores_alike_when_it_is_loaded(runs: Path, stage: str) -> None:
    from mmrm.models.backbone import load_scalar
    from mmrm.models.config import BackboneConfig

    encoder, found = tiny.encoder(), []
    for name in ("1-none", f"2-{stage}"):
        model = load_scalar(
            BackboneConfig(path=str(ended(runs / name)), dtype="float32"), fresh_head=False
        ).eval()
        with torch.no_grad():
            found.append(model(**encoder.pack([worker.Written("it")[0].tree]).score_inputs()))
    assert torch.allclose(found[0], found[1], atol=1e-4)


@pytest.mark.slow
def test_only_the_first_rank_speaks(runs: Path) -> None:
    for _, stage in CURVES[1:]:
        assert (runs / f"log-2-{stage}" / "rank1.log").read_text(encoding="utf-8") == ""
    assert "loss" in (runs / "log-2-zero2" / "rank0.log").read_text(encoding="utf-8")
