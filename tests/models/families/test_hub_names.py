"""Names of backbones that are refused, passed, or taken for a misspelling."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmrm.models.families.hub_names import REFUSED_CHECKPOINTS, refusal_of_name, similar_hub_id
from mmrm.models.families.registry import PUBLISHED, REFUSED
from mmrm.train.recipe.parsing import parse_arguments
from tests.train.minimal import write


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_checkpoint_is_not_refused(name: str) -> None:
    assert refusal_of_name(name) == ""
    assert similar_hub_id(name) is None


@pytest.mark.parametrize("name", REFUSED_CHECKPOINTS)
def test_a_checkpoint_of_a_refused_family_is_refused_with_the_reason(name: str) -> None:
    assert REFUSED[REFUSED_CHECKPOINTS[name]] in refusal_of_name(name)
    assert name not in PUBLISHED


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("embeded", "embedded"),
        ("gemma-3-4b-it", "google/gemma-3-4b-it"),
        ("Qwen3-VL-30B-A3B", "Qwen/Qwen3-VL-30B-A3B"),
        ("Qwen2.5-VL-7B-Instruct", "Qwen/Qwen2.5-VL-7B-Instruct"),
    ],
)
def test_a_name_without_an_owner_is_refused_with_the_one_that_was_meant(
    name: str, meant: str
) -> None:
    assert f"Did you mean {meant}" in refusal_of_name(name)


@pytest.mark.parametrize("name", ["embedded", "someone/new-model", "my-model", "runs/first/best"])
def test_other_names_pass(name: str) -> None:
    assert refusal_of_name(name) == ""


def test_a_misspelt_hub_id_is_pointed_out() -> None:
    assert similar_hub_id("Qwen/Qwen2.5-VL-7B-Instrct") == "Qwen/Qwen2.5-VL-7B-Instruct"
    assert similar_hub_id("someone/new-model") is None


@pytest.mark.parametrize("name", ["embeded", "google/gemma-3-4b-it", "Qwen3-VL-30B-A3B"])
def test_a_dry_run_refuses_the_name(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_arguments([str(write(tmp_path)), f"backbone.path={name}", "--dry-run"], "rm", "")
    printed = capsys.readouterr().err
    assert printed.count("backbone.path") == 1, printed


def test_a_folder_of_a_refused_name_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("embeded").mkdir()
    with pytest.raises(SystemExit):
        parse_arguments([str(write(tmp_path)), "backbone.path=embeded", "--dry-run"], "rm", "")
    assert "config.json" in capsys.readouterr().err
