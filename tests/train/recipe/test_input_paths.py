"""What a dry run accepts can start: what a recipe names is looked at before torch is imported, all at once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from mmrm.data.config.validation import validate
from mmrm.data.errors import RecipeError, UserError
from mmrm.models.families.backbone_shape import EMBEDDED
from mmrm.train.planning.dry_run import dry_run, plan_lines
from mmrm.train.recipe.parsing import parse_arguments, read_recipe
from mmrm.train.recipe.recipe import Recipe
from tests.train.minimal import write
from tools.attack.recipes import valid
from tools.attack.values import at, dotted, places, put

OWN = json.loads((EMBEDDED / "config.json").read_text())
HALF = {**OWN, "text_config": {**OWN["text_config"], "num_hidden_layers": "2"}}
POVID = "data.sources=[{{type: povid, hub: some/set, images: {}}}]"
PROJECT = "data.sources=[{{type: project, path: {}}}]"
BENCHMARK = "evaluation.benchmarks=[{{name: {}, location: {}}}]"


def refused(folder: Path, *overrides: str, start: bool = False) -> dict[str, str]:
    """Return the messages with which the minimal recipe and `overrides` are refused, by key."""
    with pytest.raises(RecipeError) as caught:
        read_recipe(write(folder), overrides, entry="rm", start=start)
    return {problem.key: problem.message for problem in caught.value.problems}


def test_a_video_of_the_most_frames_has_a_token_for_every_two(tmp_path: Path) -> None:
    just_enough = "backbone.videos={max_frames: 9, max_pixels: 3920}"
    read_recipe(write(tmp_path), [just_enough], entry="rm", start=True)
    too_few = ["backbone.videos={max_frames: 11, max_pixels: 3920}", "data.cache=/dev/null"]
    problems = refused(tmp_path, *too_few, start=True)
    assert problems.keys() == {"backbone.videos.max_pixels", "data.cache"}
    message = problems["backbone.videos.max_pixels"]
    assert "3,920 pixels are too few for a video of 11 frames" in message
    assert "Set it to 4,704 or more, or backbone.videos.max_frames to 10 or fewer." in message
    counted = refused(tmp_path, "backbone.videos={num_frames: 40, max_pixels: 3920}", start=True)
    assert "videos.num_frames to 10 or fewer" in counted["backbone.videos.max_pixels"]
    # Frames that are images may be as small as they come.
    frames = "backbone.videos={form: frames, max_frames: 11, max_pixels: 3920}"
    read_recipe(write(tmp_path), [frames], entry="rm", start=True)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (json.dumps(OWN | {"model_type": "qwen3_5_moe"}), "recurrent layers"),
        (json.dumps(OWN | {"model_type": "llava"}), "'llava'"),
        (json.dumps(OWN["text_config"]), "'qwen2_5_vl_text'"),
        (json.dumps(HALF), "num_hidden_layers: Input should be a valid integer"),
        (json.dumps(OWN | {"vision_config": []}), "vision_config"),
        (json.dumps({"model_type": "qwen2_5_vl"}), "hidden_size: Field required"),
        ("{", "Invalid JSON"),
        ("[]", "Input should be"),
        (b"\xff\xfe{", "Invalid JSON"),
        (None, "holds no config.json"),
    ],
)
def test_only_a_backbone_that_can_be_loaded_is_accepted(
    tmp_path: Path, content: str | bytes | None, reason: str
) -> None:
    folder = tmp_path / "backbone"
    shutil.copytree(EMBEDDED, folder, copy_function=lambda source, target: Path(target).touch())
    (folder / "config.json").write_text(json.dumps(OWN))
    read_recipe(write(tmp_path), [f"backbone.path={folder}"], entry="rm", start=True)
    (folder / "config.json").unlink()
    if content is not None:
        (folder / "config.json").write_bytes(
            content if isinstance(content, bytes) else content.encode()
        )
    message = refused(tmp_path, f"backbone.path={folder}")["backbone.path"]
    assert reason in message
    assert "model_type qwen2_5_vl" in message  # what works


@pytest.mark.parametrize(
    "lost", ["model.safetensors", "tokenizer.json", "preprocessor_config.json"]
)
def test_a_backbone_has_its_files(tmp_path: Path, lost: str) -> None:
    folder = tmp_path / "backbone"
    shutil.copytree(EMBEDDED, folder, ignore=shutil.ignore_patterns(lost))
    assert "so that it lacks" in refused(tmp_path, f"backbone.path={folder}")["backbone.path"]


def test_a_run_folder_stands_for_its_best_checkpoint_or_the_ways_on_are_named(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    shutil.copytree(EMBEDDED, run / "checkpoint-5")
    message = refused(tmp_path, f"backbone.path={run}")["backbone.path"]
    assert "without a `best` (its recipe sets no evaluation.best_metric" in message
    assert message.endswith(f"give one of these, such as {run / 'checkpoint-5'}.")
    (run / "best").symlink_to("checkpoint-5")
    assert read_recipe(
        write(tmp_path), [f"backbone.path={run}"], entry="rm", start=True
    ).backbone.path == str(run / "best")


def test_everything_that_is_missing_or_unusable_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "table.csv").write_text("prompt,chosen,rejected\n")
    (tmp_path / "list.txt").write_bytes(b"\xff")
    sources = ", ".join(
        f"{{type: project, name: {name}, path: {tmp_path / name}}}"
        for name in ("none", "empty", "table.csv")
    )
    found = refused(
        tmp_path,
        f"backbone.path={tmp_path / 'nowhere'}",
        f"data.sources=[{sources}, {{type: povid, hub: a/b, images: {tmp_path / 'table.csv'}}}]",
        f"data.filters.leave_out={tmp_path / 'list.txt'}",
        f"evaluation.benchmarks=[{{name: preference_folder, location: {tmp_path}/empty}}, "
        f"{{name: vl_rewardbench, location: {tmp_path}/empty}}, {{name: multimodal_rewardbench, location: {tmp_path}/x}}]",
        f"output={{folder: {tmp_path / 'table.csv' / 'run'}, save_every_steps: 1, resume: {tmp_path / 'empty'}}}",
    )
    expected = {
        "backbone.path": "there is nothing at",
        "data.sources.0.path": "there is nothing at",
        "data.sources.1": "holds no file like",
        "data.sources.2": "files of kind .csv",
        "data.sources.3": "required is a folder, a .zip",
        "data.filters.leave_out": "cannot be read",
        "evaluation.benchmarks.0": "holds no file like",
        "evaluation.benchmarks.1": "holds none of its files",
        "evaluation.benchmarks.2.location": "there is nothing at",
        "output.folder": "is no folder",
        "output.resume": "is not a whole checkpoint",
    }
    assert found.keys() == expected.keys()
    assert all(part in found[key] for key, part in expected.items()), found


@pytest.mark.parametrize(
    "setting",
    [
        "backbone.path=runs/shapes/judge_sft/best",
        PROJECT.format("downloads/mine.jsonl"),
        POVID.format("data/coco/train2014"),
        BENCHMARK.format("preference_folder", "downloads/mine"),
        "data.filters.leave_out=runs/overlap.txt",
    ],
)
def test_a_relative_path_may_still_come_but_a_start_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = read_recipe(write(tmp_path), [setting], entry="rm")
    (line,) = plan_lines(recipe)["missing"]
    assert "a start needs it" in line
    (message,) = refused(tmp_path, setting, start=True).values()
    assert "there is nothing at" in message


def test_the_hub_is_not_asked_and_what_is_there_is_not_missing(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text("{}\n")
    (tmp_path / "images.zip_aa").touch()
    settings = [
        "backbone.path=nobody/nothing",
        f"data.sources=[{{type: project, path: {tmp_path}/mine.jsonl, images: {tmp_path}/images}}]",
    ]
    assert (
        plan_lines(read_recipe(write(tmp_path), settings, entry="rm", start=True))["missing"] == []
    )


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        ("optim.epochs", ["optim.epochs=0.0001"]),
        ("data.validation", ["data.sources.0.rows=100", "data.validation=51"]),
        ("optim.records_per_step", ["data.sources.0.rows=63"]),
    ],
)
def test_a_run_without_a_whole_step_is_refused(
    tmp_path: Path, key: str, settings: list[str]
) -> None:
    assert refused(tmp_path, *settings).keys() == {key}


def test_no_steps_are_refused_too_where_only_the_data_tell(tmp_path: Path) -> None:
    recipe = read_recipe(
        write(tmp_path), ["data.sources=[{type: trl, hub: a/b}]", "optim.epochs=0.1"], entry="rm"
    )
    with pytest.raises(UserError, match="are 0 steps"):
        recipe.steps(100)


def test_every_number_of_a_recipe_has_a_bound(tmp_path: Path) -> None:
    unbounded = set()
    for recipe in valid(tmp_path).values():
        for place in places(recipe):
            if isinstance(at(recipe, place), int | float) and not isinstance(
                at(recipe, place), bool
            ):
                unbounded |= {
                    dotted(place)
                    for new in (10**13, -(10**13))
                    if validate(Recipe, put(recipe, place, new))[0]
                }
    assert not unbounded


@pytest.mark.parametrize(
    ("setting", "bound"),
    [
        ("output.save_every_steps=1e18", "valid integer"),
        ("output.save_every_steps=10000000000", "1000000000"),
        ("data.sources.0.repeat=1e300", "1000000"),
        ("data.temperature=1e-300", "0.05"),
        ("optim.learning_rate=1e-300", "0.000000000001"),
        ("data.seed=99999999999999", "1,000,000,000,000"),
        ("optim.max_grad_norm=.inf", "finite"),
    ],
)
def test_a_number_out_of_bounds_names_its_key_and_bound(
    tmp_path: Path, setting: str, bound: str
) -> None:
    ((key, message),) = refused(tmp_path, setting).items()
    assert key == setting.partition("=")[0]
    assert bound in message


def test_a_refusal_ends_the_command_without_torch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_arguments([str(write(tmp_path)), f"backbone.path={tmp_path / 'nowhere'}"], "rm", "")
    assert caught.value.code == 2
    assert "there is nothing at" in capsys.readouterr().err


@pytest.mark.parametrize(
    "key", ["backbone.path", "data.sources.0.path", "evaluation.benchmarks.0.location"]
)
def test_a_relative_name_that_nothing_can_have_is_refused_before_the_plan(
    key: str, tmp_path: Path
) -> None:
    """Also where a dry run lets a path come later: it asks again for what lies there, and would end with a traceback."""
    overrides = [
        PROJECT.format("x.jsonl"),
        BENCHMARK.format("preference_folder", "x"),
        f"{key}={'a/' * 3000}b",
    ]
    assert "name too long" in refused(tmp_path, *overrides)[key]


@pytest.mark.parametrize("name", ["[/red]", "[red]x", ":car:"])
def test_the_plan_prints_a_path_as_it_is(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = [
        PROJECT.format(f"'{name}/rows.jsonl'"),
        BENCHMARK.format("preference_folder", f"'{name}/x'"),
    ]
    dry_run(parse_arguments([str(write(tmp_path)), *overrides, "--dry-run"], "rm", ""))
    assert (
        capsys.readouterr().out.count(name) >= 4
    )  # as source and benchmark, and as what is missing
