"""An exported checkpoint is complete for others, and is uploaded as it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

import mmrm
from mmrm.data.errors import UserError
from mmrm.eval.judges.loading import load_judge
from mmrm.train.checkpoints.integrity import damage
from mmrm.train.runs.exporting import export, recorded_origin
from tests.train.hub_stand_in import TOKEN, running_hub
from tests.train.worker import ended

CLONE = Path(__file__).resolve().parents[2]
ONLY_FOR_RESUME = ("optimizer", "scheduler", "rng_state", "global_step", "zero_to", "training_args")


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["none", "zero2", "zero3"])
def test_an_export_has_weights_card_and_code_and_nothing_for_a_resume(
    runs: Path, tmp_path: Path, stage: str
) -> None:
    checkpoint = ended(runs / f"2-{stage}")
    folder = tmp_path / "exported"
    export(checkpoint, folder)

    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert not [name for name in names if name.startswith(ONLY_FOR_RESUME)]
    assert not [name for name in names if "predictions" in name or "journal" in name]
    assert {"model.safetensors", "config.json", "reward.py", "tokenizer.json"} <= names
    assert damage(folder) == []

    messages = [{"role": "user", "content": "Which colour?"}]
    responses = ["Red.", "A blue square."]
    expected = load_judge(str(checkpoint)).score(messages, responses)
    assert load_judge(str(folder)).score(messages, responses) == expected

    card = (folder / "README.md").read_text()
    metadata = YAML(typ="safe").load(card.split("---")[1])
    provenance = json.loads((runs / f"2-{stage}" / "provenance.json").read_text())[-1]
    assert metadata["data_licences"] == provenance["licences"]
    assert f"| mmrm | {mmrm.__version__} |" in card
    for library in ("torch", "transformers", "deepspeed"):
        assert f"| {library} | {provenance['packages'][library]} |" in card


@pytest.mark.slow
def test_an_incomplete_checkpoint_and_a_used_folder_are_refused(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a complete checkpoint"):
        export(tmp_path, tmp_path / "exported")
    (tmp_path / "used").mkdir()
    with pytest.raises(UserError, match="exists already"):
        export(ended(runs / "2-none"), tmp_path / "used")
    assert not (tmp_path / "used.part").exists()


def test_runs_of_before_have_no_licences_and_no_version() -> None:
    packages = {"torch": "2.11.0", "numpy": "2.0"}
    entry = {
        "data": {"shapes": {"rows": 1, "fingerprint": "f", "revision": ""}},
        "commit": {"commit": "abc"},
        "python": "3.12.1",
        "packages": packages,
    }
    origin = recorded_origin(entry)
    assert origin.licences == {}
    assert origin.versions == {"commit": "abc", "Python": "3.12.1", "torch": "2.11.0"}


def run_export(hub: str, token: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub,
        "HF_TOKEN": token,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(CLONE / "train" / "export.py"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_an_export_is_uploaded_to_a_hub(runs: Path, tmp_path: Path) -> None:
    checkpoint = ended(runs / "2-none")
    folder = tmp_path / "exported"
    with running_hub() as hub:
        done = run_export(hub.address, TOKEN, str(checkpoint), str(folder), "--push", "me/reward")
        assert done.returncode == 0, done.stderr
        assert f"{hub.address}/me/reward" in done.stdout

        assert hub.private == {"me/reward": True}
        files = {
            str(path.relative_to(folder)): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }
        assert hub.files["me/reward"] == files
        assert "model.safetensors" in files

        arguments = [str(checkpoint), str(tmp_path / "again"), "--push", "me/open", "--public"]
        assert run_export(hub.address, TOKEN, *arguments).returncode == 0
        assert hub.private["me/open"] is False

        arguments = [str(checkpoint), str(tmp_path / "third"), "--push", "me/reward"]
        refused = run_export(hub.address, "hf_wrong", *arguments)
        assert refused.returncode == 1
        assert "hf auth login" in refused.stderr
        assert "Traceback" not in refused.stderr
        assert (tmp_path / "third" / "model.safetensors").is_file()
