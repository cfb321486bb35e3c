"""MM-RLHF (yifanzhang114/MM-RLHF): 80k pairs over images and videos, many with a critique of each response.

`dpo_pairs.jsonl` names an image or a video. A video is read as a folder of frames beside it: `x.mp4` as the folder `x`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from data.errors import ImageError, LeftOut
from data.preference import EncodedImage, Preference
from data.sources.shared.base import Source, TableSource
from data.sources.shared.conversation import MARKER, question
from data.sources.shared.files import FilesConfig
from data.sources.shared.media import encoded
from data.storage.rows import Row, field, optional
from data.storage.tables import open_rows

FRAME_KINDS = (".jpg", ".jpeg", ".png", ".webp")


class MmRlhfConfig(FilesConfig):
    """The pairs without those marked as ties."""

    type: Literal["mm_rlhf"]
    hub: str | None = "yifanzhang114/MM-RLHF"
    images: str | None = None
    """The folder that the paths of images and videos are relative to; None takes the data set's folder."""
    videos: Literal["frames", "leave_out"] = "frames"
    frames: int = Field(default=8, ge=1)
    """At most this many frames of a video, evenly spaced."""

    def open(self, cache: Path) -> Source:
        """Open the list of pairs."""
        located = self.locate(["*dpo_pairs.jsonl"])
        rows = open_rows(located.files, cache)
        root = Path(self.images).expanduser() if self.images else located.root
        convert = _Convert(root, self.frames if self.videos == "frames" else 0)
        return TableSource(self.label, "not stated", located.revision, rows, convert, self.settings)


class _Convert:
    """Rows to records; a class so that it pickles."""

    def __init__(self, root: Path, frames: int) -> None:
        self.root, self.frames = root, frames

    def __call__(self, row: Row, record: str) -> Preference:
        if optional(row, "is_tie", bool, record):
            raise LeftOut("tie", f"{record}: marked as a tie.")
        images = self._images(row, record)
        text = field(row, "prompt", str, record).replace(MARKER, "").replace("<video>", "").strip()
        return Preference(
            identity=record,
            prompt=(question(text, len(images), record),),
            chosen=field(row, "chosen", str, record),
            rejected=field(row, "rejected", str, record),
            images=images,
            chosen_critique=optional(row, "chosen_reason", str, record) or None,
            rejected_critique=optional(row, "rejected_reason", str, record) or None,
        )

    def _images(self, row: Row, record: str) -> tuple[EncodedImage, ...]:
        image = optional(row, "image", str, record)
        if image:
            return (encoded(image, self.root, record),)
        video = field(row, "video", str, record)
        if not self.frames:
            raise LeftOut("not_asked_for", f"{record}: a video.")
        return sampled_frames(self.root, video, self.frames, record)


def sampled_frames(root: Path, video: str, most: int, record: str) -> tuple[EncodedImage, ...]:
    """Return up to `most` evenly spaced images of the folder `video` (or `video` without its suffix) under `root`.

    Raises: ImageError if there is no such folder under the root, or no image in it.
    """
    boundary = root.resolve()
    places = [(boundary / video).resolve(), (boundary / video).with_suffix("").resolve()]
    folder = next((place for place in places if place.is_dir() and place.is_relative_to(boundary)), None)
    frames = [] if folder is None else sorted(path for path in folder.iterdir() if path.suffix.lower() in FRAME_KINDS)
    if not frames:
        raise ImageError(
            f"{record}: the video {video!r} has no folder of frames under {boundary}. "
            "Write its frames as images into a folder of its name, or set `videos: leave_out`."
        )
    count = min(most, len(frames))
    return tuple(frames[(2 * position + 1) * len(frames) // (2 * count)] for position in range(count))
