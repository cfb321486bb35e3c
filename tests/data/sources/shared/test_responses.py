"""Responses with images in the four formats that have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mmrm.data.errors import RecordError
from mmrm.data.preference import Preference, Response, validate
from tests.data.sources.fixtures import (
    BLUE,
    RED,
    image_struct,
    open_source,
    png,
    record,
    write_jsonl,
    write_parquet,
)

GREEN = png("green")

DRAWN = (Response((RED,)), Response(("Here it is:", BLUE)))
"""The responses of every row in WRITTEN: the chosen and the rejected one."""
CHOSEN_PARTS = [{"type": "image", "image": image_struct(RED)}]
REJECTED_PARTS = [
    {"type": "text", "text": "Here it is:"},
    {"type": "image", "image": image_struct(BLUE)},
]


def turn(role: str, content: Any) -> dict[str, Any]:
    """Return a turn {role, content}."""
    return {"role": role, "content": content}


ASKED = turn("user", "Draw it.")
ASKED_IN_PARTS = turn("user", [{"type": "text", "text": "Draw it."}])
LISTS = {"chosen_images": [image_struct(RED)], "rejected_images": [image_struct(BLUE)]}
ONE_LIST = {"images": [image_struct(RED), image_struct(BLUE)]}
MARKED = {"chosen": "<image>", "rejected": "Here it is:\n<image>"}

WRITTEN: dict[str, tuple[str, dict[str, Any]]] = {
    "project, parts": (
        "project",
        {"prompt": "Draw it.", "chosen": CHOSEN_PARTS, "rejected": REJECTED_PARTS},
    ),
    "project, columns": ("project", {"prompt": "Draw it."} | MARKED | LISTS),
    "project, one list": ("project", {"prompt": "Draw it."} | MARKED | ONE_LIST),
    "trl, parts": (
        "trl",
        {
            "prompt": [ASKED],
            "chosen": [turn("assistant", CHOSEN_PARTS)],
            "rejected": [turn("assistant", REJECTED_PARTS)],
        },
    ),
    "trl, places": (
        "trl",
        {
            "prompt": [ASKED],
            "chosen": [turn("assistant", [{"type": "image"}])],
            "rejected": [turn("assistant", [REJECTED_PARTS[0], {"type": "image"}])],
        }
        | ONE_LIST,
    ),
    "trl, whole conversations": (
        "trl",
        {
            "chosen": [ASKED_IN_PARTS, turn("assistant", CHOSEN_PARTS)],
            "rejected": [ASKED_IN_PARTS, turn("assistant", REJECTED_PARTS)],
        },
    ),
    "trl, texts": ("trl", {"prompt": "Draw it."} | MARKED | LISTS),
    "sharegpt": (
        "sharegpt",
        {
            "conversations": [{"from": "human", "value": "Draw it."}],
            "chosen": {"from": "gpt", "value": "<image>"},
            "rejected": {"from": "gpt", "value": "Here it is:<image>"},
        }
        | ONE_LIST,
    ),
    "sharegpt, alpaca": ("sharegpt", {"instruction": "Draw it."} | MARKED | LISTS),
    "ms_swift, rejected_response": (
        "ms_swift",
        {
            "messages": [ASKED, turn("assistant", "<image>")],
            "rejected_response": "Here it is:<image>",
            "images": [image_struct(RED)],
            "rejected_images": [image_struct(BLUE)],
        },
    ),
    "ms_swift, rejected_messages": (
        "ms_swift",
        {
            "messages": [ASKED, turn("assistant", "<image>")],
            "rejected_messages": [ASKED, turn("assistant", "Here it is:<image>")],
            "images": [image_struct(RED)],
            "rejected_images": [image_struct(BLUE)],
        },
    ),
}


def read(folder: Path, kind: str, row: dict[str, Any]) -> Preference:
    """Return the record of a row that is written to a file."""
    path = write_parquet(folder / "rows.parquet", [row])
    return validate(record(open_source(folder / "cache", type=kind, path=str(path))))


@pytest.mark.parametrize(("kind", "row"), WRITTEN.values(), ids=WRITTEN)
def test_images_of_responses_are_in_their_places(
    kind: str, row: dict[str, Any], tmp_path: Path
) -> None:
    found = read(tmp_path, kind, row)
    assert found.responses == DRAWN
    assert found.images == ()
    assert found.all_images == (RED, BLUE)
    assert found.prompt[-1]["content"] == [{"type": "text", "text": "Draw it."}]


EDITED: dict[str, tuple[str, dict[str, Any]]] = {
    "project": (
        "project",
        {"prompt": "<image>Paint it.", "chosen": "<image>", "rejected": "<image>"}
        | {"images": [image_struct(GREEN), image_struct(RED), image_struct(BLUE)]},
    ),
    "project, image in front": (
        "project",
        {"prompt": "Paint it.", "chosen": "<image>", "rejected": "<image>"}
        | {"images": [image_struct(GREEN), image_struct(RED), image_struct(BLUE)]},
    ),
    "project, columns": (
        "project",
        {"prompt": "Paint it.", "chosen": "<image>", "rejected": "<image>"}
        | {"images": [image_struct(GREEN)]}
        | LISTS,
    ),
    "ms_swift": (
        "ms_swift",
        {
            "messages": [turn("user", "<image>Paint it."), turn("assistant", "<image>")],
            "rejected_response": "<image>",
            "images": [image_struct(GREEN), image_struct(RED)],
            "rejected_images": [image_struct(GREEN), image_struct(BLUE)],
        },
    ),
}


@pytest.mark.parametrize(("kind", "row"), EDITED.values(), ids=EDITED)
def test_images_of_the_prompt_come_first(kind: str, row: dict[str, Any], tmp_path: Path) -> None:
    found = read(tmp_path, kind, row)
    assert found.images == (GREEN,)
    assert found.responses == (Response((RED,)), Response((BLUE,)))
    assert found.prompt[0]["content"][0] == {"type": "image"}


def test_lists_of_responses_have_images_too(tmp_path: Path) -> None:
    row = {
        "prompt": "Draw it.",
        "responses": [REJECTED_PARTS, CHOSEN_PARTS, [{"type": "text", "text": "No."}]],
        "ratings": {"content": [2, 3, 1]},
    }
    path = write_jsonl(tmp_path / "rows.jsonl", [_with_files(row, tmp_path)])
    source = open_source(
        tmp_path / "cache", type="project", path=str(path), images=str(tmp_path), pairs="none"
    )
    found = validate(record(source))
    assert [len(response.images) for response in found.responses] == [1, 1, 0]
    assert [response.text for response in found.responses] == ["", "Here it is:", "No."]
    assert found.ranks == (0, 1, 2)


def _with_files(row: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return a row of parts with paths in place of images, which are written to files."""
    responses = []
    for number, parts in enumerate(row["responses"]):
        written = []
        for part in parts:
            if part["type"] == "image":
                (folder / f"{number}.png").write_bytes(part["image"]["bytes"])
                part = {"type": "image", "image": f"{number}.png"}
            written.append(part)
        responses.append(written)
    return row | {"responses": responses}


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a marker in one response": (
        "project",
        {"prompt": "What?", "chosen": "A <image>.", "rejected": "b", "images": [image_struct(RED)]},
        "the chosen response holds '<image>' as text",
    ),
    "a missing image": (
        "trl",
        {"prompt": "Draw it.", "chosen": "<image>", "rejected": "<image>"}
        | {"images": [image_struct(RED)]},
        "the rejected response has 1 places for the 0 images",
    ),
    "an image without a place": (
        "project",
        {"prompt": "Draw it.", "chosen": "a", "rejected": "b"} | LISTS,
        "the chosen response has 0 places for the 1 images",
    ),
    "two prompts": (
        "ms_swift",
        {
            "messages": [turn("user", "<image>What?"), turn("assistant", "a")],
            "rejected_response": "b",
            "images": [image_struct(RED)],
            "rejected_images": [image_struct(BLUE)],
        },
        "other images in 'rejected_images'",
    ),
}


@pytest.mark.parametrize(("kind", "row", "message"), REFUSED.values(), ids=REFUSED)
def test_images_without_a_place_are_refused(
    kind: str, row: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(RecordError, match=message):
        read(tmp_path, kind, row)
