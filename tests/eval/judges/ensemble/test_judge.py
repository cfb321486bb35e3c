"""Ensembles of scalar reward models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from mmrm.data.errors import CheckpointError
from mmrm.eval.judges.ensemble.config import EnsembleConfig
from mmrm.eval.judges.ensemble.judge import Combination, EnsembleJudge, combination
from mmrm.eval.judges.loading import load_judge
from mmrm.eval.results.result import Result
from mmrm.eval.run import main
from mmrm.models.packing.bins import pack_first_fit
from tests.eval import run_folders
from tests.eval.doubles import LengthJudge, scores_under
from tests.eval.make import example
from tests.models.exactness import assert_exact
from tests.train.shipped import FOLDER

pytestmark = pytest.mark.usefixtures("module_in_float64")


def config(combine: str = "mean", **changes: Any) -> EnsembleConfig:
    return EnsembleConfig.model_validate(
        {"type": "ensemble", "members": ["a", "b"], "combine": combine, **changes}
    )


def scores(combined: Combination, *members: LengthJudge) -> list[tuple[float, ...]]:
    judge = EnsembleJudge(config(), members, combined)
    rows = [example("x", 0, ("four", "seven c"))]
    return [row_scores.values for row_scores in scores_under(judge, rows)]


def test_the_mean_is_of_the_scores_as_they_are() -> None:
    members = (LengthJudge(1.0), LengthJudge(-3.0, 10.0))
    assert scores(combination(config(), members), *members) == [((4 - 2) / 2, (7 - 11) / 2)]


@pytest.fixture
def records(tmp_path: Path) -> str:
    """12 preferences; row n prefers 4 or 5 characters ("A n.") to 2n + 1."""
    return str(run_folders.preferences(tmp_path))


def test_standardised_scores_do_not_depend_on_a_members_unit(records: str) -> None:
    found = []
    for scale, offset in ((1.0, 0.0), (1000.0, -7.0)):
        members = (LengthJudge(scale, offset), LengthJudge(-1.0))
        chosen = combination(config("standardised", validation=records), members)
        assert chosen.weights.tolist() == [0.5, 0.5]
        found.append(scores(chosen, *members))
    assert found[0] == [pytest.approx(found[1][0], abs=1e-9)]


def test_weights_follow_validation_accuracy_and_margin(records: str) -> None:
    shorter, longer = LengthJudge(-2.0), LengthJudge(1.0, 100.0)
    by_accuracy = combination(config("accuracy", validation=records), (shorter, longer))
    right = [
        sum(len(f"A {n}.") < 2 * n + 1 for n in range(1, 13)),
        sum(len(f"A {n}.") > 2 * n + 1 for n in range(1, 13)),
    ]
    margin = np.mean([2 * n + 1 - len(f"A {n}.") for n in range(1, 13)])
    assert by_accuracy.standings == tuple(
        f" (validation: {count / 12:.3f} right, margin {mean:.4g}, 12 pairs)"
        for count, mean in zip(right, (2 * margin, -margin), strict=True)
    )
    assert by_accuracy.weights == pytest.approx((right[0] / sum(right), right[1] / sum(right)))
    by_margin = combination(config("margin", validation=records), (shorter, LengthJudge(-6.0)))
    assert by_margin.weights == pytest.approx((0.25, 0.75))
    assert sum(by_accuracy.weights) == pytest.approx(1.0)
    judge = EnsembleJudge(config("margin", validation=records), (shorter, longer), by_margin)
    assert "0.250 x a (validation: " in judge.notes([])[0]


def test_a_member_without_worth_is_refused_by_name(records: str) -> None:
    with pytest.raises(
        CheckpointError, match=r"b: its validation margin is -.*Leave this member out"
    ):
        combination(config("margin", validation=records), (LengthJudge(-1.0), LengthJudge(1.0)))
    with pytest.raises(CheckpointError, match="b: on the validation data all scores are equal"):
        combination(config("accuracy", validation=records), (LengthJudge(-1.0), LengthJudge(0.0)))
    with pytest.raises(
        CheckpointError, match="a: on the validation data 12 of 12 pairs get no finite scores"
    ):
        combination(
            config("accuracy", validation=records), (LengthJudge(float("nan")), LengthJudge(1.0))
        )


def test_what_the_file_must_say() -> None:
    with pytest.raises(ValidationError, match="give their path as `validation`"):
        config("margin")
    with pytest.raises(ValidationError, match="combine: mean uses no validation data"):
        config("mean", validation="x")
    with pytest.raises(ValidationError, match="at least 2 items"):
        config(members=["a"])


@pytest.mark.slow
@pytest.mark.numerics
def test_an_ensemble_of_two_families_is_evaluated_like_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each member sees by its own processor, system prompt and family, in rows of its own budget; the file gives their mean."""
    budgets: list[int] = []

    def noted(costs: Sequence[int], budget: int) -> list[list[int]]:
        budgets.append(budget)
        return pack_first_fit(costs, budget)

    monkeypatch.setattr("mmrm.eval.judges.packed_inference.pack_first_fit", noted)
    seen: dict[str, dict[str, Any]] = {
        "qwen2_5_vl": {},
        "qwen2_vl": {"min_pixels": 3136, "system_prompt": "Look."},
    }
    for family, changes in seen.items():
        content = run_folders.recipe(tmp_path / family / "base", [], **changes)
        content["optim"]["token_budget"] = 300 + len(changes)
        run_folders.run_folder(tmp_path / family, (7,), content, family)
    members = [str(tmp_path / family / "checkpoint-7") for family in seen]
    file = tmp_path / "both.yaml"
    file.write_text(f"type: ensemble\nmembers: {members}\n")
    main([*members, str(file), "--benchmarks", "vl_rewardbench=embedded,limit=12"])
    assert budgets == [300, 302, 300, 302]
    places = [*(Path(member) / "eval" for member in members), tmp_path / "both" / "eval"]
    one, two, both = (
        np.array(
            [
                row["scores"]
                for row in run_folders.lines(place / "vl_rewardbench" / "predictions.jsonl")
            ]
        )
        for place in places
    )
    assert abs(one - two).max() > 0.01
    assert_exact(both.tolist(), ((one + two) / 2).tolist())
    result = Result.model_validate_json(
        (tmp_path / "both" / "eval" / "vl_rewardbench.json").read_text()
    )
    assert any(note.startswith("Ensemble, mean: 0.500 x ") for note in result.notes)
    question = [{"role": "user", "content": "Which?"}]
    each = [
        load_judge(judge).score(question, ["red", "a circle"]) for judge in (*members, str(file))
    ]
    assert_exact(each[2], [(a + b) / 2 for a, b in zip(*each[:2], strict=True)])


def test_a_member_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shipped file names its members from the working directory."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        SystemExit,
        match=r"runs/basereward/best: there is no such folder.*from the working directory",
    ):
        main(
            [
                str(FOLDER / "judges" / "basereward_ensemble.yaml"),
                "--benchmarks",
                "vl_rewardbench=embedded,limit=4",
            ]
        )


def test_a_voter_in_the_file_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    (tmp_path / "voter.yaml").write_text("type: endpoint\nurl: http://127.0.0.1:9/v1\nmodel: m\n")
    file = tmp_path / "both.yaml"
    file.write_text(
        f"type: ensemble\nmembers: ['{tmp_path}/voter.yaml', '{tmp_path}/voter.yaml']\n"
    )
    with pytest.raises(SystemExit, match=r"voter.yaml compares responses and gives no scores"):
        main([str(file), "--benchmarks", "vl_rewardbench=embedded,limit=4"])
