"""Selection by difficulty writes the hard pairs as ordinary records without rationales."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from mmrm.data.preparation.mixing import Mixture
from mmrm.data.preparation.recipe_section import read_data_section
from mmrm.eval import select_pairs
from mmrm.eval.annotation.annotator import Annotation, annotate
from mmrm.eval.candidates import Candidates, Scores, Vote
from mmrm.eval.journal import SILENT, Journal
from mmrm.eval.judges.tournament import scores_from_votes
from tests.data.sources.fixtures import write_jsonl
from tests.eval.annotation.test_annotator import read
from tests.eval.doubles import PositionFollower

RECIPE = "data: {sources: [{type: shapes, level: demo, rows: 6}]}\n"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["select_pairs.py", *map(str, arguments)])
    select_pairs.main()


@pytest.mark.parametrize(
    ("keys", "kind"),
    [("pairs: none", "more than two responses"), ("ties: keep", "tied responses")],
)
def test_lists_and_ties_are_refused(
    keys: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tmp_path / "recipe.yaml"
    path = write_jsonl(tmp_path / "mine.jsonl", [{"prompt": "?", "chosen": "a", "rejected": "b"}])
    recipe.write_text(f"data: {{sources: [{{type: project, path: {path}, {keys}}}]}}\n")
    with pytest.raises(SystemExit, match=f"'project' gives records with {kind}"):
        run(monkeypatch, "tries", recipe, path, "--out", tmp_path / "out.jsonl")


def test_by_tries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, annotated, out = (
        tmp_path / "recipe.yaml",
        tmp_path / "annotated.jsonl",
        tmp_path / "rl.jsonl",
    )
    recipe.write_text(RECIPE)
    mixture = Mixture(read_data_section(recipe))
    tries = iter([1, 2, 3, 1, 3, 1])
    annotate(
        mixture,
        range(6),
        lambda records: [
            Annotation(None if record.identity.endswith("3") else "r", next(tries))
            for record in records
        ],
        annotated,
        "drop",
    )
    run(monkeypatch, "tries", recipe, annotated, "--out", out)
    found = read(out)
    assert [one.chosen for one in found] == [mixture[index].chosen for index in (1, 2, 3, 4)]
    assert all(one.rationale is None for one in found)
    assert [one.difficulty for one in found] == [2, 3, 2, 3]  # the third was not got right
    with pytest.raises(SystemExit, match="exists"):
        run(monkeypatch, "tries", recipe, annotated, "--out", out)
    other = tmp_path / "other.yaml"
    other.write_text(RECIPE.replace("demo", "hard"))
    with pytest.raises(SystemExit, match="is not that record"):
        run(monkeypatch, "tries", other, annotated, "--out", tmp_path / "new.jsonl")


def test_pass_rates_are_shares_of_all_votes(tmp_path: Path) -> None:
    class NamesEach(PositionFollower):
        def score_batch(
            self, batch: Sequence[Candidates], journal: Journal = SILENT
        ) -> list[Scores]:
            """Name the first response, nobody, the second, and the first."""
            scores: list[Scores] = []
            for candidates in batch:
                assert candidates.presentations == ((0, 1), (1, 0)) * 2
                named = zip(candidates.presentations, (0, None, 1, 0), strict=True)
                votes = [Vote(shown, response, "") for shown, response in named]
                scores.append(scores_from_votes(candidates, votes))
            return scores

    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE)
    mixture = Mixture(read_data_section(recipe))
    assert select_pairs.pass_rates(NamesEach(), [mixture[0], mixture[1]], 2) == [0.5, 0.5]
