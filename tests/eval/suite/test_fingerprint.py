"""Fingerprints change with what decides a result, and with nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mmrm.data.preference import text_pair
from mmrm.data.storage.code_digest import _syntax_tree, imported_modules
from mmrm.eval.protocol import ProtocolConfig
from mmrm.eval.suite import fingerprint as identity
from mmrm.eval.suite.fingerprint import SCORING_MODULES, fingerprint, judge_digest, rows_digest
from tests.eval import run_folders
from tests.eval.make import example, png


@pytest.fixture
def checkpoint(tmp_path: Path, run: Path) -> Path:
    """Return a checkpoint of a run that is free to be changed."""
    shutil.copytree(run, tmp_path / "run")
    return tmp_path / "run" / "checkpoint-1"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("run") / "run"
    return run_folders.run_folder(root, (1, 2), run_folders.recipe(root / "base", []))


def recipe(checkpoint: Path, **changes: object) -> None:
    file = checkpoint.parent / "recipe.yaml"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def backbone(checkpoint: Path, **changes: object) -> None:
    recipe(
        checkpoint,
        backbone={
            **json.loads((checkpoint.parent / "recipe.yaml").read_text())["backbone"],
            **changes,
        },
    )


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))


@pytest.mark.parametrize(
    "change",
    [
        lambda path: flip(path / "model.safetensors"),
        lambda path: (path / "chat_template.jinja").write_text("{{ messages }}"),
        lambda path: flip(path / "tokenizer.json"),
        lambda path: backbone(path, system_prompt="Look twice."),
        lambda path: backbone(path, min_pixels=3136),
    ],
)
def test_what_decides_scores_changes_the_digest(
    checkpoint: Path, change: Callable[[Path], object]
) -> None:
    before = judge_digest(checkpoint)
    change(checkpoint)
    assert judge_digest(checkpoint) != before


@pytest.mark.parametrize(
    "change",
    [
        lambda path: (path / "trainer_state.json").write_text("{}"),
        lambda path: (path / "optimizer.pt").write_text("x"),
        lambda path: (path / "eval").mkdir(),
        lambda path: (path / "model.safetensors").touch(),
        lambda path: recipe(path, workers=3),
        lambda path: backbone(path, path="elsewhere", attention="sdpa", freeze=["vision_tower"]),
    ],
)
def test_what_decides_nothing_does_not(checkpoint: Path, change: Callable[[Path], object]) -> None:
    before = judge_digest(checkpoint)
    change(checkpoint)
    assert judge_digest(checkpoint) == before


def test_the_place_of_a_checkpoint_does_not_matter_and_its_weights_do(
    checkpoint: Path, run: Path
) -> None:
    assert (
        judge_digest(checkpoint)
        == judge_digest(run / "checkpoint-1")
        != judge_digest(run / "checkpoint-2")
    )


def test_an_ensemble_is_its_members_and_an_endpoint_its_model(
    checkpoint: Path, run: Path, tmp_path: Path
) -> None:
    def ensemble(*members: Path, rest: str = "") -> str:
        (tmp_path / "e.yaml").write_text(
            f"type: ensemble\nmembers: {[str(member) for member in members]}\n{rest}"
        )
        return judge_digest(tmp_path / "e.yaml")

    both = ensemble(checkpoint, run / "checkpoint-2")
    assert both == ensemble(run / "checkpoint-1", run / "checkpoint-2")
    validation = run_folders.preferences(tmp_path, 3)
    weighted = ensemble(
        checkpoint, run / "checkpoint-2", rest=f"combine: margin\nvalidation: {validation}"
    )
    run_folders.preferences(tmp_path, 4)
    other = ensemble(
        checkpoint, run / "checkpoint-2", rest=f"combine: margin\nvalidation: {validation}"
    )
    flip(checkpoint / "model.safetensors")
    assert len({both, weighted, other, ensemble(checkpoint, run / "checkpoint-2")}) == 4

    def endpoint(rest: str) -> str:
        (tmp_path / "j.yaml").write_text(f"type: endpoint\nurl: http://x/v1\n{rest}")
        return judge_digest(tmp_path / "j.yaml")

    assert (
        endpoint("model: a")
        == endpoint("model: a\nconcurrency: 2\ntimeout_seconds: 9")
        != endpoint("model: b")
    )


def test_rows_are_their_content(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png("red"))
    rows = [example("a", images=(png("red"),)), example("b", 1)]
    whole = rows_digest(rows)
    assert (
        rows_digest([replace(rows[0], images=(tmp_path / "a.png",), identity="elsewhere"), rows[1]])
        == whole
    )
    changed = [
        [replace(rows[0], images=(png("blue"),)), rows[1]],
        [replace(rows[0], better=1), rows[1]],
        [replace(rows[0], responses=text_pair("one", "two!")), rows[1]],
        [replace(rows[0], group="other"), rows[1]],
        rows[:1],
        rows[::-1],
    ]
    digests = {rows_digest(found) for found in changed}
    assert len(digests) == len(changed)
    assert whole not in digests


def test_every_part_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        fingerprint("judge", "rows", ProtocolConfig()),
        fingerprint("judge2", "rows", ProtocolConfig()),
        fingerprint("judge", "rows2", ProtocolConfig()),
        fingerprint("judge", "rows", ProtocolConfig(votes=3)),
    }
    monkeypatch.setattr(identity, "scoring_version", lambda: "another")
    assert len(found | {fingerprint("judge", "rows", ProtocolConfig())}) == 5


def test_the_scoring_code_is_what_scoring_imports_and_comments_do_not_count(tmp_path: Path) -> None:
    modules = imported_modules(SCORING_MODULES, ("models", "eval"))
    needed = {
        "mmrm.eval.results.result",
        "mmrm.eval.suite.suite",
        "mmrm.eval.protocol",
        "mmrm.eval.judges.packed_inference",
        "mmrm.models.packing.attention",
        "mmrm.models.portable.reward",
        "mmrm.models.encoder",
    }
    assert needed <= modules.keys()
    assert (
        not {
            "mmrm.eval.run",
            "mmrm.eval.sweep",
            "mmrm.eval.results.summary_table",
            "mmrm.eval.reporting.sweep_report",
        }
        & modules.keys()
    )
    file, texts = tmp_path / "m.py", ["x = 1\n", '"""What."""\n\nx = 1  # why\n', "x = 2\n"]
    codes = []
    for text in texts:
        file.write_text(text)
        codes.append(_syntax_tree(file))
    assert codes[0] == codes[1] != codes[2]
