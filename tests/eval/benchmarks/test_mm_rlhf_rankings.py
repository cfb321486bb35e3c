"""The rankings of MM-RLHF-RewardBench: ranks from pairs, and the rows of the released file."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from mmrm.data.errors import RecordError
from mmrm.eval.benchmarks.benchmark import Location
from mmrm.eval.benchmarks.mm_rlhf_rankings import MM_RLHF_RANKINGS, ranks_of
from mmrm.eval.candidates import RankedExample, Scores
from mmrm.eval.protocol import ProtocolConfig
from mmrm.eval.results.official_scores import score_predictions_file
from mmrm.eval.results.predictions import write_predictions
from mmrm.eval.suite.suite import evaluate
from tests.eval.make import png

RELEASED = Path("/work/shared/data/mm_rlhf_rewardbench")
"""The released annotation file without its images."""


def write_pairs(folder: Path, pairs: list[tuple[str, str, str]]) -> Location:
    """Write a file with one row for each (id, chosen, rejected), and its image."""
    (folder / "mcq").mkdir()
    (folder / "mcq" / "a.png").write_bytes(png())
    lines = []
    for identity, chosen, rejected in pairs:
        pair = {"chosen": chosen, "rejected": rejected, "image": "mcq/a.png"}
        lines.append(json.dumps({"id": identity, "prompt": f"what? {identity}", **pair}))
    (folder / "mm_reward_bench.jsonl").write_text("\n".join(lines))
    return Location(location=str(folder))


@pytest.mark.parametrize(
    ("better_than", "ranks"),
    [
        ({"a": set(), "b": {"a"}}, {"a": 0, "b": 1}),
        # A pair for every two responses, and for neighbours alone
        ({"a": set(), "b": {"a"}, "c": {"a", "b"}}, {"a": 0, "b": 1, "c": 2}),
        ({"a": set(), "b": {"a"}, "c": {"b"}}, {"a": 0, "b": 1, "c": 2}),
        # Two that are equally good
        ({"a": set(), "b": {"a"}, "c": {"a"}}, {"a": 0, "b": 1, "c": 1}),
        ({"c": {"b", "d"}, "b": {"a"}, "a": set(), "d": set()}, {"c": 2, "b": 1, "a": 0, "d": 0}),
    ],
)
def test_ranks_are_the_longest_chains(
    better_than: dict[str, set[str]], ranks: dict[str, int]
) -> None:
    assert ranks_of(better_than, "row") == ranks


def test_pairs_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    where = write_pairs(tmp_path, [("x", "a", "b"), ("y", "a", "b"), ("y", "b", "a")])
    with pytest.raises(RecordError, match=r"mm_rlhf_rankings:1 \(y\): its pairs contradict"):
        MM_RLHF_RANKINGS.load(where)


def test_the_pairs_of_an_item_become_one_row(tmp_path: Path) -> None:
    where = write_pairs(
        tmp_path, [("x", "a", "b"), ("y", "c", "d"), ("x", "b", "c"), ("x", "a", "c")]
    )
    loaded = MM_RLHF_RANKINGS.load(where)
    first, second = loaded.examples
    texts_of_first = [response.text for response in first.responses]
    texts_of_second = [response.text for response in second.responses]
    assert dict(zip(texts_of_first, first.ranks, strict=True)) == {"a": 0, "b": 1, "c": 2}
    assert dict(zip(texts_of_second, second.ranks, strict=True)) == {"c": 0, "d": 1}
    assert (first.group, first.identity) == ("mcq", "mm_rlhf_rankings:0 (x)")
    assert "2 rows; the released edition has 46." in loaded.origin.notes
    limited = MM_RLHF_RANKINGS.load(where.model_copy(update={"limit": 1}))
    assert len(limited.examples) == 1


@pytest.mark.skipif(not RELEASED.is_dir(), reason=f"{RELEASED} is not there")
def test_the_released_file_has_46_rankings_and_a_pair_for_every_two_unequal_responses() -> None:
    assert MM_RLHF_RANKINGS.read is not None
    rows = MM_RLHF_RANKINGS.read(Location(location=str(RELEASED)))
    (edition,) = MM_RLHF_RANKINGS.known
    assert len(rows) == edition.rows
    assert Counter(row.group for row in rows) == dict(edition.groups)
    num_pairs = Counter(
        json.loads(line)["id"]
        for line in (RELEASED / "mm_reward_bench.jsonl").read_text().splitlines()
    )
    for row in rows:
        ranks = row.ranks
        num_unequal = sum(first < second for first in ranks for second in ranks)
        assert num_unequal == num_pairs[row.row["id"]]


def test_an_evaluation_and_its_files_agree(tmp_path: Path) -> None:
    loaded = MM_RLHF_RANKINGS.load(Location(location="embedded", limit=20))
    # The highest score is a best response's in the first 15 rows; two of these are unreadable.
    scores = []
    for index, example in enumerate(loaded.examples):
        assert isinstance(example, RankedExample)
        sign = -1.0 if index < 15 else 1.0
        values = [sign * rank for rank in example.ranks]
        if index < 2:
            values[0] = float("nan")
        scores.append(Scores(tuple(values)))
    protocol = ProtocolConfig()
    result = evaluate(loaded.examples, scores, MM_RLHF_RANKINGS, protocol, loaded.origin)
    assert result.ranking is not None
    assert result.ranking.best.accuracy == 13 / 20
    assert result.ranking.best.unparsable == 2
    assert result.published["best_of_n"]["micro"] == 13 / 20
    write_predictions(loaded.examples, scores, MM_RLHF_RANKINGS, protocol, tmp_path / "r")
    for name in ("predictions.jsonl", "scores.jsonl"):
        figures, _ = score_predictions_file(tmp_path / "r" / name, MM_RLHF_RANKINGS)
        assert figures["groups"] == result.published["best_of_n"]["groups"]
