"""`eval/score.py`: each record's own scores, whatever its form, its file, the ranks, its neighbours and a kill."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch

from mmrm.data.encoded_video import Video
from mmrm.data.preference import Response, validate
from mmrm.data.sources.project import ProjectConfig
from mmrm.eval import select_responses
from mmrm.eval.benchmarks.registry import BenchmarkConfig
from mmrm.eval.journal import Judging
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.loading import load_judge
from mmrm.eval.judges.packed_judge import UnitResult
from mmrm.eval.judges.scalar.judge import ScalarJudge
from mmrm.eval.protocol import ProtocolConfig
from mmrm.eval.results.result import read_result
from mmrm.eval.score import main
from mmrm.eval.selection import candidate_scores as scoring
from mmrm.eval.selection.candidate_files import parquet_schema_of, write_with_added_columns
from mmrm.eval.selection.candidate_records import open_records
from mmrm.eval.selection.score_forms import relative, standardised, stratified
from mmrm.eval.suite.suite import Suite
from mmrm.models.backbone import load_critic
from mmrm.models.config import BackboneConfig, CritiqueConfig
from mmrm.models.heads.score_head import ScoreHeadConfig
from tests.eval import run_folders
from tests.eval.make import png
from tests.models import tiny
from tests.models.exactness import RELATIVE
from tests.models.heads.examples import HEADS, saved_checkpoint
from tests.train.ranks import run_ranks

pytestmark = pytest.mark.usefixtures("module_in_float64")

NEW = {"scores", "order", "margin"}
URI = "data:image/png;base64," + base64.b64encode(png("blue", (40, 30))).decode()
THREE = ["A red square.", "Blue", "Yes, it is a picture."]


def user(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def assistant(content: Any) -> list[dict[str, Any]]:
    return [{"role": "assistant", "content": content}]


TEXT, IMAGE = {"type": "text", "text": "What is it?"}, {"type": "image"}
GOOD: list[dict[str, Any]] = [
    {"id": 0, "prompt": "What is it?", "images": ["1.png"], "responses": THREE},
    {
        "id": 1,
        "messages": user({"type": "image_url", "image_url": {"url": URI}}, TEXT),
        "responses": [THREE[1], ""],
    },
    {
        "id": 2,
        "prompt": user(IMAGE, TEXT),
        "images": [URI],
        "chosen": assistant("A cat."),
        "rejected": assistant("No."),
    },
    {"id": 3, "chosen": "What? It is A.", "rejected": "What? It is B.", "image": "2.png"},
    {
        "id": 4,
        "prompt": [{"role": "system", "content": "Be brief."}, *user(TEXT)],
        "completion": assistant("Two of them."),
    },
    {
        "id": 5,
        "prompt": user(TEXT, {"type": "image", "image": "2.png"}, IMAGE),
        "images": ["1.png"],
        "response": "Yes",
    },
]
ASKED = [
    ("What is it?", THREE, ["1.png"]),
    ("What is it?", [THREE[1], ""], [URI]),
    ("What is it?", ["A cat.", "No."], [URI]),
    ("What? It is", [" A.", " B."], ["2.png"]),
    (GOOD[4]["prompt"], ["Two of them."], []),
    (user(TEXT, IMAGE, IMAGE), ["Yes"], ["2.png", "1.png"]),
]
"""The same as `load_judge(…).score` is asked, images by name."""
PROMPT = {"prompt": "What is it?"}
BAD: dict[str, tuple[Any, str]] = {
    "cut": ('{"prompt": "x", "resp', "no valid JSON"),
    "list": ("[1, 2]", "a JSON list"),
    "twice": ('{"prompt": "a", "prompt": "b", "responses": ["c"]}', "occurs twice"),
    "empty": ({}, "there are no responses"),
    "one text": (PROMPT | {"responses": "a"}, "'responses' is one text"),
    "none": (PROMPT | {"responses": []}, "none; required is a list of at least one"),
    "number": (PROMPT | {"responses": [3]}, "a response is a int"),
    "user": (PROMPT | {"responses": [user(TEXT)]}, "a turn of the user"),
    "no prompt": ({"responses": ["a"]}, "neither 'prompt' nor 'messages'"),
    "turns": ({"messages": assistant("x"), "responses": ["a"]}, "the turns are"),
    "null part": ({"messages": user(None), "responses": ["a"]}, "a part of type"),
    "outside": (
        PROMPT | {"images": ["../x.png"], "responses": ["a"]},
        "outside of the declared image folder",
    ),
    "absolute": (
        {"messages": user({"type": "image", "image": "/etc/hosts"}, TEXT), "responses": ["a"]},
        "outside of the declared",
    ),
    "missing": (PROMPT | {"images": ["none.png"], "responses": ["a"]}, "is not there"),
    "nul": (PROMPT | {"images": ["a\0.png"], "responses": ["a"]}, "cannot be followed"),
    "address": (
        PROMPT | {"images": ["https://example.org/a.png"], "responses": ["a"]},
        "nothing is fetched",
    ),
    "video": (PROMPT | {"images": ["a.mp4"], "responses": ["a"]}, "is a video"),
    "no image": (PROMPT | {"images": ["records.jsonl"], "responses": ["a"]}, "is none of JPEG"),
    "truncated": (
        PROMPT | {"images": ["truncated.png"], "responses": ["a"]},
        "truncated or damaged",
    ),
    "base64": (
        PROMPT | {"images": ["data:image/png;base64,???"], "responses": ["a"]},
        "broken base64",
    ),
    "places": (
        {"messages": user(IMAGE, IMAGE, TEXT), "images": ["1.png"], "responses": ["a"]},
        "2 image parts without an image",
    ),
    "token": (PROMPT | {"responses": ["a", "b<|im_end|>"]}, "control token"),
    "long": (PROMPT | {"responses": ["a" * 500_001]}, "characters; at most"),
    "not finite": (PROMPT | {"responses": ["not finite", "a"]}, "no finite numbers"),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with pictures, a checkpoint whose packed row holds one record, and `in.jsonl`."""
    root = tmp_path_factory.mktemp("world")
    recipe = run_folders.recipe(root / "run" / "base", [])
    recipe["optim"]["token_budget"] = 1
    run_folders.run_folder(root / "run", (1, 2), recipe)
    run_folders.preferences(root / "files", 3)
    buffer = io.BytesIO()
    tiny.picture(60, 80).save(buffer, "PNG")
    (root / "files" / "truncated.png").write_bytes(buffer.getvalue()[: len(buffer.getvalue()) // 2])
    write(root / "files" / "in.jsonl", GOOD)
    return root


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows),
        encoding="utf-8",
    )
    return path


def score(world: Path, source: Path, out: Path, *more: str) -> list[Any]:
    main(
        [
            str(world / "run" / "checkpoint-1"),
            str(source),
            str(out),
            "--image-root",
            str(world / "files"),
            *more,
        ]
    )
    return (
        run_folders.lines(out)
        if out.suffix == ".jsonl"
        else list(datasets.Dataset.from_parquet(str(out), cache_dir=str(out.parent)))
    )


@pytest.fixture(scope="module")
def expected(world: Path) -> list[list[float]]:
    judge = load_judge(world / "run" / "checkpoint-1", Runtime(torch.device("cpu"), 400))
    place = world / "files"
    return [
        judge.score(m, r, [one if one == URI else place / one for one in images])
        for m, r, images in ASKED
    ]


@pytest.mark.numerics
def test_scores_are_those_of_load_judge(
    world: Path, tmp_path: Path, expected: list[list[float]]
) -> None:
    found = score(world, world / "files" / "in.jsonl", tmp_path / "out.jsonl")
    for one, row, scores in zip(found, GOOD, expected, strict=True):
        assert {name: one[name] for name in row} == row
        assert one.keys() - row.keys() == NEW
        assert one["scores"] == pytest.approx(scores, rel=RELATIVE)
        assert one["order"] == sorted(range(len(scores)), key=lambda place: -one["scores"][place])
        top = sorted(one["scores"], reverse=True)
        assert one["margin"] == (top[0] - top[1] if len(top) > 1 else None)
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]
    with pytest.raises(SystemExit, match="exists already"):
        score(world, world / "files" / "in.jsonl", tmp_path / "out.jsonl")


@pytest.mark.numerics
def test_bad_records_are_counted_and_cost_no_other(
    world: Path,
    tmp_path: Path,
    expected: list[list[float]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = ScalarJudge.run

    def spoiled(self: ScalarJudge, batch: Any, units: Any) -> list[UnitResult]:
        results = run(self, batch, units)
        return [
            UnitResult((float("nan"), 0.0))
            if Response.of_text("not finite") in unit.responses
            else result
            for unit, result in zip(units, results, strict=True)
        ]

    monkeypatch.setattr(ScalarJudge, "run", spoiled)
    rows = [
        row
        for number, (row, _) in enumerate(BAD.values())
        for row in ([GOOD[number // 4], row] if number % 4 == 0 else [row])
    ]
    source, out = write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    found = score(world, source, out)
    assert [one["id"] for one in found] == [0, 1, 2, 3, 4, 5]
    for one, scores in zip(found, expected, strict=True):
        assert one["scores"] == pytest.approx(scores, rel=RELATIVE)
    errors = run_folders.lines(tmp_path / "out.jsonl.errors.jsonl")
    assert [one["row"] for one in errors] == [
        number for number, row in enumerate(rows) if row not in GOOD
    ]
    for one, (name, (_, said)) in zip(errors, BAD.items(), strict=True):
        assert said in one["error"], name
        assert f"row {one['row']}" in one["error"], name
    assert f"{len(BAD)} of {len(rows)} records cannot be judged" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="1 of 1 records cannot be judged"):
        score(world, write(tmp_path / "bad.jsonl", ["{}"]), tmp_path / "none.jsonl")
    for name in ("missing", "absolute"):
        error = next(one["error"] for one in errors if BAD[name][1] in one["error"])
        assert "name their folder: --image-root FOLDER." in error
        assert "recipe" not in error
    assert not (tmp_path / "none.jsonl").exists()


class KilledError(BaseException):
    """What nothing catches."""


@pytest.mark.parametrize("where", ["between chunks", "inside a chunk"])
def test_a_killed_command_continues(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    source = write(tmp_path / "in.jsonl", [*GOOD, "{}"])
    score(world, source, tmp_path / "whole.jsonl")
    judged: list[str] = []
    add, line = Judging.add, scoring.LineJournal.add
    last = {"between chunks": 9, "inside a chunk": 8}[
        where
    ]  # of 11 responses: the first two chunks hold 5 and 4

    def counted(self: Any, new: Any) -> None:
        add(self, new)
        judged.extend(self.keys[index] for index in new)
        if where == "inside a chunk" and len(judged) == last:
            raise KilledError

    def stopped(self: scoring.LineJournal, lines: Any) -> None:
        line(self, lines)
        if where == "between chunks" and len(judged) == last:
            with self.path.open("a") as file:
                file.write('{"scores": [1, 2')
            raise KilledError

    monkeypatch.setattr(scoring, "CHUNK", 2)
    monkeypatch.setattr(Judging, "add", counted)
    monkeypatch.setattr(scoring.LineJournal, "add", stopped)
    with pytest.raises(KilledError):
        score(world, source, tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()
    before, judged[:] = list(judged), []
    score(world, source, tmp_path / "out.jsonl")
    assert (len(before), len(judged)) == (last, 11 - last)
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    errors = [tmp_path / f"{name}.jsonl.errors.jsonl" for name in ("out", "whole")]
    assert errors[0].read_bytes() == errors[1].read_bytes()
    assert not list(tmp_path.glob("*.journal*"))


def test_a_journal_of_another_checkpoint_or_option_is_not_taken(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = (
        write(tmp_path / "in.jsonl", [row | {"answer": "Blue"} for row in GOOD[:2]]),
        tmp_path / "out.jsonl",
    )

    def killed(*_: Any) -> None:
        raise KilledError

    monkeypatch.setattr("mmrm.eval.score.write_with_added_columns", killed)
    with pytest.raises(KilledError):
        score(world, source, out)
    monkeypatch.setattr("mmrm.eval.score.write_with_added_columns", write_with_added_columns)
    kept = (tmp_path / "out.jsonl.journal").read_bytes()
    assert len(kept.splitlines()) == 3
    found = score(world, source, out, "--verifier", "exact")
    assert found[0]["right"] == [False, True, False]
    assert "belongs to another judge, input, option or code" in capsys.readouterr().err
    out.unlink()
    (tmp_path / "out.jsonl.journal").write_bytes(kept)
    main(
        [
            str(world / "run" / "checkpoint-2"),
            str(source),
            str(out),
            "--image-root",
            str(world / "files"),
        ]
    )
    assert run_folders.lines(out)[0]["scores"] != found[0]["scores"]
    assert "belongs to another judge" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.numerics
def test_two_ranks_agree_on_scores_and_on_what_is_bad(world: Path, tmp_path: Path) -> None:
    """Of two bad images one rank alone finds each: both leave the row together."""
    rows = [
        *GOOD[:3],
        BAD["truncated"][0],
        *GOOD[3:],
        BAD["truncated"][0] | {"prompt": "other"},
        BAD["token"][0],
    ]
    source = write(tmp_path / "in.jsonl", rows)
    alone = score(world, source, tmp_path / "alone.jsonl")
    arguments = [
        str(world / "run" / "checkpoint-1"),
        str(source),
        str(tmp_path / "out.jsonl"),
        "--image-root",
        str(world / "files"),
    ]
    run_ranks(tmp_path / "ranks", main, arguments, in_float64=True)
    found = run_folders.lines(tmp_path / "out.jsonl")
    for one, other in zip(found, alone, strict=True):
        assert one == other | {
            "scores": pytest.approx(other["scores"], abs=RELATIVE),
            "margin": pytest.approx(other["margin"], abs=RELATIVE),
        }
    for name in ("out", "alone"):
        assert [
            one["row"] for one in run_folders.lines(tmp_path / f"{name}.jsonl.errors.jsonl")
        ] == [3, 7, 8]


def test_parquet_keeps_its_images_and_their_type(world: Path, tmp_path: Path) -> None:
    place = world / "files"
    rows = [
        {
            "id": n,
            "prompt": "What is it?",
            "images": [str(place / f"{n}.png")],
            "responses": THREE[:n],
        }
        for n in (1, 2, 3)
    ]
    features = {
        "id": datasets.Value("int64"),
        "prompt": datasets.Value("string"),
        "images": datasets.List(datasets.Image()),
    }
    made = datasets.Dataset.from_list(
        rows, datasets.Features(features | {"responses": datasets.List(datasets.Value("string"))})
    )
    made.to_parquet(tmp_path / "in.parquet")
    found = score(world, tmp_path / "in.parquet", tmp_path / "out.parquet")
    lines = score(
        world,
        write(tmp_path / "in.jsonl", [row | {"images": [f"{row['id']}.png"]} for row in rows]),
        tmp_path / "o.jsonl",
    )
    assert [one["scores"] for one in found] == [one["scores"] for one in lines]
    assert [one["order"] for one in found] == [one["order"] for one in lines]
    assert [one["images"][0].size for one in found] == [(48, 30), (56, 30), (40, 30)]
    with pytest.raises(SystemExit, match=r"images of in\.parquet hold bytes, which JSON cannot"):
        score(world, tmp_path / "in.parquet", tmp_path / "out.jsonl")
    with pytest.raises(SystemExit, match="a column of parquet has one type"):
        score(world, world / "files" / "in.jsonl", tmp_path / "mixed.parquet")
    both = score(
        world,
        write(tmp_path / "two.jsonl", [GOOD[0], "{", GOOD[0] | {"id": 9}]),
        tmp_path / "two.parquet",
    )
    assert [(one["id"], one["images"]) for one in both] == [(0, ["1.png"]), (9, ["1.png"])]
    assert both[0]["scores"] == both[1]["scores"]


@pytest.mark.numerics
def test_forms(world: Path, tmp_path: Path, expected: list[list[float]]) -> None:
    config = world / "run" / "checkpoint-2" / "config.json"
    config.write_text(
        json.dumps(
            json.loads(config.read_text())
            | {"reference_scores": {"mean": 0.25, "std": 0.01, "n": 4}}
        )
    )
    source = write(
        tmp_path / "in.jsonl",
        [GOOD[0] | {"answer": "blue", "reference": "A blue circle."}, GOOD[0]],
    )
    with pytest.raises(SystemExit, match="has no reference_scores"):
        score(world, source, tmp_path / "a.jsonl", "--form", "standardised")
    forms: dict[str, Callable[[Any, float], list[float]]] = {
        "relative": lambda one, whole: relative(one["scores"], whole),
        "stratified": lambda one, whole: stratified(one["scores"], [False, True, False]),
        "standardised": lambda one, whole: standardised(one["scores"], 0.25, 0.01, 2.0),
    }
    judge = load_judge(world / "run" / "checkpoint-2", Runtime(torch.device("cpu"), 400))
    reference = judge.score("What is it?", ["A blue circle."], [world / "files" / "1.png"])[0]
    for form, made in forms.items():
        more = {"stratified": ["--verifier", "exact"], "standardised": ["--clip", "2"]}.get(
            form, []
        )
        out = tmp_path / f"{form}.jsonl"
        arguments = [
            str(world / "run" / "checkpoint-2"),
            str(source),
            str(out),
            "--image-root",
            str(world / "files"),
        ]
        main([*arguments, "--form", form, *more])
        one = run_folders.lines(out)[0]
        assert len(one["scores"]) == 3
        assert one["rewards"] == pytest.approx(made(one, reference), rel=RELATIVE)
        assert one["normalised"] == standardised(one["scores"], 0.25, 0.01)
        bad = 0 if form == "standardised" else 1  # the second record has no answer and no reference
        assert len(run_folders.lines(out)) == 2 - bad
    with pytest.raises(SystemExit, match="2"):
        score(world, source, tmp_path / "b.jsonl", "--form", "hybrid")


def test_recorded_verdicts_are_kept_or_the_option_is_refused(
    world: Path, tmp_path: Path, expected: list[list[float]]
) -> None:
    recorded = {"answer": ["blue"], "verifier": "exact", "right": [True, False, False]}
    source = write(tmp_path / "in.jsonl", [GOOD[0] | recorded])
    (row,) = score(
        world, source, tmp_path / "a.jsonl", "--form", "hybrid", "--verifier", "recorded"
    )
    assert row["right"] == [True, False, False]  # the second text is the answer; it was cut off
    assert row["rewards"][0] == 1.0
    assert row["rewards"][1] < 1.0
    with pytest.raises(SystemExit, match=r"--verifier numeric contradicts the records"):
        score(world, source, tmp_path / "b.jsonl", "--verifier", "numeric")
    del recorded["verifier"]
    source = write(tmp_path / "in.jsonl", [GOOD[0] | recorded])
    with pytest.raises(SystemExit, match=r"contradicts the verdicts in the column `right`"):
        score(world, source, tmp_path / "b.jsonl", "--verifier", "exact")
    assert not list(tmp_path.glob("b.jsonl*"))  # nothing was judged


@pytest.mark.slow
def test_a_judge_that_compares_says_how_often(world: Path, tmp_path: Path) -> None:
    base = str(world / "run" / "base")
    source = write(
        tmp_path / "in.jsonl",
        [
            {"prompt": "What?", "responses": ["a", "b", "c"]},
            {"prompt": "What?", "responses": ["a"]},
        ],
    )
    main([base, str(source), str(tmp_path / "out.jsonl")])
    (found,) = run_folders.lines(tmp_path / "out.jsonl")
    assert (found["judgements"], found["unread"] <= 6, len(found["scores"])) == (6, True, 3)
    assert "a judge compares" in run_folders.lines(tmp_path / "out.jsonl.errors.jsonl")[0]["error"]


def test_a_critic_writes_a_critique_of_each_response(world: Path, tmp_path: Path) -> None:
    backbone = BackboneConfig(path=str(world / "run" / "base"), dtype="float32")
    critic = load_critic(backbone, ScoreHeadConfig(), critique=CritiqueConfig(max_new_tokens=4))
    critic.save_pretrained(tmp_path / "critic")
    tiny.encoder().save_pretrained(tmp_path / "critic")
    tiny.call_float32(tmp_path / "critic")
    source = write(tmp_path / "in.jsonl", [GOOD[0] | {"reference": "A blue circle."}])
    arguments = [
        str(tmp_path / "critic"),
        str(source),
        str(tmp_path / "out.parquet"),
        "--image-root",
        str(world / "files"),
    ]
    main([*arguments, "--form", "relative"])
    (found,) = datasets.Dataset.from_parquet(str(tmp_path / "out.parquet"), cache_dir=str(tmp_path))
    assert [len(found[name]) for name in ("scores", "critiques", "rewards")] == [3, 3, 3]


def test_writing_takes_records_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmrm.eval.selection.candidate_files.ROWS_PER_GROUP", 4)
    source = write(
        tmp_path / "in.jsonl", [{"id": n, **({"late": n} if n > 5 else {})} for n in range(11)]
    )
    rows = open_records(source, None).rows
    out = tmp_path / "out.parquet"
    new = [{"score": n / 2, "response": str(n)} if n % 3 else None for n in range(11)]
    write_with_added_columns(out, rows, parquet_schema_of(rows, out), ["score", "response"], new)
    found = list(datasets.Dataset.from_parquet(str(out), cache_dir=str(tmp_path)))
    assert found == [
        {"id": n, "late": n if n > 5 else None, "score": n / 2, "response": str(n)}
        for n in range(11)
        if n % 3
    ]


@pytest.mark.numerics
@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_further_numbers_of_a_head_are_columns(tmp_path: Path, name: str, suffix: str) -> None:
    saved_checkpoint(tmp_path / "saved", name)
    rows = [{"prompt": "What is it?", "responses": THREE, "reference": "A red square"}]
    source = write(tmp_path / "in.jsonl", rows)
    out = tmp_path / f"out.{suffix}"
    main([str(tmp_path / "saved"), str(source), str(out), "--form", "relative"])
    found: dict[str, Any]
    if suffix == "jsonl":
        (found,) = run_folders.lines(out)
    else:
        (found,) = datasets.Dataset.from_parquet(str(out), cache_dir=str(tmp_path))
    expected = load_judge(tmp_path / "saved").rank("What is it?", THREE)
    attributes = {
        f"score_{attribute}": pytest.approx(values, rel=RELATIVE)
        for attribute, values in expected.attributes.items()
    }
    assert {key: found[key] for key in found if key.startswith("score_")} == attributes
    assert found["scores"] == pytest.approx(expected.values, rel=RELATIVE)
    assert found.keys() == {*rows[0], *attributes, "scores", "order", "margin", "rewards"}


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_stated_deviations_are_used_and_do_not_outlive_their_scores(
    tmp_path: Path, suffix: str
) -> None:
    """A file is scored by a gaussian checkpoint, selected from, and scored again by one without deviations."""

    def read(file: Path) -> list[dict[str, Any]]:
        if suffix == "jsonl":
            return run_folders.lines(file)
        return list(datasets.Dataset.from_parquet(str(file), cache_dir=str(tmp_path / "hf")))

    for name in ("gaussian", "score"):
        saved_checkpoint(tmp_path / name, name)
    rows = [{"prompt": f"What is {n}?", "responses": THREE} for n in range(3)]
    scored = tmp_path / f"scored.{suffix}"
    main([str(tmp_path / "gaussian"), str(write(tmp_path / "in.jsonl", rows)), str(scored)])
    best = tmp_path / f"best.{suffix}"
    select_responses.main(["best", str(scored), str(best), "--lower-bound", "2"])
    for row in read(best):
        bounds = [
            score - 2 * std for score, std in zip(row["scores"], row["score_std"], strict=True)
        ]
        assert row["lower_bound"] == max(bounds)
        assert row["response"] == THREE[bounds.index(max(bounds))]
    again = tmp_path / f"again.{suffix}"
    main([str(tmp_path / "score"), str(scored), str(again)])
    assert [row.keys() for row in read(again)] == [{*rows[0], *NEW}] * 3
    with pytest.raises(SystemExit, match="holds no standard deviations of its scores"):
        select_responses.main(
            ["best", str(again), str(tmp_path / f"none.{suffix}"), "--lower-bound", "2"]
        )


def test_a_gaussian_checkpoint_has_its_calibration_in_the_result(tmp_path: Path) -> None:
    """The scores of a judge reach result and predictions with their deviations."""
    saved_checkpoint(tmp_path / "gaussian", "gaussian")
    file = run_folders.preferences(tmp_path / "records", 6)
    runtime = Runtime(torch.device("cpu"), 400)
    judge = load_judge(tmp_path / "gaussian", runtime).judge
    benchmark = BenchmarkConfig(name="preference_folder", location=str(file))
    suite = Suite.load([benchmark], ProtocolConfig())
    found = suite.evaluate("preference_folder", judge, tmp_path / "out")
    assert found.result.uncertainty is not None
    assert (found.result.uncertainty.n, found.result.uncertainty.left_out) == (6, 0)
    stored = read_result(tmp_path / "out" / "preference_folder.json")
    assert stored.uncertainty == found.result.uncertainty
    lines = run_folders.lines(tmp_path / "out" / "preference_folder" / "predictions.jsonl")
    assert [tuple(line["std"]) for line in lines] == [
        scores.attributes["std"] for scores in found.scores
    ]


def test_responses_with_images_are_scored_and_selected(world: Path, tmp_path: Path) -> None:
    picture = {"type": "image", "image": "1.png"}
    other = {"type": "image", "image": URI}
    drawn: list[Any] = [[picture], [{"type": "text", "text": "Here: "}, other], "I cannot draw."]
    rows = [
        {"prompt": "Draw it.", "responses": drawn},
        {"prompt": "Draw it.", "responses": [assistant([picture]), assistant([other])]},
    ]
    source = write(tmp_path / "in.jsonl", rows)
    listed, in_turns = score(world, source, tmp_path / "out.jsonl")
    judge = load_judge(world / "run" / "checkpoint-1", Runtime(torch.device("cpu")))
    files = world / "files"
    resolved: list[Any] = [[picture | {"image": str(files / "1.png")}], drawn[1], drawn[2]]
    assert listed["scores"] == pytest.approx(judge.score("Draw it.", resolved), rel=RELATIVE)
    assert in_turns["scores"][0] == pytest.approx(listed["scores"][0], rel=RELATIVE)
    assert listed["responses"] == drawn  # the columns of the file stay as they are

    best = tmp_path / "best.jsonl"
    options = ["--image-root", str(files)]
    select_responses.main(["best", str(tmp_path / "out.jsonl"), str(best), *options])
    first, _ = run_folders.lines(best)
    assert first["response"] == drawn[listed["order"][0]]

    pairs = tmp_path / "pairs.jsonl"
    select_responses.main(["pairs", str(tmp_path / "out.jsonl"), str(pairs), "--all", *options])
    config = ProjectConfig(type="project", path=str(pairs), images=str(files))
    records = config.open(tmp_path / "cache")
    assert len(records) == 4
    record = validate(records.record(0))
    # The first pair is that of the two highest scores.
    best_index, second_index, _ = listed["order"]
    assert len(record.chosen.images) == (best_index != 2)
    assert len(record.rejected.images) == (second_index != 2)
    out = str(tmp_path / "pairs.parquet")
    with pytest.raises(SystemExit):
        select_responses.main(["pairs", str(tmp_path / "out.jsonl"), out, *options])


def test_videos_of_prompts_and_responses_are_scored_and_selected(
    world: Path, tmp_path: Path
) -> None:
    pytest.importorskip("av")
    from tests.data.test_frames import video

    files = tmp_path / "files"
    asked = video(files / "asked.mp4", 12)
    answered = video(files / "answered.mp4", 4)
    uri = "data:video/mp4;base64," + base64.b64encode(asked.read_bytes()).decode()
    part = {"type": "video", "video": "answered.mp4"}
    drawn: list[Any] = [[part], "Nothing."]
    write(files / "broken.mp4", ["no video"])
    rows = [
        {"prompt": "What happens?", "videos": ["asked.mp4"], "responses": drawn},
        {"prompt": "<video>What happens?", "video": uri, "responses": drawn},
        {"messages": user({"type": "video", "video": "asked.mp4"}, TEXT), "responses": ["a", "b"]},
        {"prompt": "What happens?", "videos": ["broken.mp4"], "responses": ["a"]},
        {"prompt": "What happens?", "videos": ["../x.mp4"], "responses": ["a"]},
    ]
    source = write(tmp_path / "in.jsonl", rows)
    options = ["--image-root", str(files)]
    listed, marked, in_turns = score(world, source, tmp_path / "out.jsonl", *options)
    judge = load_judge(world / "run" / "checkpoint-1", Runtime(torch.device("cpu")))
    resolved: list[Any] = [[part | {"video": answered}], "Nothing."]
    wanted = judge.score("What happens?", resolved, videos=[asked])
    assert wanted != pytest.approx(judge.score("What happens?", resolved), rel=RELATIVE)
    assert listed["scores"] == pytest.approx(wanted, rel=RELATIVE)
    assert marked["scores"] == pytest.approx(wanted, rel=RELATIVE)
    wanted = judge.score("What is it?", ["a", "b"], videos=[asked])
    assert in_turns["scores"] == pytest.approx(wanted, rel=RELATIVE)
    errors = run_folders.lines(tmp_path / "out.jsonl.errors.jsonl")
    assert ["cannot be read" in error["error"] for error in errors] == [True, False]
    assert "outside of the declared image folder" in errors[1]["error"]

    pairs = tmp_path / "pairs.jsonl"
    select_responses.main(["pairs", str(tmp_path / "out.jsonl"), str(pairs), *options])
    config = ProjectConfig(type="project", path=str(pairs), images=str(files))
    records = config.open(tmp_path / "cache")
    first, second, _ = [validate(records.record(number)) for number in range(3)]
    assert first.videos == (Video(asked.resolve()),)
    assert second.videos == (Video(asked.read_bytes()),)
    assert [len(one.videos) for one in sorted(first.responses, key=lambda one: one.text)] == [1, 0]
    for name in (["pairs.parquet"], ["trl.jsonl", "--output-format", "trl"]):
        out, *form = name
        chosen = ["pairs", str(tmp_path / "out.jsonl"), str(tmp_path / out), *options, *form]
        with pytest.raises(SystemExit, match="videos"):
            select_responses.main(chosen)
