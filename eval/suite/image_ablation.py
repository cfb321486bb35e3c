"""Ablations of images and videos: the rows of a benchmark without them, or with other ones.

The accuracy that a judge keeps on such rows does not come from looking at the images.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice

from mmrm.data.encoded_video import Video, grey_video_like
from mmrm.data.errors import UserError
from mmrm.data.images import grey_like
from mmrm.data.preference import EncodedImage, Message, Part, Response
from mmrm.data.storage.files import content_digest
from mmrm.eval.candidates import BenchmarkRow, Example
from mmrm.eval.protocol import Images

ImageDigests = tuple[str, ...]
"""Digests of the images of one row."""


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
        rows = list(examples)
        if any(example.all_videos for example in examples):
            rows = _with_shuffled_videos(rows, seed)
        has_images = any(example.all_images for example in examples)
        has_videos = any(example.all_videos for example in examples)
        return _shuffled(rows, seed) if has_images or not has_videos else rows
    return list(examples)


def _without_image_parts(example: BenchmarkRow) -> BenchmarkRow:
    """Return the example without the images and videos of its prompt and of its responses."""
    prompt: list[Message] = []
    for message in example.prompt:
        parts: list[Part] = [part for part in message["content"] if part["type"] == "text"]
        prompt.append({**message, "content": parts})
    responses = tuple(response.without_images() for response in example.responses)
    return _with_responses(replace(example, images=(), videos=(), prompt=tuple(prompt)), responses)


def _with_grey_images(example: BenchmarkRow) -> BenchmarkRow:
    """Return the example with grey images and videos of the same sizes."""
    images = [grey_like(image, example.identity) for image in example.all_images]
    videos = [grey_video_like(video, example.identity) for video in example.all_videos]
    return _with_videos(_with_images(example, images), videos)


def _with_images(example: BenchmarkRow, images: Sequence[EncodedImage]) -> BenchmarkRow:
    """Return the example with other images: first those of its prompt, then of its responses.

    Args:
        example: The row.
        images: As many images as the row has.
    """
    remaining_images = iter(images)
    prompt_images = tuple(islice(remaining_images, len(example.images)))
    responses = []
    for response in example.responses:
        images_of_response = list(islice(remaining_images, len(response.images)))
        responses.append(response.with_images(images_of_response))
    return _with_responses(replace(example, images=prompt_images), tuple(responses))


def _with_videos(example: BenchmarkRow, videos: Sequence[Video]) -> BenchmarkRow:
    """Return the example with other videos: first those of its prompt, then of its responses.

    Args:
        example: The row.
        videos: As many videos as the row has.
    """
    remaining_videos = iter(videos)
    prompt_videos = tuple(islice(remaining_videos, len(example.videos)))
    responses = []
    for response in example.responses:
        videos_of_response = list(islice(remaining_videos, len(response.videos)))
        responses.append(response.with_videos(videos_of_response))
    return _with_responses(replace(example, videos=prompt_videos), tuple(responses))


def _with_responses(example: BenchmarkRow, responses: tuple[Response, ...]) -> BenchmarkRow:
    """Return the example with other responses, as many as it has."""
    if isinstance(example, Example):
        first, second = responses
        return replace(example, responses=(first, second))
    return replace(example, responses=responses)


def _shuffled(examples: Sequence[BenchmarkRow], seed: int) -> list[BenchmarkRow]:
    """Return the examples with their images exchanged between rows, those of responses as well.

    Each row gets as many images as it had, and those of its responses in a random order: some
    benchmarks list the best response first, and the order would then tell which image was the best.
    Rows without images are unchanged.
    """
    digests_by_row = [tuple(map(content_digest, example.all_images)) for example in examples]
    rows_with_images = [digests for digests in digests_by_row if digests]
    partners = _partners(rows_with_images, seed)
    image_by_digest: dict[str, EncodedImage] = {}
    for digests, example in zip(digests_by_row, examples, strict=True):
        image_by_digest.update(zip(digests, example.all_images, strict=True))
    shuffled: list[BenchmarkRow] = []
    for digests, example in zip(digests_by_row, examples, strict=True):
        if digests:
            images = [image_by_digest[digest] for digest in partners[digests]]
            images_of_prompt = images[: len(example.images)]
            images_of_responses = images[len(example.images) :]
            random.Random(f"{seed}/{example.key}").shuffle(images_of_responses)
            shuffled.append(_with_images(example, [*images_of_prompt, *images_of_responses]))
        else:
            shuffled.append(example)
    return shuffled


def _with_shuffled_videos(examples: Sequence[BenchmarkRow], seed: int) -> list[BenchmarkRow]:
    """Return the examples with their videos exchanged between rows, as `_shuffled` does images."""
    digests_by_row: list[ImageDigests] = []
    video_by_digest: dict[str, Video] = {}
    for example in examples:
        digests = tuple(content_digest(video.content) for video in example.all_videos)
        digests_by_row.append(digests)
        video_by_digest.update(zip(digests, example.all_videos, strict=True))
    partners = _partners([digests for digests in digests_by_row if digests], seed)
    shuffled: list[BenchmarkRow] = []
    for digests, example in zip(digests_by_row, examples, strict=True):
        videos = [video_by_digest[digest] for digest in partners.get(digests, ())]
        videos_of_prompt = videos[: len(example.videos)]
        videos_of_responses = videos[len(example.videos) :]
        random.Random(f"{seed}/{example.key}").shuffle(videos_of_responses)
        shuffled.append(_with_videos(example, [*videos_of_prompt, *videos_of_responses]))
    return shuffled


def _partners(rows: Iterable[ImageDigests], seed: int) -> dict[ImageDigests, ImageDigests]:
    """Return a mapping from each different tuple of images to the tuple that replaces it.

    Both have the same length. The tuples of one length are put into a random cycle, and each is
    replaced by the next one. A tuple that is the only one of its length is replaced by images of
    several other rows.

    Args:
        rows: The digests of the images of each row.
        seed: The seed of the random order.
    """
    different_rows = sorted(set(rows))
    random.Random(seed).shuffle(different_rows)
    cycle_by_length: dict[int, list[ImageDigests]] = {}
    for digests in different_rows:
        cycle_by_length.setdefault(len(digests), []).append(digests)
    partners: dict[ImageDigests, ImageDigests] = {}
    for cycle in cycle_by_length.values():
        rotated_cycle = cycle[1:] + cycle[:1]
        partners.update(zip(cycle, rotated_cycle, strict=True))
    for digests, partner in list(partners.items()):
        is_only_one_of_its_length = digests == partner
        if is_only_one_of_its_length:
            partners[digests] = _images_of_other_rows(digests, different_rows)
    return partners


def _images_of_other_rows(digests: ImageDigests, rows: Sequence[ImageDigests]) -> ImageDigests:
    """Return the digests of images of other rows, in the same number as `digests`.

    Raises: UserError if the other rows show no other images.
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
        "all rows with images show the same image; shuffling needs at least two different ones."
    )
