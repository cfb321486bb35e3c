"""MM-RLHF (yifanzhang114/MM-RLHF): 80k pairs over images and videos.

Many pairs have a critique of each response. `dpo_pairs.jsonl` names an image or a video. A video is
read as a folder of frames next to it: the video `x.mp4` as the folder `x`. `python data/frames.py
IMAGES IMAGES --frames 8` writes such folders, if IMAGES is the folder of the images. With
`videos: video`, the file itself is read.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field

from mmrm.data.encoded_video import Video
from mmrm.data.errors import ImageError, LeftOut
from mmrm.data.images import resolved
from mmrm.data.preference import EncodedImage, Preference, text_responses
from mmrm.data.sources.shared.conversation import MARKER, prompt_from_question
from mmrm.data.sources.shared.file_source import ImageFilesConfig, SourceRow
from mmrm.data.sources.shared.ties import TIED_RANKS, TiedComparisonsConfig
from mmrm.data.storage.archives import Folder
from mmrm.data.video import VIDEO_SUFFIXES, is_video_name

VIDEO = "<video>"
"""The marker of this data set for the position of a video in a text."""
FRAME_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")


class MmRlhfConfig(TiedComparisonsConfig, ImageFilesConfig):
    """A source of the pairs of MM-RLHF."""

    FILES = ("*dpo_pairs.jsonl",)
    VIDEOS = True
    VIDEO_FRAMES = True
    has_critiques = True

    type: Literal["mm_rlhf"]
    hub: str | None = "yifanzhang114/MM-RLHF"
    videos: Literal["frames", "video", "leave_out"] = "frames"
    """Show the frames of a video, which are in a folder, as images; give the backbone the video
    itself, whose frames are chosen by `backbone.videos`; or leave its records out."""
    frames: int = Field(default=8, ge=1, le=1024)
    """Largest number of frames of a video, evenly spaced."""

    def convert(self, row: SourceRow) -> Preference:
        """Return the preference record of a row about an image or a video.

        The columns image or video, prompt, chosen and rejected are read. chosen_reason and
        rejected_reason become the critiques.

        Raises:
            LeftOut: If the row is marked as a tie and ties are left out, or the row holds a video
                and `videos` is "leave_out".
            RecordError: If an image or frame cannot be read, or a column has another form.
        """
        is_tie = row.optional_value("is_tie", bool)
        if is_tie:
            self.check_tie("marked as a tie.")
        videos = self._videos(row)
        images = () if videos else self._images(row)
        content = row.text("prompt").strip()
        if content.count(MARKER) + content.count(VIDEO) == 1:
            # The marker is the position of the row's image or video, or of all frames of its video.
            markers = VIDEO if videos else MARKER * len(images)
            content = content.replace(VIDEO, MARKER).replace(MARKER, markers)
        return Preference(
            row.identity,
            prompt_from_question(content, len(images), len(videos)),
            text_responses(row.text("chosen"), row.text("rejected")),
            images,
            chosen_critique=row.text_or_empty("chosen_reason") or None,
            rejected_critique=row.text_or_empty("rejected_reason") or None,
            ranks=TIED_RANKS if is_tie else (0, 1),
            videos=videos,
        )

    def _videos(self, row: SourceRow) -> tuple[Video, ...]:
        """Return the row's video, if the recipe gives videos to the backbone, else an empty tuple.

        The name in the row may lack the ending of the file.

        Raises:
            ImageError: If there is no such file.
        """
        name = row.text_or_empty("video")
        if self.videos != "video" or not name:
            return ()
        if not is_video_name(name) and isinstance(row.images, Folder):
            for suffix in VIDEO_SUFFIXES:
                path = resolved(row.images.root, f"{name}{suffix}", row.identity, links=True)
                if path.is_file():
                    return (row.video(f"{name}{suffix}"),)
        return (row.video(name),)

    def _images(self, row: SourceRow) -> tuple[EncodedImage, ...]:
        """Return the row's image, or up to `frames` evenly spaced frames of its video.

        Raises:
            LeftOut: If the row holds a video, and the recipe leaves videos out.
            ImageError: If there is no folder of frames for the video, or it cannot be read.
        """
        image_path = row.text_or_empty("image")
        if image_path:
            return (row.image(image_path),)
        video = row.text("video")
        if self.videos == "leave_out":
            raise LeftOut("not_asked_for", "a video.")
        if not isinstance(row.images, Folder):
            raise ImageError(
                f"{row.identity}: the video {video!r} needs a folder of frames, and `images` is an "
                "archive. Unpack the archive, and set `images` to its folder."
            )
        frame_folder, frame_names = self._frames(row.images.root, video, row.identity)
        if not frame_names:
            root = row.images.root
            raise ImageError(
                f"{row.identity}: the video {video!r} has no folder of frames under {root}. "
                f"Run `python data/frames.py {root} {root} --frames {self.frames}`, which cuts "
                "videos into such folders, or set `videos: leave_out`."
            )
        num_shown = min(self.frames, len(frame_names))
        images = []
        for part in range(num_shown):
            # The video is divided into `num_shown` equal parts, and the middle of each is shown.
            middle = (2 * part + 1) * len(frame_names) // (2 * num_shown)
            images.append(row.images.find(str(frame_folder / frame_names[middle]), row.identity))
        return tuple(images)

    def _frames(self, root: Path, video: str, identity: str) -> tuple[Path, list[str]]:
        """Return the folder of a video's frames, and the file names of the frames in order.

        The folder is relative to `root`. It is named like the video, with or without its suffix. If
        there is no such folder, the list of frames is empty.

        Raises:
            ImageError: If the path leads out of `root`, or the folder cannot be listed.
        """
        video_path = Path(video)
        # Both paths are checked before either is looked for: neither may leave the image folder.
        folder_by_relative_path = {
            relative_path: resolved(root, str(relative_path), identity, links=True)
            for relative_path in (video_path, video_path.parent / video_path.stem)
        }
        for relative_path, folder in folder_by_relative_path.items():
            if not folder.is_dir():
                continue
            try:
                files = sorted(folder.iterdir())
            except OSError as error:
                raise ImageError(
                    f"{identity}: the frames of the video {video!r} cannot be listed "
                    f"({error.strerror}). Check the permissions of {folder}."
                ) from error
            names = [file.name for file in files if file.suffix.lower() in FRAME_SUFFIXES]
            return relative_path, names
        return video_path, []
