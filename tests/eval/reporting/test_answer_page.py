"""A policy's run on the page: figures by step and where they come from, differences from the start, questions with answers."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet  # type: ignore[import-untyped]

from mmrm.data.encoded_video import Video
from mmrm.data.preference import Preference
from mmrm.eval.report import file_states
from mmrm.eval.reporting import answer_page
from mmrm.eval.reporting.answer_page import shown_questions
from mmrm.eval.reporting.page import page
from mmrm.eval.reporting.run_content import Content, read_run
from mmrm.eval.results.intervals import paired_difference
from tests.data.test_frames import video
from tests.eval.made_policies import make_policy
from tests.eval.made_run import HOSTILE, rollout_table
from tests.eval.test_report import Elements


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module")
def content(run: Path) -> Content:
    return read_run(run)


def stored(run: Path, place: str) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = json.loads(
        (run / place / "answers" / "scenes.json").read_text()
    )
    return found


def test_every_step_has_its_figures_and_one_that_is_gone_those_of_the_log(
    run: Path, content: Content
) -> None:
    (found,) = content.questions
    assert list(found.steps) == [0, 10, 20, 30]
    assert list(found.files) == [0, 10, 30]
    assert found.steps[20] == {"greedy": {"mean": 0.4}}
    assert found.steps[0]["greedy"] == stored(run, "start")["greedy"]
    assert found.steps[30]["pass"] == stored(run, "checkpoint-30")["pass"]


def test_the_page_has_tables_charts_and_answers(run: Path, content: Content) -> None:
    found = Elements(page(content))
    sections = [attributes["id"] for attributes in found.all("section")]
    assert sections == ["results", "curves", "answers"]
    assert "No checkpoint of this run was evaluated" not in found.words
    words = " ".join(re.sub(r"<.*?>", " ", page(content)).split())
    assert "best of 4, 95 % interval pass@4, 95 % interval majority of 4, 95 % interval" in words
    greedy = stored(run, "checkpoint-30")["greedy"]
    assert (
        f"30 {100 * greedy['mean']:.1f} {100 * greedy['low']:.1f} – {100 * greedy['high']:.1f}"
        in words
    )
    assert "20 40.0 – – – –" in words  # the log has no interval, and only what it has
    score, cut_off = (stored(run, "checkpoint-30")[name] for name in ("score", "cut_off"))
    assert f"30 12 4 {score:+.2f} ".replace("-", "−") in words
    assert f" 2.0 {100 * cut_off:.2f}" in words  # type: ignore[operator]
    titles = [svg["aria-label"] for svg in found.all("svg") if svg.get("role") == "img"]
    assert titles[:3] == ["scenes: one answer.", "scenes: 4 answers.", "scenes: score."]
    assert f"sampled, step 0: {100 * stored(run, 'start')['sampled']['mean']:.1f} % [" in words


def test_the_difference_is_paired_with_the_first_answers_of_the_run(
    run: Path, content: Content
) -> None:
    shown = shown_questions(content.questions[0], None)
    credits = {}
    for place in ("start", "checkpoint-30"):
        rows = [
            json.loads(line)
            for line in (run / place / "answers" / "scenes.jsonl").read_text().splitlines()
        ]
        credits[place] = [row["credits"]["sampled"] for row in rows]
    expected = paired_difference(
        np.array(credits["checkpoint-30"]), np.array(credits["start"]), comparisons=4
    )
    assert shown.changes[30]["sampled"] == expected
    assert expected.words == "better"
    assert list(shown.changes) == [10, 30]


def test_other_questions_under_the_same_identities_are_not_compared(
    run: Path, tmp_path: Path
) -> None:
    shutil.copytree(run, tmp_path / "run")
    file = tmp_path / "run" / "checkpoint-30" / "answers" / "scenes.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[3]["key"] = "0" * 16
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (found,) = read_run(tmp_path / "run").questions
    assert list(shown_questions(found, None).changes) == [10]


def test_questions_stand_with_their_images_and_marked_answers(run: Path, content: Content) -> None:
    rows = [
        json.loads(line)
        for line in (run / "checkpoint-30" / "answers" / "scenes.jsonl").read_text().splitlines()
    ]
    shown = shown_questions(content.questions[0], None)
    assert shown.step == 30
    assert shown.asked[0]["id"] == rows[0]["id"]
    places = [[row["id"] for row in rows].index(one["id"]) for one in shown.asked]
    assert places == sorted(places)
    for place, one in zip(places, shown.asked, strict=True):
        row = rows[place]
        assert (one["greedy"]["text"], one["greedy"]["right"]) == (row["texts"][0], row["right"][0])
        assert one["right"] == sum(row["right"][1:])
        assert place == 0 or 0 < one["right"] < 4  # the first, then those that tell something
        assert [answer["score"] for answer in one["sampled"]] == sorted(
            (a["score"] for a in one["sampled"]), reverse=True
        )
        assert one["images"][0][1].startswith("data:image/webp")
        assert one["turns"][0]
        assert one["truth"]
    text = page(content)
    found = Elements(text)
    assert HOSTILE in found.words
    assert HOSTILE not in text
    assert "✗ wrong, cut off · greedy · score" in " ".join(found.words.split())
    marked = sum(len(one["sampled"]) + 1 for one in shown.asked)
    assert found.words.count("✓ right") + found.words.count("✗ wrong") == marked
    assert len(found.all("img")) == len(shown.asked)
    assert all(picture["alt"] for picture in found.all("img"))


def test_videos_of_a_question_are_shown_as_strips(
    content: Content, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("av")
    clip = Video(video(tmp_path / "a.mp4", 20))
    read_records = answer_page._records

    def records_with_videos(*arguments: Any) -> dict[int, Preference]:
        records = read_records(*arguments)
        return {
            index: replace(record, videos=(clip, Video(b"none")))
            for index, record in records.items()
        }

    monkeypatch.setattr(answer_page, "_records", records_with_videos)
    shown = shown_questions(content.questions[0], None)
    assert all(len(one["videos"]) == 1 for one in shown.asked)
    cannot = [note for note in shown.notes if note.startswith("A video cannot be shown: ")]
    assert len(cannot) == len(shown.asked)
    strips = [
        found for found in Elements(page(content)).all("img") if found.get("class") == "strip"
    ]
    assert len(strips) == len(shown.asked)
    assert str(strips[0]["alt"]).startswith("Frames of video 1 of ")


def test_the_best_step_of_the_recipe_is_shown_if_its_answers_are_there(content: Content) -> None:
    assert shown_questions(content.questions[0], 10).step == 10
    assert shown_questions(content.questions[0], 20).step == 30


def test_what_is_missing_is_said(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "run"
    shutil.copytree(run, other)
    (other / "checkpoint-10" / "answers" / "scenes.json").write_text('{"quest')
    recipe = json.loads((other / "recipe.yaml").read_text())
    recipe["evaluation"]["questions"][0]["split"] = "validation"
    (other / "recipe.yaml").write_text(json.dumps(recipe))
    words = Elements(page(read_run(other))).words
    assert "scenes.json is left out: " in words
    assert "scenes.json is no JSON: Unterminated string" in words
    assert "of them are not in the source as it was loaded here" in words
    recipe["evaluation"]["questions"][0] |= {
        "type": "questions",
        "path": str(tmp_path / "gone.jsonl"),
    }
    (other / "recipe.yaml").write_text(json.dumps(recipe))
    assert "The questions could not be loaded" in Elements(page(read_run(other))).words


def test_a_run_whose_checkpoints_are_gone_keeps_the_answers_of_its_last_step(
    run: Path, tmp_path: Path
) -> None:
    other = tmp_path / "run"
    shutil.copytree(run / "checkpoint-30" / "answers", other / "answers")
    for name in ("log.jsonl", "recipe.yaml"):
        shutil.copy(run / name, other)
    (found,) = read_run(other).questions
    assert list(found.files) == [30]
    shutil.copytree(run / "checkpoint-10", other / "checkpoint-10")
    (found,) = read_run(other).questions
    assert list(found.files) == [30, 10]
    assert found.steps[30] == stored(run, "checkpoint-30")


def test_new_answers_are_news_to_watch(run: Path) -> None:
    names = {str(path.relative_to(run)) for path in file_states(run)}
    assert {
        f"{place}/answers/scenes.json" for place in ("start", "checkpoint-10", "checkpoint-30")
    } <= names


def test_rollouts_are_called_what_they_are(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "run"
    shutil.copytree(run, other)
    table = other / "completions" / "completions_00010.parquet"
    table.parent.mkdir()
    rollout_table(table, 10)
    assert "Judgements as they were sampled" in Elements(page(read_run(other))).words
    answers = parquet.read_table(table).drop_columns(
        ["winner", "judgement", "consistency", "result"]
    )
    right = [float(place % 2) for place in range(answers.num_rows)]
    parquet.write_table(
        answers.append_column("answer", [right]).append_column("right", [right]), table
    )
    words = Elements(page(read_run(other))).words
    assert (
        "Answers as they were sampled in training: of a step the first prompt, then those whose answers were paid"
        in words
    )
    assert "udgements" not in words
