"""Cut videos into frames, which sources and benchmarks then read as images.

python data/frames.py downloads/MM-RLHF downloads/MM-RLHF --frames 8   # {type: mm_rlhf, frames: 8}
python data/frames.py videos MM-RLHF-RewardBench/video --frames 32     # as the benchmark does

VIDEOS is a file, or a folder that is searched. The frames of `a/b.mp4` become `OUT/a/b/000000.jpg`
and so on, named by their number in the video. They are evenly spaced from the first frame to the
last, as in MM-RLHF's evaluation; of a shorter video all frames are taken. Videos whose folder
exists are skipped, so that a killed command can be continued. Needs PyAV: pip install -e .[video]
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.progress import track

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from mmrm.data.display.command import command
from mmrm.data.display.console import plain_console
from mmrm.data.errors import UserError
from mmrm.data.regular_files import require_regular
from mmrm.data.storage.files import mapped
from mmrm.data.storage.output_lock import locked_folder
from mmrm.data.video import SUFFIXES, is_video_name

QUALITY = 95
"""Quality of the JPEG files."""
LISTED = 20
"""The largest number of videos that cannot be cut that are listed."""


class Cut(NamedTuple):
    """A video, and the folder for its frames."""

    video: Path
    folder: Path


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and cut the videos.

    Videos that cannot be cut are listed, and the exit status is then 1.
    """
    parser = argparse.ArgumentParser(
        "data/frames.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "videos", type=Path, metavar="VIDEOS", help="a video, or a folder of videos"
    )
    parser.add_argument(
        "out",
        type=Path,
        metavar="OUT",
        help="folder in which each video gets a folder of frames; may be VIDEOS",
    )
    parser.add_argument("--frames", type=int, required=True, metavar="N", help="frames of a video")
    parser.add_argument(
        "--workers",
        type=int,
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes; default: all cores",
    )
    options = parser.parse_args(arguments)
    if options.frames < 1:
        parser.error(f"--frames is {options.frames}; required is 1 or more")
    with command(), locked_folder(options.out):
        problems = cut_all(options.videos, options.out, options.frames, options.workers)
    if problems:
        sys.exit("\n  ".join([f"error: {len(problems)} videos cannot be cut:", *problems[:LISTED]]))


def cut_all(videos: Path, out: Path, frames: int, workers: int) -> list[str]:
    """Cut all videos, print their number, and return messages about videos that cannot be cut."""
    try:
        import av  # noqa: F401
    except ImportError as error:
        raise UserError(
            "PyAV, which reads videos, is not installed. Install it: pip install -e .[video]"
        ) from error
    jobs = find_videos(videos, out)
    missing = [job for job in jobs if not job.folder.exists()]
    with mapped(partial(attempt, frames), missing, workers) as results:
        progress = track(
            results, "cutting", len(missing), console=plain_console(stderr=True), transient=True
        )
        problems = [problem for problem in progress if problem]
    plain_console().print(
        f"{len(missing) - len(problems):,} videos cut into up to {frames} frames each under {out}, "
        f"{len(jobs) - len(missing):,} were there already (remove a folder to cut it again)",
        soft_wrap=True,
    )
    return problems


def find_videos(videos: Path, out: Path) -> list[Cut]:
    """Return the videos at a path, each with the folder for its frames.

    Raises: UserError if there are none, or two have the same folder.
    """
    if videos.is_file():
        root = videos.parent
        files = [videos]
    else:
        root = videos
        files = sorted(path for path in videos.rglob("*") if is_video_name(path.name))
    jobs = [Cut(file, out / file.relative_to(root).with_suffix("")) for file in files]
    if not jobs:
        raise UserError(
            f"{videos}: there is no video here. Required are files that end in "
            f"{', '.join(SUFFIXES)}. Correct the path."
        )
    video_by_folder: dict[Path, Path] = {}
    for job in jobs:
        other = video_by_folder.setdefault(job.folder, job.video)
        if other != job.video:
            raise UserError(
                f"{other} and {job.video} differ in their endings alone, and the frames of both "
                f"would be written to {job.folder}. Rename one of them."
            )
    return jobs


def attempt(frames: int, job: Cut) -> str:
    """Cut a video; return "", or a message if it cannot be cut."""
    import av

    try:
        cut(job, frames)
    except (UserError, OSError, av.error.FFmpegError) as error:
        return f"{job.video}: {error}"
    return ""


def cut(job: Cut, frames: int) -> None:
    """Write the frames of a video, upright, as JPEG.

    They are written into a folder with another name, which gets its own name when it is complete.
    """
    require_regular(job.video)
    num_frames = sum(1 for _ in decoded(job.video))
    if num_frames == 0:
        raise UserError("it holds no frame that can be decoded")
    evenly_spaced = np.linspace(0, num_frames - 1, min(frames, num_frames), dtype=int)
    wanted = set(evenly_spaced.tolist())
    unfinished = job.folder.with_name(f"{job.folder.name}.part")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    for number, frame in enumerate(decoded(job.video)):
        if number in wanted:
            # PyAV's rotation and Pillow's are both counterclockwise.
            upright = frame.to_image().rotate(frame.rotation, expand=True)
            upright.save(unfinished / f"{number:06}.jpg", quality=QUALITY)
    unfinished.replace(job.folder)


def decoded(video: Path) -> Iterator[Any]:
    """Yield all frames in the order in which they are shown.

    Frames are counted in this way too, since the container's own count may be wrong or missing.
    """
    import av

    with av.open(str(video)) as container:
        if not container.streams.video:
            raise UserError("it holds no pictures, only sound or text")
        container.streams.video[0].thread_type = "AUTO"
        yield from container.decode(video=0)


if __name__ == "__main__":
    main()
