"""Videos that are not decoded yet, and the frames that are sampled from them.

A video stays encoded until a worker needs its pixels, like an image. The recipe says how frames are
sampled (`VideoConfig`), so a record does not. PyAV is the only decoder. It is installed with
`pip install -e .[video]`, and is imported when the first video is read.
"""

from __future__ import annotations

import base64
import io
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image as PillowImage
from pydantic import Field

from mmrm.data.config.section import Section
from mmrm.data.errors import ImageError, SpecialFileError, UserError
from mmrm.data.regular_files import read_bytes, require_regular
from mmrm.data.video import BYTES_TO_RECOGNISE_VIDEO, is_video, media_type

if TYPE_CHECKING:
    from PIL.Image import Image

FRAMES_OF_PATCH = 2
"""Frames of a temporal patch, which becomes the tokens of one image, in all backbones with video
tokens."""
TICKS_PER_SECOND = 90_000
"""Times in a video that is written here are multiples of this part of a second."""
TIME_TOLERANCE = 1e-6
"""Seconds by which a frame may be shown after the time for which it is sampled. Times of frames are
fractions that floats do not hold exactly."""


class VideoConfig(Section):
    """The choice of frames of a video, the size to which they are scaled, and their form."""

    form: Literal["video", "frames"] = "video"
    """`video` gives the backbone the tokens of a video, two frames in each. `frames` shows every
    sampled frame as an image; every family of backbones takes these."""
    frames_per_second: float = Field(default=2.0, gt=0, le=1000)
    """Frames that are sampled for each second. Not used if `num_frames` is given."""
    num_frames: int | None = Field(default=None, ge=1, le=65_535)
    """Number of frames, evenly spaced from the first to the last. null samples by the rate."""
    max_frames: int = Field(default=64, ge=1, le=65_535)
    """The largest number of frames that are sampled by the rate. If a video has more, this number
    is sampled, evenly spaced."""
    max_pixels: int = Field(default=2_408_448, ge=784, le=10**10)
    """The largest number of pixels of a video. With `form: video`, two frames that become the same
    tokens are counted once. No frame has more pixels than `backbone.max_pixels`."""


@dataclass(frozen=True, slots=True)
class Video:
    """A video file that is not decoded yet.

    Two of them are equal if their contents, or their paths, are equal.
    """

    content: bytes | Path
    """The bytes of the file, or its path."""


class VideoSize(NamedTuple):
    """The numbers of a video from which its tokens are counted."""

    height: int
    width: int
    num_frames: int
    seconds: float
    """Seconds from the first frame to the last."""


@dataclass(frozen=True, slots=True)
class SampledVideo:
    """Frames of a video, upright and in RGB, with their times."""

    frames: tuple[Image, ...]
    times: tuple[float, ...]
    """Seconds from the first frame of the video, for each frame."""
    interval: float
    """Seconds between sampled frames, which is the mean if they are not evenly spaced."""


def sample_frames(video: Video, config: VideoConfig, record: str) -> SampledVideo:
    """Decode a video, and return the frames that the recipe chooses.

    The video is decoded twice, so that only the chosen frames are in memory.

    Args:
        video: The video.
        config: The choice of frames.
        record: Identity of the record, for messages.

    Raises:
        ImageError: The video cannot be read, has no pictures, or does not say when they are shown.
        UserError: PyAV is not installed.
    """
    with _readable(video, record):
        times = _frame_times(video.content)
        numbers, interval = sampled_numbers(times, config)
        image_by_number: dict[int, Image] = {}
        for number, frame in enumerate(decoded_frames(video.content)):
            if number in numbers:
                image_by_number[number] = upright_image(frame)
    return SampledVideo(
        frames=tuple(image_by_number[number] for number in numbers),
        times=tuple(times[number] for number in numbers),
        interval=interval,
    )


def video_size(video: Video, record: str) -> VideoSize:
    """Return the size, the number of frames and the length of a video, without decoding it.

    The frames are counted by the packets of the file, so the numbers of a damaged file may differ
    from those that `sample_frames` finds.

    Args:
        video: The video.
        record: Identity of the record, for messages.

    Raises:
        ImageError: The video cannot be read, or has no pictures.
        UserError: PyAV is not installed.
    """
    with _readable(video, record), _opened(video.content) as container:
        [stream, *_] = container.streams.video
        times: list[float] = []
        for packet in container.demux(stream):
            if packet.pts is not None and packet.size > 0:
                times.append(float(packet.pts * packet.time_base))
        if not times:
            raise UserError("it holds no frame")
        return VideoSize(stream.height, stream.width, len(times), max(times) - min(times))


def grey_video_like(video: Video, record: str) -> Video:
    """Return a video of grey frames of the same size, shown at the same times as those of `video`.

    The errors are those of `sample_frames`.

    Args:
        video: The video.
        record: Identity of the record, for messages.
    """
    with _readable(video, record):
        times = _frame_times(video.content)
        first_frame = upright_image(next(decoded_frames(video.content)))
    grey = PillowImage.new("RGB", first_frame.size, (128, 128, 128))
    return Video(video_of([grey] * len(times), times))


def video_uri(video: Video, record: str) -> str:
    """Return a video as a data URI, `data:video/mp4;base64,…`, for a request to a model.

    Args:
        video: The video.
        record: Identity of the record, for messages.

    Raises: ImageError if the file cannot be read, or is no video by its first bytes.
    """
    with _readable(video, record):
        content = video.content if isinstance(video.content, bytes) else read_bytes(video.content)
    if not is_video(content[:BYTES_TO_RECOGNISE_VIDEO]):
        raise ImageError(
            f"{record}: the video is in no known container. Required is a file such as MP4 or WebM."
        )
    return f"data:{media_type(content)};base64,{base64.b64encode(content).decode()}"


def video_of(frames: Sequence[Image], times: Sequence[float]) -> bytes:
    """Return a QuickTime file of RGB frames, which are stored without loss as PNG.

    Args:
        frames: The frames, all of one size.
        times: Seconds from the first frame at which each frame is shown, ascending.

    Raises: UserError if PyAV is not installed.
    """
    av = import_pyav()
    width, height = frames[0].size
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mov") as container:
        stream = container.add_stream("png", rate=TICKS_PER_SECOND)
        stream.width = width
        stream.height = height
        stream.pix_fmt = "rgb24"
        stream.time_base = Fraction(1, TICKS_PER_SECOND)
        for frame, time in zip(frames, times, strict=True):
            picture = av.VideoFrame.from_image(frame)
            picture.time_base = Fraction(1, TICKS_PER_SECOND)
            picture.pts = round(time * TICKS_PER_SECOND)
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
    return buffer.getvalue()


def frames_as_images(
    video: Video, config: VideoConfig, max_pixels: int, record: str
) -> list[bytes]:
    """Return the frames that the recipe chooses of a video as image files.

    Larger frames are made smaller: together they have at most `config.max_pixels` pixels. The
    errors are those of `sample_frames`.

    Args:
        video: The video.
        config: The choice of frames.
        max_pixels: The most pixels of an image (`backbone.max_pixels` of a recipe).
        record: Identity of the record, for messages.
    """
    frames = sample_frames(video, config, record).frames
    width, height = frames[0].size
    new_height, new_width = frame_size(height, width, len(frames), config, max_pixels)
    files: list[bytes] = []
    for frame in frames:
        buffer = io.BytesIO()
        scaled = frame.resize((new_width, new_height), PillowImage.Resampling.BICUBIC)
        scaled.save(buffer, "BMP")  # without compression, because the file is read at once
        files.append(buffer.getvalue())
    return files


def frame_size(
    height: int, width: int, num_frames: int, config: VideoConfig, max_pixels: int
) -> tuple[int, int]:
    """Return the height and width of the frames of a video that are shown as images.

    All sampled frames together have at most `config.max_pixels` pixels. Smaller frames keep their
    size.

    Args:
        height: Height of a frame in pixels.
        width: Width of a frame in pixels.
        num_frames: Number of frames that are sampled.
        config: The choice of frames.
        max_pixels: The most pixels of an image (`backbone.max_pixels` of a recipe).
    """
    most_pixels = min(max_pixels, config.max_pixels // num_frames)
    factor = min(1.0, sqrt(most_pixels / (height * width)))
    return max(1, int(height * factor)), max(1, int(width * factor))


def num_sampled_frames(
    num_frames: npt.NDArray[np.number], seconds: npt.NDArray[np.number], config: VideoConfig
) -> npt.NDArray[np.int64]:
    """Return how many frames `sampled_numbers` chooses of each of some videos, (videos,).

    Args:
        num_frames: The number of frames of each video, (videos,).
        seconds: Seconds from the first frame to the last of each video, (videos,).
        config: The choice of frames.
    """
    most_frames = config.num_frames or config.max_frames
    evenly_spaced = np.minimum(np.asarray(num_frames, np.int64), most_frames)
    if config.num_frames is not None:
        return evenly_spaced
    durations = np.asarray(seconds, np.float64) + TIME_TOLERANCE
    num_by_rate = np.floor(durations * config.frames_per_second).astype(np.int64) + 1
    is_by_rate = num_by_rate <= config.max_frames
    return np.where(is_by_rate, num_by_rate, evenly_spaced)


def sampled_numbers(times: Sequence[float], config: VideoConfig) -> tuple[list[int], float]:
    """Return the numbers of the frames that are sampled, and the seconds between them.

    Args:
        times: Seconds from the first frame, for each frame of the video, ascending.
        config: The choice of frames.

    Example: a video of 10 frames a second is sampled at 2 frames a second. The numbers are 0, 5, 10
    and so on, and there are 0.5 seconds between the frames.
    """
    duration = times[-1] + TIME_TOLERANCE
    num_by_rate = int(duration * config.frames_per_second) + 1
    if config.num_frames is None and num_by_rate <= config.max_frames:
        # The frame that a player shows at a time is the last one that begins by then.
        interval = 1 / config.frames_per_second
        wanted_times = [index * interval + TIME_TOLERANCE for index in range(num_by_rate)]
        return [bisect_right(times, time) - 1 for time in wanted_times], interval
    num_frames = min(config.num_frames or config.max_frames, len(times))
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
    with _opened(content) as container:
        container.streams.video[0].thread_type = "AUTO"  # decode with several threads
        yield from container.decode(video=0)


@contextmanager
def _opened(content: bytes | Path) -> Iterator[Any]:
    """Open a video for the block, as an `av.container.InputContainer` with a stream of pictures.

    The arguments and errors are those of `decoded_frames`.
    """
    import av

    if isinstance(content, Path):
        require_regular(content)
    source = io.BytesIO(content) if isinstance(content, bytes) else str(content)
    with av.open(source) as container:
        if not container.streams.video:
            raise UserError("it holds no pictures, only sound or text")
        yield container


@contextmanager
def _readable(video: Video, record: str) -> Iterator[None]:
    """Raise errors of the block about a video that cannot be read as an ImageError.

    Args:
        video: The video that the block reads.
        record: Identity of the record, for messages.

    Raises:
        ImageError: The block raised an error about the file.
        UserError: PyAV is not installed.
    """
    av = import_pyav()
    try:
        yield
    except (UserError, SpecialFileError, OSError, av.error.FFmpegError) as error:
        name = str(video.content) if isinstance(video.content, Path) else "given as bytes"
        raise ImageError(f"{record}: the video ({name}) cannot be read: {error}") from error


def upright_image(frame: Any) -> Image:
    """Return a frame of a video (`av.VideoFrame`) as an upright RGB image."""
    # PyAV's rotation and Pillow's are both counterclockwise.
    image: Image = frame.to_image().rotate(frame.rotation, expand=True)
    return image
