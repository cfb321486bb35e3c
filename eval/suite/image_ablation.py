"""Ablations of images and videos: the rows of a benchmark without them, or with other ones.

The accuracy that a judge keeps on such rows does not come from looking at the images.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mmrm.data.encoded_video import Video, grey_video_like
from mmrm.data.errors import UserError
from mmrm.data.images import grey_like
from mmrm.data.preference import Message, Part
from mmrm.data.storage.files import content_digest
from mmrm.eval.candidates import BenchmarkRow, Example, with_media
from mmrm.eval.protocol import Images

FileDigests = tuple[str, ...]
"""Digests of the images of one row, or of its videos."""


def with_ablated_images(
    examples: Sequence[BenchmarkRow], images: Images, seed: int = 0
) -> list[BenchmarkRow]:
    """Return copies of the examples with their images removed or replaced; keys are unchanged.

    Args:
        examples: The rows of a benchmark.
        images: `real` changes nothing. `none` removes the images and videos from the prompt and the
            responses. `grey` replaces each image, and each frame of a video, by a grey one of the
            same size. `shuffled` gives each row the images and videos of another row.
        seed: The seed of `shuffled`.

    Raises:
        UserError: If there are no two different images, or videos, to shuffle.
    """
    if images == "none":
        return [_without_image_parts(example) for example in examples]
    if images == "grey":
        return [_with_grey_images(example) for example in examples]
    if images == "shuffled":
        return _shuffled(examples, seed)
    return list(examples)


def _without_image_parts(example: BenchmarkRow) -> BenchmarkRow:
    """Return the example without the images and videos of its prompt and of its responses."""
    prompt: list[Message] = []
    for message in example.prompt:
        parts: list[Part] = [part for part in message["content"] if part["type"] == "text"]
        prompt.append({**message, "content": parts})
    without_media = replace(example, images=(), videos=(), prompt=tuple(prompt))
    responses = tuple(response.without_media() for response in example.responses)
    if isinstance(without_media, Example):
        first, second = responses
        return replace(without_media, responses=(first, second))
    return replace(without_media, responses=responses)


def _with_grey_images(example: BenchmarkRow) -> BenchmarkRow:
    """Return the example with grey images and videos of the same sizes."""
    images = [grey_like(image, example.identity) for image in example.all_images]
    videos = [grey_video_like(video, example.identity) for video in example.all_videos]
    return with_media(example, images, videos)


def _shuffled(examples: Sequence[BenchmarkRow], seed: int) -> list[BenchmarkRow]:
    """Return the examples with images and videos exchanged between rows, those of responses too.

    Each row gets as many images, and as many videos, as it had. Rows without any are unchanged.
    """
    file_by_digest: dict[str, bytes | Path] = {}
    rows_of_images: list[RowFiles] = []
    rows_of_videos: list[RowFiles] = []
    for example in examples:
        images = list(example.all_images)
        videos = [video.content for video in example.all_videos]
        rows_of_images.append(_row_files(example, images, len(example.images), file_by_digest))
        rows_of_videos.append(_row_files(example, videos, len(example.videos), file_by_digest))
    shuffled: list[BenchmarkRow] = []
    for example, images_of_row, videos_of_row in zip(
        examples,
        _exchanged(rows_of_images, seed),
        _exchanged(rows_of_videos, seed),
        strict=True,
    ):
        new_images = [file_by_digest[digest] for digest in images_of_row]
        new_videos = [Video(file_by_digest[digest]) for digest in videos_of_row]
        shuffled.append(with_media(example, new_images, new_videos))
    return shuffled


@dataclass(frozen=True, slots=True)
class RowFiles:
    """The images of a row, or its videos."""

    key: str
    """The key of the row."""
    digests: FileDigests
    """Digests of the files, those of the prompt first."""
    num_of_prompt: int
    """Number of files of the prompt."""


def _row_files(
    example: BenchmarkRow,
    files: Sequence[bytes | Path],
    num_of_prompt: int,
    file_by_digest: dict[str, bytes | Path],
) -> RowFiles:
    """Return the images or the videos of a row, and note each file under its digest.

    Args:
        example: The row.
        files: The contents or paths of its images, or of its videos, those of the prompt first.
        num_of_prompt: Number of files of the prompt.
        file_by_digest: The mapping that gets the files.
    """
    digests = tuple(map(content_digest, files))
    file_by_digest.update(zip(digests, files, strict=True))
    return RowFiles(example.key, digests, num_of_prompt)


def _exchanged(rows: Sequence[RowFiles], seed: int) -> list[list[str]]:
    """Return for each row the digests of the files that it gets from other rows.

    Those of its responses are in a random order: some benchmarks list the best response first, and
    the order would then tell which image was the best.
    """
    partners = _partners([row.digests for row in rows if row.digests], seed)
    exchanged: list[list[str]] = []
    for row in rows:
        digests = list(partners.get(row.digests, ()))
        of_prompt = digests[: row.num_of_prompt]
        of_responses = digests[row.num_of_prompt :]
        random.Random(f"{seed}/{row.key}").shuffle(of_responses)
        exchanged.append([*of_prompt, *of_responses])
    return exchanged


def _partners(rows: Iterable[FileDigests], seed: int) -> dict[FileDigests, FileDigests]:
    """Return a mapping from each different tuple of files to the tuple that replaces it.

    Both have the same length. The tuples of one length are put into a random cycle, and each is
    replaced by the next one. A tuple that is the only one of its length is replaced by images of
    several other rows.

    Args:
        rows: The digests of the images of each row.
        seed: The seed of the random order.
    """
    different_rows = sorted(set(rows))
    random.Random(seed).shuffle(different_rows)
    cycle_by_length: dict[int, list[FileDigests]] = {}
    for digests in different_rows:
        cycle_by_length.setdefault(len(digests), []).append(digests)
    partners: dict[FileDigests, FileDigests] = {}
    for cycle in cycle_by_length.values():
        rotated_cycle = cycle[1:] + cycle[:1]
        partners.update(zip(cycle, rotated_cycle, strict=True))
    for digests, partner in list(partners.items()):
        is_only_one_of_its_length = digests == partner
        if is_only_one_of_its_length:
            partners[digests] = _images_of_other_rows(digests, different_rows)
    return partners


def _images_of_other_rows(digests: FileDigests, rows: Sequence[FileDigests]) -> FileDigests:
    """Return the digests of images, or of videos, of other rows, in the same number as `digests`.

    Raises: UserError if the other rows show no other ones.
    """
    pool: list[str] = []
    for other_digests in rows:
        if other_digests != digests:
            pool += other_digests
    for start in range(len(pool)):
        # Consecutive images of the pool, which starts again at its end.
        images = tuple(pool[(start + offset) % len(pool)] for offset in range(len(digests)))
        if images != digests:
            return images
    raise UserError(
        "all rows with images show the same image, or all rows with videos the same video; shuffling "
        "needs at least two different ones."
    )
