"""The strip of frames by which pages show a video: its frames, their times, and its size in bytes."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmrm.data.encoded_video import Video
from mmrm.data.errors import ImageError
from mmrm.data.film_strip import FRAMES, GAP, LINE_HEIGHT, drawn_strip, film_strip, time_label
from tests.data.test_frames import video

pytest.importorskip("av")


def decoded(uri: str) -> Image.Image:
    """Return the image of a data URI."""
    return Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).convert("RGB")


def test_a_strip_has_frames_from_the_first_to_the_last(tmp_path: Path) -> None:
    strip = decoded(film_strip(Video(video(tmp_path / "a.mp4", 40)), "a record"))
    column = (strip.width - GAP) // FRAMES
    greys = [
        int(np.asarray(strip.convert("L"))[GAP + 20, GAP + 30 + index * column])
        for index in range(FRAMES)
    ]
    expected = np.array([0, 5, 11, 16, 22, 27, 33, 39]) * 5
    assert np.abs(np.array(greys) - expected).max() <= 4


def test_a_short_video_has_a_short_strip(tmp_path: Path) -> None:
    strip = decoded(film_strip(Video(video(tmp_path / "a.mp4", 3).read_bytes()), "a record"))
    assert strip.width == GAP + 3 * (64 + GAP)


def test_frames_of_a_large_video_are_made_smaller() -> None:
    frames = tuple(Image.new("RGB", (1280, 720)) for _ in range(FRAMES))
    strip = drawn_strip(frames, tuple(map(float, range(FRAMES))))
    assert strip.width == GAP + FRAMES * (160 + GAP)
    assert strip.height == 2 * GAP + 90 + LINE_HEIGHT
    assert frames[0].size == (1280, 720)  # the frames of the caller are not made smaller


def test_narrow_frames_leave_room_for_their_times() -> None:
    strip = drawn_strip((Image.new("RGB", (4, 400)),) * 2, (0.0, 700.0))
    assert strip.width == GAP + 2 * (48 + GAP)


def test_times_are_seconds_and_then_minutes() -> None:
    assert [time_label(time) for time in (0, 3.46, 59.9, 60, 725.9)] == [
        *("0.0 s", "3.5 s", "59.9 s"),
        *("1:00", "12:05"),
    ]


def test_a_damaged_video_is_refused_with_its_record() -> None:
    with pytest.raises(ImageError, match=r"row 7: the video .given as bytes. cannot be read"):
        film_strip(Video(b"\x00" * 500), "row 7")
