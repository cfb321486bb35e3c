"""EditReward-Bench: rows of both editions, and figures against hand-computed and official ones."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from mmrm.data.errors import PredictionsError, RecordError
from mmrm.eval.benchmarks.benchmark import Location
from mmrm.eval.benchmarks.edit_reward_bench import (
    EDIT_REWARD_BENCH,
    LETTERS,
    NUM_EDITS,
    items_of_rows,
    official_score,
    vote_records,
)
from mmrm.eval.candidates import RankedExample, Scores, Vote
from mmrm.eval.protocol import ProtocolConfig
from mmrm.eval.results.official_scores import score_predictions_file
from mmrm.eval.results.predictions import write_predictions
from mmrm.eval.suite.suite import evaluate
from tests.eval.benchmarks.test_vl_rewardbench import write_parquet
from tests.eval.doubles import PositionFollower, scores_under
from tests.eval.make import png

RANKINGS = {"2pair": ("B>A", "A=B", "A>B"), "3pair": ("B>A>C",), "4pair": ("D>B>A>C", "A>B>C>D")}
COLOURS = ("red", "green", "blue", "yellow")


def hub_rows() -> list[dict[str, Any]]:
    """Return rows of the hub's files: one for every two edits of an instruction."""
    rows = []
    for part, rankings in RANKINGS.items():
        for number, ranking in enumerate(rankings):
            for first, second in combinations(LETTERS[: NUM_EDITS[part]], 2):
                label = "A=B"
                if ranking != "A=B":
                    better, other = sorted((first, second), key=ranking.index)
                    label = f"{better}>{other}"
                rows.append(
                    {
                        "id": f"{part}{number}_{first}vs{second}",
                        "dataset": part,
                        "instruction": f"make it brighter, {part} {number}",
                        "comparison_type": f"{first}vs{second}",
                        "ranking": label,
                        "source_image": {"bytes": png("black"), "path": None},
                        "candidate_1": {"bytes": edit(first), "path": None},
                        "candidate_2": {"bytes": edit(second), "path": None},
                    }
                )
    return rows


def two_edits(number: int) -> dict[str, Any]:
    """Return a row of the hub's files about two edits."""
    return {**hub_rows()[0], "id": f"{number}_AvsB", "instruction": f"brighter, {number}"}


def edit(letter: str) -> bytes:
    """Return the image of an edit."""
    return png(COLOURS[LETTERS.index(letter)])


def on_hub(folder: Path, rows: list[dict[str, Any]] | None = None) -> Location:
    """Write the hub's files."""
    for part in NUM_EDITS:
        rows_of_part = [row for row in rows or hub_rows() if row["dataset"] == part]
        if rows_of_part:
            write_parquet(rows_of_part, folder / part / "train-00000-of-00001.parquet")
    return Location(location=str(folder))


def in_json(folder: Path) -> Location:
    """Write the files that eval_bench.py reads, and their images."""
    (folder / "before.png").write_bytes(png("black"))
    for letter in LETTERS:
        (folder / f"{letter}.png").write_bytes(edit(letter))
    for part, rankings in RANKINGS.items():
        rows = []
        for number, ranking in enumerate(rankings):
            rows.append(
                {
                    "prompt": f"make it brighter, {part} {number}",
                    "path_src": "before.png",
                    "paths_generated": [f"{letter}.png" for letter in LETTERS[: NUM_EDITS[part]]],
                    "human_vote": {"ranking": ranking.replace("A=B", "A=B=Bad")},
                }
            )
        (folder / f"EditReward_Bench_{part}.json").write_text(json.dumps(rows))
    return Location(location=str(folder))


# Rows


@pytest.mark.parametrize("write", [on_hub, in_json])
def test_rows_of_both_editions_become_the_same_rankings(write: Any, tmp_path: Path) -> None:
    loaded = EDIT_REWARD_BENCH.load(write(tmp_path))
    assert [example.group for example in loaded.examples] == [
        *("2pair", "2pair", "2pair", "3pair", "4pair", "4pair")
    ]
    assert [example.ranks for example in loaded.examples] == [
        *((1, 0), (0, 0), (0, 1), (1, 0, 2), (2, 1, 3, 0), (0, 1, 2, 3))
    ]
    for example in loaded.examples:
        assert [part["type"] for part in example.prompt[0]["content"]] == ["image", "text"]
        images = [
            image if isinstance(image, bytes) else Path(image).read_bytes()
            for image in example.all_images
        ]
        assert images == [png("black"), *map(edit, LETTERS[: len(example.responses)])]
        assert all(response.text == "" for response in example.responses)
    assert len({example.key for example in loaded.examples}) == 6
    assert loaded.origin.notes[0] == "6 rows; the released edition has 484."


def test_items_without_all_images_or_comparisons_are_unavailable(tmp_path: Path) -> None:
    rows = hub_rows()
    rows[0]["candidate_2"] = None
    del rows[4]  # 3pair0_AvsC
    where = on_hub(tmp_path, rows)
    loaded = EDIT_REWARD_BENCH.load(where)
    assert len(loaded.examples) == 4
    missing, incomplete = loaded.origin.unavailable
    assert "(2pair0_AvsB): the images (none) are missing" in missing
    assert "(3pair0): it has the comparisons AvsB, BvsC instead of AvsB, AvsC, BvsC" in incomplete
    assert any("2 of 6 rows are unavailable" in note for note in loaded.origin.notes)


def test_a_file_that_is_not_there_makes_its_row_unavailable(tmp_path: Path) -> None:
    where = in_json(tmp_path)
    (tmp_path / "D.png").unlink()
    loaded = EDIT_REWARD_BENCH.load(where)
    assert [example.group for example in loaded.examples] == ["2pair", "2pair", "2pair", "3pair"]
    assert all("images D.png are missing" in reason for reason in loaded.origin.unavailable)


def test_comparisons_that_contradict_each_other_are_unavailable(tmp_path: Path) -> None:
    rows = hub_rows()
    rows[3]["ranking"] = "A>B"  # with A>C and B>C it is a ranking again
    assert items_of_rows(rows)[3].ranking == "A>B>C"
    rows[4]["ranking"] = "C>A"
    assert "contradict" in items_of_rows(rows)[3].problem
    rows[4]["ranking"] = "A=C"
    assert "contradict" in items_of_rows(rows)[3].problem


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dataset": "5pair"}, "dataset is '5pair'; required is one of 2pair, 3pair, 4pair"),
        ({"instruction": None}, "no text under instruction"),
        ({"ranking": "A~B"}, "the ranking is 'A~B'; required is an order of 2 letters"),
        ({"candidate_1": 7}, "the image is a int"),
    ],
)
def test_a_row_of_another_form_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write_parquet([{**hub_rows()[0], **change}], tmp_path / "2pair" / "train.parquet")
    with pytest.raises(RecordError, match=message):
        EDIT_REWARD_BENCH.load(Location(location=str(tmp_path)))


# Figures by hand


def line(ranking: str, scores: list[Any]) -> dict[str, Any]:
    """Return a line of the format `official`."""
    return {"id": "x", "dataset": f"{len(scores)}pair", "ranking": ranking, "scores": scores}


def test_figures_by_hand() -> None:
    figures = official_score(
        [
            line("A>B", [2.0, 1.0]),
            line("B>A", [2.0, 1.9]),
            line("A=B", [1.0, 1.2]),
            line("A=B", [1.0, 1.5]),
            line("B>A>C", [2.0, 3.0, 1.0]),
            line("B>A>C", [2.0, 1.0, 3.0]),
            line("A>B>C>D", [4.0, 3.0, 2.0, 1.0]),
        ]
    )
    # With a threshold of 0.5, one preference and both ties are right.
    assert figures["detail"]["threshold"] == 0.5
    assert figures["detail"]["pairwise"]["2pair"] == 3 / 4
    assert figures["detail"]["pairwise"]["3pair"] == 3 / 6
    assert figures["detail"]["pairwise"]["4pair"] == 1.0
    accuracies = {part: group["accuracy"] for part, group in figures["groups"].items()}
    assert accuracies == {"2pair": 3 / 4, "3pair": 1 / 2, "4pair": 1.0}
    assert figures["micro"] == 5 / 7


def test_the_published_row_of_editreward_is_a_share_of_all_items() -> None:
    """The README prints 56.45, 42.67, 11.49 and 38.42 for EditReward on MiMo-VL-7B."""
    right = {"2pair": (105, 186), "3pair": (64, 150), "4pair": (17, 148)}
    lines = []
    for part, (num_right, total) in right.items():
        letters = LETTERS[: NUM_EDITS[part]]
        best_first = [float(-index) for index in range(len(letters))]
        for number in range(total):
            scores = best_first if number < num_right else best_first[::-1]
            lines.append(line(">".join(letters), scores))
    figures = official_score(lines)
    percent = [100 * group["accuracy"] for group in figures["groups"].values()]
    assert percent == pytest.approx([56.45, 42.67, 11.49], abs=0.005)
    assert 100 * figures["micro"] == pytest.approx(38.4297, abs=1e-4)


@pytest.mark.parametrize(
    "broken",
    [
        line("A>B", [1.0, "2"]),
        line("A>B>C", [1.0, 2.0]),
        line("A=B=C", [1.0, 2.0, 3.0]),
        line("A>B", [1.0, float("inf")]),
        {"id": "x", "dataset": "3pair", "ranking": "A>B", "scores": [1.0, 2.0]},
        {"id": "x", "dataset": "2pair", "ranking": "A>B"},
        line("A>B", [True, 2.0]),
    ],
)
def test_a_line_of_another_form_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(PredictionsError, match=r"line 2: .* Required are id, dataset"):
        official_score([line("A>B", [1.0, 2.0]), broken])


# Evaluation


def examples_in(folder: Path) -> tuple[RankedExample, ...]:
    """Return the rows of the hub's files."""
    return EDIT_REWARD_BENCH.load(on_hub(folder)).examples


def test_a_judge_that_scores_has_the_same_figures_from_its_files(tmp_path: Path) -> None:
    where = on_hub(tmp_path / "hub")
    loaded = EDIT_REWARD_BENCH.load(where)
    # All rankings are right but the last, and the tied edits differ a little.
    scores = [Scores(tuple(-float(rank) for rank in row.ranks)) for row in loaded.examples]
    scores[1] = Scores((0.1, 0.2))
    scores[-1] = Scores((0.0, 1.0, 2.0, 3.0))
    protocol = ProtocolConfig()
    result = evaluate(loaded.examples, scores, EDIT_REWARD_BENCH, protocol, loaded.origin)
    assert result.micro.right == 4
    assert result.ranking is not None
    assert result.ranking.tied == 1
    assert result.published["official"]["micro"] == 5 / 6
    assert result.published["official"]["detail"]["threshold"] == 0.2 - 0.1
    # Without a threshold, the tie is wrong.
    assert result.published["votes"]["micro"] == 4 / 6
    assert any("1 of 6 rows are equally good" in note for note in result.notes)

    write_predictions(loaded.examples, scores, EDIT_REWARD_BENCH, protocol, tmp_path)
    for name in ("predictions", "official", "votes"):
        figures, compared = score_predictions_file(
            tmp_path / f"{name}.jsonl", EDIT_REWARD_BENCH, where=where
        )
        rule = "votes" if name == "votes" else "official"
        assert compared.whole
        assert figures["groups"] == result.published[rule]["groups"]
        assert figures["detail"] == result.published[rule]["detail"]


def test_a_judge_that_follows_the_position_finds_every_tie(tmp_path: Path) -> None:
    """Its two orders disagree on every pair, so that all scores are equal."""
    loaded = EDIT_REWARD_BENCH.load(on_hub(tmp_path))
    scores = scores_under(PositionFollower(), loaded.examples, benchmark=EDIT_REWARD_BENCH)
    result = evaluate(loaded.examples, scores, EDIT_REWARD_BENCH, ProtocolConfig(), loaded.origin)
    assert (result.micro.right, result.micro.ties) == (1, 5)
    assert result.published["votes"]["groups"]["2pair"]["right"] == 1
    assert all(row["votes"]["AvsB"] == "A=B" for row in vote_records(loaded.examples, scores))


def test_the_verdict_of_votes_is_their_majority(tmp_path: Path) -> None:
    row = examples_in(tmp_path)[0]
    for named, verdict in {
        (0, 0): "A>B",
        (1, 1): "B>A",
        (0, 1): "A=B",
        (0, None): "A=B",
        (None, None): None,
    }.items():
        votes = (Vote((0, 1), named[0], ""), Vote((1, 0), named[1], ""))
        (record,) = vote_records([row], [Scores((0.5, 0.5), votes=votes)])
        assert record["votes"] == {"AvsB": verdict}
        assert record["human_votes"] == {"AvsB": "B>A"}
