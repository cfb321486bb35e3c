"""From a group as a client wrote it to candidates: what it may hold, and where its images may lie."""

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
    """A group of a request."""

    model_config = ConfigDict(extra="forbid", strict=True)

    messages: str | list[Any]
    responses: list[str] = Field(min_length=1)
    images: list[Any] = []


@dataclass(frozen=True, slots=True)
class Intake:
    """Checks groups; any thread may."""

    limits: RequestLimits
    media_root: Path | None
    """Where images that are named by a path lie; None allows none."""
    compares: bool
    """The judge compares every two responses."""

    def __call__(self, written: Any, identity: str) -> Candidates:
        """Return a group with the bytes of its images; raises RecordError for what is malformed, not allowed or too large."""
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
        """Return the bytes of a group's images; raises ImageError if their headers claim too many pixels."""
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
        """Return the bytes of a file below the media root; an error never says what lies outside."""
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
    """Return in a line what is wrong with a body, without repeating it."""
    found = [
        f"{'.'.join(map(str, one['loc'])) or 'the body'}: {one['msg']}"
        for one in error.errors(include_url=False)[:5]
    ]
    return "; ".join(found)
