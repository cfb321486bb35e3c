"""Find the training records of which an image, a question or the pair of responses occurs in a benchmark.

python eval/overlap.py recipes/basereward.yaml --benchmarks vl_rewardbench=hub mm_rlhf_rewardbench=hub --output overlap.txt

Prints counts by source and kind of match with some examples, and writes

  overlap.txt     fingerprints of the records to leave out; in the recipe: `data: {filters: {leave_out: overlap.txt}}`
  overlap.jsonl   every match: record, benchmark rows, kind, similarity, whether it is a reason to leave the record out

Every row of the recipe's sources is looked at, whatever its filters, caps and weights draw from them. What counts as equal
and nearly equal: eval/contamination/index.py. A record is left out if one of its images occurs in a
benchmark, or one of its questions or its pair of responses, unless that text is a common one (COMMON in
eval/contamination/overlap_report.py).
A question inside a long instruction of a source's own is not recognised as the question; its image and responses are.

Memory does not grow with the training data. A run that was stopped continues where it was if it is started again.
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
from mmrm.eval.benchmarks.registry import load
from mmrm.eval.candidates import Example
from mmrm.eval.cli import add_benchmarks
from mmrm.eval.contamination.index import OverlapIndex
from mmrm.eval.contamination.overlap_report import Overlap, report
from mmrm.eval.contamination.search import Search, run


def find(
    sources: Sequence[Source],
    examples: Sequence[Example],
    output: Path,
    workers: int,
    about: Sequence[str],
    console: Console,
) -> Overlap:
    """Look for all records of `sources` in the benchmark rows `examples`; write `output` and its .jsonl.

    The result depends neither on the number of workers nor on whether the run was interrupted.
    Raises: ImageError for a benchmark's image that cannot be decoded.
    """
    index = OverlapIndex(examples)
    own = code_digest("mmrm.eval.contamination.search", floors=("eval",))
    key = digest(
        " ".join(
            [
                code(),
                own,
                index.fingerprint,
                *(f"{source.fingerprint()} {len(source)}" for source in sources),
            ]
        )
    )
    parts = output.with_name(f"{output.name}.parts")
    found = run(Search(sources, index, parts / key), workers, console)
    blank = (
        [f"{index.blank} blank images, which identify nothing, were not compared"]
        if index.blank
        else []
    )
    overlap = report(found, index, output, [*about, *blank])
    shutil.rmtree(parts)
    return overlap


def main() -> None:
    """Read the command line, look for overlap, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", type=Path)
    add_benchmarks(parser, required=True)
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
        help="the file of fingerprints; details go beside it (.jsonl)",
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if options.output.suffix == ".jsonl":
        parser.error("--output must not end in .jsonl: that is the name of the details")
    console = plain_console(width=max(160, plain_console().width))
    # Outputs that differ only in their endings share the file of details.
    with command(), locked_file(options.output.with_suffix(".jsonl")):
        section = section_of(options.recipe)
        cache = Path(section.cache).expanduser() if section.cache else CACHE
        sources = [source.open(cache) for source in section.sources]
        examples, about = list[Example](), [f"Records of {options.recipe} {WRITER} in"]
        for config in options.benchmarks:
            loaded = load(config)
            examples += loaded.examples
            about.append(f"{config.name}={loaded.origin.location}: {len(loaded.examples)} rows")
            for note in (*loaded.origin.notes, *loaded.origin.unavailable):
                console.print(f"{config.name}: {note}", style="yellow")
        overlap = find(
            sources, examples, options.output, options.workers, about, plain_console(stderr=True)
        )
    console.print(overlap.table())
    for source in sources:
        if source.generated and overlap.sources[source.name]["left_out"]:
            console.print(
                f"{source.name}: generated records cannot be left out by fingerprint.",
                style="yellow",
            )
    console.print(
        f"Fingerprints: {options.output}; every match: {options.output.with_suffix('.jsonl')}"
    )


if __name__ == "__main__":
    main()
