"""The forms in which callers may write videos, and what cannot be one."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from mmrm.models.portable.conversations import (
    ConversationError,
    ReadConversation,
    read_conversation,
    read_response,
)

CONTENT = b"the content of a video"
URI = f"data:video/mp4;base64,{base64.b64encode(CONTENT).decode()}"
QUESTION = {"type": "text", "text": "What happens?"}
PARTS: list[dict[str, Any]] = [
    {"type": "video", "video": CONTENT},
    {"type": "video", "video": URI},
    {"type": "video", "video": URI.replace("video/mp4", "application/octet-stream")},
    {"type": "video", "video": {"bytes": CONTENT, "path": None}},
    {"type": "video", "url": URI},
    {"type": "video_url", "video_url": {"url": URI}},
    {"type": "input_video", "video_url": URI},
]


def read(content: Any, videos: list[Any]) -> ReadConversation:
    """Return a conversation of one turn of the user."""
    return read_conversation([{"role": "user", "content": content}], videos=videos)


@pytest.mark.parametrize("part", PARTS)
def test_a_video_may_be_written_in_every_form(part: dict[str, Any]) -> None:
    found = read([part, QUESTION], [])
    assert found.turns == [{"role": "user", "content": [{"type": "video"}, QUESTION]}]
    assert found.videos == [CONTENT]
    assert read_response(0, [part, QUESTION]).videos == [CONTENT]


@pytest.mark.parametrize(
    "content", ["What happens?", "<video>\nWhat happens?", [{"type": "video"}, QUESTION]]
)
def test_a_listed_video_takes_its_place(content: Any) -> None:
    found = read(content, ["clips/a.mp4"])
    assert found.turns[0]["content"] == [{"type": "video"}, QUESTION]
    assert found.videos == [Path("clips/a.mp4")]


def test_images_and_videos_are_each_in_the_order_of_their_places() -> None:
    content = [
        {"type": "video", "video": b"first"},
        {"type": "image", "image": b"an image"},
        {"type": "video"},
    ]
    turns, images, videos = read(content, [b"second"])
    assert [part["type"] for part in turns[0]["content"]] == ["video", "image", "video"]
    assert images == [b"an image"]
    assert videos == [b"first", b"second"]


ANSWERED = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": [PARTS[0]]},
    {"role": "user", "content": "What is it?"},
]


@pytest.mark.parametrize(
    ("messages", "videos", "message"),
    [
        ("What?", [7], "a video is a int"),
        ("What?", [["a.png", "b.png"]], "Give separate frames as images"),
        ("What?", ["https://example.org/a.mp4"], "a video is the address .*nothing is fetched"),
        ("What?", ["data:image/png;base64,aaaa"], "required is data:video/"),
        ("What?", ["data:video/mp4;base64,a"], "a video's data URI holds broken base64"),
        ("<video> and <video>", [CONTENT], "holds <video> 2 times for 1 videos"),
        ("Where is <video>?", [], "holds '<video>' as text"),
        ([{"role": "user", "content": [{"type": "video"}]}], [], "1 video parts without a video"),
        ([{"role": "user", "content": [PARTS[0]]}], [CONTENT], "0 video parts without a video"),
        (ANSWERED, [], "turn 1 is the assistant's and holds a video"),
    ],
)
def test_what_cannot_be_a_video_is_refused(messages: Any, videos: list[Any], message: str) -> None:
    with pytest.raises(ConversationError, match=message):
        read_conversation(messages, videos=videos)
