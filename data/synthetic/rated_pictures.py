"""Generated records whose responses are pictures, rated on their content and on their quality.

Four scenes belong to a record. They differ in two facts, such as the colour of a thing and the
place of another. Each fact has two values, and the four scenes are all combinations of them. One of
the scenes is the target, which the prompt asks for, and each response shows one of them. The target
and the scene of each response are drawn independently, each of the four with equal probability. So
the pictures of a record contain nothing about which of them is right: a wrong picture is a right
one for another prompt.

Every response has two numbers. `content` is minus the number of facts in which it differs from the
target, from 0 to -2. `quality` is minus the severity of the fault of its quality, from 0 for no
fault to -2. The two are independent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from mmrm.data.preference import Message, Preference, Response, dense_ranks, text
from mmrm.data.storage.files import digest
from mmrm.data.synthetic.rng import Rng, stable_hash
from mmrm.data.synthetic.scenes import LEVELS, Scene, draw, png

PICTURES_REVISION = "7c1e0a93b5d24f68"
"""The revision of the generated pictures. A run resumes only with data of the same revision.

Change it whenever a record changes by a character, a number or a pixel, and never otherwise:
`test_the_pictures_belong_to_their_revision` compares it with a digest of the data.
"""

MAX_RESPONSES = 4
"""Largest number of pictures in a record."""
CONTENT = "content"
QUALITY = "quality"
ATTRIBUTES = (CONTENT, QUALITY)
"""The attributes of every response."""

Corner = tuple[bool, bool]
"""One of the four scenes of a record: for each of the two facts, True for its second value."""
CORNERS: tuple[Corner, ...] = ((False, False), (False, True), (True, False), (True, True))

QualityFault = Literal["noise", "blur", "cut"]
QUALITY_FAULTS: tuple[QualityFault, ...] = ("noise", "blur", "cut")
"""Faults of quality. They leave the content recognisable."""
MAX_SEVERITY = 2
NOISE_AMPLITUDES = (60, 120)
"""Largest change of a colour channel (0 to 255) by noise, for severity 1 and 2."""
BLUR_RADII = (1.0, 2.0)
"""Standard deviation of the Gaussian blur in pixels, for severity 1 and 2."""
CUT_WIDTHS = (5, 10)
"""Width in pixels of the strip that is cut off at one side, for severity 1 and 2."""


class PictureQuality(NamedTuple):
    """The quality of a picture: no fault, or one fault of a severity."""

    severity: int
    """From 0, which is no fault, to MAX_SEVERITY."""
    fault: QualityFault
    """The kind of the fault. It has no effect if the severity is 0."""
    seed: int
    """Determines the noise, or the side that is cut."""

    def spoil(self, image: Image.Image) -> Image.Image:
        """Return an RGB image of the same size with the fault."""
        if self.severity == 0:
            return image
        index = self.severity - 1
        if self.fault == "noise":
            return _with_noise(image, NOISE_AMPLITUDES[index], self.seed)
        if self.fault == "blur":
            return image.filter(ImageFilter.GaussianBlur(BLUR_RADII[index]))
        return _with_cut_side(image, CUT_WIDTHS[index], side=self.seed % 4)


def _with_noise(image: Image.Image, amplitude: int, seed: int) -> Image.Image:
    """Return an image with uniform noise from -amplitude to amplitude in every channel."""
    pixels = np.asarray(image, dtype=np.float64)
    noise = (2 * np.random.default_rng(seed).random(pixels.shape) - 1) * amplitude
    return Image.fromarray(np.clip(pixels + noise, 0, 255).astype(np.uint8))


def _with_cut_side(image: Image.Image, width: int, side: int) -> Image.Image:
    """Return an image whose left, right, upper or lower strip (side 0 to 3) is black."""
    right = image.width - 1
    bottom = image.height - 1
    strips = (
        (0, 0, width - 1, bottom),
        (right - width + 1, 0, right, bottom),
        (0, 0, right, width - 1),
        (0, bottom - width + 1, right, bottom),
    )
    cut = image.copy()
    ImageDraw.Draw(cut).rectangle(strips[side], fill=(0, 0, 0))
    return cut


class PictureTask(NamedTuple):
    """A prompt, and the four scenes that its responses may show."""

    category: str
    prompt: str
    scenes: Mapping[Corner, Scene]
    target: Corner
    """The scene that the prompt asks for."""
    faults: Mapping[Corner, tuple[str, ...]]
    """The names of the faults of a picture of each scene, one for each fact that differs from the
    target."""
    before: Scene | None = None
    """The scene of the picture that is to be edited; None if the prompt is a text alone."""


class Picture(NamedTuple):
    """A response with everything that is known about it."""

    corner: Corner
    """The scene of the task that it shows."""
    content_faults: tuple[str, ...]
    quality: PictureQuality
    image: bytes
    """The picture as a PNG file."""

    @property
    def ratings(self) -> tuple[int, int]:
        """The numbers of the response, in the order of ATTRIBUTES."""
        return -len(self.content_faults), -self.quality.severity

    @property
    def overall(self) -> int:
        """The number that ranks responses: 3 * content + quality.

        The content decides, and the quality decides between responses of equal content.
        """
        content, quality = self.ratings
        return content * (MAX_SEVERITY + 1) + quality


@dataclass(frozen=True, slots=True)
class PictureItem:
    """A task with its responses, in the order in which they were drawn."""

    source: str
    """The name of the data set and level, such as "shapes-drawn-demo"."""
    identity: str
    task: PictureTask
    pictures: tuple[Picture, ...]

    def preference(self) -> Preference:
        """Return the prompt with its responses, which are ranked by `Picture.overall`."""
        best_first = sorted(self.pictures, key=lambda picture: -picture.overall)
        attributes: dict[str, tuple[float, ...]] = {}
        for index, name in enumerate(ATTRIBUTES):
            attributes[name] = tuple(float(picture.ratings[index]) for picture in best_first)
        prompt: Message = text("user", self.task.prompt)
        prompt_images: tuple[bytes, ...] = ()
        if self.task.before is not None:
            # The picture follows the instruction, so that it is as far from a response in every
            # record. That this helps a small model to compare them is not measured.
            prompt["content"].append({"type": "image"})
            prompt_images = (png(draw(self.task.before)),)
        return Preference(
            identity=self.identity,
            prompt=(prompt,),
            responses=tuple(Response((picture.image,)) for picture in best_first),
            images=prompt_images,
            source=self.source,
            category=self.task.category,
            ranks=tuple(dense_ranks([-picture.overall for picture in best_first])),
            attributes=attributes,
        )


class PictureGenerator:
    """A generator of records with pictures as responses, each made from its index when requested.

    A subclass draws the tasks.
    """

    name: str
    """The name of the data set, such as "shapes-drawn"."""

    def __init__(self, level: str, seed: int, split: str, num_responses: int, ties: bool) -> None:
        """Store the settings of the data set.

        Args:
            level: The level of difficulty, a key of LEVELS such as "demo".
            seed: Seed of everything that is drawn.
            split: A key of SPLITS such as "train". Splits share no scene.
            num_responses: Number of responses to each prompt, from 2 to MAX_RESPONSES.
            ties: False draws the responses again until no two are tied overall. It does not help to
                guess the target: for the opposite target, which differs in both facts, the same
                responses are tied, and every comparison of contents is reversed.
        """
        self.level = LEVELS[level]
        self.split = split
        self.source = f"{self.name}-{level}"
        self._key = (seed, stable_hash(level), stable_hash(split), stable_hash(self.name))
        self._num_responses = num_responses
        self._ties = ties

    def item(self, index: int) -> PictureItem:
        """Return the prompt number `index` with its responses."""
        rng = Rng(*self._key, index)
        task = self.task(rng)
        while True:
            pictures = self._pictures(rng, task)
            if self._ties or len({picture.overall for picture in pictures}) == len(pictures):
                break
        identity = f"{self.source}-{self.split}:{index}"
        return PictureItem(self.source, identity, task, pictures)

    def task(self, rng: Rng) -> PictureTask:
        """Return a random task whose scenes all belong to this split."""
        raise NotImplementedError

    def fingerprint(self) -> str:
        """Return 16 hexadecimal digits that change when the generated data change.

        They depend on the revision of the data and on all settings except the seed and the split.
        """
        settings = repr((self.name, self.level, self._num_responses, self._ties))
        return digest(f"{settings} {PICTURES_REVISION}")

    def _pictures(self, rng: Rng, task: PictureTask) -> tuple[Picture, ...]:
        """Return the responses to a task. No two have the same pixels."""
        pictures: list[Picture] = []
        images: set[bytes] = set()
        while len(pictures) < self._num_responses:
            corner = rng.choice(CORNERS)
            # Only the look and the quality are drawn again for a picture that there is already:
            # the scenes of the responses stay independent of each other and of the target.
            while True:
                quality = PictureQuality(
                    rng.below(MAX_SEVERITY + 1), rng.choice(QUALITY_FAULTS), rng.below(1 << 30)
                )
                scene = task.scenes[corner]
                if task.before is None:
                    # Drawings are made independently. Edits keep the look of the picture before.
                    scene = scene._replace(look=rng.below(1 << 30))
                image = png(quality.spoil(draw(scene)))
                if image not in images:
                    break
            images.add(image)
            pictures.append(Picture(corner, task.faults[corner], quality, image))
        return tuple(pictures)
