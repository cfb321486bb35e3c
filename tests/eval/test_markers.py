"""One meaning of `<image>` in a text: in training, benchmarks, scoring, files and the server."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from mmrm.data.errors import RecordError, UserError
from mmrm.data.preference import EncodedImage, validate
from mmrm.data.sources.registry import AnySource
from mmrm.data.sources.shared.file_source import TableSource
from mmrm.eval.benchmarks.benchmark import Location
from mmrm.eval.benchmarks.preference_folder import load
from mmrm.eval.judges.messages import candidates_of
from mmrm.eval.selection.candidate_records import open_records
from mmrm.eval.serving.request_limits import RequestLimits
from mmrm.models.portable.conversations import ConversationError, read_conversation, refuse_markers
from tests.eval.make import png

PNG = png("red", (60, 40))
URI = "data:image/png;base64," + base64.b64encode(PNG).decode()
STRUCT = {"bytes": PNG, "path": None}
Parts = list[str | None]
"""The parts of the user's turn: texts, and None for an image."""
Entry = Callable[[str, int, str, Path], Parts]
"""Reads a prompt's text with a number of images and a response, or refuses it."""
REFUSALS = (RecordError, UserError, ConversationError)


class AnyImage:
    """A folder that holds every image."""

    def find(self, name: str, record: str) -> EncodedImage:
        """Return the one picture."""
        return PNG


class OneRow(list[dict[str, Any]]):
    """A table of one row."""

    def row(self, number: int) -> dict[str, Any]:
        """Return the row."""
        return self[number]


def parts_of(turns: Sequence[Any]) -> Parts:
    content = next(turn["content"] for turn in turns if turn["role"] == "user")
    return [part["text"] if part["type"] == "text" else None for part in content]


def source(kind: str, row: Callable[[str, int, str], dict[str, Any]], **settings: Any) -> Entry:
    """Return the entry of a data source: a record as it is trained on."""

    def read(text: str, images: int, response: str, folder: Path) -> Parts:
        config: Any = TypeAdapter(AnySource).validate_python(
            {"type": kind, "path": "file.jsonl", **settings}
        )
        rows: Any = OneRow([row(text, images, response)])
        record = validate(TableSource(config, "local", rows, AnyImage()).record(0))
        assert len(record.images) == images
        return parts_of(record.prompt)

    return read


def human(text: str) -> list[dict[str, str]]:
    return [{"from": "human", "value": text}]


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


JUDGE = "###### [Question]:\n{}\n###### [Response 1]:\n{}\n###### [Response 2]:\nNo.\n"
FORMATS: dict[str, Entry] = {
    "project": source(
        "project",
        lambda text, n, one: {
            "prompt": text,
            "images": [URI] * n,
            "chosen": one,
            "rejected": "No.",
        },
    ),
    "project, turns": source(
        "project",
        lambda text, n, one: {
            "prompt": [{"role": "user", "content": [{"type": "text", "text": text}]}],
            "images": [URI] * n,
            "chosen": "No.",
            "rejected": one,
        },
    ),
    "trl": source(
        "trl",
        lambda text, n, one: {
            "prompt": user(text),
            "images": [URI] * n,
            "chosen": [assistant(one)],
            "rejected": [assistant("No.")],
        },
    ),
    "trl, implicit prompt": source(
        "trl",
        lambda text, n, one: {
            "images": [URI] * n,
            "chosen": [*user(text), assistant(one)],
            "rejected": [*user(text), assistant("No.")],
        },
    ),
    "sharegpt": source(
        "sharegpt",
        lambda text, n, one: {
            "conversations": human(text),
            "images": [URI] * n,
            "chosen": {"from": "gpt", "value": one},
            "rejected": {"from": "gpt", "value": "No."},
        },
    ),
    "sharegpt, Alpaca": source(
        "sharegpt",
        lambda text, n, one: {
            "instruction": text,
            "images": [URI] * n,
            "chosen": one,
            "rejected": "No.",
        },
    ),
    "ms_swift": source(
        "ms_swift",
        lambda text, n, one: {
            "messages": [*user(text), assistant(one)],
            "rejected_response": "No.",
            "images": [URI] * n,
        },
    ),
    "ms_swift, rejected_messages": source(
        "ms_swift",
        lambda text, n, one: {
            "messages": [*user(text), assistant("No.")],
            "rejected_messages": [*user(text), assistant(one)],
            "images": [URI] * n,
        },
    ),
    "mmpr": source(
        "mmpr",
        lambda text, n, one: {
            "image": [URI] * n,
            "question": text,
            "chosen": one,
            "rejected": "No.",
        },
    ),
}
ONE_IMAGE: dict[str, Entry] = {
    "r1_reward": source(
        "r1_reward",
        lambda text, n, one: {
            "message": json.dumps(user(JUDGE.format(text, one))),
            "answer": ["<answer>1</answer>"],
            "image": URI,
        },
    ),
    "rlaif_v": source(
        "rlaif_v",
        lambda text, n, one: {"image": STRUCT, "question": text, "chosen": one, "rejected": "No."},
    ),
    "rlhf_v": source(
        "rlhf_v",
        lambda text, n, one: {
            "image": STRUCT,
            "text": json.dumps({"question": text, "chosen": one, "rejected": "No."}),
        },
    ),
    "omnialign_v_dpo": source(
        "omnialign_v_dpo",
        lambda text, n, one: {"image": "1.png", "prompt": text, "chosen": one, "rejected": "No."},
    ),
    "mm_rlhf": source(
        "mm_rlhf",
        lambda text, n, one: {"image": "1.png", "prompt": text, "chosen": one, "rejected": "No."},
    ),
    "povid": source(
        "povid",
        lambda text, n, one: {
            "image": "1.jpg",
            "conversations": [*human(text), {"from": "gpt", "value": one}],
            "rejected_conversations": [*human(text), {"from": "gpt", "value": "No."}],
        },
        images="images",
    ),
    "wildvision_battle": source(
        "wildvision_battle",
        lambda text, n, one: {
            "winner": "model_a",
            "conversation_a": [*user(text), assistant(one)],
            "conversation_b": [*user(text), assistant("No.")],
            "image": STRUCT,
        },
    ),
}


def question(text: str, images: int, response: str, folder: Path) -> Parts:
    refuse_markers([response])  # a question has none
    return source(
        "questions", lambda text, n, _: {"prompt": text, "images": [URI] * n, "answer": "2"}
    )(text, images, response, folder)


def in_python(text: str, images: int, response: str, folder: Path) -> Parts:
    """Read as `judge.score`, `rank`, `compare` and `reward` do."""
    return parts_of(candidates_of(text, [response, "No."], [PNG] * images).prompt)


def in_python_as_turns(text: str, images: int, response: str, folder: Path) -> Parts:
    turns = [{"role": "user", "content": [{"type": "text", "text": text}]}]
    return parts_of(candidates_of(turns, ["No.", response], [PNG] * images).prompt)


def released(text: str, images: int, response: str, folder: Path) -> Parts:
    """Read as `model.score` of a checkpoint does with transformers alone."""
    turns, _, _ = read_conversation(text, [PNG] * images)
    refuse_markers([response])
    return parts_of(turns)


def file_of_responses(text: str, images: int, response: str, folder: Path) -> Parts:
    """Read as eval/score.py and eval/select_responses.py do."""
    row = {"prompt": text, "images": [URI] * images, "responses": [response, "No."]}
    (folder / "in.jsonl").write_text(json.dumps(row) + "\n")
    file = open_records(folder / "in.jsonl", None)
    return parts_of(file.answered_prompt(file.row(0)).turns)


def own_benchmark(text: str, images: int, response: str, folder: Path) -> Parts:
    row = {"prompt": text, "images": [URI] * images, "chosen": response, "rejected": "No."}
    (folder / "mine.jsonl").write_text(json.dumps(row) + "\n")
    found = load(Location(location=str(folder / "mine.jsonl"), type="project"))
    return parts_of(found.examples[0].prompt)


def served(path: str, body: Callable[[str, int, str], Any]) -> Entry:
    """Return the entry of a route of the server: a request as its judge gets it."""

    def read(text: str, images: int, response: str, folder: Path) -> Parts:
        pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
        from mmrm.eval.serving.dialects import DIALECTS, ServedCheckpoint
        from mmrm.eval.serving.request_reader import Intake

        asked = DIALECTS[path](
            body(text, images, response), ServedCheckpoint("m", "scalar", "x", None)
        )
        intake = Intake(RequestLimits(), None, compares=False)
        return parts_of(intake(asked.groups[0], "group 0").prompt)

    return read


RENDERED = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
READERS: dict[str, Entry] = {
    "judge.score": in_python,
    "judge.score, turns": in_python_as_turns,
    "released model": released,
    "eval/score.py": file_of_responses,
    "preference_folder": own_benchmark,
    "/v1/rewards": served(
        "/v1/rewards",
        lambda text, n, one: {
            "groups": [{"messages": text, "responses": [one], "images": [URI] * n}]
        },
    ),
    "/get_reward": served(
        "/get_reward",
        lambda text, n, one: {
            "query": [text + one],
            "prompts": [text],
            "labels": [json.dumps({"images": [URI] * n})],
        },
    ),
    "/get_reward, ChatML": served(
        "/get_reward",
        lambda text, n, one: {
            "query": [RENDERED.format(text) + one + "<|im_end|>"],
            "prompts": [RENDERED.format(text)],
            "labels": [json.dumps({"images": [URI] * n})],
        },
    ),
}
NO_IMAGE: dict[str, Entry] = {
    "/classify": served(
        "/classify", lambda text, n, one: {"messages": [*user(text), assistant(one)]}
    ),
    "/rerank": served("/rerank", lambda text, n, one: {"query": text, "documents": [one]}),
    **{
        kind: source(kind, row)
        for kind, row in {
            "tulu_preference": lambda text, n, one: {
                "chosen": [*user(text), assistant(one)],
                "rejected": [*user(text), assistant("No.")],
            },
            "skywork_preference": lambda text, n, one: {
                "chosen": [*user(text), assistant(one)],
                "rejected": [*user(text), assistant("No.")],
            },
        }.items()
    },
}
PLACES: list[tuple[str, int, Parts]] = [
    ("What is it?", 0, ["What is it?"]),
    ("What is it?", 1, [None, "What is it?"]),
    ("What is it?", 2, [None, None, "What is it?"]),
    ("<image>What is it?", 1, [None, "What is it?"]),
    ("<image>\nWhat is it?", 1, [None, "What is it?"]),
    ("What is <image> here?", 1, ["What is ", None, " here?"]),
    ("Here: <image>", 1, ["Here: ", None]),
    ("<image>\nis like\n<image>?", 2, [None, "is like", None, "?"]),
]
STRAY: list[tuple[str, int, str]] = [
    ("<image>What is it?", 0, "<image>"),
    ("What does <image> mean in HTML?", 0, "<image>"),
    ("<image> or <image>?", 1, "<image> 2 times for 1 images"),
    ("<image>What?", 2, "<image> 1 times for 2 images"),
    *(
        (f"{marker}What is it?", images, marker)
        for images in (0, 1)
        for marker in (
            "<audio>",
            "<IMG_CONTEXT>",
            "<|image_pad|>",
            "<|vision_start|>",
            "<|image_1|>",
        )
    ),
    ("<video>What is it?", 0, "<video>"),
]
ALL = {**FORMATS, **ONE_IMAGE, **READERS, **NO_IMAGE, "questions": question}


def takes(name: str, images: int) -> bool:
    """Return True if an entry can be given this number of images."""
    if name in ONE_IMAGE:
        return images == 1
    return images == 0 or name not in NO_IMAGE


@pytest.mark.parametrize(("text", "images", "parts"), PLACES)
@pytest.mark.parametrize("name", ALL)
def test_a_marker_is_the_place_of_an_image_if_the_numbers_agree(
    name: str, text: str, images: int, parts: Parts, tmp_path: Path
) -> None:
    if takes(name, images):
        assert ALL[name](text, images, "A cat.", tmp_path) == parts


@pytest.mark.parametrize(("text", "images", "named"), STRAY)
@pytest.mark.parametrize("name", ALL)
def test_another_marker_is_refused_by_name_with_the_way_out(
    name: str, text: str, images: int, named: str, tmp_path: Path
) -> None:
    if not takes(name, images):
        return
    with pytest.raises(REFUSALS) as refused:
        ALL[name](text, images, "A cat.", tmp_path)
    assert named in str(refused.value)
    assert "emove" in str(refused.value) or "ChatML" in str(refused.value)


@pytest.mark.parametrize("marker", ["<image>", "<video>", "<audio>", "<|image_pad|>"])
@pytest.mark.parametrize("name", ALL)
def test_a_marker_in_a_response_is_refused_and_the_message_says_what_is_missing(
    name: str, marker: str, tmp_path: Path
) -> None:
    """Also where the number of markers of prompt and response agrees with the images."""
    for images in (0, 1):
        if not takes(name, images):
            continue
        text = "<image>What is it?" if images else "What is it?"
        with pytest.raises(REFUSALS) as refused:
            ALL[name](text, images, f"A {marker} cat.", tmp_path)
        said = str(refused.value)
        assert marker in said
        assert "no image belongs there" in said or "control token" in said


def test_image_parts_and_markers_do_not_mix(tmp_path: Path) -> None:
    part, text = {"type": "image", "image": URI}, {"type": "text", "text": "<image>What?"}
    turns = [{"role": "user", "content": [part, text]}]
    with pytest.raises(RecordError, match="1 times in its texts and 1 image parts"):
        candidates_of(turns, ["a", "b"])
    row = {"prompt": [{"role": "user", "content": [{"type": "image"}, text]}], "images": [URI]}
    with pytest.raises(RecordError, match=r"project:0.*1 times in its texts and 1 image parts"):
        source("project", lambda *_: row | {"chosen": "a", "rejected": "b"})("", 1, "", tmp_path)


def test_markers_stand_in_turns_of_the_user() -> None:
    turns = [*user("Hi"), assistant("See <image>"), *user("What?")]
    with pytest.raises(RecordError, match="a turn of the assistant in the prompt holds <image>"):
        candidates_of(turns, ["a", "b"], [PNG])


@pytest.mark.parametrize("name", ["rejected_images", "chosen_images", "audios", "rejected_audios"])
@pytest.mark.parametrize("kind", ["ms_swift", "trl", "sharegpt"])
def test_images_of_responses_without_places_and_sounds_are_refused_by_name(
    kind: str, name: str, tmp_path: Path
) -> None:
    rows: dict[str, dict[str, Any]] = {
        "ms_swift": {"messages": [*user("What?"), assistant("a")], "rejected_response": "b"},
        "trl": {"prompt": "What?", "chosen": "a", "rejected": "b"},
        "sharegpt": {"instruction": "What?", "chosen": "a", "rejected": "b"},
    }
    with pytest.raises(RecordError, match=rf"{kind}:0: .*{name}"):
        source(kind, lambda *_: rows[kind] | {name: [URI]})("", 0, "", tmp_path)
    assert source(kind, lambda *_: rows[kind] | {name: []})("", 0, "", tmp_path) == ["What?"]
    file = tmp_path / "in.jsonl"
    file.write_text(json.dumps({"prompt": "What?", "responses": ["a"], name: ["1.png"]}) + "\n")
    records = open_records(file, None)
    with pytest.raises(RecordError, match=rf"row 0: .*{name}"):
        records.answered_prompt(records.row(0))


def test_image_parts_in_a_response_of_a_file_to_score_are_refused(tmp_path: Path) -> None:
    seen = [{"role": "assistant", "content": [{"type": "image"}, {"type": "text", "text": "a"}]}]
    row = {"prompt": "What?", "responses": [seen, "b"], "images": [URI]}
    (tmp_path / "in.jsonl").write_text(json.dumps(row) + "\n")
    file = open_records(tmp_path / "in.jsonl", None)
    with pytest.raises(RecordError, match=r"row 0: response 0 has 1 places for the 0 images"):
        file.answered_prompt(file.row(0))
