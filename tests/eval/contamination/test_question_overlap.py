"""Questions that a model was trained on: found by content, left out or refused, and what was not compared is noted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mmrm.data.errors import UserError
from mmrm.data.preference import Preference, Truth, text, text_responses
from mmrm.data.preparation.mixing import MixtureConfig
from mmrm.data.synthetic.source import ShapesConfig
from mmrm.eval.contamination.question_overlap import (
    MOST_REPEATED,
    Question,
    TrainingPrompts,
    questions_of_source,
    read_questions,
)
from mmrm.eval.policies.policy_runs import load_questions
from mmrm.eval.sample import answers_row
from tests.eval.make import png


def asked(number: int) -> Question:
    return Question(number, "exact", f"question {number}")


def question(words: str, *images: bytes | Path) -> Preference:
    prompt = (text("user", words, len(images)),)
    return Preference(
        "file:1", prompt, text_responses("", ""), images, truth=Truth("exact", ("2",))
    )


def test_content_decides_and_not_the_identity(tmp_path: Path) -> None:
    (tmp_path / "red.png").write_bytes(png("red"))
    one = Question.of_record(question("How many  cats?", png("red")))
    assert one == Question(one.key, "exact", "How many  cats?")
    same = replace(question("how MANY cats?\n", tmp_path / "red.png"), identity="other:7")
    assert Question.of_record(same).key == one.key
    others = [
        question("How many cats?", png("blue")),
        question("How many cats?"),
        question("How many dogs?", png("red")),
        question("How many cats?", png("red"), png("red")),
    ]
    assert len({Question.of_record(other).key for other in [*others, same]}) == 5


def test_a_sampled_row_has_the_key_of_its_question(tmp_path: Path) -> None:
    """Also where the row's image is another file than the record's: a transparent one is sent as PNG without transparency."""
    Image.new("RGBA", (8, 6), (255, 0, 0, 128)).save(tmp_path / "clear.png")
    source = ShapesConfig(type="shapes", level="demo", split="train", rows=8, text_only=0.5)
    records = [*load_questions(source, tmp_path), question("Clear?", tmp_path / "clear.png")]
    rows = [answers_row(record, ["1"], [False]) for record in records]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "samples.jsonl").write_text(lines, encoding="utf-8")
    found = read_questions(tmp_path / "samples.jsonl")
    assert found == [Question.of_record(record) for record in records]
    for row, record in zip(rows[:-1], records, strict=False):
        del row["key"]  # as earlier versions wrote it
        assert Question.of_row(row) == Question.of_record(record)


@given(
    questions=st.lists(st.integers(0, 30), min_size=1, max_size=30),
    trained=st.sets(st.integers(0, 30)),
)
def test_no_question_that_was_trained_on_remains(questions: list[int], trained: set[int]) -> None:
    trained_on = TrainingPrompts()
    trained_on.add("round 1", sorted(trained))
    repeated = {index for index, key in enumerate(questions) if key in trained}
    assert trained_on.repeated([*map(asked, questions)]).keys() == repeated
    is_refused = bool(repeated) and len(repeated) >= MOST_REPEATED * len(questions)
    try:
        left_out = trained_on.questions_to_leave_out(
            [*map(asked, questions)], "--questions", "Ask others."
        )
    except UserError as error:
        assert is_refused
        count = f"--questions: {len(repeated):,} of {len(questions):,} questions"
        assert str(error).startswith(count)  # noqa: PT017
        return
    assert not is_refused
    assert left_out.keys() == repeated


def test_sources_of_one_name_are_both_compared(tmp_path: Path) -> None:
    """The seeds of a variant may train on different files under one name."""
    trained_on = TrainingPrompts()
    for seed in (1, 2):
        source = {"type": "shapes", "level": "demo", "rows": 2, "seed": seed}
        section = {"sources": [source], "cache": str(tmp_path)}
        trained_on.add_recipe(MixtureConfig.model_validate(section), "variant", fetch=True)
    for seed in (1, 2):
        questions = questions_of_source(f"{{type: shapes, level: demo, rows: 2, seed: {seed}}}", "")
        assert sorted(trained_on.repeated(questions)) == [0, 1]


def test_every_source_of_a_recipe_is_compared_or_noted(tmp_path: Path) -> None:
    rows = [{"prompt": "What is it?", "chosen": "a", "rejected": "b"}, {"prompt": "Broken"}]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sources = [
        {"type": "project", "path": str(tmp_path / "mine.jsonl")},
        {"type": "shapes", "level": "demo", "rows": 5},
        {"type": "rlaif_v", "hub": "openbmb/RLAIF-V-Dataset"},
        {"type": "trl", "path": str(tmp_path / "gone.jsonl")},
    ]
    section = {"sources": sources, "cache": str(tmp_path), "bad_records": {"limit": 1.0}}
    trained_on = TrainingPrompts()
    trained_on.add_recipe(MixtureConfig.model_validate(section), "mine", fetch=False)
    assert list(trained_on.keys_by_source) == ["mine, source project", "mine, source shapes"]
    assert [len(keys) for keys in trained_on.keys_by_source.values()] == [1, 5]
    assert [note.partition(":")[0] for note in trained_on.notes] == [
        "mine, source rlaif_v",
        "mine, source trl",
    ]
    assert len(trained_on.repeated([Question.of_record(question("what is IT?"))])) == 1
    shapes = questions_of_source("{type: shapes, level: demo, rows: 7}", "--questions")
    assert sorted(trained_on.repeated(shapes)) == [0, 1, 2, 3, 4]


def test_a_model_is_followed_to_where_it_began(tmp_path: Path) -> None:
    """The second run began from the first one's checkpoint, by a link; of the first one's own start nothing is known."""
    for number, start in ((1, "/models/released"), (2, str(tmp_path / "1" / "best"))):
        run = tmp_path / str(number)
        (run / "checkpoint-5").mkdir(parents=True)
        (run / "best").symlink_to("checkpoint-5")
        source = f"{{type: shapes, level: demo, rows: 2, seed: {number}}}"
        recipe = f"data: {{sources: [{source}]}}\nbackbone: {{path: {start}}}\n"
        (run / "recipe.yaml").write_text(recipe)
        (run / "provenance.json").write_text("[]")
    trained_on = TrainingPrompts()
    trained_on.add_model(str(tmp_path / "2" / "checkpoint-5"))
    assert list(trained_on.keys_by_source) == [f"{tmp_path}/{n}, source shapes" for n in (2, 1)]
    assert list(trained_on.notes) == [
        "/models/released: there is no recipe that names its training data"
    ]
    embedded = TrainingPrompts()
    embedded.add_model("embedded")
    assert not embedded.notes


@pytest.mark.parametrize("source", ["{type: shapes", "{type: shapes}", "{type: nothing}"])
def test_what_is_no_source_is_refused(source: str) -> None:
    with pytest.raises(UserError, match=r"--questions: "):
        questions_of_source(source, "--questions")
