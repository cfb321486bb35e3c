"""Decoding of videos, and the choice of their frames.

Training, scoring and released checkpoints all use `sampled_frames`, so that a video has the same
frames in all of them. PyAV is the only decoder, and is imported when the first video is read.

This file travels with every checkpoint that has a reward head, so it imports the standard library
and Pillow only.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from PIL.Image import Image

FRAMES_OF_PATCH = 2
"""Frames of a temporal patch, which becomes the tokens of one image, in all backbones with video
tokens."""
CONTAINERS = (
    *("3g2", "3gp", "asf", "avi", "flv", "m4a", "matroska", "mj2", "mov", "mp4", "mpeg", "mpegts"),
    *("mpegvideo", "ogg", "webm"),
)
"""Names of the containers that are read, as FFmpeg has them. Its other formats are not used:
playlists, for one, name further files and addresses."""
TIME_TOLERANCE = 1e-6
"""Seconds by which a frame may be shown after the time for which it is sampled. Times of frames are
fractions that floats do not hold exactly."""


class VideoError(ValueError):
    """A video that cannot be read; the message says why, and does not name the video."""


class NoDecoderError(ImportError):
    """PyAV is not installed."""


class FrameChoice(Protocol):
    """The choice of frames of a video, as `backbone.videos` of a recipe has it."""

    @property
    def frames_per_second(self) -> float:
        """Frames that are sampled for each second, if `num_frames` is None."""

    @property
    def num_frames(self) -> int | None:
        """Number of frames, evenly spaced from the first to the last; None samples by the rate."""

    @property
    def max_frames(self) -> int:
        """The largest number of frames that are sampled by the rate."""

    @property
    def max_pixels(self) -> int:
        """The largest number of pixels of a video."""


@dataclass(frozen=True, slots=True)
class SampledVideo:
    """Frames of a video, upright and in RGB, with their times."""

    frames: tuple[Image, ...]
    times: tuple[float, ...]
    """Seconds from the first frame of the video, for each frame."""
    interval: float
    """Seconds between sampled frames, which is the mean if they are not evenly spaced."""


def sampled_frames(content: bytes | Path, choice: FrameChoice) -> SampledVideo:
    """Decode a video, and return the chosen frames.

    The frames that will be chosen are predicted from the packets of the file, so that the video is
    decoded once and only these frames are in memory. If the packets were wrong about the frames, as
    those of a damaged file may be, the video is decoded once more.

    Args:
        content: The bytes of a video file, or its path.
        choice: The choice of frames.

    Raises:
        VideoError: The video cannot be read, has no pictures, or does not say when they are shown.
        NoDecoderError: PyAV is not installed.
    """
    with readable():
        predicted_numbers: list[int] = []
        with opened_video(content) as container:
            times_of_packets = packet_times(container)
        if times_of_packets:
            predicted_numbers, _ = sampled_numbers(times_of_packets, choice)
        decoded = _decoded(content, predicted_numbers)
        numbers, interval = sampled_numbers(decoded.times, choice)
        if not decoded.image_by_number.keys() >= set(numbers):
            decoded = _decoded(content, numbers)
    return SampledVideo(
        frames=tuple(decoded.image_by_number[number] for number in numbers),
        times=tuple(decoded.times[number] for number in numbers),
        interval=interval,
    )


class _Decoded(NamedTuple):
    """The times of all frames of a video, and some of its frames."""

    times: list[float]
    """Seconds from the first frame."""
    image_by_number: dict[int, Image]
    """Upright RGB images by the number of the frame."""


def _decoded(content: bytes | Path, numbers: Sequence[int]) -> _Decoded:
    """Decode a video, and return the times of all frames and the images of some of them.

    A number that the video does not have is missing in the result.

    Raises: VideoError if the video has no frames, or frames without an ascending time.
    """
    wanted_numbers = set(numbers)
    times: list[float] = []
    image_by_number: dict[int, Image] = {}
    for number, frame in enumerate(decoded_frames(content)):
        is_ascending = frame.time is not None and (not times or frame.time >= times[-1])
        if not is_ascending:
            raise VideoError("it does not say for each frame when it is shown. Encode it again")
        times.append(frame.time)
        if number in wanted_numbers:
            image_by_number[number] = upright_image(frame)
    if not times:
        raise VideoError("it holds no frame that can be decoded")
    return _Decoded([time - times[0] for time in times], image_by_number)


def sampled_numbers(times: Sequence[float], choice: FrameChoice) -> tuple[list[int], float]:
    """Return the numbers of the frames that are sampled, and the seconds between them.

    Args:
        times: Seconds from the first frame, for each frame of the video, ascending.
        choice: The choice of frames.

    Example: a video of 10 frames a second is sampled at 2 frames a second. The numbers are 0, 5, 10
    and so on, and there are 0.5 seconds between the frames.
    """
    duration = times[-1] + TIME_TOLERANCE
    num_by_rate = int(duration * choice.frames_per_second) + 1
    if choice.num_frames is None and num_by_rate <= choice.max_frames:
        # The frame that a player shows at a time is the last one that begins by then.
        interval = 1 / choice.frames_per_second
        wanted_times = [index * interval + TIME_TOLERANCE for index in range(num_by_rate)]
        return [bisect_right(times, time) - 1 for time in wanted_times], interval
    num_frames = min(choice.num_frames or choice.max_frames, len(times))
    numbers = evenly_spaced(len(times), num_frames)
    num_intervals = max(1, num_frames - 1)
    return numbers, (times[numbers[-1]] - times[numbers[0]]) / num_intervals


def evenly_spaced(num_all: int, count: int) -> list[int]:
    """Return `count` of the numbers below `num_all`, evenly spaced from the first to the last.

    They are those of `numpy.linspace(0, num_all - 1, count, dtype=int)`.
    """
    if count == 1:
        return [0]
    step = (num_all - 1) / (count - 1)
    numbers = [int(index * step) for index in range(count)]
    numbers[-1] = num_all - 1
    return numbers


def frame_size(
    height: int, width: int, num_frames: int, choice: FrameChoice, max_pixels: int
) -> tuple[int, int]:
    """Return the height and width of the frames of a video that are shown as images.

    All sampled frames together have at most `choice.max_pixels` pixels. Smaller frames keep their
    size.

    Args:
        height: Height of a frame in pixels.
        width: Width of a frame in pixels.
        num_frames: Number of frames that are sampled.
        choice: The choice of frames.
        max_pixels: The most pixels of an image (`backbone.max_pixels` of a recipe).
    """
    most_pixels = min(max_pixels, choice.max_pixels // num_frames)
    factor = min(1.0, sqrt(most_pixels / (height * width)))
    return max(1, int(height * factor)), max(1, int(width * factor))


def frame_times(content: bytes | Path) -> list[float]:
    """Return the time of each frame of a video, in seconds from the first frame.

    The frames are decoded: their number and times in the file may be wrong or missing.

    Raises: VideoError if the video has no frames, or frames without an ascending time.
    """
    return _decoded(content, ()).times


def packet_times(container: Any) -> list[float]:
    """Return the time of each packet of pictures, in seconds from the first one, ascending.

    Nothing is decoded. In a sound file each packet is one frame. The packets of a damaged file may
    differ from the frames that can be decoded.

    Args:
        container: The opened video (`av.container.InputContainer`).
    """
    times: list[float] = []
    for packet in container.demux(container.streams.video[0]):
        if packet.pts is not None and packet.size > 0:
            times.append(float(packet.pts * packet.time_base))
    times.sort()
    return [time - times[0] for time in times]


def import_pyav() -> Any:
    """Import and return the package PyAV; raise NoDecoderError if it is not installed."""
    try:
        import av
    except ImportError as error:
        raise NoDecoderError(
            "PyAV, which reads videos, is not installed. Install it: pip install av"
        ) from error
    return av


def decoded_frames(content: bytes | Path) -> Iterator[Any]:
    """Yield all frames of a video (`av.VideoFrame`) in the order in which a player shows them.

    Args:
        content: The bytes of a video file, or its path.

    Raises:
        VideoError: The file has no pictures, or the path is not that of a regular file.
        NoDecoderError: PyAV is not installed.
    """
    with opened_video(content) as container:
        container.streams.video[0].thread_type = "AUTO"  # decode with several threads
        yield from container.decode(video=0)


@contextmanager
def opened_video(content: bytes | Path) -> Iterator[Any]:
    """Open a video for the block, as an `av.container.InputContainer` with a stream of pictures.

    The arguments and errors are those of `decoded_frames`.
    """
    av = import_pyav()
    if isinstance(content, Path) and not content.is_file():
        # Reading a FIFO or a device may never end.
        raise VideoError(f"{content} is no regular file")
    source = io.BytesIO(content) if isinstance(content, bytes) else str(content)
    # Videos are not trusted: a file may name other files, which are then not opened.
    options = {"format_whitelist": ",".join(CONTAINERS), "protocol_whitelist": "file"}
    with av.open(source, options=options) as container:
        if not container.streams.video:
            raise VideoError("it holds no pictures, only sound or text")
        yield container


@contextmanager
def readable() -> Iterator[None]:
    """Raise errors of the block about a file that cannot be read as a VideoError.

    Raises: NoDecoderError if PyAV is not installed.
    """
    av = import_pyav()
    try:
        yield
    except (OSError, av.error.FFmpegError) as error:
        raise VideoError(str(error)) from error


def upright_image(frame: Any) -> Image:
    """Return a frame of a video (`av.VideoFrame`) as an upright RGB image."""
    # PyAV's rotation and Pillow's are both counterclockwise.
    image: Image = frame.to_image().rotate(frame.rotation, expand=True)
    return image
