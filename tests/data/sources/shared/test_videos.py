"""Videos of prompts and responses, as the formats write them, up to the tokens of a mixture."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmrm.data.encoded_video import Video, VideoConfig
from mmrm.data.errors import RecordError
from mmrm.data.images import PatchTokens
from mmrm.data.preference import Preference, Response, validate
from mmrm.data.preparation.row_index import (
    BEGINS_WITH_VIDEO,
    _keys,
    index_rows,
    pair_key,
    prompt_key,
)
from mmrm.data.preparation.split import SplitRecords
from mmrm.data.sources.project import project_row
from mmrm.data.storage.content import record_key
from tests.data.sources.fixtures import RED, source_of, write_images, write_jsonl
from tests.data.test_frames import video

pytest.importorskip("av")

ASKED = {"role": "user", "content": "<video>What happens?"}
PLAIN = {"role": "user", "content": "What happens?"}
ANSWER = {"role": "assistant", "content": "A cat runs."}
SHOWN = {"role": "user", "content": [{"type": "text", "text": "See"}, {"type": "video"}]}
PAIR = {"chosen": "A cat runs.", "rejected": "Nothing."}
QUESTION_WITH_VIDEO = [
    {"type": "video"},
    {"type": "text", "text": "What happens?"},
]
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "project, no marker": ("project", PAIR | {"prompt": "What happens?", "videos": ["a.mp4"]}),
    "project, a marker": (
        "project",
        PAIR | {"prompt": "<video>\nWhat happens?", "videos": ["a.mp4"]},
    ),
    "ms-swift": (
        "ms_swift",
        {"messages": [ASKED, ANSWER], "rejected_response": "Nothing.", "videos": ["a.mp4"]},
    ),
    "sharegpt": (
        "sharegpt",
        {
            "conversations": [{"from": "human", "value": "<video>What happens?"}],
            "chosen": {"from": "gpt", "value": "A cat runs."},
            "rejected": {"from": "gpt", "value": "Nothing."},
            "videos": ["a.mp4"],
        },
    ),
    "trl, video": (
        "trl",
        {"prompt": [PLAIN], "chosen": [ANSWER], "rejected": [ANSWER | {"content": "Nothing."}]}
        | {"video": "a.mp4"},
    ),
    "trl, a part": (
        "trl",
        {
            "prompt": [{"role": "user", "content": QUESTION_WITH_VIDEO}],
            "chosen": [ANSWER],
            "rejected": [ANSWER | {"content": "Nothing."}],
            "videos": ["a.mp4"],
        },
    ),
}


def record_of(folder: Path, kind: str, row: dict[str, Any]) -> Preference:
    """Return the checked record of a row, next to the videos a.mp4 (20 frames) and b.mp4 (5)."""
    video(folder / "set" / "a.mp4", 20)
    video(folder / "set" / "b.mp4", 5)
    write_images(folder / "set", one=RED)
    write_jsonl(folder / "set" / "train.jsonl", [row])
    return validate(source_of(folder, kind).record(0))


@pytest.mark.parametrize("name", ROWS)
def test_every_format_gives_the_same_record(name: str, tmp_path: Path) -> None:
    record = record_of(tmp_path, *ROWS[name])
    assert record.prompt == ({"role": "user", "content": QUESTION_WITH_VIDEO},)
    assert record.videos == (Video((tmp_path / "set" / "a.mp4").resolve()),)
    assert [response.text for response in record.responses] == ["A cat runs.", "Nothing."]
    assert not record.images


def test_a_data_uri_is_a_video(tmp_path: Path) -> None:
    content = video(tmp_path / "c.mp4", 3).read_bytes()
    uri = "data:video/mp4;base64," + base64.b64encode(content).decode()
    record = record_of(tmp_path, "project", PAIR | {"prompt": "What?", "videos": [uri]})
    assert record.videos == (Video(content),)
    again = project_row(record, None)
    assert again["videos"] == [uri]
    assert record_of(tmp_path, "project", again).videos == record.videos


RESPONSES: dict[str, tuple[str, dict[str, Any]]] = {
    "columns": (
        "project",
        {"prompt": "Draw.", "chosen": "<video>", "rejected": "<video>"}
        | {"chosen_videos": ["a.mp4"], "rejected_videos": ["b.mp4"]},
    ),
    "parts": (
        "trl",
        {
            "prompt": [{"role": "user", "content": "Draw."}],
            "chosen": [{"role": "assistant", "content": [{"type": "video", "video": "a.mp4"}]}],
            "rejected": [{"role": "assistant", "content": [{"type": "video", "video": "b.mp4"}]}],
        },
    ),
    "after those of the prompt": (
        "ms_swift",
        {
            "messages": [
                {"role": "user", "content": "Draw."},
                {"role": "assistant", "content": "<video>"},
            ],
            "rejected_response": "<video>",
            "videos": ["a.mp4"],
            "rejected_videos": ["b.mp4"],
        },
    ),
}


@pytest.mark.parametrize("name", RESPONSES)
def test_responses_hold_videos(name: str, tmp_path: Path) -> None:
    record = record_of(tmp_path, *RESPONSES[name])
    folder = (tmp_path / "set").resolve()
    assert record.videos == ()
    assert record.responses == (
        Response((Video(folder / "a.mp4"),)),
        Response((Video(folder / "b.mp4"),)),
    )


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (PAIR | {"prompt": "What <video> <video>?", "videos": ["a.mp4"]}, "2 times for 1 videos"),
        (PAIR | {"prompt": "What <video>?"}, "the prompt holds '<video>' as text"),
        (PAIR | {"prompt": "What?", "videos": ["gone.mp4"]}, "gone.mp4.* is not there"),
        (PAIR | {"prompt": "What?", "videos": ["../a.mp4"]}, "outside of the declared"),
        (PAIR | {"prompt": "What?", "videos": [3]}, "a video is .*; required is the path"),
        (PAIR | {"prompt": [SHOWN]}, "1 video parts for 0 videos"),
        (PAIR | {"prompt": "What?", "videos": ["a.mp4"] * 33}, "33 videos; at most 32 are read"),
        (PAIR | {"prompt": "What?", "rejected_videos": ["b.mp4"]}, "0 places for the 1 videos"),
        (PAIR | {"prompt": "What?", "audio": ["b.wav"]}, "holds audio under 'audio'"),
    ],
)
def test_wrong_rows_are_refused(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=message):
        record_of(tmp_path, "project", row)


def test_a_type_without_videos_refuses_them(tmp_path: Path) -> None:
    row = {"question": "What?", "answer": "a", "video": "a.mp4"}
    with pytest.raises(RecordError, match="this type of source reads no videos"):
        record_of(tmp_path, "questions", row)


def key_in_row_index(record: Preference) -> int:
    """Return the key by which the row index finds records that are equal in everything."""
    return _keys(record).record


def test_keys_tell_videos_apart_and_do_not_depend_on_their_place(tmp_path: Path) -> None:
    one = record_of(tmp_path, "project", PAIR | {"prompt": "What?", "videos": ["a.mp4"]})
    other = record_of(tmp_path, "project", PAIR | {"prompt": "What?", "videos": ["b.mp4"]})
    content = (tmp_path / "set" / "a.mp4").read_bytes()
    uri = "data:video/mp4;base64," + base64.b64encode(content).decode()
    copy = record_of(tmp_path, "project", PAIR | {"prompt": "What?", "videos": [uri]})
    for key in (prompt_key, pair_key, record_key, key_in_row_index):
        assert key(one) == key(copy) != key(other)


def test_tokens_of_videos_count_in_the_row_index(tmp_path: Path) -> None:
    video(tmp_path / "set" / "a.mp4", 20)
    video(tmp_path / "set" / "b.mp4", 5)
    write_images(tmp_path / "set", one=RED)
    rows = [
        PAIR | {"prompt": "What?"},
        PAIR | {"prompt": "<image>What <video>?", "images": ["one.png"], "videos": ["a.mp4"]},
        PAIR | {"prompt": "<video>What <image>?", "images": ["one.png"], "videos": ["b.mp4"]},
        {"prompt": "Draw.", "chosen": "<video>", "rejected": "<video>"}
        | {"chosen_videos": ["a.mp4"], "rejected_videos": ["b.mp4"]},
    ]
    write_jsonl(tmp_path / "set" / "train.jsonl", rows)
    index = index_rows(source_of(tmp_path, "project"), range(4))
    # The image of 60 x 40 pixels is 2 x 1 tokens, and a temporal patch of 64 x 48 is 2 x 2. At two
    # frames a second, a.mp4 has 2 temporal patches and b.mp4 has 1.
    count = PatchTokens(min_pixels=784)
    of_a, of_b, of_image = 2 * 4, 4, 2
    assert index.image_tokens(count).tolist() == [0, of_image + of_a, of_image + of_b, of_a + of_b]
    assert index.prompt_image_tokens(count).tolist() == [0, of_image + of_a, of_image + of_b, 0]
    assert index.first_image_tokens(count).tolist() == [0, of_image, of_b, 0]
    assert (index.rows["flags"] & BEGINS_WITH_VIDEO > 0).tolist() == [False, False, True, False]
    assert index.is_text_only.tolist() == [True, False, False, False]
    frames = PatchTokens(min_pixels=784, videos=VideoConfig(form="frames", num_frames=3))
    # A frame of 64 x 48 is as large as an image of this size.
    assert frames.of_videos(index.videos).tolist() == [3 * 4] * 4


def test_a_damaged_video_is_a_bad_image(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.mp4").write_bytes(b"no video at all")
    row = PAIR | {"prompt": "What?", "videos": ["a.mp4"]}
    write_jsonl(tmp_path / "set" / "train.jsonl", [row])
    source = source_of(tmp_path, "project")
    index = index_rows(source, range(1))
    assert index.skipped == 1
    [message] = index.faults
    assert "the video" in message
    assert "a.mp4" in message


def test_grey_records_have_grey_videos(tmp_path: Path) -> None:
    record_of(tmp_path, *RESPONSES["columns"])
    source = source_of(tmp_path, "project")
    grey = SplitRecords([(source, np.arange(1, dtype=np.int32))], grey=True)[0]
    [chosen, rejected] = [response.videos[0] for response in grey.responses]
    assert isinstance(chosen.content, bytes)
    assert chosen != rejected  # of another length
