"""The description of a data file that `python data/mixture.py FILE` prints.

It contains the file's format, some records as they will be trained on, the rows that would be
dropped, and a recipe to start from.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mmrm.data.images import DEFAULT_IMAGE_TOKENS, image_size
from mmrm.data.preference import Preference, validate
from mmrm.data.preparation.faults import fault_messages
from mmrm.data.preparation.filters import FilterConfig, reasons_after_filters
from mmrm.data.preparation.recognition import configured, in_yaml, recognise
from mmrm.data.preparation.scan import BadRecordConfig, scan
from mmrm.data.preparation.split import SourceSplit

SHOWN = 3
"""Number of records that are shown."""
LONGEST = 600
"""Number of characters of a text that are shown."""
START = Path(__file__).resolve().parents[2] / "recipes" / "basereward.yaml"
"""The recipe that the printed recipe extends."""
STEPS = 20
"""Number of steps that an epoch of the printed recipe has at least."""
FEW = STEPS * 128
"""Below this number of records, the steps of START, of 128 records each, would be too large."""
MOST_VALIDATION = 1000


def inspect(place: Path, images: str | None, cache: Path, workers: int) -> Iterator[str]:
    """Yield the paragraphs that describe a file or folder of preference records.

    Args:
        place: The file or folder.
        images: The folder or archive of its images; None if they are next to the file.
        cache: The folder for derived files.
        workers: The largest number of processes that read.

    Raises:
        UserError: It is in no known format, or in several.
    """
    fit = recognise(str(place), cache, images)
    config = configured(**fit.settings)
    source = config.open(cache)
    index = scan(source, BadRecordConfig(limit=1.0), cache, workers)
    no_fingerprints = np.empty(0, np.uint64)
    reasons = reasons_after_filters(FilterConfig(), index, no_fingerprints, DEFAULT_IMAGE_TOKENS)
    split = SourceSplit.of(config, source, index, reasons)

    num_rows = len(source) // config.records_per_row
    several = f", up to {config.records_per_row} records each" if config.records_per_row > 1 else ""
    yield f"{place}: {num_rows:,} rows in the format `{fit.type}`{several} (docs/data_formats.md)"
    if fit.unread:
        yield f"columns that are not read: {', '.join(fit.unread)}"
    for row in split.rows[:SHOWN]:
        yield from _record_lines(validate(source.record(int(row))))
    dropped = ", ".join(f"{name} {count:,}" for name, count in split.left_out.items())
    yield (
        f"\n{len(split.rows):,} of {len(source):,} records would be trained on; dropped: "
        f"{dropped or 'none'}"
    )
    for message in fault_messages(index.faults):
        yield f"bad: {_printable(message)}"
    if len(split.rows) == 0:
        return
    # No training record shares the prompt of a held-out record, so prompts are counted.
    num_prompts = len(np.unique(split.prompt_keys(split.rows)))
    num_validation = min(MOST_VALIDATION, num_prompts // 10)
    bad_share = index.skipped / len(source)
    yield from _recipe(place, fit.line, len(split.rows), num_validation, bad_share)


def _record_lines(record: Preference) -> Iterator[str]:
    """Yield a record as it is trained on, with the size of each image in the image's position."""
    yield f"\n{record.identity}"
    sizes = iter([image_size(image, record.identity) for image in record.images])
    for turn in record.prompt:
        pieces = []
        for part in turn["content"]:
            if part["type"] == "image":
                height, width = next(sizes)
                pieces.append(f"[image of {width} x {height} pixels]")
            else:
                pieces.append(part["text"])
        yield f"  {turn['role'] + ':':<10}{_printable(' '.join(pieces))}"
    yield f"  {'chosen:':<10}{_printable(record.chosen)}"
    yield f"  {'rejected:':<10}{_printable(record.rejected)}"
    yield f"  {'margin:':<10}{'none' if record.margin is None else record.margin}"


def _printable(text: str) -> str:
    """Return the beginning of `text`, indented and without terminal control characters."""
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}… ({len(text):,} characters)"
    return "".join(map(_printable_character, text))


def _printable_character(character: str) -> str:
    if character.isprintable():
        return character
    if character == "\n":
        return "\n" + " " * 12
    return "\ufffd"


def _recipe(
    place: Path, source_line: str, num_records: int, num_validation: int, bad_share: float
) -> Iterator[str]:
    """Yield the lines of a recipe that trains on a file.

    With few records, the steps are made smaller, so that an epoch has at least STEPS of them.

    Args:
        place: The file.
        source_line: The source as it is written in a recipe.
        num_records: Number of records that would be trained on.
        num_validation: Number of records to hold out.
        bad_share: Share of the records that cannot be used.
    """
    name = re.sub(r"[^\w.-]+", "-", place.stem)
    yield (
        f"\nA recipe to start from; save it as {name}.yaml, then: "
        f"deepspeed train/rm.py {name}.yaml --dry-run\n"
    )
    yield f"extends: {in_yaml(str(START))}"
    yield f"data:\n  sources:\n    - {source_line}\n  validation: {num_validation}"
    if bad_share > BadRecordConfig().limit:
        limit = np.ceil(bad_share * 1000) / 1000
        yield f"  bad_records: {{limit: {limit}}}  # better: correct the bad records above"
    save_every_steps = ""
    if num_records < FEW:
        records_per_step = 2 ** int(np.log2(max(num_records // STEPS, 1)))
        num_steps = num_records // records_per_step
        save_every_steps = f", save_every_steps: {max(num_steps // 4, 1)}"
        yield f"optim: {{records_per_step: {records_per_step}}}"
        if num_validation:
            yield "evaluation: {benchmarks: [], best_metric: held_out/accuracy}"
    yield f"output: {{folder: runs/{name}{save_every_steps}}}"
