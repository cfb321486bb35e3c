"""Selection from scored files: what is taken, and that both formats load where they are to be trained on, images included."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import datasets
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrm.data.preference import Preference, text_responses, validate
from mmrm.data.preparation.mixing import Mixture, MixtureConfig
from mmrm.eval.select_responses import main
from mmrm.eval.selection.selection import (
    NothingSelected,
    ScoredResponses,
    index_of_best,
    preference_pairs,
)
from tests.eval import run_folders
from tests.eval.make import png

TEXTS = st.sampled_from(["a", "b", "c", " ", "d", "e"])
FOUND = st.lists(
    st.tuples(TEXTS, st.integers(-4, 4).map(float), st.booleans()), min_size=1, max_size=6
)


@settings(deadline=None)
@given(
    found=FOUND,
    minimum=st.none() | st.integers(0, 5).map(float),
    every=st.booleans(),
    verified=st.booleans(),
)
def test_pairs_keep_what_is_promised(
    found: list[Any], minimum: float | None, every: bool, verified: bool
) -> None:
    responses, scores, right = (list(column) for column in zip(*found, strict=True))
    group = ScoredResponses(text_responses(*responses), scores, right if verified else None)
    good = {
        (one, other)
        for a, b in combinations(range(len(found)), 2)
        for one, other in ((a, b), (b, a))
        if (right[one] and not right[other] if verified else scores[one] > scores[other])
        and (minimum is None or scores[one] - scores[other] >= minimum)
        and responses[one] != responses[other]
        and " " not in (responses[one], responses[other])
    }
    try:
        taken = preference_pairs(group, minimum, every)
    except NothingSelected:
        taken = []
    assert len(taken) == len(set(taken))
    assert {*taken} == good if every else {*taken} <= good and len(taken) <= 1
    if taken and not every and not verified:
        assert (scores[taken[0][0]], scores[taken[0][1]]) == (max(scores), min(scores))
    if verified:
        assert taken == sorted(
            taken, key=lambda pair: (-scores[pair[0]], pair[0], -scores[pair[1]], pair[1])
        )


@given(found=FOUND)
def test_the_best_is_the_best_of_the_right_ones(found: list[Any]) -> None:
    responses, scores, right = (list(column) for column in zip(*found, strict=True))
    assert scores[index_of_best(ScoredResponses(text_responses(*responses), scores, None))] == max(
        scores
    )
    group = ScoredResponses(text_responses(*responses), scores, right)
    if any(right):
        assert right[index_of_best(group)]
        assert scores[index_of_best(group)] == max(
            score for score, known in zip(scores, right, strict=True) if known
        )
    else:
        with pytest.raises(NothingSelected, match="no response is right"):
            index_of_best(group)


ROWS: list[dict[str, Any]] = [
    {
        "prompt": "Sum?",
        "images": ["1.png"],
        "responses": ["It is 3.", "It is 4.", "It is 5."],
        "scores": [1.0, 0.5, 2.0],
        "answer": 4,
    },
    {"prompt": "Sum?", "responses": ["7", "8"], "scores": [0.25, 0.5], "answer": "8"},
    {"prompt": "Sum?", "responses": ["7", "9"], "scores": [0.5, 0.5], "answer": "8"},
    {"prompt": "Sum?", "responses": ["7"], "scores": [0.5, 0.75]},
]


@pytest.fixture
def scored(tmp_path: Path) -> Path:
    (tmp_path / "1.png").write_bytes(png("red", (48, 30)))
    path = tmp_path / "scored.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def select(scored: Path, what: str, name: str, *more: str) -> Path:
    out = scored.parent / name
    main([what, str(scored), str(out), *more])
    return out


def records(path: Path, kind: str) -> list[Preference]:
    """Return what a training on the file reads, by the source of that type."""
    section = {"sources": [{"type": kind, "path": str(path)}], "cache": str(path.parent / "cache")}
    mixture = Mixture(MixtureConfig.model_validate(section))
    return [validate(mixture[index]) for index in range(len(mixture))]


@pytest.mark.parametrize("name", ["pairs.jsonl", "pairs.parquet"])
def test_pairs_by_margin_load_as_the_projects(
    scored: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = records(select(scored, "pairs", name, "--min-margin", "0.25"), "project")
    assert [(one.chosen.text, one.rejected.text, one.margin) for one in found] == [
        ("It is 5.", "It is 4.", 1.5),
        ("8", "7", 0.25),
    ]
    picture = found[0].images[0]
    assert (picture if isinstance(picture, bytes) else picture.read_bytes()) == png("red", (48, 30))
    assert found[0].prompt == (
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Sum?"}]},
    )
    said = capsys.readouterr().err
    assert "2 records of 4 prompts" in said
    assert "1 where all scores are equal; 1 cannot be read" in said
    (error,) = run_folders.lines(scored.parent / f"{name}.errors.jsonl")
    assert error["row"] == 3
    assert "required is a list of 1 numbers" in error["error"]
    assert len(records(select(scored, "pairs", f"all-{name}", "--all"), "project")) == 4


def test_pairs_by_a_verifier_load_in_trls_format(
    scored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--all", "--verifier", "numeric", "--output-format", "trl"]
    out = select(scored, "pairs", "pairs.parquet", *options)
    expected = [
        ("It is 4.", "It is 5."),
        ("It is 4.", "It is 3."),
        ("8", "7"),
    ]  # whatever the scores say
    assert "1 where no response is right" in capsys.readouterr().err
    found = records(out, "trl")
    assert [(one.chosen.text, one.rejected.text, one.margin) for one in found] == [
        (*pair, None) for pair in expected
    ]
    assert found[0].images == (png("red", (48, 30)),)
    loaded = datasets.load_dataset(
        "parquet", data_files=str(out), cache_dir=str(scored.parent / "hf")
    )["train"]
    assert [row["chosen"][0]["content"][0]["text"] for row in loaded] == [
        chosen for chosen, _ in expected
    ]
    assert loaded[0]["images"][0].size == (48, 30)
    assert [part["type"] for part in loaded[0]["prompt"][0]["content"]] == ["image", "text"]
    with pytest.raises(SystemExit, match=r"name an OUT that ends in \.parquet"):
        select(scored, "pairs", "pairs.jsonl", *options)
    assert not (scored.parent / "pairs.jsonl").exists()


SAMPLED: list[dict[str, Any]] = [
    {
        "prompt": f"How many, {number}?",
        "responses": ["I count 3.", "I count 4.", "3"],
        "scores": [0.5, 1.0, 2.0],
        "answer": ["3"],
        "verifier": "numeric",
        "right": [True, False, number == 0],  # a right text that was cut off is wrong
    }
    for number in range(2)
]


@pytest.mark.parametrize("verifier", ["recorded", "numeric"])
def test_recorded_verdicts_are_the_labels(tmp_path: Path, verifier: str) -> None:
    source = tmp_path / "sampled.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in SAMPLED))
    options = ["--verifier", verifier, "--all"]
    found = run_folders.lines(select(source, "pairs", "pairs.jsonl", *options))
    assert [(pair["chosen"], pair["rejected"]) for pair in found] == [
        ("3", "I count 4."),
        ("I count 3.", "I count 4."),
        ("I count 3.", "3"),
        ("I count 3.", "I count 4."),
    ]
    best = run_folders.lines(select(source, "best", "best.jsonl", *options[:2]))
    assert [row["response"] for row in best] == ["3", "I count 3."]


@pytest.mark.parametrize("what", ["best", "pairs", "rejection-sampling"])
def test_a_rule_that_contradicts_the_record_is_refused(tmp_path: Path, what: str) -> None:
    """By `exact`, "I count 3." would be wrong, and a right answer rejected."""
    source = tmp_path / "sampled.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in SAMPLED))
    with pytest.raises(SystemExit, match=r"contradicts the records.*--verifier recorded"):
        select(source, what, "out.jsonl", "--verifier", "exact")
    assert not (tmp_path / "out.jsonl").exists()


def test_best_of_n_keeps_the_record(scored: Path) -> None:
    found = run_folders.lines(select(scored, "best", "best.jsonl"))
    chosen = [("It is 5.", 2.0), ("8", 0.5), ("7", 0.5)]
    assert found == [
        row | {"response": text, "score": score}
        for row, (text, score) in zip(ROWS, chosen, strict=False)
    ]
    right = run_folders.lines(select(scored, "best", "right.jsonl", "--verifier", "numeric"))
    assert [one["response"] for one in right] == ["It is 4.", "8"]


def test_rejection_sampling_makes_sft_records(scored: Path) -> None:
    options = ["--verifier", "numeric"]
    found = run_folders.lines(select(scored, "rejection-sampling", "sft.jsonl", *options))
    assert [(one["images"], one["response"]) for one in found] == [
        (["1.png"], "It is 4."),
        ([], "8"),
    ]
    out = select(scored, "rejection-sampling", "sft.parquet", *options, "--output-format", "trl")
    loaded = datasets.load_dataset(
        "parquet", data_files=str(out), cache_dir=str(scored.parent / "hf")
    )["train"]
    assert loaded.column_names == ["images", "prompt", "completion"]
    assert loaded[0]["completion"] == [
        {"role": "assistant", "content": [{"type": "text", "text": "It is 4."}]}
    ]
    assert loaded[0]["images"][0].size == (48, 30)


def test_a_wrong_command_line(scored: Path) -> None:
    with pytest.raises(SystemExit, match="exists already"):
        select(scored, "best", "1.png")
    with pytest.raises(SystemExit, match=r"files of kind \.csv are not written"):
        select(scored, "pairs", "out.csv")
    with pytest.raises(SystemExit, match="--tolerance is for"):
        select(scored, "pairs", "out.jsonl", "--tolerance", "1", "--verifier", "exact")


@pytest.mark.parametrize("score", [10**400, 2**60, 1e308, float("inf"), float("nan"), True, "1"])
@pytest.mark.parametrize("what", ["pairs", "best"])
def test_a_score_beyond_every_real_one_is_reported(
    tmp_path: Path, score: object, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    scored = tmp_path / "scored.jsonl"
    rows = [
        {"prompt": "Sum?", "responses": ["7", "8"], "scores": [1.0, 0.5]},
        {"prompt": "Sum?", "responses": ["7", "9"], "scores": [score, -1e308]},
    ]
    scored.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "out.jsonl"
    main([what, str(scored), str(out)])
    assert len(run_folders.lines(out)) == 1
    assert "Infinity" not in out.read_text()
    (error,) = run_folders.lines(tmp_path / "out.jsonl.errors.jsonl")
    assert error["row"] == 1


# By a lower bound.

DEVIATIONS: list[dict[str, Any]] = [
    {
        "prompt": "Sum?",
        "responses": ["3", "4", "5"],
        "scores": [1.0, 2.0, 1.5],
        "score_std": [0.25, 1.0, 0.25],
        "answer": "3",
    },
    {  # equal bounds keep the order of the responses, as equal scores do
        "prompt": "Sum?",
        "responses": ["7", "8"],
        "scores": [1.0, 2.0],
        "score_std": [0.0, 1.0],
        "answer": "8",
    },
]


def written(folder: Path, rows: list[dict[str, Any]], name: str = "scored.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("bound", "best"),
    [("0", ["4", "8"]), ("0.5", ["4", "8"]), ("1", ["5", "7"]), ("1e6", ["5", "7"])],
)
def test_the_best_by_a_lower_bound(tmp_path: Path, bound: str, best: list[str]) -> None:
    source = written(tmp_path, DEVIATIONS)
    found = run_folders.lines(select(source, "best", "best.jsonl", "--lower-bound", bound))
    assert [row["response"] for row in found] == best
    for row in found:
        index = row["responses"].index(row["response"])
        std = row["score_std"][index]
        assert row["score"] == row["scores"][index]
        assert row["lower_bound"] == row["score"] - float(bound) * std
    sft = select(source, "rejection-sampling", "sft.jsonl", "--lower-bound", bound)
    assert [row["response"] for row in run_folders.lines(sft)] == best
    options = ["--lower-bound", bound, "--verifier", "exact"]
    right = run_folders.lines(select(source, "best", "right.jsonl", *options))
    assert [row["response"] for row in right] == ["3", "8"]


def test_deviations_are_read_from_parquet(tmp_path: Path) -> None:
    table = datasets.Dataset.from_list(DEVIATIONS)
    table.to_parquet(str(tmp_path / "scored.parquet"))
    out = select(tmp_path / "scored.parquet", "best", "best.parquet", "--lower-bound", "1")
    loaded = datasets.Dataset.from_parquet(str(out), cache_dir=str(tmp_path / "hf"))
    assert list(loaded["response"]) == ["5", "7"]
    assert list(loaded["lower_bound"]) == [1.25, 1.0]


def test_a_lower_bound_without_deviations_is_refused(scored: Path) -> None:
    for what in ("best", "rejection-sampling"):
        with pytest.raises(SystemExit, match=r"no standard deviations.*head: \{type: gaussian\}"):
            select(scored, what, "out.jsonl", "--lower-bound", "1")
    assert not (scored.parent / "out.jsonl").exists()
    with pytest.raises(SystemExit) as end:  # the scores of a pair are compared as they are
        select(scored, "pairs", "out.jsonl", "--lower-bound", "1")
    assert end.value.code == 2
    with pytest.raises(SystemExit) as end:
        select(scored, "best", "out.jsonl", "--lower-bound", "-1")
    assert end.value.code == 2


@pytest.mark.parametrize("stds", [[1.0], [-1.0, 1.0], [float("nan"), 1.0], ["1", 1.0], None, 3.0])
def test_a_deviation_that_is_none_is_reported(tmp_path: Path, stds: object) -> None:
    rows = [*DEVIATIONS, DEVIATIONS[1] | {"score_std": stds}]
    source = written(tmp_path, rows)
    found = run_folders.lines(select(source, "best", "best.jsonl", "--lower-bound", "1"))
    assert len(found) == 2
    (error,) = run_folders.lines(tmp_path / "best.jsonl.errors.jsonl")
    assert error["row"] == 2
    assert "required is a list of 2 numbers" in error["error"]
    # Without a lower bound the deviations are not read.
    assert len(run_folders.lines(select(source, "best", "all.jsonl"))) == 3


# Pairs that a labeller is asked about.


def test_the_least_certain_pairs_are_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pair certainties by deviations: 3 and 4 Φ(0.97), 3 and 5 Φ(1.41), 4 and 5 Φ(0.49), 7 and 8 Φ(1)."""
    rows = [
        DEVIATIONS[0] | {"key": "a1", "order": [1, 2, 0], "right": [True, False, False]},
        DEVIATIONS[1] | {"key": "b2", "order": [1, 0], "right": [False, True]},
        {
            "prompt": "?",
            "responses": ["x", "x"],
            "scores": [0, 1],
            "score_std": [1, 1],
        },
    ]
    source = written(tmp_path, rows)
    options = ["--pairs", "2", "--by", "unsure"]
    asked = run_folders.lines(select(source, "ask", "asked.jsonl", *options))
    assert "2 records of 3 prompts" in (said := capsys.readouterr().err)
    assert "1 where there are no two different responses" in said
    assert [(row["key"], row["responses"]) for row in asked] == [
        ("a1", ["3", "4"]),
        ("a1", ["4", "5"]),
    ]
    assert [row["certainty"] for row in asked] == pytest.approx([0.834012, 0.686187], abs=1e-6)
    assert [row["right"] for row in asked] == [[True, False], [False, False]]
    assert asked[0]["scores"] == [1.0, 2.0]
    assert not {"order", "score_std"} & set(asked[0])
    pairs = select(tmp_path / "asked.jsonl", "pairs", "pairs.jsonl", "--verifier", "recorded")
    assert [(row["chosen"], row["rejected"]) for row in run_folders.lines(pairs)] == [("3", "4")]
    assert "1 where no response is right" in capsys.readouterr().err
    every = run_folders.lines(select(source, "ask", "every.jsonl", "--pairs", "99"))
    assert [row["responses"] for row in every] == [["3", "4"], ["3", "5"], ["4", "5"], ["7", "8"]]


def test_the_pairs_of_a_judge_without_deviations_are_asked_by_their_difference(
    scored: Path,
) -> None:
    """The image of a pair is named as the record names it."""
    asked = run_folders.lines(select(scored, "ask", "a.jsonl", "--pairs", "3", "--by", "unsure"))
    assert [row["responses"] for row in asked] == [["It is 3.", "It is 4."], ["7", "8"], ["7", "9"]]
    assert asked[0]["images"] == ["1.png"]
    assert asked[2]["certainty"] == 0.5
    drawn = [
        select(scored, "ask", f"{seed}.jsonl", "--pairs", "2", "--seed", str(seed)).read_text()
        for seed in range(6)
    ]
    assert len(set(drawn)) > 1
    again = select(scored, "ask", "again.jsonl", "--pairs", "2", "--seed", "3")
    assert again.read_text() == drawn[3]
    with pytest.raises(SystemExit, match=r"`ask` writes JSON lines"):
        select(scored, "ask", "asked.parquet", "--pairs", "2")
