"""TRL's preference formats: explicit, implicit and standard, with images, as Arrow gives them back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mmrm.data.errors import ImageError, RecordError
from mmrm.data.preparation.recognition import recognise
from tests.data.sources.fixtures import (
    BLUE,
    RED,
    asked,
    image_struct,
    open_source,
    record,
    write_jsonl,
    write_parquet,
)


def turn(role: str, text: str, images: int = 0) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"type": "image", "text": None} for _ in range(images)]
    return {"role": role, "content": [*parts, {"type": "text", "text": text}]}


def test_vision_rows_as_in_trl_lib_rlaif_v(tmp_path: Path) -> None:
    rows = [
        {
            "images": [image_struct(RED)],
            "prompt": [turn("user", "What is this?", 1)],
            "chosen": [turn("assistant", "A red square.")],
            "rejected": [turn("assistant", "A cat.")],
        },
        {
            "images": [],
            "prompt": [turn("user", "And without?")],
            "chosen": [turn("assistant", "Text.")],
            "rejected": [turn("assistant", "None.")],
        },
    ]
    write_parquet(tmp_path / "data" / "train-00000-of-00001.parquet", rows)
    write_parquet(tmp_path / "data" / "test-00000-of-00001.parquet", rows[1:])
    source = open_source(tmp_path / "c", type="trl", path=str(tmp_path))
    assert len(source) == 2
    found = record(source)
    assert (asked(found), found.chosen.text, found.rejected.text, found.images) == (
        [None, "What is this?"],
        "A red square.",
        "A cat.",
        (RED,),
    )
    assert found.prompt[0]["content"][0] == {"type": "image"}  # without the None that Arrow put in
    assert record(source, 1).images == ()
    assert len(open_source(tmp_path / "c", type="trl", path=str(tmp_path), split="test")) == 1


def test_string_content_gets_its_images_in_front(tmp_path: Path) -> None:
    row = {
        "image": image_struct(BLUE),
        "prompt": [{"role": "system", "content": "Short."}, {"role": "user", "content": "Colour?"}],
        "chosen": [{"role": "assistant", "content": "Blue."}],
        "rejected": [{"role": "assistant", "content": "Red."}],
    }
    write_parquet(tmp_path / "train.parquet", [row])
    found = record(open_source(tmp_path / "c", type="trl", path=str(tmp_path)))
    assert asked(found) == [None, "Colour?"]
    assert found.images == (BLUE,)
    assert found.prompt[0]["role"] == "system"


def test_the_implicit_prompt_is_what_both_share(tmp_path: Path) -> None:
    shared = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "More"},
    ]
    row = {
        "chosen": [*shared, {"role": "assistant", "content": "Yes"}],
        "rejected": [*shared, {"role": "assistant", "content": "No"}],
        "score_chosen": 8.0,
    }
    found = record(
        open_source(
            tmp_path / "c", type="trl", path=str(write_jsonl(tmp_path / "train.jsonl", [row]))
        )
    )
    assert [message["role"] for message in found.prompt] == ["user", "assistant", "user"]
    assert (found.chosen.text, found.rejected.text) == ("Yes", "No")


def test_equal_conversations_stay_a_pair_of_equal_responses(tmp_path: Path) -> None:
    whole = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Same"}]
    found = record(
        open_source(
            tmp_path / "c",
            type="trl",
            path=str(write_jsonl(tmp_path / "t.jsonl", [{"chosen": whole, "rejected": whole}])),
        )
    )
    assert (found.chosen.text, found.rejected.text) == ("Same", "Same")


def test_standard_texts(tmp_path: Path) -> None:
    rows = [
        {"prompt": "The sky is", "chosen": " blue.", "rejected": " green."},
        {"chosen": "The sky is blue.", "rejected": "The sky is green."},
    ]
    source = open_source(
        tmp_path / "c", type="trl", path=str(write_jsonl(tmp_path / "t.jsonl", rows))
    )
    assert (asked(record(source)), record(source).chosen.text) == (["The sky is"], " blue.")
    assert (
        asked(record(source, 1)),
        record(source, 1).chosen.text,
        record(source, 1).rejected.text,
    ) == (
        ["The sky is"],
        " blue.",
        " green.",
    )


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {
                "prompt": [turn("user", "?", 1)],
                "chosen": [turn("assistant", "a")],
                "rejected": [turn("assistant", "b")],
            },
            "1 image parts for 0",
        ),
        (
            {
                "prompt": "?",
                "chosen": [turn("assistant", "a"), turn("user", "b")],
                "rejected": [turn("assistant", "b")],
            },
            "2 turns",
        ),
        (
            {"prompt": "?", "chosen": [turn("user", "a")], "rejected": [turn("assistant", "b")]},
            "a turn of the user",
        ),
        ({"chosen": "alpha", "rejected": "beta"}, "share no beginning"),
        ({"prompt": "?", "chosen": None, "rejected": "b"}, "'chosen' is NoneType"),
        ({"chosen": [], "rejected": [turn("assistant", "b")]}, "required is a list of turns"),
    ],
)
def test_a_wrong_row_names_itself(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=f"trl:0: .*{message}"):
        record(
            open_source(
                tmp_path / "c", type="trl", path=str(write_jsonl(tmp_path / "t.jsonl", [row]))
            )
        )


def test_an_image_that_is_an_empty_text_is_not_no_image(tmp_path: Path) -> None:
    pair = {"prompt": "?", "chosen": "a", "rejected": "b"}
    rows = [
        pair | images
        for images in (
            {"image": ""},
            {"images": ""},
            {"images": [], "image": ""},
            {"images": None},
            {"image": None},
        )
    ]
    source = open_source(
        tmp_path / "c", type="trl", path=str(write_jsonl(tmp_path / "t.jsonl", rows))
    )
    for row in range(3):
        with pytest.raises(ImageError, match=f"trl:{row}: an image is an empty str"):
            source.record(row)
    assert [record(source, row).images for row in (3, 4)] == [(), ()]


QUESTION = turn("user", "Which colour?", 1)
RESPONSES = [[turn("assistant", "Red.")], [turn("assistant", "Blue.")]]


@pytest.mark.parametrize(
    ("prompt", "shared"),
    [
        ([QUESTION], [QUESTION]),
        ([QUESTION], [turn("user", "Which colour?")]),
        ([turn("user", "Which colour?")], [QUESTION]),
        ([turn("user", "<image>\nWhich colour?")], [turn("user", "<image>\nWhich colour?")]),
        ("Which colour?", [QUESTION]),
        ("<image>Which colour?", [QUESTION]),
    ],
)
def test_a_prompt_next_to_whole_conversations(
    prompt: Any, shared: list[Any], tmp_path: Path
) -> None:
    """As `trl-lib` data sets have it that were made from UltraFeedback, with images."""
    row = {
        "images": [image_struct(RED)],
        "prompt": prompt,
        "chosen": [*shared, *RESPONSES[0]],
        "rejected": [*shared, *RESPONSES[1]],
    }
    path = write_parquet(tmp_path / "train.parquet", [row])
    assert recognise(str(path), tmp_path / "c").type == "trl"
    found = record(open_source(tmp_path / "c", type="trl", path=str(path)))
    assert asked(found) == [None, "Which colour?"]
    assert (found.chosen.text, found.rejected.text, found.images) == ("Red.", "Blue.", (RED,))


def test_a_prompt_may_be_the_beginning_of_longer_conversations(tmp_path: Path) -> None:
    shared = [QUESTION, turn("assistant", "Of what?"), turn("user", "The square.")]
    row = {
        "images": [image_struct(RED)],
        "prompt": shared[:1],
        "chosen": [*shared, *RESPONSES[0]],
        "rejected": [*shared, *RESPONSES[1]],
    }
    path = write_parquet(tmp_path / "train.parquet", [row])
    found = record(open_source(tmp_path / "c", type="trl", path=str(path)))
    assert [message["role"] for message in found.prompt] == ["user", "assistant", "user"]


@pytest.mark.parametrize("prompt", ["Which form?", [turn("user", "Which form?")]])
def test_another_prompt_than_that_of_the_conversations_is_refused(
    prompt: Any, tmp_path: Path
) -> None:
    question = turn("user", "Which colour?")
    row = {
        "prompt": prompt,
        "chosen": [question, *RESPONSES[0]],
        "rejected": [question, *RESPONSES[1]],
    }
    path = write_jsonl(tmp_path / "train.jsonl", [row])
    with pytest.raises(RecordError, match="whole conversations that do not begin with"):
        record(open_source(tmp_path / "c", type="trl", path=str(path)))
