"""Cut videos into frames, which sources and benchmarks then read as images.

python data/frames.py downloads/MM-RLHF downloads/MM-RLHF --frames 8      # training: {type: mm_rlhf, frames: 8}
python data/frames.py videos MM-RLHF-RewardBench/video --frames 32        # as the benchmark's own evaluation

VIDEOS is a file, or a folder that is searched; of `a/b.mp4` the frames become `OUT/a/b/000000.jpg` and so on, named by their
number in the video. They are evenly spaced from the first frame to the last, as in MM-RLHF's evaluation; a shorter video gives
all it has. What is there already is left alone, so that a killed command is continued. Needs PyAV: pip install -e .[video]
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
LISTED = 20
"""Videos that cannot be cut, of which so many are listed."""


class Cut(NamedTuple):
    """A video, and the folder of its frames."""

    video: Path
    folder: Path


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what the command line asks for; what cannot be cut is listed, and the exit status is then 1."""
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
        help="the folder that gets one folder of frames a video; may be VIDEOS",
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
    """Cut all videos and say how many; return what is wrong with those that cannot be cut."""
    try:
        import av  # noqa: F401
    except ImportError as error:
        raise UserError(
            "PyAV, which reads videos, is not installed: pip install -e .[video]"
        ) from error
    jobs = found(videos, out)
    missing, console = [job for job in jobs if not job.folder.exists()], plain_console()
    with mapped(partial(attempt, frames), missing, workers) as results:
        shown = track(
            results, "cutting", len(missing), console=plain_console(stderr=True), transient=True
        )
        problems = list(filter(None, shown))
    console.print(
        f"{len(missing) - len(problems):,} videos cut into up to {frames} frames each under {out}, "
        f"{len(jobs) - len(missing):,} were there already (remove a folder to cut it anew)",
        soft_wrap=True,
    )
    return problems


def found(videos: Path, out: Path) -> list[Cut]:
    """Return the videos at a path and where their frames go.

    Raises: UserError if there are none, or two of one name.
    """
    root = videos.parent if videos.is_file() else videos
    files = (
        [videos]
        if videos.is_file()
        else sorted(path for path in videos.rglob("*") if is_video_name(path.name))
    )
    jobs = [Cut(file, out / file.relative_to(root).with_suffix("")) for file in files]
    if not jobs:
        raise UserError(
            f"{videos}: there is no video here; looked for are files that end in {', '.join(SUFFIXES)}."
        )
    owner: dict[Path, Path] = {}
    for video, folder in jobs:
        if (other := owner.setdefault(folder, video)) != video:
            raise UserError(
                f"{other} and {video} differ in their endings alone, and both would become {folder}: rename one."
            )
    return jobs


def attempt(frames: int, job: Cut) -> str:
    """Cut a video; return "", or what is wrong with it."""
    import av

    try:
        cut(job, frames)
    except (UserError, OSError, av.error.FFmpegError) as error:
        return f"{job.video}: {error}"
    return ""


def cut(job: Cut, frames: int) -> None:
    """Write the frames, upright, as JPEG; the folder gets its name when all are in it."""
    require_regular(job.video)
    total = sum(1 for _ in decoded(job.video))
    if not total:
        raise UserError("it holds no frame that can be decoded")
    wanted = set(np.linspace(0, total - 1, min(frames, total), dtype=int).tolist())
    unfinished = job.folder.with_name(f"{job.folder.name}.part")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    for number, frame in enumerate(decoded(job.video)):
        if number in wanted:
            upright = frame.to_image().rotate(
                frame.rotation, expand=True
            )  # both count counterclockwise
            upright.save(unfinished / f"{number:06}.jpg", quality=QUALITY)
    unfinished.replace(job.folder)


def decoded(video: Path) -> Iterator[Any]:
    """Yield all frames in the order in which they are shown; the container's own count of them may be wrong or missing."""
    import av

    with av.open(str(video)) as container:
        if not container.streams.video:
            raise UserError("it holds no pictures, only sound or text")
        container.streams.video[0].thread_type = "AUTO"
        yield from container.decode(video=0)


if __name__ == "__main__":
    main()
