"""Find the training records whose images, question or responses occur in a benchmark.

python eval/overlap.py recipes/basereward.yaml --benchmarks vl_rewardbench=hub --output overlap.txt

The command prints counts by source and kind of match with some examples, and writes two files.

  overlap.txt     fingerprints of the records to leave out
  overlap.jsonl   every match: record, benchmark rows, kind, similarity, whether it is a reason

To leave the records out, write `data: {filters: {leave_out: overlap.txt}}` into the recipe.

The command searches all rows of the recipe's sources, also rows that the recipe's filters, caps and
weights leave out. eval/contamination/index.py describes which contents are equal or nearly equal. A
record is to be left out if one of its images, one of its questions or its pair of responses occurs in
a benchmark, unless that text is a common one (COMMON in eval/contamination/overlap_report.py). A
question inside a longer instruction is not recognised, but the record's images and responses are.

Memory does not grow with the training data. The same command continues an interrupted search.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # works without installation

from mmrm.data.display.command import command
from mmrm.data.display.console import plain_console
from mmrm.data.preparation.filters import WRITER
from mmrm.data.preparation.mixing import CACHE
from mmrm.data.preparation.recipe_section import section_of
from mmrm.data.preparation.scan import reading_code_digest
from mmrm.data.sources.shared.source import Source
from mmrm.data.storage.code_digest import code_digest
from mmrm.data.storage.files import digest
from mmrm.data.storage.output_lock import locked_file
from mmrm.eval.benchmarks.registry import BenchmarkConfig, load
from mmrm.eval.candidates import Example
from mmrm.eval.cli import add_benchmarks
from mmrm.eval.contamination.index import OverlapIndex
from mmrm.eval.contamination.overlap_report import Overlap, report
from mmrm.eval.contamination.search import Search, run_search


def find(
    sources: Sequence[Source],
    examples: Sequence[Example],
    output: Path,
    workers: int,
    header: Sequence[str],
    console: Console,
) -> Overlap:
    """Search all records of `sources` for the benchmark rows `examples`, and write the matches.

    The result depends neither on the number of workers nor on whether the search was interrupted.

    Args:
        sources: The opened sources of a recipe.
        examples: The rows of the benchmarks.
        output: The file of fingerprints to write. Every match is written next to it (.jsonl).
        workers: The number of processes that search.
        header: Lines to write at the head of `output`, for its readers.
        console: The console for the progress.

    Raises:
        ImageError: If an image of a benchmark cannot be decoded.
    """
    index = OverlapIndex(examples)
    # The matches of an interrupted search are used again if the code that reads and searches, the
    # benchmarks and the sources are the same.
    search_code = code_digest("mmrm.eval.contamination.search", floors=("eval",))
    identities = [reading_code_digest(), search_code, index.fingerprint]
    for source in sources:
        identities.append(f"{source.fingerprint()} {len(source)}")
    folder = output.with_name(f"{output.name}.parts")
    search = Search(sources, index, folder / digest(" ".join(identities)))
    parts = run_search(search, workers, console)
    remarks = list(header)
    if index.blank:
        remarks.append(f"{index.blank} blank images, which identify nothing, were not compared")
    overlap = report(parts, index, output, remarks)
    shutil.rmtree(folder)
    return overlap


def load_examples(
    configs: Sequence[BenchmarkConfig], console: Console
) -> tuple[list[Example], list[str]]:
    """Load the rows of all benchmarks, and print the notes of the benchmarks.

    Returns the rows, and one line for each benchmark with its name, location and number of rows.
    """
    examples: list[Example] = []
    remarks: list[str] = []
    for config in configs:
        benchmark = load(config)
        examples += benchmark.examples
        remarks.append(f"{config.name}={benchmark.origin.location}: {len(benchmark.examples)} rows")
        for note in (*benchmark.origin.notes, *benchmark.origin.unavailable):
            console.print(f"{config.name}: {note}", style="yellow")
    return examples, remarks


def main() -> None:
    """Search a recipe's data for the rows of benchmarks, and print a table of the matches.

    See the module's docstring for the files that are written.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", type=Path, help="The recipe whose sources are searched.")
    add_benchmarks(parser, required=True)
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
        help="The file of fingerprints to write. Every match is written next to it (.jsonl).",
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=os.cpu_count() or 1,
        help="The number of processes that search. The default is the number of processors.",
    )
    options = parser.parse_args()
    details = options.output.with_suffix(".jsonl")
    if options.output.suffix == ".jsonl":
        parser.error(
            f"--output is {options.output}, and the details are written to a file of this name. "
            "Choose a name that does not end in .jsonl."
        )
    console = plain_console(width=max(160, plain_console().width))
    # Outputs that differ only in their endings share the file of details.
    with command(), locked_file(details):
        section = section_of(options.recipe)
        cache = Path(section.cache).expanduser() if section.cache else CACHE
        sources = [source.open(cache) for source in section.sources]
        examples, remarks = load_examples(options.benchmarks, console)
        header = [f"Records of {options.recipe} {WRITER} in", *remarks]
        progress_console = plain_console(stderr=True)
        overlap = find(sources, examples, options.output, options.workers, header, progress_console)
    console.print(overlap.table())
    for source in sources:
        if source.generated and overlap.sources[source.name]["left_out"]:
            console.print(
                f"{source.name}: generated records cannot be left out by fingerprint.",
                style="yellow",
            )
    console.print(f"Fingerprints: {options.output}; every match: {details}")


if __name__ == "__main__":
    main()
