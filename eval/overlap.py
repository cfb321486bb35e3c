"""Find the training records whose images, videos, question or responses occur in a benchmark.

python eval/overlap.py recipes/basereward.yaml --benchmarks vl_rewardbench=hub --output overlap.txt

The command prints counts by source and kind of match with some examples, and writes two files.

  overlap.txt     fingerprints of the records to leave out
  overlap.jsonl   every match: record, benchmark rows, kind, similarity, whether it is a reason

To leave the records out, write `data: {filters: {leave_out: overlap.txt}}` into the recipe.

The command searches all rows of the recipe's sources, also rows that the recipe's filters, caps and
weights leave out. eval/contamination/index.py describes which contents are equal or nearly equal. A
record is to be left out if one of its images, videos or questions or its pair of responses occurs
in a benchmark, unless that text is a common one (MIN_COMMON_CONTEXTS in
eval/contamination/overlap_report.py). A question inside a longer instruction is not recognised, but
the record's images and responses are.

Memory does not grow with the training data. The same command continues an interrupted search.
"""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

if not __package__:  # started by its path: import the mmrm of its own clone
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mmrm.data.display.command import exit_on_user_error
from mmrm.data.display.command_parser import CommandParser
from mmrm.data.display.console import plain_console
from mmrm.data.display.option_numbers import WORKERS
from mmrm.data.package import recipe_path
from mmrm.data.preparation.filters import WRITER
from mmrm.data.preparation.recipe_section import read_data_section
from mmrm.data.preparation.scan import reading_code_digest
from mmrm.data.sources.shared.source import Source
from mmrm.data.storage.code_digest import code_digest
from mmrm.data.storage.files import digest
from mmrm.data.storage.output_lock import locked_file
from mmrm.eval.benchmarks.registry import BenchmarkConfig, load
from mmrm.eval.candidates import BenchmarkRow
from mmrm.eval.cli import add_benchmarks_option
from mmrm.eval.contamination.index import OverlapIndex
from mmrm.eval.contamination.overlap_report import Overlap, write_overlap_report
from mmrm.eval.contamination.search import Search, run_search

MIN_WIDTH = 160
"""The fewest columns of the printed table, also on a narrower terminal."""


def find_overlap(
    sources: Sequence[Source],
    examples: Sequence[BenchmarkRow],
    output: Path,
    workers: int,
    header: Sequence[str],
    console: Console,
) -> Overlap:
    """Search training records for the rows of benchmarks, write the matches, and count them.

    The result depends neither on the number of workers nor on whether the search was interrupted.

    Args:
        sources: The opened sources of a recipe, which hold the training records.
        examples: The rows of the benchmarks.
        output: The file for the fingerprints of the records to leave out. Every match is written to
            the file of the same name that ends in .jsonl.
        workers: The number of processes that search.
        header: Lines to write at the head of `output`, for its readers.
        console: The console for the progress.

    Raises:
        ImageError: If an image of a benchmark cannot be decoded, or a video cannot be read.
    """
    index = OverlapIndex(examples)
    # The matches of an interrupted search are used again if the code that reads and searches, the
    # benchmarks and the sources are the same. The second digest covers the
    # modules in eval/ that search.
    search_code_digest = code_digest("mmrm.eval.contamination.search", floors=("eval",))
    search_inputs = [reading_code_digest(), search_code_digest, index.fingerprint]
    for source in sources:
        search_inputs.append(f"{source.fingerprint()} {len(source)}")
    parts_folder = output.with_name(f"{output.name}.parts")
    search = Search(sources, index, parts_folder / digest(" ".join(search_inputs)))
    match_files = run_search(search, workers, console)
    remarks = list(header)
    if index.num_blank_images:
        remarks.append(
            f"{index.num_blank_images} blank images, which identify nothing, were not compared"
        )
    overlap = write_overlap_report(match_files, index, output, remarks)
    shutil.rmtree(parts_folder)
    return overlap


def load_examples(
    configs: Sequence[BenchmarkConfig], console: Console
) -> tuple[list[BenchmarkRow], list[str]]:
    """Load the rows of all benchmarks, and print the benchmarks' notes.

    Returns:
        The rows of all benchmarks, and for each benchmark a line with its name, location and number
        of rows.
    """
    examples: list[BenchmarkRow] = []
    lines_on_benchmarks: list[str] = []
    for config in configs:
        benchmark = load(config)
        examples += benchmark.examples
        lines_on_benchmarks.append(
            f"{config.name}={benchmark.origin.location}: {len(benchmark.examples)} rows"
        )
        for note in (*benchmark.origin.notes, *benchmark.origin.unavailable):
            console.print(f"{config.name}: {note}", style="yellow")
    return examples, lines_on_benchmarks


def main() -> None:
    """Search the training records of a recipe for the rows of benchmarks.

    A table of the matches is printed. The file `--output` gets the fingerprints of the records to
    leave out, and the file of the same name that ends in .jsonl gets every match.
    """
    parser = CommandParser("eval/overlap.py", __doc__)
    parser.add_argument("recipe", type=recipe_path, help="The recipe whose sources are searched.")
    add_benchmarks_option(parser, required=True)
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
        help="The file of fingerprints to write. Every match is written next to it (.jsonl).",
    )
    parser.add_argument(
        "--workers",
        type=WORKERS,
        default=os.cpu_count() or 1,
        help="The number of processes that search. The default is the number of processors.",
    )
    options = parser.parse_args()
    if not options.output.name:
        parser.error(f"--output {str(options.output)!r} has no name. Name a file.")
    details_file = options.output.with_suffix(".jsonl")
    if options.output.suffix == ".jsonl":
        parser.error(
            f"--output is {options.output}, and the details are written to a file of this name. "
            "Choose a name that does not end in .jsonl."
        )
    console = plain_console(width=max(MIN_WIDTH, plain_console().width))
    # The file of details is locked, because outputs that differ only in their endings share it.
    with exit_on_user_error(), locked_file(details_file):
        section = read_data_section(options.recipe)
        sources = [source.open(section.cache_folder) for source in section.sources]
        examples, lines_on_benchmarks = load_examples(options.benchmarks, console)
        # WRITER is a phrase by which a recipe's filter recognises the file.
        header = [f"Records of {options.recipe} {WRITER} in", *lines_on_benchmarks]
        progress_console = plain_console(stderr=True)
        overlap = find_overlap(
            sources, examples, options.output, options.workers, header, progress_console
        )
    console.print(overlap.table())
    for source in sources:
        if source.generated and overlap.sources[source.name]["left_out"]:
            console.print(
                f"{source.name}: generated records cannot be left out by fingerprint.",
                style="yellow",
            )
    console.print(f"Fingerprints: {options.output}; every match: {details_file}")


if __name__ == "__main__":
    main()
