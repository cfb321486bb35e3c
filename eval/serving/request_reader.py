"""Check the groups of a request, and read their images.

A group is a prompt with the responses to it. Its images may be data URIs, or files below the media root.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mmrm.data.errors import ImageError, RecordError, SpecialFileError
from mmrm.data.images import image_path, image_size
from mmrm.data.limits import written_sizes
from mmrm.data.preference import EncodedImage
from mmrm.data.regular_files import open_regular
from mmrm.eval.candidates import Candidates
from mmrm.eval.judges.messages import candidates_of
from mmrm.eval.serving.request_limits import RequestLimits


class Asking(BaseModel):
    """A group of a request, as a client wrote it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    messages: str | list[Any]
    responses: list[str] = Field(min_length=1)
    images: list[Any] = []


@dataclass(frozen=True, slots=True)
class Intake:
    """Checks groups against the limits and makes candidates of them. Any thread may call it."""

    limits: RequestLimits
    media_root: Path | None
    """The folder of images that are given as paths; None if paths are not allowed."""
    compares: bool
    """Whether the judge compares every two responses."""

    def __call__(self, written: Any, identity: str) -> Candidates:
        """Return the candidates of a group, with the bytes of its images.

        Args:
            written: The group as parsed JSON.
            identity: The name of the group in messages.

        Raises:
            RecordError: If the group is malformed, not allowed or too large.
        """
        try:
            asked = Asking.model_validate(written)
        except ValidationError as error:
            raise RecordError(f"{identity}: {problems(error)}") from error
        most = self.limits.compared if self.compares else self.limits.responses
        if len(asked.responses) > most:
            what = "of a judge that compares every two of them" if self.compares else "of a group"
            raise RecordError(
                f"{identity}: {len(asked.responses)} responses; this server allows {most} {what}. Send "
                f"fewer, or start with `--max-{'compared' if self.compares else 'responses'} N`."
            )
        sizes = written_sizes(asked.messages, asked.responses, asked.images)
        for name, count in sizes.items():
            limit = getattr(self.limits, name)
            if count > limit:
                raise RecordError(
                    f"{identity}: {count:,} {name}; this server allows {limit:,} in a group. Shorten "
                    f"it, or start with `--max-{name} N`."
                )
        candidates = candidates_of(asked.messages, asked.responses, asked.images, identity)
        return replace(candidates, images=self._read_images(candidates.images, identity))

    def _read_images(self, images: Sequence[EncodedImage], identity: str) -> tuple[bytes, ...]:
        """Return the bytes of a group's images; raise ImageError if their headers declare too many pixels."""
        contents: list[bytes] = []
        num_pixels = 0
        for image in images:
            content = image if isinstance(image, bytes) else self._read(str(image), identity)
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

    def _read(self, name: str, identity: str) -> bytes:
        """Return the bytes of a file below the media root.

        The message of an error is the same for every path outside of it, so that clients cannot learn
        which files exist there.
        """
        if self.media_root is None:
            raise ImageError(
                f"{identity}: an image is given as a path, and this server reads no files (it was started without --media-root). "
                "Send the image as a data URI."
            )
        try:
            path = image_path(self.media_root, name, identity)
            with open_regular(path) as file:
                content = file.read(self.limits.body + 1)
        except (ImageError, OSError, SpecialFileError):
            raise ImageError(
                f"{identity}: the image {name[:200]!r} is no readable file below this server's media folder. Name a file there "
                "by its path within that folder, or send it as a data URI."
            ) from None
        if len(content) > self.limits.body:
            raise ImageError(
                f"{identity}: the image {name[:200]!r} is larger than the {self.limits.body:,} bytes of a request."
            )
        return content


def problems(error: ValidationError) -> str:
    """Return the first five faults of a body in one line, without repeating its content."""
    faults: list[str] = []
    for fault in error.errors(include_url=False)[:5]:
        key = ".".join(map(str, fault["loc"])) or "the body"
        faults.append(f"{key}: {fault['msg']}")
    return "; ".join(faults)
