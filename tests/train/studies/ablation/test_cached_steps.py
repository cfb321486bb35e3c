"""The settings that a study keeps, so that it is continued with the same ones."""

import json
from argparse import Namespace
from pathlib import Path

import pytest

from mmrm.data.errors import UserError
from mmrm.train.studies.ablation.cached_steps import keep_settings


def test_a_study_is_continued_with_the_settings_that_it_was_begun_with(tmp_path: Path) -> None:
    file = tmp_path / "study" / "settings.json"
    keep_settings(file, Namespace(samples=8), ["samples"])
    assert json.loads(file.read_text()) == {"samples": "8"}
    keep_settings(file, Namespace(samples=8), ["samples"])
    with pytest.raises(UserError, match=r"samples 8 / 4\. Remove that folder"):
        keep_settings(file, Namespace(samples=4), ["samples"])


def test_an_unset_setting_of_another_version_does_not_differ(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"samples": "8", "policy_recipe": None}))
    keep_settings(file, Namespace(samples=8), ["samples"])
    assert json.loads(file.read_text()) == {"samples": "8"}
    file.write_text(json.dumps({"samples": "8", "policy_recipe": "a.yaml"}))
    with pytest.raises(UserError, match=r"policy_recipe a\.yaml / None"):
        keep_settings(file, Namespace(samples=8), ["samples"])
