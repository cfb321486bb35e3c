"""Write a report: one HTML page about a run, a sweep or a list of runs.

python eval/report.py runs/shapes/naive                # writes runs/shapes/naive/report.html
python eval/report.py runs/shapes/naive --output naive.html
python eval/report.py runs/shapes/ablations/rewards    # the folder of runs that train/ablate.py wrote
python eval/report.py runs/shapes/naive --watch        # writes it again whenever the run goes on

The page needs no other file and no network.
"""

import sys
import time
from contextlib import suppress
from pathlib import Path

if not __package__:  # started by its path: import the mmrm of its own clone
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mmrm.data.display.command import exit_on_user_error
from mmrm.data.display.command_parser import CommandParser
from mmrm.data.errors import UserError
from mmrm.data.storage.files import write_whole
from mmrm.data.storage.output_lock import locked_file
from mmrm.eval.reporting.comparison_page import list_page
from mmrm.eval.reporting.page import page
from mmrm.eval.reporting.run_content import read_run, read_sweep
from mmrm.eval.results.run_folder import ABLATION, LOG, SWEEP

MIN_PAUSE = 10.0
"""The least number of seconds between two looks at the files of a run."""
PAUSE_FACTOR = 4.0
"""The least pause after a page was written, as a multiple of the time that writing took."""
SHOWN_FILES = (
    LOG,
    "provenance.json",
    "completions/*.parquet",
    "checkpoint-*/trainer_state.json",
    "checkpoint-*/eval/**/*.json",
    "checkpoint-*/answers/*.json",
    "start/answers/*.json",
)
"""Patterns of the files of a run that its page shows."""


def write_report(folder: Path, output: Path, *, live: bool = False) -> None:
    """Write the HTML page of a run, a sweep or a list of runs.

    If writing fails, an earlier page stays unchanged.

    Args:
        folder: The folder of the run, of the sweep, or of the list of runs of train/ablate.py.
        output: The HTML file to write.
        live: True if the run has not ended. A browser that shows the page then loads it again.

    Raises:
        UserError: If no page can be made of the folder.
        InUseError: If another process writes the page.
    """
    with locked_file(output):
        if (folder / ABLATION).is_file():
            write_whole(output, list_page(folder))
        else:
            is_sweep = (folder / SWEEP).is_file()
            content = read_sweep(folder) if is_sweep else read_run(folder)
            write_whole(output, page(content, live=live))


def watch(folder: Path, output: Path) -> None:
    """Write the page of a run whenever the run's files change, until the run has ended.

    A page that cannot be made, for example because a file changes while it is read, is tried again
    after a pause. A run that was killed counts as not ended, because it may be resumed, so the
    function then does not return.

    Args:
        folder: The folder of the run.
        output: The HTML file to write.
    """
    states_on_page = None
    last_message = ""
    while True:
        started = time.monotonic()
        current_states = file_states(folder)
        is_live = not has_ended(folder)
        if current_states != states_on_page:
            try:
                write_report(folder, output, live=is_live)
                states_on_page = current_states
                progress = ", the run goes on" if is_live else ": the run has ended"
                message = f"wrote {output}{progress}"
            except (UserError, OSError) as error:
                message = f"waiting: {error}"
            if message != last_message:
                print(f"{time.strftime('%H:%M:%S')} {message}", flush=True)
                last_message = message
        if states_on_page is not None and not is_live:
            return
        seconds_of_writing = time.monotonic() - started
        time.sleep(max(MIN_PAUSE, PAUSE_FACTOR * seconds_of_writing))


def file_states(folder: Path) -> dict[Path, tuple[int, int]]:
    """Return the size and the modification time of every file of a run that its page shows.

    They are in bytes and in nanoseconds. Together they tell whether a file has changed.
    """
    states: dict[Path, tuple[int, int]] = {}
    for pattern in SHOWN_FILES:
        for path in folder.glob(pattern):
            with suppress(FileNotFoundError):  # a checkpoint that is being removed
                status = path.stat()
                states[path] = (status.st_size, status.st_mtime_ns)
    return states


def has_ended(folder: Path) -> bool:
    """Return True if the run in a folder has ended, and False if the folder does not exist yet.

    The last line of the log of a run that has ended holds the Trainer's `train_runtime`. A run whose
    last checkpoint is still being copied from a staging folder has not ended. A run of an earlier
    version without a log file counts as ended if it has a checkpoint.
    """
    if any(folder.glob("copying-checkpoint-*")):
        return False
    log = folder / LOG
    if log.is_file():
        _, _, last_line = log.read_text(encoding="utf-8").rstrip().rpartition("\n")
        return '"train_runtime"' in last_line
    return any(folder.glob("checkpoint-*"))


def main() -> None:
    """Write the HTML page of a run, of a sweep or of a list of runs.

    With `--watch` the page of a run is written again whenever its files change, until the run has
    ended.
    """
    parser = CommandParser("eval/report.py", __doc__)
    parser.add_argument(
        "folder",
        type=Path,
        metavar="FOLDER",
        help="The folder of a run, of a sweep, or of the runs of train/ablate.py.",
    )
    parser.add_argument(
        "--output", type=Path, help="The file of the page. The default is report.html in FOLDER."
    )
    parser.add_argument(
        "--watch",
        action="store_true",
        help="Wait until the run ends, and write the page again whenever its files change.",
    )
    options = parser.parse_args()
    output = options.output or options.folder / "report.html"
    with exit_on_user_error():
        if options.watch:
            # Sweeps and lists of runs have no log that tells whether they have ended.
            for kind, file_name in (("sweep", SWEEP), ("list of runs", ABLATION)):
                if (options.folder / file_name).is_file():
                    raise UserError(
                        f"{options.folder} is a {kind}, whose file {file_name} has no end to wait "
                        "for. --watch follows a run."
                    )
            if options.folder.exists() and not options.folder.is_dir():
                raise UserError(f"{options.folder} is a file. --watch follows the folder of a run.")
            with suppress(KeyboardInterrupt):
                watch(options.folder, output)
            return
        if not options.folder.is_dir():
            raise UserError(
                f"{options.folder}: there is no such folder. Give the folder of a run, a sweep or "
                "a list of runs."
            )
        write_report(options.folder, output)
    print(f"wrote {output} ({output.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
