"""Sampling of frames from videos: by rate, by count, and up to a number."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mmrm.data import frame_sampling
from mmrm.data.encoded_video import (
    Video,
    VideoConfig,
    VideoSize,
    grey_video_like,
    num_sampled_frames,
    sample_frames,
    spread_frames,
    video_of,
    video_size,
)
from mmrm.data.errors import RecordError
from mmrm.data.frame_sampling import decoded_frames, evenly_spaced, sampled_numbers
from mmrm.data.synthetic.scenes import png
from tests.data.test_frames import video

pytest.importorskip("av")
TIMES = [number / 10 for number in range(40)]


@pytest.mark.parametrize(
    ("sampling", "numbers", "interval"),
    [
        (VideoConfig(frames_per_second=2.0), [0, 5, 10, 15, 20, 25, 30, 35], 0.5),
        (VideoConfig(frames_per_second=2.0, max_frames=4), [0, 13, 26, 39], 1.3),
        (VideoConfig(num_frames=8), [0, 5, 11, 16, 22, 27, 33, 39], 3.9 / 7),
        (VideoConfig(num_frames=1), [0], 0.0),
    ],
)
def test_frames_are_sampled_by_rate_or_count(
    sampling: VideoConfig, numbers: list[int], interval: float
) -> None:
    found, seconds = sampled_numbers(TIMES, sampling)
    assert found == numbers
    assert seconds == pytest.approx(interval)


def test_numbers_are_evenly_spaced_as_by_numpy() -> None:
    for num_all in range(1, 80):
        for count in range(1, num_all + 1):
            wanted = np.linspace(0, num_all - 1, count, dtype=int).tolist()
            assert evenly_spaced(num_all, count) == wanted


def test_a_path_and_its_bytes_give_the_same_frames(tmp_path: Path) -> None:
    path = video(tmp_path / "clip.mp4", 20)
    for content in (path, path.read_bytes()):
        sampled = sample_frames(Video(content), VideoConfig(), "a record")
        greys = [round(int(np.asarray(frame.convert("L"))[20, 20]) / 5) for frame in sampled.frames]
        assert greys == [0, 5, 10, 15]
        assert sampled.times == pytest.approx((0, 0.5, 1, 1.5))
        assert sampled.frames[0].size == (64, 48)


@pytest.mark.parametrize(
    ("times_of_packets", "num_decodings"),
    [
        ([number / 10 for number in range(20)], 1),
        ([number / 10 for number in range(12)], 2),  # fewer packets than frames
        ([number / 10 for number in range(50)], 1),  # more packets than frames
        ([number / 20 for number in range(20)], 2),  # other times
        ([], 2),
    ],
)
def test_a_video_is_decoded_once_if_its_packets_are_right(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    times_of_packets: list[float],
    num_decodings: int,
) -> None:
    """The frames are the same in each case."""
    path = video(tmp_path / "clip.mp4", 20)
    choice = VideoConfig(frames_per_second=4.0)
    wanted_numbers, _ = sampled_numbers([number / 10 for number in range(20)], choice)
    num_frames_decoded = 0

    def counted_frames(content: bytes | Path) -> Iterator[Any]:
        nonlocal num_frames_decoded
        for frame in decoded_frames(content):
            num_frames_decoded += 1
            yield frame

    monkeypatch.setattr(frame_sampling, "decoded_frames", counted_frames)
    monkeypatch.setattr(frame_sampling, "packet_times", lambda container: times_of_packets)
    sampled = frame_sampling.sampled_frames(path, choice)
    assert num_frames_decoded == 20 * num_decodings
    assert sampled.times == pytest.approx([number / 10 for number in wanted_numbers])
    greys = [round(int(np.asarray(frame.convert("L"))[20, 20]) / 5) for frame in sampled.frames]
    assert greys == wanted_numbers


def test_spread_frames_are_those_of_a_whole_decoding(tmp_path: Path) -> None:
    path = video(tmp_path / "clip.mp4", 50)
    whole = sample_frames(Video(path), VideoConfig(num_frames=8), "a record")
    for content in (path, path.read_bytes()):
        spread = spread_frames(Video(content), 8, "a record")
        assert spread.times == pytest.approx(whole.times)
        assert spread.interval == pytest.approx(whole.interval)
        for frame, expected in zip(spread.frames, whole.frames, strict=True):
            assert np.array_equal(np.asarray(frame), np.asarray(expected))


def test_what_is_no_video_is_refused_with_the_record(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"row 7: the video .given as bytes. cannot be read"):
        sample_frames(Video(b"\x00" * 500), VideoConfig(), "row 7")
    with pytest.raises(RecordError, match=r"row 7: the video .*absent.mp4. cannot be read"):
        sample_frames(Video(tmp_path / "absent.mp4"), VideoConfig(), "row 7")
    # FFmpeg reads an image as a video of one frame.
    with pytest.raises(RecordError, match=r"row 7: the video .given as bytes. cannot be read"):
        sample_frames(Video(png(Image.new("RGB", (64, 48)))), VideoConfig(), "row 7")


@given(
    frame_times=st.lists(st.floats(0.01, 0.4), min_size=1, max_size=30),
    config=st.builds(
        VideoConfig,
        frames_per_second=st.floats(0.5, 20),
        num_frames=st.none() | st.integers(1, 40),
        max_frames=st.integers(1, 40),
    ),
)
def test_as_many_frames_are_counted_as_are_sampled(
    frame_times: list[float], config: VideoConfig
) -> None:
    times = np.cumsum(frame_times) - frame_times[0]
    numbers, _ = sampled_numbers(times.tolist(), config)
    counted = num_sampled_frames(np.array([len(times)]), times[-1:], config)
    assert counted.tolist() == [len(numbers)]


def test_a_video_that_is_written_has_the_frames_and_times_that_were_given() -> None:
    frames = [Image.new("RGB", (50, 30), (number, 2, 3)) for number in range(4)]
    times = (0.0, 0.1, 0.7, 1.25)
    content = video_of(frames, times)
    size = video_size(Video(content), "a record")
    assert size == pytest.approx(VideoSize(height=30, width=50, num_frames=4, seconds=1.25))
    sampled = sample_frames(Video(content), VideoConfig(num_frames=4), "a record")
    assert sampled.times == pytest.approx(times)
    assert [frame.tobytes() for frame in sampled.frames] == [frame.tobytes() for frame in frames]


def test_a_grey_video_has_the_size_and_the_times(tmp_path: Path) -> None:
    original = Video(video(tmp_path / "clip.mp4", 20))
    grey = grey_video_like(original, "a record")
    sizes = [video_size(one, "a record") for one in (original, grey)]
    assert sizes[0] == pytest.approx(sizes[1])
    sampled = sample_frames(grey, VideoConfig(num_frames=3), "a record")
    assert {frame.getpixel((5, 5)) for frame in sampled.frames} == {(128, 128, 128)}
