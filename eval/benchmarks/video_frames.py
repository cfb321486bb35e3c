"""The videos of benchmarks: their frames, which judges see in their place, or the videos themselves.

`python data/frames.py VIDEOS OUT` cuts videos into frames. The frames of VIDEOS/a/b.mp4 are image
files in the folder OUT/a/b. With `videos: video` of a location, judges see VIDEOS/a/b.mp4 itself.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from mmrm.data.encoded_video import Video
from mmrm.data.preference import EncodedImage
from mmrm.data.video import VIDEO_SUFFIXES, is_video_name
from mmrm.eval.benchmarks.benchmark import LoadedBenchmark, Location
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


def video_at(root: Path, video: str, identity: str) -> tuple[Video, ...]:
    """Return the video with this path, or an empty tuple if there is no such file.

    It is looked for where `frames_of_video` looks for frames: video/<name>.mp4 may also be a file
    <name>.mp4. If the path does not end as that of a video, all endings of videos are tried.

    Args:
        root: The folder that the path of the video is relative to.
        video: The path of the video.
        identity: The benchmark and the row, for messages.

    Raises:
        RecordError: If the path of the video leaves `root`.
    """
    path = Path(video)
    endings = ("",) if is_video_name(video) else VIDEO_SUFFIXES
    for name in (path, path.name):
        for ending in endings:
            file = path_below(root, f"{name}{ending}", identity)
            if file.is_file():
                return (Video(file),)
    return ()


def with_note_on_videos(
    benchmark: LoadedBenchmark, where: Location, official: str
) -> LoadedBenchmark:
    """Return a benchmark with a note that judges are given videos, if some of its rows have any.

    Args:
        benchmark: The rows.
        where: Their location.
        official: What the authors' script shows in place of videos, such as "32 frames".
    """
    num_rows = sum(bool(example.all_videos) for example in benchmark.examples)
    if where.videos == "frames" or num_rows == 0:
        return benchmark
    note = (
        f"The judge is given the videos of {num_rows} of {len(benchmark.examples)} rows, and "
        f"backbone.videos of its recipe chooses their frames; the official script takes {official}."
    )
    origin = replace(benchmark.origin, notes=(*benchmark.origin.notes, note))
    return replace(benchmark, origin=origin)


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
