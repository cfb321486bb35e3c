"""Scores of a recipe's training records: the order that the judge sees, the order of the file, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import pytest

from mmrm.data.display.console import plain_console
from mmrm.data.errors import RecordError, UserError
from mmrm.data.preference import Preference, Response
from mmrm.data.preparation.decisions import flipped, written_key
from mmrm.eval.benchmarks.benchmark import Benchmark
from mmrm.eval.candidates import Candidates, Scores
from mmrm.eval.journal import SILENT, Journal
from mmrm.eval.judges.judge import Judge, JudgeInfo
from mmrm.eval.protocol import ProtocolConfig
from mmrm.eval.score_records import ScoredRecords, random_order
from mmrm.eval.selection.candidate_scores import LineJournal, score_records
from tests.data.mixtures import project, row


@dataclass
class LengthJudge:
    """A judge that prefers long responses, and cannot judge the prompt that names a teapot."""

    seen: list[Candidates] = field(default_factory=list)
    info: ClassVar[JudgeInfo] = JudgeInfo()

    def score_batch(self, batch: Sequence[Candidates], journal: Journal = SILENT) -> list[Scores]:
        """Return the length of each response."""
        if any("teapot" in str(candidates.prompt) for candidates in batch):
            raise RecordError("it is a teapot")
        self.seen += batch
        scores = []
        for candidates in batch:
            lengths = [float(len(response.text)) for response in candidates.responses]
            scores.append(Scores(tuple(lengths)))
        return scores

    def under(self, protocol: ProtocolConfig, benchmark: Benchmark) -> Judge:
        """Return this judge."""
        return self

    def notes(self, scores: Sequence[Scores]) -> tuple[str, ...]:
        """Return no notes."""
        return ()


def recipe(folder: Path) -> Path:
    """Write a recipe of 30 pairs, a list of three and a record that cannot be judged."""
    rows = [row(f"q {number}", chosen="long answer", rejected="no") for number in range(30)]
    rows.append(
        {"prompt": "list", "responses": ["a", "bbb", "cc"], "ranks": [1, 0, 2], "source": "x"}
    )
    rows.append(row("teapot"))
    source = project(folder, "mine", rows)
    path = folder / "mine.yaml"
    path.write_text(
        f"data:\n  sources: [{{type: project, name: mine, pairs: none, path: {source['path']}}}]\n"
        f"  cache: {folder / 'cache'}\n  workers: 1\n"
    )
    return path


def scored(folder: Path, records: ScoredRecords, judge: LengthJudge) -> list[dict[str, object]]:
    """Score records, and return the lines of the output."""
    journal = LineJournal(folder / "journal", "fingerprint")
    num_records = len(records.indices)
    keys = score_records(judge, num_records, records.read, "mine", journal, plain_console())
    return list(records.lines(journal, keys))


def test_scores_are_in_the_order_of_the_record_whatever_the_judge_sees(tmp_path: Path) -> None:
    records = ScoredRecords.of_recipe(recipe(tmp_path), None)
    judge = LengthJudge()
    lines = scored(tmp_path, records, judge)
    assert [line["key"] for line in lines] == [written_key(key) for key in records.keys.tolist()]
    for line in lines[:30]:
        assert (line["ranks"], line["scores"]) == ([0, 1], [11.0, 2.0])
    assert (lines[30]["ranks"], lines[30]["scores"]) == ([0, 1, 2], [3.0, 1.0, 2.0])
    assert "teapot" in str(lines[31]["error"])
    firsts = [candidates.responses[0].text for candidates in judge.seen[:30]]
    assert set(firsts) == {"long answer", "no"}
    # A second call takes everything but the record that cannot be judged from the journal.
    again = LengthJudge()
    assert scored(tmp_path, records, again) == lines
    assert again.seen == []


def test_only_records_with_the_keys_of_a_file_are_scored(tmp_path: Path) -> None:
    path = recipe(tmp_path)
    everything = ScoredRecords.of_recipe(path, None)
    keys = everything.keys[[3, 30]]
    file = tmp_path / "keys.txt"
    file.write_text("".join(f"{written_key(key)}\n" for key in keys.tolist()))
    records = ScoredRecords.of_recipe(path, str(file))
    assert records.indices.tolist() == [3, 30]
    assert records.keys.tolist() == keys.tolist()
    file.write_text("0" * 15 + "1\n")
    with pytest.raises(UserError, match="no training record has a key of"):
        ScoredRecords.of_recipe(path, str(file))


def test_the_order_that_is_seen_does_not_depend_on_the_preference() -> None:
    sides = []
    for number in range(50):
        record = Preference(
            identity="r",
            prompt=({"role": "user", "content": [{"type": "text", "text": f"q {number}"}]},),
            responses=(Response.of_text("yes"), Response.of_text("no")),
        )
        order = random_order(record)
        other = flipped(record)
        seen = [record.responses[index].text for index in order]
        assert [other.responses[index].text for index in random_order(other)] == seen
        assert random_order(replace(record, identity="s")) == order
        sides.append(order[0])
    assert 10 < sum(sides) < 40
