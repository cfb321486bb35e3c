"""The frames of a video, which judges see in place of the video.

`python data/frames.py VIDEOS OUT` cuts videos into frames. The frames of VIDEOS/a/b.mp4 are image
files in the folder OUT/a/b.
"""

from pathlib import Path

import numpy as np

from mmrm.data.preference import EncodedImage
from mmrm.data.video import is_video_name
from mmrm.eval.benchmarks.rows import path_below

FRAME_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")


def frames_of_video(
    root: Path, video: str, identity: str, num_frames: int
) -> tuple[EncodedImage, ...]:
    """Return the image files of a video's frames, at most `num_frames` and evenly spaced.

    Returns an empty tuple if no folder with the frames is found. The frames of video/<name>.mp4 are
    in the folder video/<name>, or in a folder <name>.

    Args:
        root: The folder that the path of the video is relative to.
        video: The path of the video.
        identity: The benchmark and the row, for messages.
        num_frames: The most frames to return.

    Raises:
        RecordError: If the path of the video leaves `root`.
    """
    path = Path(video)
    if is_video_name(video):
        path = path.with_suffix("")
    # `path_below` also looks below the folder images/ of the root.
    for folder_name in (path, path.name):
        folder = path_below(root, str(folder_name), identity)
        if folder.is_dir():
            files = _frame_files(folder)
            indices = np.linspace(0, len(files) - 1, min(num_frames, len(files)), dtype=int)
            return tuple(files[index] for index in indices)
    return ()


def frames_from_the_first(folder: Path, num_frames: int) -> tuple[EncodedImage, ...]:
    """Return at most `num_frames` of the frames in a folder, the first one and others after it.

    They are evenly spaced over the video without its end, so that the last frame is not among them:
    of 20 frames, 4 are those with the indices 0, 5, 10 and 15. The result is empty if the folder
    has no frames or does not exist.
    """
    if not folder.is_dir():
        return ()
    files = _frame_files(folder)
    num_shown = min(num_frames, len(files))
    return tuple(files[index * len(files) // num_shown] for index in range(num_shown))


def _frame_files(folder: Path) -> list[Path]:
    """Return the image files in a folder by their names, which are the numbers of the frames."""
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in FRAME_SUFFIXES)
