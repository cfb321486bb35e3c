"""What a data file is: its format, records as they will be trained, what would be dropped, and a recipe to start from."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mmrm.data.images import DEFAULT_IMAGE_TOKENS, image_size
from mmrm.data.preference import Preference, validate
from mmrm.data.preparation.faults import told
from mmrm.data.preparation.filters import FilterConfig, apply
from mmrm.data.preparation.recognition import configured, in_yaml, recognise
from mmrm.data.preparation.scan import BadRecordConfig, scan
from mmrm.data.preparation.split import SourceSplit

SHOWN = 3
LONGEST = 600
"""Characters of a text that are shown."""
START = Path(__file__).resolve().parents[2] / "recipes" / "basereward.yaml"
STEPS, FEW = 20, 20 * 128
"""Steps that an epoch should have, and records below which those of the recipe that is extended are too large for that."""


def inspect(place: Path, images: str | None, cache: Path, workers: int) -> Iterator[str]:
    """Yield what there is to say about the file or folder `place`, whose images lie in `images` (None: beside the file).

    Raises: UserError if it is in no known format, or in several.
    """
    fit = recognise(str(place), cache, images)
    config = configured(**fit.settings)
    source = config.open(cache)
    index = scan(source, BadRecordConfig(limit=1.0), cache, workers)
    part = SourceSplit.of(
        config,
        source,
        index,
        apply(FilterConfig(), index, np.empty(0, np.uint64), DEFAULT_IMAGE_TOKENS),
    )
    several = f", up to {config.records_per_row} records each" if config.records_per_row > 1 else ""
    yield f"{place}: {len(source) // config.records_per_row:,} rows in the format `{fit.type}`{several} (docs/data_formats.md)"
    if fit.unread:
        yield f"columns that are not read: {', '.join(fit.unread)}"
    for row in part.rows[:SHOWN]:
        yield from _shown(validate(source.record(int(row))))
    dropped = ", ".join(f"{name} {count:,}" for name, count in part.left_out.items())
    yield f"\n{len(part.rows):,} of {len(source):,} records would be trained on; dropped: {dropped or 'none'}"
    for message in told(index.faults):
        yield f"bad: {_printable(message)}"
    if len(part.rows):
        prompts = len(
            np.unique(part.prompt_keys(part.rows))
        )  # no training record shares the prompt of a held-out one
        yield from _recipe(
            place, fit.line, len(part.rows), min(1000, prompts // 10), index.skipped / len(source)
        )


def _shown(record: Preference) -> Iterator[str]:
    """Yield a record as it is trained on, its images as their places and sizes."""
    yield f"\n{record.identity}"
    sizes = iter([image_size(image, record.identity) for image in record.images])
    for turn in record.prompt:
        said = []
        for part in turn["content"]:
            if part["type"] == "image":
                height, width = next(sizes)
                said.append(f"[image of {width} x {height} pixels]")
            else:
                said.append(part["text"])
        yield f"  {turn['role'] + ':':<10}{_printable(' '.join(said))}"
    yield f"  {'chosen:':<10}{_printable(record.chosen)}"
    yield f"  {'rejected:':<10}{_printable(record.rejected)}"
    yield f"  {'margin:':<10}{'none' if record.margin is None else record.margin}"


def _printable(text: str) -> str:
    """Return the beginning of `text`, without what would steer a terminal, its lines indented."""
    shown = text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text):,} characters)"
    return "".join(
        one if one.isprintable() else "\n" + " " * 12 if one == "\n" else "\ufffd" for one in shown
    )


def _recipe(place: Path, line: str, records: int, validation: int, bad: float) -> Iterator[str]:
    """Yield a recipe that trains on `place`, of which the share `bad` cannot be used; few records get steps to match."""
    name = re.sub(r"[^\w.-]+", "-", place.stem)
    yield f"\nA recipe to start from; save it as {name}.yaml, then: deepspeed train/rm.py {name}.yaml --dry-run\n"
    yield f"extends: {in_yaml(str(START))}\ndata:\n  sources:\n    - {line}\n  validation: {validation}"
    if bad > BadRecordConfig().limit:
        yield f"  bad_records: {{limit: {np.ceil(bad * 1000) / 1000}}}  # better: correct the bad records above"
    saved = ""
    if records < FEW:
        per_step = 2 ** int(np.log2(max(records // STEPS, 1)))
        saved = f", save_every_steps: {max(records // per_step // 4, 1)}"
        yield f"optim: {{records_per_step: {per_step}}}"
        if validation:
            yield "evaluation: {benchmarks: [], best_metric: held_out/accuracy}"
    yield f"output: {{folder: runs/{name}{saved}}}"
