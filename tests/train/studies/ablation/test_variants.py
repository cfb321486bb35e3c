"""Lists of runs: what is refused before the first one starts, and that the shipped ones are sound."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmrm.data.errors import RecipeError
from mmrm.train.planning.dry_run import plan_lines
from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.reinforce.policy.config import PolicyConfig
from mmrm.train.studies.ablation.variants import compared_on, read_ablation
from tests.train.minimal import MINIMAL, write
from tests.train.shipped import FOLDER, LISTS

BENCHMARKS = "evaluation: {benchmarks: [{name: vl_rewardbench, location: embedded, limit: 6}]}\n"


def listed(folder: Path, variants: str, more: str = BENCHMARKS) -> Path:
    """Write a list over the minimal recipe."""
    write(folder, MINIMAL, "base.yaml")
    return write(folder, f"extends: base.yaml\n{more}variants:{variants}", "list.yaml")


def problems(path: Path, *overrides: str) -> list[str]:
    with pytest.raises(RecipeError) as error:
        read_ablation(path, overrides)
    return [
        f"{problem.where.rpartition('/')[2]} {problem.key}: {problem.message}"
        for problem in error.value.problems
    ]


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_every_variant_of_a_shipped_list_is_a_recipe_with_a_plan(path: Path) -> None:
    ablation = read_ablation(path, seeds=[0, 1])
    # These train one recipe with several seeds.
    has_one_variant = path.stem in ("shapes_seeds", "shapes_drawn", "shapes_edited")
    least = 1 if has_one_variant else 3
    assert len(ablation.runs) == 2 * len(ablation.changes) >= 2 * least
    for run in ablation.runs[: len(ablation.changes)]:
        assert plan_lines(run.recipe)["steps"]
    recipes = [run.recipe.model_dump_json(exclude={"output"}) for run in ablation.runs]
    assert len(set(recipes)) == len(recipes)  # every variant changes something


LIST_COMMANDS = (
    *("ablate", "compare_objectives", "picture_faults", "frame_order", "predictors"),
    "clean_planted",
)


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_a_shipped_list_names_its_command_and_spares_the_disk(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    commands = [
        f"#   python train/{name}.py recipes/{path.relative_to(FOLDER)}" for name in LIST_COMMANDS
    ]
    assert any(command in text for command in commands)
    ablation = read_ablation(path)
    judges = [
        run.recipe for run in ablation.runs if not isinstance(run.recipe.method, PolicyConfig)
    ]
    assert {recipe.output.keep_checkpoints for recipe in judges} <= {
        1
    }  # a policy's are all measured afterwards
    assert {run.recipe.evaluation.at_start for run in ablation.runs} == {False}
    assert {run.recipe.evaluation.best_metric for run in ablation.runs} == {None}


def test_the_embedded_head_list_is_depth_and_activation() -> None:
    runs = read_ablation(FOLDER / "ablations" / "shapes_head.yaml").runs
    depths = [(layers, "silu") for layers in (2, 1, 3, 4, 5)]
    assert [(run.recipe.head.layers, run.recipe.head.activation) for run in runs] == [
        *depths,
        *((2, activation) for activation in ("none", "tanh", "relu", "gelu")),
    ]
    assert {(run.recipe.optim.max_steps, run.recipe.optim.records_per_step) for run in runs} == {
        (20, 64)
    }


def test_a_run_has_its_changes_its_seeds_and_a_folder_of_its_own(tmp_path: Path) -> None:
    path = listed(
        tmp_path,
        " {plain: {}, deep: {head.layers: 3, head.activation: relu, data.sources.0.rows: 64}}\n",
    )
    ablation = read_ablation(
        path, ["optim.records_per_step=32", "output.folder=there"], seeds=[4, 5]
    )
    assert [str(run) for run in ablation.runs] == [
        "plain, seed 4",
        "deep, seed 4",
        "plain, seed 5",
        "deep, seed 5",
    ]
    assert ablation.reference == "plain"
    assert ablation.changes["deep"] == "head.layers=3, head.activation=relu, data.sources.0.rows=64"
    last = ablation.runs[-1].recipe
    assert (last.head.layers, last.head.activation, last.data.sources[0].rows) == (3, "relu", 64)  # type: ignore[attr-defined]
    assert (last.seed, last.data.seed, last.optim.records_per_step) == (5, 5, 32)
    assert (last.output.folder, last.output.resume) == ("there/deep/5", "auto")


def test_variants_of_several_methods_share_what_the_list_says(tmp_path: Path) -> None:
    """A variant's own recipe lies under the list, and what it changes over it; the list alone need not be whole."""
    write(tmp_path, MINIMAL, "naive.yaml")
    critic = MINIMAL.replace(
        "{type: naive}", "{type: critic, records_without_critique: score_only}"
    )
    write(
        tmp_path, critic.replace("rows: 640", "rows: 32").replace("1.0e-4", "3.0e-4"), "critic.yaml"
    )
    variants = (
        "{naive: {extends: naive.yaml}, critic: {extends: critic.yaml, optim.warmup_ratio: 0.5}}"
    )
    more = "data: {sources: [{type: shapes, level: demo, rows: 96}]}\noutput: {folder: there}\n"
    path = write(tmp_path, f"{BENCHMARKS}{more}variants: {variants}\n", "list.yaml")
    ablation = read_ablation(path, ["optim.epochs=3"], seeds=[7])
    naive, critic_run = (run.recipe for run in ablation.runs)
    assert (naive.method.type, critic_run.method.type) == ("naive", "critic")
    assert (naive.optim.learning_rate, critic_run.optim.learning_rate) == (1e-4, 3e-4)
    assert [one.data.sources[0].rows for one in (naive, critic_run)] == [96, 96]  # type: ignore[attr-defined]
    assert [one.optim.epochs for one in (naive, critic_run)] == [3, 3]
    assert (critic_run.optim.warmup_ratio, critic_run.output.folder) == (0.5, "there/critic/7")
    assert ablation.changes["critic"] == "extends=critic.yaml, optim.warmup_ratio=0.5"


def test_all_variants_are_checked_and_an_error_says_where(tmp_path: Path) -> None:
    path = listed(
        tmp_path,
        "\n  plain: {}\n  a: {head.layer: 1}\n  b: {optim.max_steps: 5}\n  c: {head.layers: 99}\n",
    )
    found = problems(path)
    assert found[0].startswith(
        "list.yaml:5 a: head.layer: there is no such key; did you mean layers?"
    )
    assert [line.split(":")[1] for line in found] == ["5 a", "6 b", "7 c"]


@pytest.mark.parametrize(
    ("variants", "message"),
    [
        (" {}\n", "a list of runs holds a mapping"),
        (" [a, b]\n", "a list of runs holds a mapping"),
        (" {a/b: {}}\n", "a variant's name is that of its folder"),
        (" {..: {}}\n", "a variant's name is that of its folder"),
        (" {a: 1}\n", "a variant is a mapping of dotted keys"),
        (" {a: {evaluation.benchmarks: []}}\n", "nothing to compare variants by"),
        (" {a: {}, b: {evaluation.benchmarks.0.limit: 7}}\n", "share their benchmarks"),
        (
            " {a: {}, b: {extends: nothing.yaml}}\n",
            "the recipe cannot be read because it is not there",
        ),
    ],
)
def test_a_list_that_cannot_be_compared_is_refused(
    tmp_path: Path, variants: str, message: str
) -> None:
    found = problems(listed(tmp_path, variants))
    assert len(found) == 1
    assert message in found[0]


def test_an_error_of_the_recipe_is_told_once(tmp_path: Path) -> None:
    assert len(problems(listed(tmp_path, " {a: {}, b: {head.layers: 1}}\n"), "optim.epochz=2")) == 1


def test_a_recipe_is_no_list_and_a_list_no_recipe(tmp_path: Path) -> None:
    assert "a list of runs holds" in problems(write(tmp_path, MINIMAL + BENCHMARKS))[0]
    with pytest.raises(RecipeError, match="start it with train/ablate"):
        read_recipe(listed(tmp_path, " {a: {}}\n"))


HELD_OUT = """evaluation: {benchmarks: [], best_metric: null}
data: {validation: 4, seed: 3}
"""


def test_a_list_may_be_compared_on_held_out_records(tmp_path: Path) -> None:
    """All seeds hold out the same records, and draw the order of the others each for itself."""
    variants = " {one: {}, two: {optim.learning_rate: 1.0e-4}}\n"
    ablation = read_ablation(listed(tmp_path, variants, HELD_OUT), seeds=[7, 8])
    for run in ablation.runs:
        assert compared_on(run.recipe) == ("held_out",)
        assert (run.recipe.data.seed, run.recipe.data.validation_seed) == (run.seed, 3)


def test_benchmarks_go_before_held_out_records(tmp_path: Path) -> None:
    """A list with benchmarks is compared on them, and its recipes are those of before."""
    more = BENCHMARKS + "data: {validation: 4}\n"
    ablation = read_ablation(listed(tmp_path, " {one: {}, two: {seed: 4}}\n", more), seeds=[7])
    for run in ablation.runs:
        assert compared_on(run.recipe) == ("vl_rewardbench",)
        assert run.recipe.data.validation_seed is None


def test_variants_with_other_held_out_records_are_refused(tmp_path: Path) -> None:
    variants = " {one: {}, two: {data.validation: 5}, three: {data.filters.refusals: true}}\n"
    found = problems(listed(tmp_path, variants, HELD_OUT))
    assert len(found) == 2, found
    assert "two: data.validation: the variants of this list are compared on held-out" in found[0]
    assert "three: data.filters: the variants of this list are compared on held-out" in found[1]


def test_a_list_without_anything_to_compare_by_is_refused(tmp_path: Path) -> None:
    more = "evaluation: {benchmarks: []}\n"
    found = problems(listed(tmp_path, " {one: {}}\n", more))
    assert "there is nothing to compare variants by; name benchmarks" in found[0]
