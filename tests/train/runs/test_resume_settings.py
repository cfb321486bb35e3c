"""A run is continued with its own settings, or not at all: what is written beside its weights must be true of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from mmrm.data.errors import UserError
from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.recipe.recipe import Recipe
from mmrm.train.runs.provenance import FREE, check_data_matches, check_resume_matches, recipe_yaml

RECIPE = Path(__file__).resolve().parents[3] / "recipes" / "shapes" / "naive.yaml"


def recipe(*changes: str) -> Recipe:
    return read_recipe(RECIPE, ["deepspeed=zero2", *changes])


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return a checkpoint of a run on two ranks."""
    return written(tmp_path, recipe())


def written(folder: Path, trained: Recipe) -> Path:
    """Write what lies beside a checkpoint."""
    (folder / "recipe.yaml").write_text(recipe_yaml(trained))
    launch = {"recipe": trained.resolved(), "hardware": {"world_size": 2}}
    (folder / "provenance.json").write_text(json.dumps([{}, launch]))
    (folder / "checkpoint-4").mkdir(exist_ok=True)
    return folder / "checkpoint-4"


def test_the_same_settings_continue(checkpoint: Path) -> None:
    check_resume_matches(recipe(), checkpoint, ranks=2)


@pytest.mark.parametrize(
    "changes",
    [
        ["output.log_every_steps=3", "output.folder=elsewhere"],
        ["evaluation.benchmarks=[]", "evaluation.best_metric=null"],
        ["workers=0"],
        ["data.cache=/elsewhere", "data.workers=1"],
        ["optim.token_budget=auto", "optim.activation_checkpointing=true", "optim.compile=layers"],
    ],
)
def test_what_changes_nothing_that_is_learnt_is_free(
    checkpoint: Path, changes: Sequence[str]
) -> None:
    check_resume_matches(recipe(*changes), checkpoint, ranks=2)
    assert all(any(change.startswith(name) for name in FREE) for change in changes)


def test_every_other_change_is_listed(checkpoint: Path) -> None:
    changed = recipe(
        "optim.learning_rate=1e-6", "data.seed=9", "data.sources.0.rows=500", "head.layers=3"
    )
    with pytest.raises(UserError) as refused:
        check_resume_matches(changed, checkpoint, ranks=4)
    said = str(refused.value)
    assert "  optim.learning_rate: 0.0005 -> 1e-06\n" in said
    assert "  data.seed: 0 -> 9\n" in said
    assert "  head.layers: 2 -> 3\n" in said
    assert "ranks" not in said
    assert '"rows": 500' in said
    assert f"backbone.path={checkpoint}" in said


def test_a_section_that_was_not_there_is_a_change(checkpoint: Path) -> None:
    with pytest.raises(UserError, match=r"optim\.lora\.rank: \(not there\) -> 8"):
        check_resume_matches(recipe("optim.lora.rank=8"), checkpoint, ranks=2)


def test_a_key_that_an_older_version_did_not_write_is_none(checkpoint: Path) -> None:
    file, other = checkpoint.parent / "recipe.yaml", checkpoint.parent / "provenance.json"
    file.write_text(
        "".join(line for line in file.read_text().splitlines(True) if "max_grad_norm" not in line)
    )
    launches = json.loads(other.read_text())
    del launches[-1]["recipe"]["optim"]["max_grad_norm"]
    other.write_text(json.dumps(launches))
    assert "max_grad_norm" not in file.read_text()
    check_resume_matches(recipe(), checkpoint, ranks=2)


def test_a_key_that_an_older_version_did_not_have_had_its_default(checkpoint: Path) -> None:
    """A run from before `images_together` is not continued half way with images together."""
    file, other = checkpoint.parent / "recipe.yaml", checkpoint.parent / "provenance.json"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if "images_together" not in line))
    launches = json.loads(other.read_text())
    del launches[-1]["recipe"]["method"]["images_together"]
    other.write_text(json.dumps(launches))
    check_resume_matches(recipe(), checkpoint, ranks=2)
    check_resume_matches(recipe("method.images_together=1"), checkpoint, ranks=2)
    with pytest.raises(UserError, match=r"method\.images_together: \(not there\) -> 4"):
        check_resume_matches(recipe("method.images_together=4"), checkpoint, ranks=2)


@pytest.mark.parametrize("stage", ["none", "zero2", "zero3"])
def test_any_number_of_ranks_continues(checkpoint: Path, stage: str) -> None:
    trained = recipe(f"deepspeed={stage}")
    written(checkpoint.parent, trained)
    check_resume_matches(trained, checkpoint, ranks=1)


def test_a_checkpoint_by_itself_is_taken_as_it_is(checkpoint: Path) -> None:
    (checkpoint.parent / "recipe.yaml").unlink()
    check_resume_matches(recipe("optim.learning_rate=1e-6"), checkpoint, ranks=1)


def test_a_head_whose_place_had_another_meaning_is_not_continued(checkpoint: Path) -> None:
    read = recipe("head.read=last_token")
    written(checkpoint.parent, read)
    (checkpoint / "config.json").write_text('{"assistant_turn": {}}')
    check_resume_matches(read, checkpoint, ranks=2)
    (checkpoint / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"head\.read: last_token then meant"):
        check_resume_matches(read, checkpoint, ranks=2)


@pytest.mark.parametrize("name", ["recipe.yaml", "provenance.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b"- 1", b"null"])
def test_settings_that_cannot_be_read_are_named_beside_a_sound_checkpoint(
    checkpoint: Path, name: str, content: bytes
) -> None:
    (checkpoint.parent / name).write_bytes(content)
    with pytest.raises(
        UserError,
        match=r"(?s)cannot be read .*\. The checkpoint itself is sound\. Restore both files",
    ):
        check_resume_matches(recipe(), checkpoint, ranks=2)


@pytest.mark.parametrize("cut", range(1, 10))
def test_a_recipe_that_was_cut_off_is_named(checkpoint: Path, cut: int) -> None:
    """What is left of it is often a recipe with fewer keys, which were defaults if an older version had written it."""
    file = checkpoint.parent / "recipe.yaml"
    file.write_bytes(file.read_bytes()[: file.stat().st_size * cut // 10])
    with pytest.raises(
        UserError, match=r"recipe.yaml and provenance.json say .*, and cannot be read"
    ):
        check_resume_matches(recipe(), checkpoint, ranks=2)


def test_a_recipe_that_was_edited_in_the_run_folder_is_no_comparison(checkpoint: Path) -> None:
    edited = recipe("optim.learning_rate=1e-6", "output.log_every_steps=3")
    (checkpoint.parent / "recipe.yaml").write_text(recipe_yaml(edited))
    with pytest.raises(
        UserError,
        match=r"provenance.json has another optim.learning_rate\. The checkpoint itself is sound",
    ):
        check_resume_matches(edited, checkpoint, ranks=2)


def test_rollouts_are_stored_by_rank_also_without_deepspeed(tmp_path: Path) -> None:
    path = tmp_path / "rl.yaml"
    path.write_text((RECIPE.parent / "judge_rl.yaml").read_text())
    judge = read_recipe(path, ["deepspeed=none"])
    checkpoint = written(tmp_path, judge)
    check_resume_matches(judge, checkpoint, ranks=2)
    with pytest.raises(UserError, match=r"ranks: 2 -> 1 \(the rollout buffer is stored by rank\)"):
        check_resume_matches(judge, checkpoint, ranks=1)


def test_data_that_have_changed_are_named(checkpoint: Path) -> None:
    then = {
        "mine": {"revision": "local", "fingerprint": "one", "rows": 9},
        "more": {"fingerprint": "x", "rows": 1},
    }
    (checkpoint.parent / "provenance.json").write_text(json.dumps([{}, {"data": then}]))
    check_data_matches(then, checkpoint)
    with pytest.raises(
        UserError,
        match=r"other data.*\n  mine: 10 rows with the fingerprint two, then 9 with one\n",
    ):
        check_data_matches(
            then | {"mine": {"revision": "local", "fingerprint": "two", "rows": 10}}, checkpoint
        )
