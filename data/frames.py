"""Extract frames from videos. Sources and benchmarks then read the frames as images.

Videos can also be given as they are: `backbone.videos` of a recipe then chooses their frames.

python data/frames.py downloads/MM-RLHF downloads/MM-RLHF --frames 8   # {type: mm_rlhf, frames: 8}
python data/frames.py videos MM-RLHF-RewardBench/video --frames 32     # as the benchmark does

VIDEOS is a video, or a folder that is searched for videos. The frames of VIDEOS/a/b.mp4 are written
to OUT/a/b/000000.jpg and so on. A frame is named by its number in the video. The frames are evenly
spaced from the first to the last, as in the evaluation of MM-RLHF. If a video has at most N frames,
all of them are written. Videos whose folder exists are skipped, so that you can start an
interrupted command again. The command needs PyAV: pip install -e .[video]
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.progress import track

if not __package__:  # started by its path: import the mmrm of its own clone
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mmrm.data.display.command import exit_on_user_error
from mmrm.data.display.command_parser import CommandParser
from mmrm.data.display.console import plain_console
from mmrm.data.display.option_numbers import COUNT, WORKERS
from mmrm.data.encoded_video import import_pyav
from mmrm.data.errors import UserError
from mmrm.data.frame_sampling import VideoError, decoded_frames, upright_image
from mmrm.data.regular_files import require_regular
from mmrm.data.storage.files import parallel_results
from mmrm.data.storage.output_lock import locked_folder
from mmrm.data.video import VIDEO_SUFFIXES, is_video_name

QUALITY = 95
"""Quality of the JPEG files."""
LISTED_PROBLEMS = 20
"""The largest number of videos without frames that the error message lists."""


class VideoJob(NamedTuple):
    """The task to extract frames of one video."""

    video: Path
    folder: Path
    """The folder for the frames."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Extract frames of all videos that the command line names.

    If some videos cannot be read, they are listed, and the process ends with status 1.

    Args:
        arguments: The words of the command line; None reads those of this process.
    """
    parser = CommandParser("data/frames.py", __doc__)
    parser.add_argument(
        "videos", type=Path, metavar="VIDEOS", help="A video, or a folder of videos."
    )
    parser.add_argument(
        "out",
        type=Path,
        metavar="OUT",
        help="The folder in which each video gets a folder of frames. It may be VIDEOS.",
    )
    parser.add_argument(
        "--frames",
        type=COUNT,
        required=True,
        metavar="N",
        help="The largest number of frames of each video.",
    )
    parser.add_argument(
        "--workers",
        type=WORKERS,
        default=os.cpu_count() or 1,
        metavar="N",
        help="The number of processes. The default is the number of cores.",
    )
    options = parser.parse_args(arguments)
    with exit_on_user_error(), locked_folder(options.out):
        problems = extract_all(options.videos, options.out, options.frames, options.workers)
    if problems:
        heading = f"error: {len(problems)} videos cannot be cut:"
        sys.exit("\n  ".join([heading, *problems[:LISTED_PROBLEMS]]))


def extract_all(videos: Path, out: Path, max_frames: int, workers: int) -> list[str]:
    """Extract frames of all videos, and return a message about each video that cannot be read.

    The number of videos is printed. Videos whose folder exists are skipped.

    Args:
        videos: A video, or a folder of videos.
        out: The folder in which each video gets a folder.
        max_frames: The largest number of frames of each video.
        workers: The number of processes.

    Raises:
        UserError: PyAV is not installed, or `find_videos` raises.
    """
    import_pyav()
    jobs = find_videos(videos, out)
    remaining_jobs = [job for job in jobs if not job.folder.exists()]
    with parallel_results(partial(try_extract, max_frames), remaining_jobs, workers) as results:
        messages = track(
            results,
            "cutting",
            len(remaining_jobs),
            console=plain_console(stderr=True),
            transient=True,
        )
        problems = [message for message in messages if message]
    plain_console().print(
        f"{len(remaining_jobs) - len(problems):,} videos cut into up to {max_frames} frames each "
        f"under {out}, {len(jobs) - len(remaining_jobs):,} were there already (remove a folder to "
        "cut it again)",
        soft_wrap=True,
    )
    return problems


def find_videos(videos: Path, out: Path) -> list[VideoJob]:
    """Return a job for each video at the path `videos`: the video and the folder for its frames.

    Args:
        videos: A video, or a folder of videos.
        out: The folder in which each video gets a folder.

    Raises:
        UserError: There are no videos, or two videos would have the same folder.
    """
    if videos.is_file():
        root = videos.parent
        files = [videos]
    else:
        root = videos
        files = sorted(path for path in videos.rglob("*") if is_video_name(path.name))
    jobs = [VideoJob(file, out / file.relative_to(root).with_suffix("")) for file in files]
    if not jobs:
        raise UserError(
            f"{videos}: there is no video here. Required are files that end in "
            f"{', '.join(VIDEO_SUFFIXES)}. Correct the path."
        )
    video_by_folder: dict[Path, Path] = {}
    for job in jobs:
        first_video = video_by_folder.setdefault(job.folder, job.video)
        if first_video != job.video:
            raise UserError(
                f"{first_video} and {job.video} differ in their endings alone, and the frames of "
                f"both would be written to {job.folder}. Rename one of them."
            )
    return jobs


def try_extract(max_frames: int, job: VideoJob) -> str:
    """Extract frames of a video with `extract`, and return an error as a message.

    Returns an empty text if the frames were written.
    """
    import av

    try:
        extract(job, max_frames)
    except (UserError, VideoError, OSError, av.error.FFmpegError) as error:
        return f"{job.video}: {error}"
    return ""


def extract(job: VideoJob, max_frames: int) -> None:
    """Write evenly spaced frames of a video as upright JPEG files.

    The files are written to FOLDER.part, which is renamed to FOLDER at the end.

    Args:
        job: The video, and the folder for its frames.
        max_frames: The largest number of frames. A video with fewer frames gives all of them.

    Raises:
        UserError: The video has no pictures, or none that can be decoded.
    """
    require_regular(job.video)
    # Frames are counted by decoding them: the count in a video file may be wrong or missing.
    num_frames = sum(1 for _ in decoded_frames(job.video))
    if num_frames == 0:
        raise UserError("it holds no frame that can be decoded")
    evenly_spaced = np.linspace(0, num_frames - 1, min(max_frames, num_frames), dtype=int)
    numbers_to_write = set(evenly_spaced.tolist())
    unfinished_folder = job.folder.with_name(f"{job.folder.name}.part")
    shutil.rmtree(unfinished_folder, ignore_errors=True)
    unfinished_folder.mkdir(parents=True)
    for number, frame in enumerate(decoded_frames(job.video)):
        if number in numbers_to_write:
            path = unfinished_folder / f"{number:06}.jpg"
            upright_image(frame).save(path, quality=QUALITY)
    unfinished_folder.replace(job.folder)


if __name__ == "__main__":
    main()
