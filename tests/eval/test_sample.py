"""Answers sampled to a file: verified, the same after a kill, and fit for scoring and for pairs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mmrm.eval.policies.answering import Answerer
from mmrm.eval.sample import main
from mmrm.eval.select_responses import main as select
from tests.models import tiny

SOURCE = "{type: shapes, level: demo, split: train, rows: 5, text_only: 0.5}"


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny.checkpoint(tmp_path_factory.mktemp("policy")))


def sampled(policy: str, output: Path, *more: str) -> list[dict[str, Any]]:
    main(
        [policy, str(output), "--source", SOURCE, "--samples", "3", "--max-new-tokens", "4", *more]
    )
    return [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]


def test_answers_of_a_policy_are_written_and_a_killed_command_ends_the_same(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = sampled(policy, tmp_path / "a.jsonl")
    assert [len(row["responses"]) for row in whole] == [3] * 5
    assert {row["verifier"] for row in whole} == {"exact"}
    assert {len(row["images"]) for row in whole} == {0, 1}
    assert not (tmp_path / "a.jsonl.journal").exists()

    def killed(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Answerer, "_answers", killed)
        with pytest.raises(KeyboardInterrupt):
            sampled(policy, tmp_path / "b.jsonl")
    kept = (tmp_path / "b.jsonl.journal").read_text(encoding="ascii")
    assert kept.count("sampled/") == 5
    assert sampled(policy, tmp_path / "b.jsonl") == whole
    assert sampled(policy, tmp_path / "c.jsonl", "--seed", "1") != whole
    with pytest.raises(SystemExit, match="exists already"):
        sampled(policy, tmp_path / "b.jsonl")


def test_pairs_are_made_by_any_of_the_known_answers(tmp_path: Path) -> None:
    row = {
        "prompt": "How many?",
        "responses": ["two", "It is 2", "three"],
        "scores": [0.0, 1.0, 2.0],
        "answer": ["two", "it is 2"],
    }
    (tmp_path / "scored.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    select(
        [
            "pairs",
            str(tmp_path / "scored.jsonl"),
            str(tmp_path / "pairs.jsonl"),
            "--verifier",
            "exact",
            "--all",
        ]
    )
    found = [
        json.loads(line)
        for line in (tmp_path / "pairs.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert [(one["chosen"], one["rejected"]) for one in found] == [
        ("It is 2", "three"),
        ("two", "three"),
    ]


def test_a_source_without_known_answers_is_refused(policy: str, tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(
        json.dumps({"prompt": "?", "chosen": "a", "rejected": "b"}) + "\n", encoding="utf-8"
    )
    with pytest.raises(SystemExit, match="no known answer"):
        main([policy, str(tmp_path / "out.jsonl"), "--source", f"{{type: project, path: {path}}}"])
