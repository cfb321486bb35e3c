"""The description of a data file, which `python data/mixture.py FILE` prints.

It contains the file's format, some records as they will be trained on, the rows that would be
dropped, and a recipe to start from.
"""

import re
from collections.abc import Iterator, Sequence
from math import isnan
from pathlib import Path

import numpy as np

from mmrm.data.encoded_video import VideoSize, video_size
from mmrm.data.errors import LeftOut
from mmrm.data.images import DEFAULT_IMAGE_TOKENS, image_size
from mmrm.data.preference import Part, Preference, validate
from mmrm.data.preparation.faults import fault_messages
from mmrm.data.preparation.filters import FilterConfig, reasons_after_filters
from mmrm.data.preparation.recognition import files_config, in_yaml, recognise
from mmrm.data.preparation.scan import BadRecordConfig, scan
from mmrm.data.preparation.sharding import lines_about
from mmrm.data.preparation.split import SourceSplit
from mmrm.data.sources.shared.file_source import FilesConfig
from mmrm.data.storage.shard_files import MANIFEST, ShardRows

NUM_SHOWN_RECORDS = 3
MAX_SHOWN_CHARACTERS = 600
"""The most characters of a text that are shown."""
BASE_RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "basereward.yaml"
"""The recipe that the printed recipe extends."""
MIN_STEPS = 20
"""Number of steps that an epoch of the printed recipe has at least."""
ENOUGH_RECORDS = MIN_STEPS * 128
"""With fewer records, the steps of BASE_RECIPE, of 128 records each, would be too large."""
MAX_VALIDATION = 1000
"""The most records that the printed recipe holds out."""


def inspect(path: Path, images: str | None, cache: Path, workers: int) -> Iterator[str]:
    """Yield the lines of a description of a file or folder of preference records.

    They contain the format, some records, the numbers of rows that are dropped, messages about
    unusable records, and a recipe to start from.

    Args:
        path: The file or folder.
        images: The folder or archive of its images; None if they are next to the file.
        cache: The folder for derived files.
        workers: The largest number of processes that read.

    Raises:
        UserError: The file is in no known format, or in several.
    """
    if (path / MANIFEST).is_file():
        yield from lines_about(ShardRows(path).manifest, path)
        return
    fit = recognise(str(path), cache, images)
    config = files_config(**fit.settings)
    source = config.open(cache)
    any_number_of_bad_records = BadRecordConfig(limit=1.0)
    index = scan(source, any_number_of_bad_records, cache, workers)
    no_fingerprints = np.empty(0, np.uint64)
    reasons = reasons_after_filters(FilterConfig(), index, no_fingerprints, DEFAULT_IMAGE_TOKENS)
    split = SourceSplit.of(config, source, index, reasons)

    num_rows = len(source) // config.records_per_row
    records_per_row = ""
    if config.records_per_row > 1:
        records_per_row = f", up to {config.records_per_row} records each"
    yield (
        f"{path}: {num_rows:,} rows in the format `{fit.type}`{records_per_row} "
        "(docs/data_formats.md)"
    )
    if fit.unread:
        yield f"columns that are not read: {', '.join(fit.unread)}"
    for row in split.rows[:NUM_SHOWN_RECORDS]:
        yield from _record_lines(validate(source.record(int(row))))
    dropped = ", ".join(f"{reason} {count:,}" for reason, count in split.left_out.items())
    yield (
        f"\n{len(split.rows):,} of {len(source):,} records would be trained on; dropped: "
        f"{dropped or 'none'}"
    )
    for message in fault_messages(index.faults):
        yield f"bad: {_printable(message)}"
    if split.left_out.get("tie"):
        yield "`ties: keep` in a recipe keeps the ties, for an objective that learns from them."
    first_rows = [row // config.records_per_row for row in split.rows[:NUM_SHOWN_RECORDS].tolist()]
    yield from _advice_on_lists(config, first_rows, cache)
    if len(split.rows) == 0:
        return
    # A tenth of the prompts rather than of the records: training records that share their prompt
    # with a held-out record are lost.
    num_prompts = len(np.unique(split.prompt_keys(split.rows)))
    num_validation = min(MAX_VALIDATION, num_prompts // 10)
    bad_share = index.skipped / len(source)
    yield from _recipe(path, fit.line, len(split.rows), num_validation, bad_share)


def _advice_on_lists(config: FilesConfig, rows: Sequence[int], cache: Path) -> Iterator[str]:
    """Yield a line about `pairs: none` if it would give more than two responses to a prompt.

    Args:
        config: The source's section of a recipe.
        rows: Numbers of rows of the file to try.
        cache: The folder for derived files.
    """
    if "pairs" not in type(config).model_fields:
        return
    source_of_lists = config.model_copy(update={"pairs": "none"}).open(cache)
    most_responses = 0
    for row in rows:
        try:
            num_responses = len(source_of_lists.record(row).responses)
        except LeftOut:
            continue  # its responses have no ratings
        most_responses = max(most_responses, num_responses)
    if most_responses > 2:
        yield (
            f"A row has up to {most_responses} responses. `pairs: none` in a recipe gives them as "
            "one record, with their ranks and ratings, for an objective that learns from lists."
        )


def _record_lines(record: Preference) -> Iterator[str]:
    """Yield the lines that show a record: its identity, turns, responses and margin.

    In place of an image or a video is its size.
    """
    yield f"\n{record.identity}"
    # Images of the prompt come before those of the responses.
    sizes = iter([image_size(image, record.identity) for image in record.all_images])
    videos = iter([video_size(video, record.identity) for video in record.all_videos])
    for turn in record.prompt:
        content = _with_sizes(turn["content"], sizes, videos)
        yield f"  {turn['role'] + ':':<10}{_printable(content)}"
    names = ["chosen:", "rejected:"]
    if not record.is_pair:
        names = [f"rank {rank}:" for rank in record.ranks]
    for name, response in zip(names, record.responses, strict=True):
        yield f"  {name:<10}{_printable(_with_sizes(response.parts, sizes, videos))}"
    for name, values in record.attributes.items():
        numbers = ", ".join("unknown" if isnan(value) else f"{value:g}" for value in values)
        yield f"  attribute {_printable(name)}: {numbers}"
    yield f"  {'margin:':<10}{'none' if record.margin is None else record.margin}"


def _with_sizes(
    parts: Sequence[Part], sizes: Iterator[tuple[int, int]], videos: Iterator[VideoSize]
) -> str:
    """Return the parts of a message as a text, with the size of each image or video in its place.

    Args:
        parts: The parts.
        sizes: Yields the height and the width of each image.
        videos: Yields the size and the length of each video.
    """
    pieces = []
    for part in parts:
        if part["type"] == "image":
            height, width = next(sizes)
            pieces.append(f"[image of {width} x {height} pixels]")
        elif part["type"] == "video":
            video = next(videos)
            pieces.append(
                f"[video of {video.num_frames} frames in {video.seconds:.1f} seconds, "
                f"{video.width} x {video.height} pixels]"
            )
        else:
            pieces.append(part["text"])
    return " ".join(pieces)


def _printable(text: str) -> str:
    """Return the beginning of `text` with indented lines, safe to print on a terminal."""
    if len(text) > MAX_SHOWN_CHARACTERS:
        text = f"{text[:MAX_SHOWN_CHARACTERS]}… ({len(text):,} characters)"
    return "".join(map(_printable_character, text))


def _printable_character(character: str) -> str:
    """Return the character, indentation after a line break, or U+FFFD for a control character."""
    if character.isprintable():
        return character
    if character == "\n":
        return "\n" + " " * 12
    return "\ufffd"


def _recipe(
    path: Path, source_line: str, num_records: int, num_validation: int, bad_share: float
) -> Iterator[str]:
    """Yield the lines of a recipe that trains on a file.

    With few records, the steps are made smaller, so that an epoch has at least MIN_STEPS of them.

    Args:
        path: The file or folder.
        source_line: The source as it is written in a recipe, such as {type: trl, path: a.jsonl}.
        num_records: Number of records that would be trained on.
        num_validation: Number of records to hold out.
        bad_share: Share of the records that cannot be used.
    """
    name = re.sub(r"[^\w.-]+", "-", path.stem)
    yield (
        f"\nA recipe to start from; save it as {name}.yaml, then: "
        f"deepspeed train/rm.py {name}.yaml --dry-run\n"
    )
    yield f"extends: {in_yaml(str(BASE_RECIPE))}"
    yield f"data:\n  sources:\n    - {source_line}\n  validation: {num_validation}"
    if bad_share > BadRecordConfig().limit:
        limit = np.ceil(bad_share * 1000) / 1000  # rounded up, so that the share is allowed
        yield f"  bad_records: {{limit: {limit}}}  # better: correct the bad records above"
    save_every_steps = ""
    if num_records < ENOUGH_RECORDS:
        max_records_per_step = max(num_records // MIN_STEPS, 1)
        records_per_step = 2 ** int(np.log2(max_records_per_step))  # the next lower power of two
        num_steps = num_records // records_per_step
        save_every_steps = f", save_every_steps: {max(num_steps // 4, 1)}"
        yield f"optim: {{records_per_step: {records_per_step}}}"
        if num_validation:
            yield "evaluation: {benchmarks: [], best_metric: held_out/accuracy}"
    yield f"output: {{folder: runs/{name}{save_every_steps}}}"
