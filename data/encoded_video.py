"""Videos that are not decoded yet, and the frames that are sampled from them.

A video stays encoded until a worker needs its pixels, like an image. PyAV is the only decoder. It
is installed with `pip install -e .[video]`, and is imported when the first video is decoded.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mmrm.data.errors import RecordError, SpecialFileError, UserError
from mmrm.data.regular_files import require_regular

if TYPE_CHECKING:
    from PIL.Image import Image

TIME_TOLERANCE = 1e-6
"""Seconds by which a frame may be shown after the time for which it is sampled. Times of frames are
fractions that floats do not hold exactly."""


@dataclass(frozen=True, slots=True)
class VideoSampling:
    """The choice of frames of a video, and the size to which they are scaled."""

    frames_per_second: float = 2.0
    """Frames that are sampled for each second. Not used if `num_frames` is given."""
    num_frames: int | None = None
    """Number of frames, evenly spaced from the first to the last; None samples by the rate."""
    max_frames: int = 64
    """The largest number of frames that are sampled by the rate. If a video has more, this number
    is sampled, evenly spaced."""
    max_pixels: int = 2_408_448
    """The largest number of pixels of a video. Two frames that form a temporal patch are counted
    once, because they become the same tokens."""

    def __post_init__(self) -> None:
        """Raise ValueError for numbers with which no frame can be sampled."""
        numbers = (self.frames_per_second, self.num_frames or 1, self.max_frames, self.max_pixels)
        if min(numbers) <= 0 or self.num_frames == 0:
            raise ValueError(f"{self} has a number that is not above 0. Give positive numbers.")


@dataclass(frozen=True, slots=True)
class Video:
    """A video file that is not decoded yet, and how its frames are sampled.

    Two of them are equal if their contents, or their paths, and their samplings are equal.
    """

    content: bytes | Path
    """The bytes of the file, or its path."""
    sampling: VideoSampling = VideoSampling()


@dataclass(frozen=True, slots=True)
class SampledVideo:
    """Frames of a video, upright and in RGB, with their times."""

    frames: tuple[Image, ...]
    times: tuple[float, ...]
    """Seconds from the first frame of the video, for each frame."""
    interval: float
    """Seconds between sampled frames, which is the mean if they are not evenly spaced."""


def sample_frames(video: Video, record: str) -> SampledVideo:
    """Decode a video, and return the frames that its sampling chooses.

    The video is decoded twice, so that only the chosen frames are in memory.

    Args:
        video: The video.
        record: Identity of the record, for messages.

    Raises:
        RecordError: The video cannot be read, has no pictures, or does not say when they are shown.
        UserError: PyAV is not installed.
    """
    av = import_pyav()
    try:
        times = _frame_times(video.content)
        numbers, interval = sampled_numbers(times, video.sampling)
        image_by_number: dict[int, Image] = {}
        for number, frame in enumerate(decoded_frames(video.content)):
            if number in numbers:
                image_by_number[number] = upright_image(frame)
    except (UserError, SpecialFileError, OSError, av.error.FFmpegError) as error:
        name = video.content if isinstance(video.content, Path) else "given as bytes"
        raise RecordError(f"{record}: the video ({name}) cannot be read: {error}") from error
    return SampledVideo(
        frames=tuple(image_by_number[number] for number in numbers),
        times=tuple(times[number] for number in numbers),
        interval=interval,
    )


def sampled_numbers(times: Sequence[float], sampling: VideoSampling) -> tuple[list[int], float]:
    """Return the numbers of the frames that are sampled, and the seconds between them.

    Args:
        times: Seconds from the first frame, for each frame of the video, ascending.
        sampling: The choice of frames.

    Example: a video of 10 frames a second is sampled at 2 frames a second. The numbers are 0, 5, 10
    and so on, and there are 0.5 seconds between the frames.
    """
    num_frames = sampling.num_frames
    if num_frames is None:
        interval = 1 / sampling.frames_per_second
        num_by_rate = int((times[-1] + TIME_TOLERANCE) / interval) + 1
        if num_by_rate <= sampling.max_frames:
            # The frame that a player shows at a time is the last one that begins by then.
            wanted_times = [index * interval + TIME_TOLERANCE for index in range(num_by_rate)]
            return [bisect_right(times, time) - 1 for time in wanted_times], interval
        num_frames = sampling.max_frames
    num_frames = min(num_frames, len(times))
    numbers = np.linspace(0, len(times) - 1, num_frames, dtype=int).tolist()
    num_intervals = max(1, num_frames - 1)
    return numbers, (times[numbers[-1]] - times[numbers[0]]) / num_intervals


def _frame_times(content: bytes | Path) -> list[float]:
    """Return the time of each frame of a video, in seconds from the first frame.

    Raises: UserError if the video has no frames, or frames without an ascending time.
    """
    # Frames are counted by decoding them: the count in a video file may be wrong or missing.
    times: list[float] = []
    for frame in decoded_frames(content):
        if frame.time is None or (times and frame.time < times[-1]):
            raise UserError("it does not say for each frame when it is shown. Encode it again")
        times.append(frame.time)
    if not times:
        raise UserError("it holds no frame that can be decoded")
    return [time - times[0] for time in times]


def import_pyav() -> Any:
    """Import and return the package PyAV; raise UserError if it is not installed."""
    try:
        import av
    except ImportError as error:
        raise UserError(
            "PyAV, which reads videos, is not installed. Install it: pip install -e .[video]"
        ) from error
    return av


def decoded_frames(content: bytes | Path) -> Iterator[Any]:
    """Yield all frames of a video (`av.VideoFrame`) in the order in which a player shows them.

    Args:
        content: The bytes of a video file, or its path.

    Raises:
        UserError: The file has no pictures.
        SpecialFileError: The path is not that of a regular file.
    """
    import av

    if isinstance(content, Path):
        require_regular(content)
    source = io.BytesIO(content) if isinstance(content, bytes) else str(content)
    with av.open(source) as container:
        if not container.streams.video:
            raise UserError("it holds no pictures, only sound or text")
        container.streams.video[0].thread_type = "AUTO"  # decode with several threads
        yield from container.decode(video=0)


def upright_image(frame: Any) -> Image:
    """Return a frame of a video (`av.VideoFrame`) as an upright RGB image."""
    # PyAV's rotation and Pillow's are both counterclockwise.
    image: Image = frame.to_image().rotate(frame.rotation, expand=True)
    return image
