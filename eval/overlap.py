"""Find the training records whose image, question or pair of responses occurs in a benchmark.

python eval/overlap.py recipes/basereward.yaml --benchmarks vl_rewardbench=hub --output overlap.txt

The command prints counts by source and kind of match with some examples, and writes two files.

  overlap.txt     fingerprints of the records to leave out
  overlap.jsonl   every match: record, benchmark rows, kind, similarity, whether it is a reason

To leave the records out, write `data: {filters: {leave_out: overlap.txt}}` into the recipe.

Every row of the recipe's sources is looked at, whatever its filters, caps and weights draw from
them. eval/contamination/index.py describes which contents are equal or nearly equal. A record is
left out if one of its images, one of its questions or its pair of responses occurs in a benchmark,
unless that text is a common one (COMMON in eval/contamination/overlap_report.py). A question inside
a source's own long instruction is not recognised as the question; its image and responses are.

Memory does not grow with the training data. A run that was stopped continues if you start it again.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from mmrm.data.display.command import command
from mmrm.data.display.console import plain_console
from mmrm.data.preparation.filters import WRITER
from mmrm.data.preparation.mixing import CACHE
from mmrm.data.preparation.recipe_section import section_of
from mmrm.data.preparation.scan import code
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
    about: Sequence[str],
    console: Console,
) -> Overlap:
    """Look for the benchmark rows `examples` in all records of `sources`.

    Writes `output` and the details next to it (.jsonl). The result depends neither on the number of
    workers nor on whether the run was interrupted.

    Raises:
        ImageError: If an image of a benchmark cannot be decoded.
    """
    index = OverlapIndex(examples)
    # The matches of an interrupted run are used again if code, benchmarks and sources are the same.
    search_code = code_digest("mmrm.eval.contamination.search", floors=("eval",))
    identities = [code(), search_code, index.fingerprint]
    for source in sources:
        identities.append(f"{source.fingerprint()} {len(source)}")
    folder = output.with_name(f"{output.name}.parts")
    search = Search(sources, index, folder / digest(" ".join(identities)))
    parts = run_search(search, workers, console)
    remarks = list(about)
    if index.blank:
        remarks.append(f"{index.blank} blank images, which identify nothing, were not compared")
    overlap = report(parts, index, output, remarks)
    shutil.rmtree(folder)
    return overlap


def load_examples(
    configs: Sequence[BenchmarkConfig], console: Console
) -> tuple[list[Example], list[str]]:
    """Return the rows of all benchmarks, and a remark on the number of each; print their notes."""
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
    """Read the command line, look for overlap, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", type=Path)
    add_benchmarks(parser, required=True)
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
        help="the file of fingerprints; details are written next to it (.jsonl)",
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
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
        about = [f"Records of {options.recipe} {WRITER} in", *remarks]
        progress_console = plain_console(stderr=True)
        overlap = find(sources, examples, options.output, options.workers, about, progress_console)
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
