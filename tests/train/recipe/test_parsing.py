"""Promise 7: a wrong recipe is refused at once, with every error, its place, what is allowed and what was meant."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrm.data.config.validation import salvage, validate
from mmrm.data.errors import Problem, RecipeError
from mmrm.train.recipe.parsing import parse_arguments, read_recipe, refuse_missing_device
from mmrm.train.recipe.recipe import STAND_IN, Recipe
from mmrm.train.recipe.sections import Script
from tests.train.minimal import MINIMAL, write

TRAIN = Path(__file__).resolve().parents[3] / "train"
SCRIPTS = [TRAIN / f"{name}.py" for name in get_args(Script)]

WRONG = """\
backbone: {path: embedded, dtype: float16, min_pixels: 5000, max_pixels: 4000}
data:
  sources:
    - type: shapes
      weigth: 2
      level: demo
      rows: 640
    - {type: trll, path: x}
method:
  type: naiv
optim:
  learning_rat: 1e-5
  learning_rate: '1e-5'
  records_per_step: 7
  token_budget: none
  max_steps: off
  betas: [0.9, x]
  epochs: 1
  epochs: 2
deepspeed: zero4
learning_rate: 3
evaluation:
  benchmarks: [{name: vl_rewardbench}]
  best_metric: accuracy
output: {folder: runs/a}
"""
"""key: (line, value as shown, parts of the message)."""
EXPECTED = {
    "backbone.dtype": (1, '"float16"', ["float32 or bfloat16", "did you mean bfloat16?"]),
    "backbone.min_pixels": (1, "5000", ["above max_pixels 4000", "lower min_pixels"]),
    "data.sources.0.weigth": (5, "2", ["did you mean weight?", "Allowed here: "]),
    "data.sources.1.type": (8, '"trll"', ["did you mean trl?", "shapes"]),
    "method.type": (
        10,
        '"naiv"',
        [
            "naive, language_model, critic, joint, stable_reinforce, reinforce_points or policy",
            "did you mean naive?",
        ],
    ),
    "optim.learning_rat": (12, "1e-05", ["did you mean learning_rate?", "Allowed here: "]),
    "optim.learning_rate": (13, '"1e-5"', ["valid number"]),
    "optim.records_per_step": (14, "7", ["do not divide over 3 ranks", "optim.records_per_step=6"]),
    "optim.token_budget": (15, '"none"', ["valid integer or should be auto"]),
    "optim.max_steps": (16, '"off"', ["valid integer"]),
    "optim.betas.1": (17, '"x"', ["valid number"]),
    "optim.epochs": (19, "2", ["occurs twice", "line 18"]),
    "deepspeed": (20, '"zero4"', ["zero3", "zero3_offload"]),
    "learning_rate": (21, "3", ["did you mean optim.learning_rate?"]),
    "evaluation.best_metric": (24, '"accuracy"', ["vl_rewardbench/accuracy"]),
    "output.save_every_steps": (25, "", ["required"]),
}


def refused(
    path: Path, *overrides: str, world_size: int = 1, entry: Any = None
) -> dict[str, Problem]:
    """Return the problems with which a recipe is refused, by key."""
    with pytest.raises(RecipeError) as caught:
        read_recipe(path, overrides, entry=entry, world_size=world_size)
    problems = caught.value.problems
    assert len({problem.key for problem in problems}) == len(problems)
    return {problem.key: problem for problem in problems}


def test_every_error_is_reported_at_once(tmp_path: Path) -> None:
    path = write(tmp_path, WRONG)
    found = refused(path, world_size=3)
    assert found.keys() == EXPECTED.keys()
    for key, (line, value, parts) in EXPECTED.items():
        assert found[key].where == f"{path}:{line}"
        assert found[key].value == value
        assert all(part in found[key].message for part in parts), found[key].message
    assert [problem.where for problem in found.values()] == [
        f"{path}:{line}" for line, _, _ in EXPECTED.values()
    ]


def test_the_message_holds_place_key_value_and_advice(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL.replace("epochs: 2", "epoch: 2"))
    with pytest.raises(RecipeError) as caught:
        read_recipe(path)
    lines = str(caught.value).splitlines()
    assert lines[:2] == [f"{path}: 2 errors", f"  {path}:6  optim.max_steps"]
    assert lines[2].startswith(
        "      give either optim.epochs or optim.max_steps; neither is given"
    )
    assert f"  {path}:9  optim.epoch = 2" in str(caught.value)
    assert "did you mean epochs?" in str(caught.value)


@pytest.mark.parametrize(("written", "mode"), [("true", "full"), ("false", "none")])
def test_older_recipes_switch_activation_checkpointing_on_and_off(
    tmp_path: Path, written: str, mode: str
) -> None:
    recipe = read_recipe(write(tmp_path), [f"optim.activation_checkpointing={written}"])
    assert recipe.optim.activation_checkpointing == mode


def test_a_right_recipe_is_read(tmp_path: Path) -> None:
    recipe = read_recipe(
        write(tmp_path),
        ["optim.learning_rate=1e-6", "output.wandb_project=off", "data.sources.0.rows=1280"],
    )
    assert recipe.optim.learning_rate == 1e-6
    assert recipe.output.wandb_project == "off"
    assert recipe.data.sources[0].model_dump()["rows"] == 1280
    assert recipe.steps(1280) == 40


def test_an_override_is_blamed_on_the_command_line(tmp_path: Path) -> None:
    found = refused(write(tmp_path), "optim.learning_rate=fast", "optm.epochs=1", "seed", "a=[")
    assert {key: problem.where for key, problem in found.items()} == dict.fromkeys(
        ["optim.learning_rate", "optm", "seed", "a"], "command line"
    )
    assert "did you mean optim?" in found["optm"].message


def test_only_the_keys_of_the_chosen_type_are_offered(tmp_path: Path) -> None:
    found = refused(write(tmp_path), "method.epsilon=0.2", "data.sources.0.hub=a/b")
    assert found["method.epsilon"].message.endswith(
        "Allowed here: images_together, length_normalisation, margin, objective, "
        "pairs_together, type, zero_coefficient"
    )
    assert "split" in found["data.sources.0.hub"].message
    assert "revision" not in found["data.sources.0.hub"].message


def test_an_error_is_found_in_the_file_that_holds_it(tmp_path: Path) -> None:
    base = write(tmp_path, MINIMAL.replace("epochs: 2", "epochs: zero"), "base.yaml")
    child = write(tmp_path, "extends: base.yaml\noptim: {warmup_ratio: 2}\n")
    found = refused(child)
    assert found["optim.epochs"].where == f"{base}:9"
    assert found["optim.warmup_ratio"].where == f"{child}:2"


@pytest.mark.parametrize("text", ["", "[]", "3", "a: [1"])
def test_a_file_that_is_no_recipe_is_refused(tmp_path: Path, text: str) -> None:
    assert refused(write(tmp_path, text))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "cannot be read" in refused(tmp_path / "none.yaml")["recipe"].message


def test_the_right_script_is_named(tmp_path: Path) -> None:
    assert "train/rm.py" in refused(write(tmp_path), entry="sft")["method.type"].message


def test_needs_of_the_device_are_refused_without_it(tmp_path: Path) -> None:
    recipe = read_recipe(write(tmp_path), ["optim.lora={quantise: nf4}"])
    refuse_missing_device(recipe, cuda=True)
    with pytest.raises(RecipeError, match=r"optim\.lora\.quantise=none"):
        refuse_missing_device(recipe, cuda=False)


def test_arguments_of_the_launcher_are_accepted(tmp_path: Path) -> None:
    path = write(tmp_path)
    launch = parse_arguments(
        ["--local_rank=3", str(path), "seed=7", "--dry-run", "optim.epochs=1"], "rm", ""
    )
    assert launch.dry_run
    assert (launch.recipe.seed, launch.recipe.optim.epochs, launch.recipe.output.resume) == (
        7,
        1.0,
        "never",
    )
    assert parse_arguments([str(path), "--resume"], "rm", "").recipe.output.resume == "auto"


def test_ranks_are_read_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "5")
    with pytest.raises(SystemExit):
        parse_arguments([str(write(tmp_path))], "rm", "")


def test_errors_are_printed_once_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write(tmp_path, WRONG))
    for name in ("RANK", "LOCAL_RANK"):  # a test before may have made a process group
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SystemExit) as caught:
        parse_arguments([path], "rm", "")
    assert caught.value.code == 2
    assert "Traceback" not in (printed := capsys.readouterr().err)
    assert "learning_rat" in printed
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit):
        parse_arguments([path], "rm", "")
    assert not capsys.readouterr().err


def test_a_used_folder_is_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, folder = str(write(tmp_path)), f"output.folder={tmp_path}/run"
    (tmp_path / "run" / "checkpoint-5").mkdir(parents=True)
    with pytest.raises(SystemExit):
        parse_arguments([path, folder], "rm", "")
    assert "--resume" in capsys.readouterr().err
    assert parse_arguments([path, folder, "--dry-run"], "rm", "").dry_run
    assert parse_arguments([path, folder, "--resume"], "rm", "").recipe.output.resume == "auto"


@pytest.mark.slow
@pytest.mark.parametrize(
    "script", [script for script in SCRIPTS if script.exists()], ids=lambda script: script.stem
)
def test_help_answers_from_any_folder_without_a_heavy_library(tmp_path: Path, script: Path) -> None:
    """Importing one of these libraries takes seconds, which is why help comes before them."""
    command = [sys.executable, "-X", "importtime", str(script), "--local_rank=0", "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "key=value" in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "pydantic" in imported
    assert not imported & {"torch", "transformers", "datasets", "deepspeed", "trl", "matplotlib"}


KEYS = [*Recipe.model_fields, "type", "path", "sources", "learning_rate", "x"]
JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.sampled_from(["naive", "shapes", "demo", "x"]),
    lambda child: (
        st.lists(child, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                [*Recipe.model_fields, "type", "path", "sources", "learning_rate", "x"]
            ),
            child,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(raw=st.dictionaries(st.sampled_from([*Recipe.model_fields, "x"]), JUNK, max_size=6))
def test_whatever_is_broken_something_can_be_salvaged(raw: dict[str, Any]) -> None:
    rest, broken = salvage(Recipe, raw, STAND_IN)
    assert rest is not None
    assert bool(broken) == (validate(Recipe, raw)[0] is None)


def test_the_stand_in_is_a_recipe() -> None:
    assert Recipe.model_validate_json(json.dumps(STAND_IN)).method.type == "naive"


@pytest.mark.parametrize("value", [".inf", ".nan"])
def test_numbers_of_a_recipe_are_finite(tmp_path: Path, value: str) -> None:
    for key in ("optim.learning_rate", "optim.weight_decay", "data.sources.0.weight"):
        with pytest.raises(RecipeError, match="should be a finite number"):
            read_recipe(write(tmp_path), [f"{key}={value}"])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            ["--learning_rate", "1e-6"],
            "--learning_rate is no option; keys .* key=value: optim.learning_rate=1e-6$",
        ),
        (["--optim.learning-rate=1e-6"], "key=value: optim.learning_rate=1e-6$"),
        (["--max-step", "5"], "key=value: optim.max_steps=5$"),
        (["--rows", "5"], "key=value: data.sources.0.rows=5 or evaluation.questions.0.rows=5$"),
        (["--output.folder", "--dry-run"], "key=value: output.folder=VALUE$"),
        (["--zzz", "red"], "unrecognized arguments: --zzz red$"),
    ],
)
def test_an_option_that_is_a_key_of_the_recipe_is_answered_with_the_way_to_write_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: list[str], said: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse_arguments([str(write(tmp_path)), *given], "rm", "")
    assert re.search(said, capsys.readouterr().err.strip())
