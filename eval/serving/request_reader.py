"""Check the groups of a request, and read their images and videos.

A group is a prompt with the responses to it. The images and videos of the prompt and of the
responses may be data URIs, or files below the media root.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mmrm.data.encoded_video import Video, video_size
from mmrm.data.errors import ImageError, RecordError, SpecialFileError, UserError
from mmrm.data.images import image_path, image_size
from mmrm.data.limits import written_sizes
from mmrm.data.preference import EncodedImage
from mmrm.data.regular_files import open_regular
from mmrm.eval.candidates import Candidates, with_media
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
    """The folder of images and videos that are given as paths; None if paths are not allowed."""
    compares: bool
    """True if the judge compares every two responses. Fewer responses are then allowed."""

    def __call__(self, written: Any, identity: str) -> Candidates:
        """Check a group, and return it as candidates with the bytes of its images and videos.

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
        sizes = written_sizes(group.messages, group.responses, group.images, group.videos)
        limits = self.limits.model_dump()
        for name, count in sizes.items():
            limit = limits[name]  # sizes have the names of their limits
            if count > limit:
                raise RecordError(
                    f"{identity}: {count:,} {name}; this server allows {limit:,} in a group. "
                    f"Shorten it, or start with `--max-{name} N`."
                )
        candidates = candidates_of(
            group.messages, group.responses, group.images, identity, group.videos
        )
        images = self._read_images(candidates.all_images, identity)
        videos = self._read_videos(candidates.all_videos, identity)
        return with_media(candidates, images, videos)

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

    def _read_images(self, images: Sequence[EncodedImage], identity: str) -> tuple[bytes, ...]:
        """Return the bytes of a group's images.

        Raises:
            ImageError: If an image cannot be read, or if the images have more pixels than the
                limits allow. Their headers are enough to know this, so that no image is decoded.
        """
        contents: list[bytes] = []
        num_pixels = 0
        for image in images:
            content = self._content(image, "image", identity)
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

    def _read_videos(self, videos: Sequence[Video], identity: str) -> tuple[Video, ...]:
        """Return a group's videos with the bytes of their files.

        Raises:
            RecordError: If a video cannot be read, or if the videos have more pixels than the
                limits allow. The packets of the files are counted to know this, and no frame is
                decoded.
        """
        read_videos: list[Video] = []
        num_pixels = 0
        for video in videos:
            read_video = Video(self._content(video.content, "video", identity))
            try:
                size = video_size(read_video, identity)
            except RecordError:
                raise
            except UserError as error:  # PyAV is not installed
                raise RecordError(f"{identity}: this server reads no videos. {error}") from error
            if size.height * size.width > self.limits.pixels:
                raise ImageError(
                    f"{identity}: a video of {size.width} x {size.height} pixels; this server "
                    f"allows {self.limits.pixels:,}. Scale it down, or start with `--max-pixels N`."
                )
            num_pixels += size.height * size.width * size.num_frames
            if num_pixels > self.limits.footage:
                raise ImageError(
                    f"{identity}: the frames of the first {len(read_videos) + 1} of {len(videos)} "
                    f"videos have {num_pixels:,} pixels; this server allows "
                    f"{self.limits.footage:,} in a group. Cut or scale them down, or start with "
                    "`--max-footage N`."
                )
            read_videos.append(read_video)
        return tuple(read_videos)

    def _content(self, file: bytes | Path, kind: str, identity: str) -> bytes:
        """Return the bytes of an image or a video that a request contains or names.

        Args:
            file: The bytes of the file, or its path below the media root.
            kind: "image" or "video", for messages.
            identity: The name of the group in messages.

        Raises:
            ImageError: If the file cannot be read or is too large. The message is the same for
                every path outside of the media root, so that clients cannot learn which files exist
                there.
        """
        if isinstance(file, bytes):
            return file
        name = str(file)
        if self.media_root is None:
            article = "an" if kind == "image" else "a"
            raise ImageError(
                f"{identity}: {article} {kind} is given as a path, and this server reads no files "
                f"(it was started without --media-root). Send the {kind} as a data URI."
            )
        try:
            path = image_path(self.media_root, name, identity)
            with open_regular(path) as opened_file:
                # One byte more than allowed shows that the file is too large.
                content = opened_file.read(self.limits.body + 1)
        except (ImageError, OSError, SpecialFileError):
            raise ImageError(
                f"{identity}: the {kind} {name[:200]!r} is no readable file below this server's "
                "media folder. Name a file there by its path within that folder, or send it as a "
                "data URI."
            ) from None
        if len(content) > self.limits.body:
            raise ImageError(
                f"{identity}: the {kind} {name[:200]!r} is larger than the "
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
