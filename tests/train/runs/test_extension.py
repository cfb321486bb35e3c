"""What is said of a run that continues with another length."""

import json
from pathlib import Path

import pytest

from mmrm.data.errors import UserError
from mmrm.train.methods.trainer_arguments import training_arguments
from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.runs.extension import continuation

RECIPE = Path(__file__).resolve().parents[3] / "recipes" / "shapes" / "naive.yaml"
HOW = ["deepspeed=none", "optim.epochs=null", "optim.warmup_ratio=0.1"]


def said(folder: Path, done: int, before: int, now: int, schedule: str) -> str:
    (folder / "trainer_state.json").write_text(
        json.dumps({"global_step": done, "max_steps": before})
    )
    recipe = read_recipe(RECIPE, [*HOW, f"optim.max_steps={now}", f"optim.schedule={schedule}"])
    return continuation(recipe.optim, training_arguments(recipe, now), folder)


@pytest.mark.parametrize(
    ("done", "before", "now", "schedule", "words"),
    [
        (
            10,
            10,
            20,
            "linear",
            "0.0% of the highest for step 11; from here on it is computed over 20 steps: 55.6% at step 11, ",
        ),
        (
            20,
            20,
            40,
            "cosine",
            "0.0% of the highest for step 21; from here on it is computed over 40 steps: 58.7% at step 21, ",
        ),
        (
            5,
            10,
            20,
            "linear",
            "55.6% of the highest for step 6; from here on it is computed over 20 steps: 83.3% at step 6, ",
        ),
        (
            10,
            10,
            200,
            "cosine",
            "200 steps: 50.0% at step 11, 100% at step 21, after the warm-up, 0% after step 200",
        ),
    ],
)
def test_the_learning_rate_of_both_lengths_is_said(
    tmp_path: Path, done: int, before: int, now: int, schedule: str, words: str
) -> None:
    found = said(tmp_path, done, before, now, schedule)
    assert words in found
    assert f"{now - before} steps more for a run of {before}. Optimizer states" in found
    assert found.endswith(f"0% after step {now}")


def test_a_constant_rate_stays(tmp_path: Path) -> None:
    assert said(tmp_path, 10, 10, 20, "constant").endswith("over 20 steps: 100.0% at step 11")


def test_the_same_length_is_only_named_where_it_is_reached(tmp_path: Path) -> None:
    assert said(tmp_path, 5, 10, 10, "cosine") == ""
    finished = said(tmp_path, 10, 10, 10, "cosine")
    assert (
        finished
        == f"{tmp_path} is the last of 10 steps; for more, raise optim.max_steps and give --resume"
    )


def test_fewer_steps_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UserError,
        match=r"is of a run of 20 steps, and optim.max_steps makes 15 of it\. A run can be given more",
    ):
        said(tmp_path, 10, 20, 15, "cosine")
