"""Check the groups of a request, and read their images.

A group is a prompt with the responses to it. The images of the prompt and of the responses may be
data URIs, or files below the media root.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mmrm.data.errors import ImageError, RecordError, SpecialFileError
from mmrm.data.images import image_path, image_size
from mmrm.data.limits import written_sizes
from mmrm.data.preference import EncodedImage, Response
from mmrm.data.regular_files import open_regular
from mmrm.eval.candidates import Candidates
from mmrm.eval.judges.messages import candidates_of
from mmrm.eval.serving.api_models import WrittenGroup
from mmrm.eval.serving.request_limits import RequestLimits

MAX_NAMED = 5
"""Number of faults that a message names."""


@dataclass(frozen=True, slots=True)
class Intake:
    """Checks the groups of requests against the limits, and converts them to candidates.

    A group is a prompt with the responses to it. Any thread may call an intake.
    """

    limits: RequestLimits
    media_root: Path | None
    """The folder of images that are given as paths; None if paths are not allowed."""
    compares: bool
    """True if the judge compares every two responses. Fewer responses are then allowed."""

    def __call__(self, written: Any, identity: str) -> Candidates:
        """Check a group, and return it as candidates with the bytes of its images.

        Args:
            written: The group, a prompt with responses, as parsed JSON.
            identity: The name of the group in messages.

        Raises:
            RecordError: If the group is malformed, not allowed or too large.
        """
        try:
            group = WrittenGroup.model_validate(written)
        except ValidationError as error:
            raise RecordError(f"{identity}: {problems(error)}") from error
        self._refuse_too_many_responses(len(group.responses), identity)
        sizes = written_sizes(group.messages, group.responses, group.images)
        limits = self.limits.model_dump()
        for name, count in sizes.items():
            limit = limits[name]  # sizes have the names of their limits
            if count > limit:
                raise RecordError(
                    f"{identity}: {count:,} {name}; this server allows {limit:,} in a group. "
                    f"Shorten it, or start with `--max-{name} N`."
                )
        candidates = candidates_of(group.messages, group.responses, group.images, identity)
        return self._with_read_images(candidates)

    def _refuse_too_many_responses(self, num_responses: int, identity: str) -> None:
        """Raise RecordError if a group has too many responses for this kind of judge."""
        limit = self.limits.responses
        limit_name = "responses"
        description = "of a group"
        if self.compares:
            limit = self.limits.compared
            limit_name = "compared"
            description = "of a judge that compares every two of them"
        if num_responses > limit:
            raise RecordError(
                f"{identity}: {num_responses} responses; this server allows {limit} {description}. "
                f"Send fewer, or start with `--max-{limit_name} N`."
            )

    def _with_read_images(self, candidates: Candidates) -> Candidates:
        """Return candidates with the bytes of all images of the prompt and the responses.

        Raises:
            ImageError: If an image cannot be read, or if the images have too many pixels.
        """
        contents = self._read_images(candidates.all_images, candidates.identity)
        num_prompt_images = len(candidates.images)
        remaining_images = iter(contents[num_prompt_images:])
        responses: list[Response] = []
        for response in candidates.responses:
            images_of_response = list(islice(remaining_images, len(response.images)))
            responses.append(response.with_images(images_of_response))
        return replace(candidates, images=contents[:num_prompt_images], responses=tuple(responses))

    def _read_images(self, images: Sequence[EncodedImage], identity: str) -> tuple[bytes, ...]:
        """Return the bytes of a group's images.

        Raises:
            ImageError: If an image cannot be read, or if the images have more pixels than the
                limits allow. Their headers are enough to know this, so that no image is decoded.
        """
        contents: list[bytes] = []
        num_pixels = 0
        for image in images:
            content = image if isinstance(image, bytes) else self._read_file(str(image), identity)
            height, width = image_size(content, identity)
            if height * width > self.limits.pixels:
                raise ImageError(
                    f"{identity}: an image of {width} x {height} pixels; this server allows "
                    f"{self.limits.pixels:,}. Scale it down, or start with `--max-pixels N`."
                )
            num_pixels += height * width
            if num_pixels > self.limits.area:
                raise ImageError(
                    f"{identity}: the first {len(contents) + 1} of {len(images)} images have "
                    f"{num_pixels:,} pixels; this server allows {self.limits.area:,} in a group. "
                    "Scale them down, or start with `--max-area N`."
                )
            contents.append(content)
        return tuple(contents)

    def _read_file(self, name: str, identity: str) -> bytes:
        """Return the bytes of the image file that a request names by its path below the media root.

        Raises:
            ImageError: If the file cannot be read or is too large. The message is the same for
                every path outside of the media root, so that clients cannot learn which files exist
                there.
        """
        if self.media_root is None:
            raise ImageError(
                f"{identity}: an image is given as a path, and this server reads no files (it was "
                "started without --media-root). Send the image as a data URI."
            )
        try:
            path = image_path(self.media_root, name, identity)
            with open_regular(path) as file:
                # One byte more than allowed shows that the file is too large.
                content = file.read(self.limits.body + 1)
        except (ImageError, OSError, SpecialFileError):
            raise ImageError(
                f"{identity}: the image {name[:200]!r} is no readable file below this server's "
                "media folder. Name a file there by its path within that folder, or send it as a "
                "data URI."
            ) from None
        if len(content) > self.limits.body:
            raise ImageError(
                f"{identity}: the image {name[:200]!r} is larger than the "
                f"{self.limits.body:,} bytes of a request."
            )
        return content


def problems(error: ValidationError) -> str:
    """Return the first faults of a request's body in one line, without repeating its content."""
    faults: list[str] = []
    for fault in error.errors(include_url=False)[:MAX_NAMED]:
        key = ".".join(map(str, fault["loc"])) or "the body"
        faults.append(f"{key}: {fault['msg']}")
    return "; ".join(faults)
