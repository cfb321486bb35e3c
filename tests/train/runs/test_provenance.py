"""Promise 10: what is written beside a run repeats it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from mmrm.data.preparation.mixing import Mixture
from mmrm.data.preparation.sampling import SetPlacement
from mmrm.train.recipe.parsing import parse_arguments, read_recipe
from mmrm.train.runs.provenance import (
    commit,
    data_fingerprints,
    order_note,
    recipe_yaml,
    set_placement_of_run,
    write_provenance,
)
from tests.data.mixtures import project, row
from tests.train.minimal import write
from tests.train.shipped import RECIPES


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_resolved_recipe_is_the_recipe(tmp_path: Path, path: Path) -> None:
    recipe = read_recipe(path)
    assert read_recipe(write(tmp_path, recipe_yaml(recipe))) == recipe


@pytest.mark.parametrize(
    "text", ["off", "1e-5", "null", "true", "a: b", "", "ein Übungslauf", "2025-01-01", "'quoted'"]
)
def test_every_text_survives(tmp_path: Path, text: str) -> None:
    recipe = read_recipe(
        write(tmp_path), [f"output.wandb_project={json.dumps(text, ensure_ascii=False)}"]
    )
    assert recipe.output.wandb_project == text
    assert read_recipe(write(tmp_path, recipe_yaml(recipe), "again.yaml")) == recipe


def test_the_resolved_recipe_holds_the_defaults(tmp_path: Path) -> None:
    text = recipe_yaml(read_recipe(write(tmp_path)))
    assert "  max_grad_norm: 1.0\n" in text
    assert text.index("backbone:") < text.index("data:") < text.index("output:")


def test_a_launch_is_recorded_and_a_resume_adds_to_it(tmp_path: Path) -> None:
    path, folder = str(write(tmp_path)), tmp_path / "run"
    first = parse_arguments([path, "seed=7", "data.seed=3", f"output.folder={folder}"], "rm", "")
    write_provenance(first, folder, Mixture(first.recipe.data))
    again = parse_arguments([path, "--resume", f"output.folder={folder}"], "rm", "")
    write_provenance(again, folder, Mixture(again.recipe.data))
    launches = json.loads((folder / "provenance.json").read_text())
    assert len(launches) == 2
    one = launches[0]
    assert one["command"][1:] == [path, "seed=7", "data.seed=3", f"output.folder={folder}"]
    assert one["overrides"] == ["seed=7", "data.seed=3", f"output.folder={folder}"]
    assert one["seeds"] == {"run": 7, "data": 3}
    assert one["recipe"]["optim"]["records_per_step"] == 64
    assert one["packages"]["pydantic"]
    assert one["packages"]["torch"]
    assert one["hardware"]["cores"] >= 1
    assert one["data"]["shapes"]["rows"] == 640
    assert one["data"] == launches[1]["data"]
    assert launches[1]["recipe"]["output"]["resume"] == "auto"
    assert read_recipe(folder / "recipe.yaml").output.resume == "auto"
    assert sorted(file.name for file in folder.iterdir()) == ["provenance.json", "recipe.yaml"]


def test_a_run_records_where_it_places_sets_and_a_resumed_one_keeps_it(tmp_path: Path) -> None:
    launch = parse_arguments([str(write(tmp_path)), f"output.folder={tmp_path}"], "rm", "")
    checkpoint = tmp_path / "checkpoint-4"
    assert set_placement_of_run(checkpoint) == "random_member"  # nothing is known of its run
    mixture = Mixture(launch.recipe.data)
    write_provenance(launch, tmp_path, mixture)
    assert set_placement_of_run(checkpoint) == "random_member"
    launches = json.loads((tmp_path / "provenance.json").read_text())
    del launches[-1]["set_placement"]  # as before it was recorded
    (tmp_path / "provenance.json").write_text(json.dumps(launches))
    assert set_placement_of_run(checkpoint) == "first_member"
    mixture.set_placement = "first_member"
    write_provenance(launch, tmp_path, mixture)
    assert set_placement_of_run(checkpoint) == "first_member"


@pytest.mark.parametrize(
    ("pairs_a_prompt", "method", "placement", "is_noted"),
    [
        (2, "{type: naive}", "first_member", True),
        (2, "{type: critic}", "first_member", True),
        (2, "{type: naive}", "random_member", False),
        (2, "{type: naive, pairs_together: 1}", "first_member", False),
        (1, "{type: naive}", "first_member", False),
    ],
)
def test_the_earlier_order_is_noted_if_it_is_another(
    tmp_path: Path, pairs_a_prompt: int, method: str, placement: SetPlacement, is_noted: bool
) -> None:
    rows = [
        row(f"question {number // pairs_a_prompt}", rejected=f"bad {number}")
        for number in range(70)
    ]
    sources = json.dumps([project(tmp_path, "own", rows)])
    changes = [f"method={method}", f"data.sources={sources}", f"data.cache={tmp_path}"]
    recipe = read_recipe(write(tmp_path), changes)
    mixture = Mixture(recipe.data)
    mixture.set_placement = placement
    assert ("continues in that order" in order_note(recipe, mixture)) == is_noted


def test_other_data_have_another_fingerprint(tmp_path: Path) -> None:
    prints = []
    for level_seed in (0, 1):
        launch = parse_arguments(
            [str(write(tmp_path)), f"data.sources.0.seed={level_seed}"], "rm", ""
        )
        write_provenance(launch, tmp_path / "run", Mixture(launch.recipe.data))
        prints.append(
            json.loads((tmp_path / "run" / "provenance.json").read_text())[-1]["data"]["shapes"][
                "fingerprint"
            ]
        )
    assert prints[0] != prints[1]


def test_the_same_records_elsewhere_have_the_same_fingerprint(tmp_path: Path) -> None:
    prints = []
    for folder in (tmp_path / "one", tmp_path / "other"):
        folder.mkdir()
        (folder / "a.jsonl").write_text('{"prompt": "p", "chosen": "c", "rejected": "r"}\n')
        recipe = f"data.sources=[{{type: project, path: {folder}/a.jsonl}}]"
        launch = parse_arguments([str(write(tmp_path)), recipe, f"data.cache={folder}"], "rm", "")
        prints.append(data_fingerprints(Mixture(launch.recipe.data))["project"]["fingerprint"])
    assert prints[0] == prints[1]


@pytest.mark.slow
def test_the_commit_and_its_changes(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "file").write_text("1")
    subprocess.run([*git, "add", "file"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "first"], check=True)
    clean = commit(tmp_path)
    assert len(clean["commit"]) == 40
    assert clean["dirty"] is False
    (tmp_path / "file").write_text("2")
    assert commit(tmp_path) == {"commit": clean["commit"], "dirty": True, "changed": ["M file"]}


def test_outside_a_clone_there_is_no_commit(tmp_path: Path) -> None:
    found = commit(tmp_path / "nowhere")
    assert found["commit"] is None
    assert found["reason"]
