"""The mixtures of a study of sources: what each draws, equal lengths, equal held-out records, and refusals."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrm.data.errors import UserError
from mmrm.data.preparation.mixing import Mixture, MixtureConfig
from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.recipe.recipe import Recipe
from mmrm.train.studies.ablation.variants import Ablation
from mmrm.train.studies.source_variants import (
    changes_of_twice,
    drawn_sources,
    refuse_unsuited,
    source_ablation,
    stages_without,
    variants,
)
from tests.train.minimal import write

THREE = """\
backbone: {path: embedded, dtype: float32}
data:
  sources:
    - {type: shapes, name: a, level: demo, rows: 300}
    - {type: shapes, name: b, level: demo, rows: 200, seed: 1, weight: 1.5}
    - {type: shapes, name: c, level: demo, rows: 100, seed: 2}
  validation: 30
method: {type: naive}
optim: {learning_rate: 1.0e-4, records_per_step: 60, epochs: 1}
output: {folder: out, save_every_steps: 5}
"""
STAGES = ("data.stages=[{name: first, sources: [a, b]}, {name: last, sources: [c], repeat: 2.0}]",)


def ablation_of(folder: Path, *overrides: str, steps: int = 3) -> Ablation:
    return source_ablation(write(folder, THREE), overrides, steps, [0, 7])


def drawn(recipe: Recipe) -> Counter[str]:
    """Return the number of records that an epoch draws from each source."""
    mixture = Mixture(recipe.data)
    numbers = np.searchsorted(mixture.records.ends, mixture.order(0), side="right")
    return Counter(recipe.data.sources[number].label for number in numbers.tolist())


def drawn_by_variant(ablation: Ablation) -> dict[str, Counter[str]]:
    return {run.variant: drawn(run.recipe) for run in ablation.runs if run.seed == 0}


def test_a_source_is_left_out_or_drawn_twice_as_often_in_equally_many_pairs(
    tmp_path: Path,
) -> None:
    # Of the 570 training records, 290, 190 and 90 are those of a, b and c.
    counts = drawn_by_variant(ablation_of(tmp_path))
    assert list(counts) == [
        *("whole", "without-a", "twice-a", "without-b", "twice-b", "without-c", "twice-c")
    ]
    whole = counts["whole"]
    assert {sum(count.values()) for count in counts.values()} == {180}
    assert whole == {"a": 79, "b": 77, "c": 24}  # 290, 190 * 1.5 and 90 parts
    assert counts["without-a"] == {"b": 137, "c": 43}
    assert counts["without-c"] == {"a": 91, "b": 89}
    assert counts["twice-a"] == {"a": 109, "b": 54, "c": 17}
    for source in "abc":
        twice = counts[f"twice-{source}"]
        for other in set("abc") - {source}:
            ratio = twice[source] / twice[other]
            assert ratio == pytest.approx(2 * whole[source] / whole[other], rel=0.08)


def test_stages_keep_their_shares_in_a_short_run(tmp_path: Path) -> None:
    counts = drawn_by_variant(ablation_of(tmp_path, *STAGES))
    whole = counts["whole"]
    assert {sum(count.values()) for count in counts.values()} == {180}
    # The second stage is 2 * 90 records long and the first one 480.
    assert whole["c"] == 49
    assert counts["without-c"]["c"] == 0
    assert counts["without-a"]["a"] == 0
    # A stage of this source alone is twice as long: 360 records to 480.
    assert counts["twice-c"]["c"] == 77
    assert counts["twice-a"]["c"] == whole["c"]
    assert counts["twice-a"]["a"] / counts["twice-a"]["b"] == pytest.approx(
        2 * whole["a"] / whole["b"], rel=0.08
    )


def test_a_stage_of_one_source_goes_with_the_source(tmp_path: Path) -> None:
    data = read_recipe(write(tmp_path, THREE), STAGES).data
    assert [stage.name for stage in stages_without(data, "c")] == ["first"]
    assert [stage.sources for stage in stages_without(data, "a")] == [["b"], ["c"]]
    assert changes_of_twice(data, "a") == ["data.sources.0.weight=2.0"]
    assert changes_of_twice(data, "b") == ["data.sources.1.weight=3.0"]
    assert changes_of_twice(data, "c")[1] == (
        'data.stages=[{"name": "first", "sources": ["a", "b"]}, '
        '{"name": "last", "sources": ["c"], "repeat": 4.0}]'
    )


def test_a_source_that_no_stage_draws_from_is_not_compared(tmp_path: Path) -> None:
    overrides = ("data.stages=[{name: only, sources: [a, c]}]",)
    data = read_recipe(write(tmp_path, THREE), overrides).data
    assert drawn_sources(data) == ["a", "c"]
    assert not any(name.endswith("-b") for name in variants(data))


def test_all_runs_hold_out_the_same_records(tmp_path: Path) -> None:
    ablation = ablation_of(tmp_path)
    held_out = set()
    for run in ablation.runs:
        rows = [split.held_out.tobytes() for split in Mixture(run.recipe.data).splits]
        held_out.add(tuple(rows))
    assert len(held_out) == 1
    assert {run.recipe.data.seed for run in ablation.runs} == {0, 7}
    assert {run.recipe.seed for run in ablation.runs} == {0, 7}


def test_all_runs_have_the_steps_and_are_measured_once(tmp_path: Path) -> None:
    ablation = ablation_of(tmp_path, "optim.schedule=linear", "data.validation_seed=4")
    assert ablation.reference == "whole"
    assert len(ablation.runs) == 14
    for run in ablation.runs:
        assert run.recipe.steps(0) == 3
        assert run.recipe.data.records == 180
        assert run.recipe.optim.schedule == "linear"
        assert run.recipe.data.validation_seed == 4
        assert run.recipe.output.save_every_steps == 3
        assert not run.recipe.evaluation.at_start
        assert run.folder == Path("out/which_source") / run.variant / str(run.seed)


def test_the_command_line_may_save_more_often(tmp_path: Path) -> None:
    ablation = ablation_of(tmp_path, "output.save_every_steps=1")
    assert {run.recipe.output.save_every_steps for run in ablation.runs} == {1}


def test_pairs_in_both_orders_are_half_as_many_records(tmp_path: Path) -> None:
    method = "method={type: language_model, target: verdict, template: short, both_orders: true}"
    ablation = ablation_of(tmp_path, method, *judged())
    assert {run.recipe.data.records for run in ablation.runs} == {90}


def judged() -> tuple[str, ...]:
    """Return the override with which a cold start is compared by a benchmark."""
    return ("evaluation.benchmarks=[{name: vl_rewardbench, location: embedded, limit: 10}]",)


def refusal(folder: Path, *overrides: str) -> str:
    with pytest.raises(UserError) as error:
        refuse_unsuited(read_recipe(write(folder, THREE), overrides))
    return str(error.value)


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    one_source = "data.sources=[{type: shapes, name: alone, level: demo, rows: 100}]"
    assert "The recipe draws from one source, alone." in refusal(tmp_path, one_source)
    one_stage = "data.stages=[{name: only, sources: [c]}]"
    assert "The recipe draws from one source, c." in refusal(tmp_path, one_stage)
    assert "data.validation=500" in refusal(tmp_path, "data.validation=0")
    message = refusal(tmp_path, "method={type: stable_reinforce}", *judged())
    assert "method.type is stable_reinforce, which train/rl.py trains" in message


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(4, 60), min_size=2, max_size=4),
    weights=st.lists(st.sampled_from([0.25, 1.0, 3.0]), min_size=4, max_size=4),
    stages=st.lists(st.sets(st.integers(0, 3), min_size=1), max_size=3),
)
def test_no_pair_of_a_source_that_is_left_out_is_drawn(
    sizes: list[int], weights: list[float], stages: list[set[int]]
) -> None:
    sources = []
    for number, size in enumerate(sizes):
        source = {"type": "shapes", "name": f"s{number}", "level": "demo", "rows": size}
        sources.append(source | {"seed": number, "weight": weights[number]})
    section = {"sources": sources, "records": 50}
    named_stages = []
    for number, members in enumerate(stages):
        names = sorted({f"s{member % len(sizes)}" for member in members})
        named_stages.append({"name": str(number), "sources": names})
    data = MixtureConfig.model_validate({**section, "stages": named_stages})
    names = drawn_sources(data)
    for name in names if len(names) > 1 else []:
        left_stages = stages_without(data, name)
        mixture = Mixture(data.model_copy(update={"stages": left_stages}))
        order = mixture.order(0)
        numbers = np.searchsorted(mixture.records.ends, order, side="right")
        assert len(order) == 50
        assert int(name[1:]) not in numbers
