"""MM-RLHF (yifanzhang114/MM-RLHF): 80k pairs over images and videos, many with a critique of each response.

`dpo_pairs.jsonl` names an image or a video. A video is read as a folder of frames beside it: `x.mp4` as the folder `x`,
which `python data/frames.py IMAGES IMAGES --frames 8` writes (IMAGES being the folder of the images).
"""

from pathlib import Path
from typing import Literal

from pydantic import Field

from mmrm.data.errors import ImageError, LeftOut
from mmrm.data.images import resolved
from mmrm.data.preference import EncodedImage, Preference
from mmrm.data.sources.shared.conversation import MARKER, question
from mmrm.data.sources.shared.file_source import ImageFilesConfig, SourceRow
from mmrm.data.storage.archives import Folder

VIDEO = "<video>"
"""The marker by which this data set writes the place of a video in a text."""
FRAME_KINDS = (".jpg", ".jpeg", ".png", ".webp")


class MmRlhfConfig(ImageFilesConfig):
    """The pairs without those marked as ties."""

    FILES = ("*dpo_pairs.jsonl",)
    VIDEOS = True
    has_critiques = True

    type: Literal["mm_rlhf"]
    hub: str | None = "yifanzhang114/MM-RLHF"
    videos: Literal["frames", "leave_out"] = "frames"
    """Show a video as frames, or leave its records out."""
    frames: int = Field(default=8, ge=1, le=1024)
    """At most this many frames of a video, evenly spaced."""

    def convert(self, row: SourceRow) -> Preference:
        """Columns image or video, prompt, chosen, rejected, chosen_reason, rejected_reason, is_tie and others."""
        if row.optional("is_tie", bool):
            raise LeftOut("tie", "marked as a tie.")
        images = self._images(row)
        text = row.text("prompt").strip()
        if text.count(MARKER) + text.count(VIDEO) == 1:
            # It is the place of the row's image, or of all frames of its video.
            text = text.replace(VIDEO, MARKER).replace(MARKER, MARKER * len(images))
        return Preference(
            row.identity,
            question(text, len(images)),
            row.text("chosen"),
            row.text("rejected"),
            images,
            chosen_critique=row.label("chosen_reason") or None,
            rejected_critique=row.label("rejected_reason") or None,
        )

    def _images(self, row: SourceRow) -> tuple[EncodedImage, ...]:
        """Return the image, or up to `frames` evenly spaced images of the folder that is called as the video, or as its stem."""
        if image := row.label("image"):
            return (row.image(image),)
        video = row.text("video")
        if self.videos == "leave_out":
            raise LeftOut("not_asked_for", "a video.")
        if not isinstance(row.images, Folder):
            raise ImageError(
                f"{row.identity}: the frames of a video are read from a folder, not from an archive: unpack it."
            )
        root, named = row.images.root, Path(video)
        places = {
            name: resolved(root, str(name), row.identity, links=True)
            for name in (named, named.parent / named.stem)
        }
        name, folder = next(
            ((name, place) for name, place in places.items() if place.is_dir()), (named, None)
        )
        try:
            frames = (
                []
                if folder is None
                else sorted(path for path in folder.iterdir() if path.suffix.lower() in FRAME_KINDS)
            )
        except OSError as error:
            raise ImageError(
                f"{row.identity}: the frames of the video {video!r} cannot be listed ({error.strerror})."
            ) from error
        if not frames:
            raise ImageError(
                f"{row.identity}: the video {video!r} has no folder of frames under {root}. "
                f"Cut it into a folder of its name by `python data/frames.py {root} {root} --frames {self.frames}`, "
                "or set `videos: leave_out`."
            )
        count = min(self.frames, len(frames))
        chosen = (
            frames[(2 * position + 1) * len(frames) // (2 * count)] for position in range(count)
        )
        return tuple(row.images.find(str(name / frame.name), row.identity) for frame in chosen)
