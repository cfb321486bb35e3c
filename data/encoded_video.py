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
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image as PillowImage
from pydantic import Field

from mmrm.data import frame_sampling
from mmrm.data.config.section import Section
from mmrm.data.errors import ImageError, SpecialFileError, UserError
from mmrm.data.frame_sampling import (
    TIME_TOLERANCE,
    NoDecoderError,
    SampledVideo,
    VideoError,
    decoded_frames,
    frame_size,
    frame_times,
    opened_video,
    packet_times,
    readable,
    sampled_frames,
    sampled_numbers,
    upright_image,
)
from mmrm.data.regular_files import read_bytes
from mmrm.data.video import BYTES_TO_RECOGNISE_VIDEO, is_video, media_type

if TYPE_CHECKING:
    from PIL.Image import Image

TICKS_PER_SECOND = 90_000
"""Times in a video that is written here are multiples of this part of a second."""


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

    @property
    def most_frames(self) -> int:
        """The largest number of frames that are sampled of a video."""
        return self.num_frames or self.max_frames

    @property
    def in_words(self) -> str:
        """The choice of frames, such as "2 frames a second, at most 64"."""
        if self.num_frames is not None:
            return f"{self.num_frames:,} evenly spaced frames"
        return f"{self.frames_per_second:g} frames a second, at most {self.max_frames:,}"


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


def sample_frames(video: Video, config: VideoConfig, record: str) -> SampledVideo:
    """Decode a video, and return the frames that the recipe chooses.

    Args:
        video: The video.
        config: The choice of frames.
        record: Identity of the record, for messages.

    Raises:
        ImageError: The video cannot be read, has no pictures, or does not say when they are shown.
        UserError: PyAV is not installed.
    """
    with _readable(video, record):
        return sampled_frames(video.content, config)


def spread_frames(video: Video, num_frames: int, record: str) -> SampledVideo:
    """Return evenly spaced frames of a video for people, in a fraction of a whole decoding.

    The times of frames are read from the packets of the file, and decoding starts at the key frame
    before each frame. So the frames may differ from those of `sample_frames` if the file is damaged
    or, as an MPEG transport stream, has no index. Their times are always their own.

    Args:
        video: The video.
        num_frames: The largest number of frames.
        record: Identity of the record, for messages.

    Raises:
        ImageError: The video cannot be read, or has no pictures.
        UserError: PyAV is not installed.
    """
    with _readable(video, record), opened_video(video.content) as container:
        [stream, *_] = container.streams.video
        stream.thread_type = "AUTO"  # decode with several threads
        is_key_by_tick: dict[int, bool] = {}
        for packet in container.demux(stream):
            if packet.pts is not None and packet.size > 0:
                is_key_by_tick[packet.pts] = packet.is_keyframe
        if not is_key_by_tick:
            raise UserError("it holds no frame")
        ticks = sorted(is_key_by_tick)
        key_ticks = [tick for tick in ticks if is_key_by_tick[tick]]
        seconds_per_tick = float(stream.time_base)
        times = [(tick - ticks[0]) * seconds_per_tick for tick in ticks]
        numbers, interval = sampled_numbers(times, VideoConfig(num_frames=num_frames))
        wanted_ticks = [ticks[number] for number in numbers]
        image_by_tick = _images_at(container, wanted_ticks, key_ticks)
        if not image_by_tick:
            raise UserError("it holds no frame that can be decoded")
    return SampledVideo(
        frames=tuple(image_by_tick.values()),
        times=tuple((tick - ticks[0]) * seconds_per_tick for tick in image_by_tick),
        interval=interval,
    )


def _images_at(
    container: Any, wanted_ticks: Sequence[int], key_ticks: Sequence[int]
) -> dict[int, Image]:
    """Return the first frame at or after each wanted time, by its own time.

    Times are in the unit of the stream (`time_base`). A frame that cannot be found is missing.

    Args:
        container: The opened video (`av.container.InputContainer`).
        wanted_ticks: The wanted times, ascending.
        key_ticks: The times of the frames at which decoding can start, ascending.
    """
    [stream, *_] = container.streams.video
    image_by_tick: dict[int, Image] = {}
    frames: Iterator[Any] = iter(())
    last_tick: int | None = None
    for wanted_tick in wanted_ticks:
        num_keys = bisect_right(key_ticks, wanted_tick)
        nearest_key = key_ticks[num_keys - 1] if num_keys else wanted_tick
        if last_tick is None or nearest_key > last_tick:
            container.seek(wanted_tick, stream=stream)
            frames = container.decode(stream)
        for frame in frames:
            if frame.pts is not None and frame.pts >= wanted_tick:
                last_tick = frame.pts
                image_by_tick[frame.pts] = upright_image(frame)
                break
    return image_by_tick


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
    with _readable(video, record), opened_video(video.content) as container:
        [stream, *_] = container.streams.video
        times = packet_times(container)
        if not times:
            raise UserError("it holds no frame")
        return VideoSize(stream.height, stream.width, len(times), times[-1])


def grey_video_like(video: Video, record: str) -> Video:
    """Return a video of grey frames of the same size, shown at the same times as those of `video`.

    The errors are those of `sample_frames`.

    Args:
        video: The video.
        record: Identity of the record, for messages.
    """
    with _readable(video, record):
        times = frame_times(video.content)
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


def num_sampled_frames(
    num_frames: npt.NDArray[np.number], seconds: npt.NDArray[np.number], config: VideoConfig
) -> npt.NDArray[np.int64]:
    """Return how many frames `sampled_numbers` chooses of each of some videos, (videos,).

    Args:
        num_frames: The number of frames of each video, (videos,).
        seconds: Seconds from the first frame to the last of each video, (videos,).
        config: The choice of frames.
    """
    evenly_spaced = np.minimum(np.asarray(num_frames, np.int64), config.most_frames)
    if config.num_frames is not None:
        return evenly_spaced
    durations = np.asarray(seconds, np.float64) + TIME_TOLERANCE
    num_by_rate = np.floor(durations * config.frames_per_second).astype(np.int64) + 1
    is_by_rate = num_by_rate <= config.max_frames
    return np.where(is_by_rate, num_by_rate, evenly_spaced)


def import_pyav() -> Any:
    """Import and return the package PyAV; raise UserError if it is not installed."""
    try:
        return frame_sampling.import_pyav()
    except NoDecoderError as error:
        raise UserError(
            "PyAV, which reads videos, is not installed. Install it: pip install -e .[video]"
        ) from error


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
    import_pyav()
    try:
        with readable():
            yield
    except (UserError, SpecialFileError, VideoError) as error:
        name = str(video.content) if isinstance(video.content, Path) else "given as bytes"
        raise ImageError(f"{record}: the video ({name}) cannot be read: {error}") from error
