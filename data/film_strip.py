"""Film strips: a picture of a few frames of a video, side by side with their times, for pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PIL import Image as PillowImage
from PIL import ImageDraw, ImageFont

from mmrm.data.display.html import data_uri_of
from mmrm.data.encoded_video import Video, spread_frames

if TYPE_CHECKING:
    from PIL.Image import Image

FRAMES = 8
"""The largest number of frames of a strip."""
FRAME_SIZE = (160, 120)
"""The largest width and height of a frame in pixels."""
FEWEST_COLUMNS = 48
"""Width in pixels of a narrow frame with its margins, so that its time is readable."""
GAP = 4
"""Pixels around each frame."""
LINE_HEIGHT = 20
"""Height in pixels of the line of times."""
LETTER_HEIGHT = 14
BACKGROUND = (24, 24, 24)
LETTERS = (235, 235, 235)


def film_strip(video: Video, record: str) -> str:
    """Return a strip of up to FRAMES evenly spaced frames of a video as a data URI in WebP.

    Args:
        video: The video.
        record: Identity of the record, for messages.

    Raises:
        ImageError: The video cannot be read.
        UserError: PyAV is not installed.
    """
    sampled = spread_frames(video, FRAMES, record)
    return data_uri_of(drawn_strip(sampled.frames, sampled.times), lossless=False)


def drawn_strip(frames: tuple[Image, ...], times: tuple[float, ...]) -> Image:
    """Return frames side by side, smaller if they are larger than FRAME_SIZE, above their times.

    Args:
        frames: The frames, at least one.
        times: Seconds from the beginning of the video, for each frame.
    """
    small_frames = []
    for frame in frames:
        small_frame = frame.copy()
        small_frame.thumbnail(FRAME_SIZE, PillowImage.Resampling.LANCZOS)
        small_frames.append(small_frame)
    column_width = max(FEWEST_COLUMNS, *(frame.width for frame in small_frames)) + GAP
    row_height = max(frame.height for frame in small_frames)
    size = (GAP + len(frames) * column_width, 2 * GAP + row_height + LINE_HEIGHT)
    strip = PillowImage.new("RGB", size, BACKGROUND)
    pen = ImageDraw.Draw(strip)
    font = ImageFont.load_default(LETTER_HEIGHT)
    for index, (frame, time) in enumerate(zip(small_frames, times, strict=True)):
        left = GAP + index * column_width
        free_width = column_width - GAP - frame.width
        free_height = row_height - frame.height
        strip.paste(frame, (left + free_width // 2, GAP + free_height // 2))
        pen.text((left + 1, 2 * GAP + row_height), time_label(time), fill=LETTERS, font=font)
    return strip


def time_label(seconds: float) -> str:
    """Return a time in a video as text, such as "3.5 s" or, from a minute on, "12:05"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02}"
