"""MM-RLHF (yifanzhang114/MM-RLHF): 80k pairs over images and videos.

Many pairs have a critique of each response. `dpo_pairs.jsonl` names an image or a video. A video is
read as a folder of frames next to it: the video `x.mp4` as the folder `x`. `python data/frames.py
IMAGES IMAGES --frames 8` writes such folders, if IMAGES is the folder of the images.
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
"""The marker of this data set for the position of a video in a text."""
FRAME_KINDS = (".jpg", ".jpeg", ".png", ".webp")


class MmRlhfConfig(ImageFilesConfig):
    """Pairs of MM-RLHF that are not marked as ties."""

    FILES = ("*dpo_pairs.jsonl",)
    VIDEOS = True
    has_critiques = True

    type: Literal["mm_rlhf"]
    hub: str | None = "yifanzhang114/MM-RLHF"
    videos: Literal["frames", "leave_out"] = "frames"
    """Show a video as frames, or leave its records out."""
    frames: int = Field(default=8, ge=1, le=1024)
    """Largest number of frames of a video, evenly spaced."""

    def convert(self, row: SourceRow) -> Preference:
        """Read image or video, prompt, chosen, rejected, both reasons and is_tie."""
        if row.optional("is_tie", bool):
            raise LeftOut("tie", "marked as a tie.")
        images = self._images(row)
        text = row.text("prompt").strip()
        if text.count(MARKER) + text.count(VIDEO) == 1:
            # The marker is the position of the row's image, or of all frames of its video.
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
        """Return the row's image, or up to `frames` evenly spaced frames of its video."""
        image = row.label("image")
        if image:
            return (row.image(image),)
        video = row.text("video")
        if self.videos == "leave_out":
            raise LeftOut("not_asked_for", "a video.")
        if not isinstance(row.images, Folder):
            raise ImageError(
                f"{row.identity}: the video {video!r} needs a folder of frames, and `images` is an "
                "archive. Unpack the archive, and set `images` to its folder."
            )
        folder_name, frames = self._frames(row.images.root, video, row.identity)
        if not frames:
            root = row.images.root
            raise ImageError(
                f"{row.identity}: the video {video!r} has no folder of frames under {root}. "
                f"Run `python data/frames.py {root} {root} --frames {self.frames}`, which cuts "
                "videos into such folders, or set `videos: leave_out`."
            )
        count = min(self.frames, len(frames))
        images = []
        for index in range(count):
            # The middle of the index-th of `count` equal parts of the video.
            frame = frames[(2 * index + 1) * len(frames) // (2 * count)]
            images.append(row.images.find(str(folder_name / frame.name), row.identity))
        return tuple(images)

    def _frames(self, root: Path, video: str, identity: str) -> tuple[Path, list[Path]]:
        """Return the folder of a video's frames, relative to `root`, and the frames in order.

        The folder has the name of the video, or its stem. Without a folder there are no frames.
        """
        name = Path(video)
        # Both names are checked before either is looked for: neither may leave the image folder.
        folders = {
            candidate: resolved(root, str(candidate), identity, links=True)
            for candidate in (name, name.parent / name.stem)
        }
        for candidate, folder in folders.items():
            if not folder.is_dir():
                continue
            try:
                files = sorted(folder.iterdir())
            except OSError as error:
                raise ImageError(
                    f"{identity}: the frames of the video {video!r} cannot be listed "
                    f"({error.strerror}). Check the permissions of {folder}."
                ) from error
            return candidate, [path for path in files if path.suffix.lower() in FRAME_KINDS]
        return name, []
