"""The shortcuts of judges that follow them, on made pairs and on generated ones."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from mmrm.data.display.study_result import StudyResult
from mmrm.data.errors import UserError
from mmrm.data.preparation.mixing import MixtureConfig
from mmrm.eval.benchmarks.benchmark import Benchmark
from mmrm.eval.benchmarks.preference_folder import PREFERENCE_FOLDER
from mmrm.eval.candidates import Candidates, Scores
from mmrm.eval.journal import SILENT, Journal
from mmrm.eval.judges.judge import JudgeInfo
from mmrm.eval.protocol import ProtocolConfig
from mmrm.eval.studies.shortcuts import (
    JudgedPairs,
    accuracy_table,
    data_section,
    place_figures,
    places_of_sources,
    write,
)
from tests.data.mixtures import project, row


@dataclass(frozen=True)
class LongerIsBetter:
    """Scores each response by its length; without images, all alike if `needs_images`."""

    needs_images: bool = False
    info: ClassVar[JudgeInfo] = JudgeInfo()

    def score_batch(self, batch: Sequence[Candidates], journal: Journal = SILENT) -> list[Scores]:
        """Return the lengths of the responses."""
        scores = []
        for candidates in batch:
            is_blind = self.needs_images and not candidates.images
            lengths = [0.0 if is_blind else float(len(r.text)) for r in candidates.responses]
            scores.append(Scores(tuple(lengths)))
        return scores

    def under(self, protocol: ProtocolConfig, benchmark: Benchmark) -> LongerIsBetter:
        """Return the same judge."""
        return self

    def notes(self, scores: Sequence[Scores]) -> tuple[str, ...]:
        """Return no notes."""
        return ()


def shapes(tmp_path: Path, **keys: float) -> list[JudgedPairs]:
    """Return 60 generated pairs whose courteous responses are right in half of the cases."""
    source = {"type": "shapes", "level": "demo", "rows": 60, "courteous_right": 0.5, **keys}
    config = MixtureConfig.model_validate({"sources": [source], "cache": str(tmp_path)})
    return places_of_sources(config, 60)


def test_a_judge_of_length_prefers_the_longer_response_more_often_than_the_labels(
    tmp_path: Path,
) -> None:
    (place,) = shapes(tmp_path)
    figures = place_figures(LongerIsBetter(), place, ProtocolConfig())
    length = figures["shortcuts"][0]
    assert (length.name, length.n, length.judge) == ("length", 60, 1.0)
    assert length.labels == figures["accuracy"].mean < 0.8
    assert length.excess_low > 0
    assert figures["images"]["none minus real"].mean == 0
    assert figures["images"]["rows"] < 60


def test_a_judge_that_needs_images_is_a_coin_without_them(tmp_path: Path) -> None:
    places = shapes(tmp_path, courteous_right=1.0, text_only=0.0)
    figures = place_figures(LongerIsBetter(needs_images=True), places[0], ProtocolConfig())
    assert figures["images"]["real"].mean == 1.0
    assert figures["images"]["none"].mean == 0.5
    assert figures["images"]["none minus real"].high < 0
    assert figures["images"]["grey minus real"].mean == 0
    table = accuracy_table("title", {places[0].name: figures})
    assert table.rows[0][0] == "source shapes"
    assert table.rows[0][2:4] == ("60", "60")
    assert table.rows[0][6].startswith("−50.0 [")
    file = tmp_path / "figures.json"
    write(StudyResult({"places": {places[0].name: figures}}), file)
    saved = json.loads(file.read_text(encoding="utf-8"))["places"]["source shapes"]
    assert saved["shortcuts"][0]["judge"] == 1.0
    assert saved["images"]["none"]["mean"] == 0.5


def test_ties_are_counted_and_left_out(tmp_path: Path) -> None:
    rows = [row("one"), row("two"), {"prompt": "q", "responses": ["a", "b"], "ranks": [0, 0]}]
    rows.append({"prompt": "list", "responses": ["a", "bb", "ccc"], "ranks": [1, 0, 2]})
    source = project(tmp_path, "made", rows, ties="keep", pairs="none")
    config = MixtureConfig.model_validate(
        {"sources": [source], "cache": str(tmp_path / "cache"), "workers": 1}
    )
    (place,) = places_of_sources(config, 500)
    assert (len(place.rows), place.num_tied) == (3, 1)
    figures = place_figures(LongerIsBetter(), place, ProtocolConfig())
    assert figures["images"] == {}
    # "good" is longer than "bad"; the best of the list is shorter than the worst.
    assert figures["accuracy"].mean == pytest.approx(2 / 3)
    notes = accuracy_table("title", {"made": figures}).notes
    assert "made: 1 rows without a better response" in notes[1]
    assert len(places_of_sources(config, 2)[0].rows) <= 2


def test_a_place_without_pairs_is_refused() -> None:
    place = JudgedPairs("source made", PREFERENCE_FOLDER, [], 3)
    with pytest.raises(UserError, match="source made: there is no row with a better"):
        place_figures(LongerIsBetter(), place, ProtocolConfig())


def test_sources_on_the_command_line_take_the_place_of_a_recipe(tmp_path: Path) -> None:
    options = argparse.Namespace(source=[], recipe=None, judge=tmp_path / "checkpoint-1")
    with pytest.raises(UserError, match=r"recipe\.yaml: there is no such file"):
        data_section(options)
    options.source = [
        "{type: shapes, level: demo, rows: 5}",
        "{type: shapes, level: deno, rows: 5}",
    ]
    with pytest.raises(UserError, match="--source: "):
        data_section(options)
    options.source = options.source[:1]
    assert [source.label for source in data_section(options).sources] == ["shapes"]
