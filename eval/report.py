"""Write a report: one HTML page about a run, a sweep or a list of runs that needs no other file and no network.

python eval/report.py runs/shapes/naive                              # writes runs/shapes/naive/report.html
python eval/report.py runs/shapes/naive --output naive.html
python eval/report.py runs/shapes/ablations/rewards                  # the folder of a list of train/ablate.py
python eval/report.py runs/shapes/naive --watch                      # beside a run: writes it anew as figures come, to its end
"""

import argparse
import sys
import time
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from mmrm.data.display.command import command
from mmrm.data.errors import UserError
from mmrm.data.storage.files import write_whole
from mmrm.data.storage.output_lock import locked_file
from mmrm.eval.reporting.comparison_page import list_page
from mmrm.eval.reporting.page import page
from mmrm.eval.reporting.run_content import read_run, read_sweep
from mmrm.eval.results.run_folder import ABLATION, LOG, SWEEP

SECONDS, REST = 10.0, 4.0
"""Between two looks at a run; and how many times as long as a page took to write there is none."""
SHOWN = (
    *(
        LOG,
        "provenance.json",
        "completions/*.parquet",
        "checkpoint-*/trainer_state.json",
        "checkpoint-*/eval/**/*.json",
    ),
    *("checkpoint-*/answers/*.json", "start/answers/*.json"),
)
"""The files of a run that change what its page shows."""


def write_report(folder: Path, output: Path, *, live: bool = False) -> None:
    """Write the page of the folder of a run, a sweep or a list of runs, whole or not at all.

    Raises: UserError for a folder that no page can be made of; InUseError while another process writes the page.
    """
    with locked_file(output):
        if (folder / ABLATION).is_file():
            write_whole(output, list_page(folder))
        else:
            read = read_sweep if (folder / SWEEP).is_file() else read_run
            write_whole(output, page(read(folder), live=live))


def watch(folder: Path, output: Path) -> None:
    """Write the page of a run whenever something new is there, until the run has ended; the open page loads itself anew.

    What changes while it is read is read again at the next look; a run that was killed is waited for.
    """
    before, said = None, ""
    while True:
        now, running, begin = states(folder), goes_on(folder), time.monotonic()
        if now != before:
            try:
                write_report(folder, output, live=running)
                before, words = (
                    now,
                    f"wrote {output}{', the run goes on' if running else ': the run has ended'}",
                )
            except (UserError, OSError) as error:
                words = f"waiting: {error}"
            if words != said:
                print(f"{time.strftime('%H:%M:%S')} {words}", flush=True)
                said = words
        if before is not None and not running:
            return
        time.sleep(max(SECONDS, REST * (time.monotonic() - begin)))


def states(folder: Path) -> dict[Path, tuple[int, int]]:
    """Return size and time of every file that the page shows."""
    found = {}
    for path in (path for pattern in SHOWN for path in folder.glob(pattern)):
        with suppress(FileNotFoundError):  # a checkpoint that is being removed
            status = path.stat()
            found[path] = status.st_size, status.st_mtime_ns
    return found


def goes_on(folder: Path) -> bool:
    """Say whether a run has not yet come to its end, or is not there yet; the last line of its log is Trainer's `train_runtime`.

    A run of a version that kept no log file is taken for one that has ended.
    """
    if (log := folder / LOG).is_file():
        return '"train_runtime"' not in log.read_text(encoding="utf-8").rstrip().rpartition("\n")[2]
    return next(folder.glob("checkpoint-*"), None) is None


def main() -> None:
    """Read the command line and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", help="a run, a sweep, or a list of train/ablate.py"
    )
    parser.add_argument(
        "--output", type=Path, help="write the page here; the default is report.html in the folder"
    )
    parser.add_argument(
        "--watch",
        action="store_true",
        help="follow a run to its end, writing the page whenever it has news",
    )
    options = parser.parse_args()
    output = options.output or options.folder / "report.html"
    with command():
        if options.watch:
            for kind, file in (("sweep", SWEEP), ("list of runs", ABLATION)):
                if (options.folder / file).is_file():
                    raise UserError(
                        f"{options.folder} is a {kind}, whose file {file} has no end to wait for. --watch follows a run."
                    )
            with suppress(KeyboardInterrupt):
                watch(options.folder, output)
            return
        if not options.folder.is_dir():
            raise UserError(
                f"{options.folder}: there is no such folder. Give the folder of a run, a sweep or a list of runs."
            )
        write_report(options.folder, output)
    print(f"wrote {output} ({output.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
