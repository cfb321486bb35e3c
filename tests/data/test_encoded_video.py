"""Sampling of frames from videos: by rate, by count, and up to a number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mmrm.data.encoded_video import Video, VideoSampling, sample_frames, sampled_numbers
from mmrm.data.errors import RecordError
from tests.data.test_frames import video

pytest.importorskip("av")
TIMES = [number / 10 for number in range(40)]


@pytest.mark.parametrize(
    ("sampling", "numbers", "interval"),
    [
        (VideoSampling(frames_per_second=2.0), [0, 5, 10, 15, 20, 25, 30, 35], 0.5),
        (VideoSampling(frames_per_second=2.0, max_frames=4), [0, 13, 26, 39], 1.3),
        (VideoSampling(num_frames=8), [0, 5, 11, 16, 22, 27, 33, 39], 3.9 / 7),
        (VideoSampling(num_frames=1), [0], 0.0),
    ],
)
def test_frames_are_sampled_by_rate_or_count(
    sampling: VideoSampling, numbers: list[int], interval: float
) -> None:
    found, seconds = sampled_numbers(TIMES, sampling)
    assert found == numbers
    assert seconds == pytest.approx(interval)


def test_a_path_and_its_bytes_give_the_same_frames(tmp_path: Path) -> None:
    path = video(tmp_path / "clip.mp4", 20)
    for content in (path, path.read_bytes()):
        sampled = sample_frames(Video(content), "a record")
        greys = [round(int(np.asarray(frame.convert("L"))[20, 20]) / 5) for frame in sampled.frames]
        assert greys == [0, 5, 10, 15]
        assert sampled.times == pytest.approx((0, 0.5, 1, 1.5))
        assert sampled.frames[0].size == (64, 48)


def test_what_is_no_video_is_refused_with_the_record(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"row 7: the video .given as bytes. cannot be read"):
        sample_frames(Video(b"\x00" * 500), "row 7")
    with pytest.raises(RecordError, match=r"row 7: the video .*absent.mp4. cannot be read"):
        sample_frames(Video(tmp_path / "absent.mp4"), "row 7")
