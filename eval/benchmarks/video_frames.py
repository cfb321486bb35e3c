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
            files = [file for file in folder.iterdir() if file.suffix.lower() in FRAME_SUFFIXES]
            files.sort()
            indices = np.linspace(0, len(files) - 1, min(num_frames, len(files)), dtype=int)
            return tuple(files[index] for index in indices)
    return ()
