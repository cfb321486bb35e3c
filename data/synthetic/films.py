"""Films of the generated data set: coloured shapes that move, grow, change colour or take turns.

A film is drawn frame by frame, and is encoded without loss as a small video file. It can be played
in other ways, which show what a model learns from the order of the frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

from PIL import Image

from mmrm.data.encoded_video import video_of
from mmrm.data.synthetic.rng import Rng, stable_hash
from mmrm.data.synthetic.scenes import CELL, Level, background, shape_mask

FRAMES_PER_SECOND = 2
"""The rate of the video files. By default, the encoder samples as many frames of each second."""
GREY = (128, 128, 128)

Played = Literal["forwards", "reversed", "shuffled", "first", "grey"]
"""The way in which a film becomes a video. All have as many frames as the film.

`forwards` plays the film. `reversed` plays it from its end, `shuffled` in a random order. `first`
repeats the first frame, and `grey` shows grey pictures.
"""
WAYS_TO_PLAY: tuple[Played, ...] = get_args(Played)


class Sprite(NamedTuple):
    """A coloured shape at one moment of a film."""

    shape: str
    colour: str
    radius: float
    """Size in pixels, from the centre."""
    x: int
    """Column of the centre in pixels. A shape that leaves the picture at one side comes back at the
    opposite side."""
    y: int
    """Row of the centre in pixels, downwards. The same holds for it."""


Frame = tuple[Sprite, ...]
"""The shapes that are seen at one moment. A later one is in front of an earlier one."""


class Film(NamedTuple):
    """The frames of a film, and everything else that decides its pixels."""

    frames: tuple[Frame, ...]
    level: Level
    grid: int
    """The picture is as large as a scene with so many cells along one side."""
    tone: int
    """Determines the background; no question depends on it."""
    facts: str
    """What happens in the film, without its direction and without exact times and positions. Films
    are divided into splits by this text, so that a film and its reversal are in one split."""

    @property
    def side(self) -> int:
        """Width and height of the pictures in pixels."""
        return self.grid * CELL

    def reversed(self) -> Film:
        """Return the film with the same frames in the opposite order."""
        return self._replace(frames=self.frames[::-1])


def drawn_frames(film: Film) -> list[Image.Image]:
    """Return the RGB images of a film's frames."""
    return [_drawn_frame(film, frame) for frame in film.frames]


def _drawn_frame(film: Film, frame: Frame) -> Image.Image:
    """Return the RGB image of one frame of a film."""
    side = film.side
    image = background(side, film.tone).copy()
    for sprite in frame:
        mask = shape_mask(sprite.shape, sprite.radius)
        left = sprite.x % side - mask.width // 2
        top = sprite.y % side - mask.height // 2
        # A shape that is cut off at one side of the picture continues at the opposite side.
        for column in (left - side, left, left + side):
            for row in (top - side, top, top + side):
                image.paste(film.level.colours[sprite.colour], (column, row), mask)
    return image


def played_frames(images: Sequence[Image.Image], played: Played) -> list[Image.Image]:
    """Return the frames of a film as they are shown if it is played in the given way."""
    if played == "reversed":
        return list(images[::-1])
    if played == "shuffled":
        return _shuffled(images)
    if played == "first":
        return [images[0]] * len(images)
    if played == "grey":
        return [Image.new("RGB", images[0].size, GREY)] * len(images)
    return list(images)


def _shuffled(images: Sequence[Image.Image]) -> list[Image.Image]:
    """Return frames in a random order that depends on the frames and not on their order.

    So a film and its reversal become the same video, and the order tells nothing about a question
    that has different answers for the two.
    """
    sorted_images = sorted(images, key=lambda image: image.tobytes())
    contents = "".join(image.tobytes().hex() for image in sorted_images)
    return Rng(stable_hash(contents)).sample(sorted_images, len(sorted_images))


def encoded(images: Sequence[Image.Image]) -> bytes:
    """Return RGB images of one size as the frames of a video file, without loss.

    Equal images give equal bytes on one machine. Another version of FFmpeg may write other bytes
    for the same pixels.

    Raises:
        UserError: PyAV is not installed.
    """
    times = [number / FRAMES_PER_SECOND for number in range(len(images))]
    return video_of(images, times)
