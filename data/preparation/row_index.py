"""The row index of a source: 74 bytes about each row, and the size of each image and video.

Filters, packing plans and data cards are computed from it. A row index does not depend on filters,
weights, caps or pixel limits, so that a change of those does not read the data again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mmrm.data.encoded_video import VideoSize, video_size
from mmrm.data.errors import ImageError, LeftOut, MarkerInTextError, RecordError
from mmrm.data.images import ImageTokens, image_size
from mmrm.data.preference import Preference, Response, shown_words, texts, validate
from mmrm.data.preparation.attribute_ranges import (
    AttributeRanges,
    add_ranges,
    ranges_from_lists,
    ranges_of_attributes,
)
from mmrm.data.preparation.faults import count_faults
from mmrm.data.rationales import obstacle
from mmrm.data.sources.shared.source import Source
from mmrm.data.storage.content import response_content
from mmrm.data.storage.files import content_digest, hash64
from mmrm.data.text_shortcuts import SHORTCUTS, UNKNOWN, measured_pair, overlap, signs

REASONS = (
    "kept",
    "bad_record",
    "bad_image",
    "tie",
    "small_gap",
    "no_pair",
    "not_asked_for",
    "empty",
    "identical",
    "markers",
    "refusal",
    "length_gap",
    "too_long",
    "overlap",
    "too_easy",
    "too_hard",
    "no_difficulty",
    "decision",
    "decided_equal",
)
"""The reasons for which a row is not used, and "kept" for a row that is used. The field `reason` of
ROW is an index into this table. The last two are the reasons of decisions, the three before them
those of a curriculum, and the six before these those of filters."""
SKIPPED = [REASONS.index("bad_record"), REASONS.index("bad_image")]
"""Reasons of records that cannot be used, to which `bad_records` of a recipe applies. All others
are rules of a source or of the recipe."""
MAX_FAULTS_PER_BLOCK = 5
"""Number of different faults of skipped records that are kept of each block of rows."""
ROW = np.dtype(
    [
        ("reason", "u1"),  # index into REASONS
        ("flags", "u1"),  # sum of the bits below
        ("images", "u2"),  # number of images of the prompt and of all responses
        ("text_tokens", "u4"),  # of the prompt and all responses, estimated
        ("chosen", "u4"),  # characters of the best response
        ("rejected", "u4"),  # characters of the worst response
        ("prompt_key", "u8"),  # equal for equal prompts on equal images
        # Equal for equal prompts with the same responses, whichever is preferred.
        ("pair_key", "u8"),
        ("record_key", "u8"),  # equal for records that are equal in everything but their identity
        # Equal for prompts that are equal up to the end of their first image or video; 0 without.
        ("image_key", "u8"),
        ("responses", "u2"),  # number of responses
        ("ranks", "u2"),  # number of different ranks; 1 if all responses are tied
        ("others", "u4"),  # characters of all responses but the best and the worst
        ("prompt_images", "u2"),  # number of images of the prompt, which are the first ones
        ("videos", "u2"),  # number of videos of the prompt and of all responses
        ("prompt_videos", "u2"),  # number of videos of the prompt, which are the first ones
        ("difficulty", "u2"),  # number of tries that an annotator needed; 0 if it is unknown
    ]
)
LATER_FIELDS = (
    *("image_key", "responses", "ranks", "others", "prompt_images"),
    *("videos", "prompt_videos", "difficulty"),
)
"""The fields that earlier versions did not have."""
CONTENT_FIELDS = [name for name in ROW.names or () if name not in LATER_FIELDS]
"""The fields of which the digest of a source's content is computed. Digests of earlier versions had
these fields, and `record_key` changes whenever one of the others does."""

# Bits of `flags`
IDENTICAL = 1
"""All responses of the record differ in characters that cannot be seen only."""
MARKERS = 2
"""A text contains a LEFT_OVER_MARKER."""
REFUSAL = 4
"""A response contains a LANGUAGE_MODEL_REFUSAL."""
ORDER = 8
"""The chosen response comes first in alphabetical order. Two pairs with equal `pair_key` and
different ORDER prefer different responses."""
RATIONALE = 16
"""The record has a rationale."""
KEEPS_ORDER = 32
"""The rationale cannot be rewritten for the other order of the responses."""
REJECTED_FIRST = 64
"""The rationale calls the rejected response Response 1."""
BEGINS_WITH_VIDEO = 128
"""The first image or video of the prompt is a video."""

BYTES_PER_TOKEN = 4
"""Rule of thumb for English and code with Qwen's tokenizer; the packer counts exactly, later."""
LEFT_OVER_MARKER = re.compile(r"<(?:image|video|ImageHere|img)>|\[(?:IMAGE|IMG)\]")
"""Markers that data sets leave in texts for an image. `<image>` and `<video>` are refused before;
see data/markers.py."""
LANGUAGE_MODEL_REFUSAL = re.compile(
    r"\bas an? (?:AI )?(?:large )?(?:language model|text[- ]based (?:AI|assistant|model))"
    r"|\b(?:can(?:no|')t|unable to|not able to) (?:view|see|access|process|analy[sz]e|display) "
    r"(?:the |any |this )?(?:images?|pictures?|photos?)",
    re.IGNORECASE,
)
"""A language model's remark that it is one, or that it cannot see. A plain refusal ("I can't help
with that") does not match."""


ShortcutArrays = npt.NDArray[np.int8]
"""Numbers about the shortcuts of rows, int8 of shape (rows, shortcuts + 1).

The first columns have the signs of the shortcuts, in the order of SHORTCUTS: 1 if the best response
has more of it than the worst one, -1 if it has less, 0 if both have equally much, and UNKNOWN. The
last column has the overlap of the words of the best and the worst response in percent, and UNKNOWN
for a row that is not used."""
NUM_SHORTCUT_COLUMNS = len(SHORTCUTS) + 1


@dataclass(frozen=True)
class RowIndex:
    """The reason, lengths, keys and sizes of images and videos of all or some rows of a source."""

    rows: npt.NDArray[np.void]
    """An entry with the fields of ROW for each row, (rows,)."""
    sizes: npt.NDArray[np.uint32]
    """Height and width of all images of all rows, in their order, (images, 2)."""
    videos: npt.NDArray[np.float64]
    """The fields of `VideoSize` of all videos of all rows, in their order, (videos, 4)."""
    faults: dict[str, int]
    """Messages about skipped rows, each with the number of rows that have the same fault."""
    content: str = ""
    """Digest of all records of a source, 16 hexadecimal digits; empty for some rows."""
    folder: Path | None = None
    """The folder that the arrays are mapped from; None for arrays in memory."""
    attributes: AttributeRanges = field(default_factory=dict)
    """The range of each attribute over all rows that are not left out by their source."""
    shortcuts: ShortcutArrays = field(
        default_factory=lambda: np.empty((0, NUM_SHORTCUT_COLUMNS), np.int8)
    )

    @classmethod
    def open(cls, folder: Path) -> RowIndex:
        """Return the row index that `scan` wrote into a folder, memory-mapped."""
        rows = np.load(folder / "rows.npy", mmap_mode="r")
        sizes = np.load(folder / "sizes.npy", mmap_mode="r")
        videos = np.load(folder / "videos.npy", mmap_mode="r")
        summary = json.loads((folder / "summary.json").read_text())
        attributes = ranges_from_lists(summary["attributes"])
        shortcuts = np.load(folder / "shortcuts.npy", mmap_mode="r")
        return cls(
            rows,
            sizes,
            videos,
            summary["faults"],
            summary["content"],
            folder,
            attributes,
            shortcuts,
        )

    def __reduce__(self) -> Any:
        """Pickle a memory-mapped row index as its folder, and one in memory as its arrays.

        Another process then maps the files of the folder itself.
        """
        if self.folder is None:
            return super().__reduce__()
        return RowIndex.open, (self.folder,)

    @property
    def skipped(self) -> int:
        """The number of rows with a reason in SKIPPED: their records cannot be used."""
        return int(np.isin(self.rows["reason"], SKIPPED).sum())

    @property
    def is_text_only(self) -> npt.NDArray[np.bool_]:
        """Whether each row has neither images nor videos, (rows,)."""
        return np.asarray((self.rows["images"] == 0) & (self.rows["videos"] == 0))

    def image_tokens(self, count_tokens: ImageTokens) -> npt.NDArray[np.int64]:
        """Return the number of tokens of each row's images and videos, int64 of shape (rows,).

        Those of the prompt and of the responses count.

        Example: three rows have 1, 0 and 2 images. If the three images have 10, 20 and 30 tokens,
        the rows have 10, 0 and 50.

        Args:
            count_tokens: Counts the tokens of images and videos from their sizes.
        """
        return self._tokens_of_first(self.rows["images"], self.rows["videos"], count_tokens)

    def prompt_image_tokens(self, count_tokens: ImageTokens) -> npt.NDArray[np.int64]:
        """Return the number of tokens of the images and videos of each row's prompt, (rows,) int64.

        Args:
            count_tokens: Counts the tokens of images and videos from their sizes.
        """
        num_images = self.rows["prompt_images"]
        return self._tokens_of_first(num_images, self.rows["prompt_videos"], count_tokens)

    def _tokens_of_first(
        self,
        num_images: npt.NDArray[np.integer],
        num_videos: npt.NDArray[np.integer],
        count_tokens: ImageTokens,
    ) -> npt.NDArray[np.int64]:
        """Return the tokens of the first images and the first videos of each row, (rows,) int64.

        Args:
            num_images: The number of images of each row that count, (rows,).
            num_videos: The number of videos of each row that count, (rows,).
            count_tokens: Counts the tokens of images and videos from their sizes.
        """
        of_images = _sums_of_first(count_tokens(self.sizes), self.rows["images"], num_images)
        if not len(self.videos):
            return of_images
        tokens_of_videos = count_tokens.of_videos(self.videos)
        return of_images + _sums_of_first(tokens_of_videos, self.rows["videos"], num_videos)

    def first_image_tokens(self, count_tokens: ImageTokens) -> npt.NDArray[np.int64]:
        """Return the number of tokens of each prompt's first image or video, int64 (rows,).

        It is 0 for a row whose prompt has neither. In the example of `image_tokens`, the rows have
        10, 0 and 20 if all images belong to prompts.

        Args:
            count_tokens: Counts the tokens of images and videos from their sizes.
        """
        begins_with_video = (self.rows["flags"] & BEGINS_WITH_VIDEO) > 0
        begins_with_image = (self.rows["prompt_images"] > 0) & ~begins_with_video
        return self._tokens_of_first(
            begins_with_image.astype(np.int64), begins_with_video.astype(np.int64), count_tokens
        )


def _sums_of_first(
    values: npt.NDArray[np.int64],
    num_of_rows: npt.NDArray[np.integer],
    counts: npt.NDArray[np.integer],
) -> npt.NDArray[np.int64]:
    """Return the sum of the first values of each row, int64 of shape (rows,).

    Args:
        values: The values of all rows, those of the first row first, (values,).
        num_of_rows: The number of values of each row, (rows,).
        counts: The number of values of each row that are added, (rows,).
    """
    sums_before = np.concatenate([np.zeros(1, np.int64), np.cumsum(values)])
    starts = np.cumsum(num_of_rows, dtype=np.int64) - num_of_rows
    return np.asarray(sums_before[starts + counts] - sums_before[starts])


def index_rows(source: Source, rows: Iterable[int], strict: bool = False) -> RowIndex:
    """Read and check some rows of a source, and return their row index: figures about each row.

    A row whose record cannot be used is in the index, too, with the reason and a message in
    `faults`. With `strict`, the RecordError of the first such row is raised instead.
    """
    entries: list[tuple[int, ...]] = []
    sizes: list[tuple[int, int]] = []
    videos: list[VideoSize] = []
    faults: dict[str, int] = {}
    attributes: AttributeRanges = {}
    shortcuts: list[tuple[int, ...]] = []
    for row in rows:
        shortcuts_of_row = (UNKNOWN,) * NUM_SHORTCUT_COLUMNS
        try:
            record = _usable_record(source, row)
            sizes_of_row = [image_size(image, record.identity) for image in record.all_images]
            videos_of_row = [video_size(video, record.identity) for video in record.all_videos]
            entries.append(_entry(record))
            # Only now: a fault before leaves the row without images and videos.
            sizes += sizes_of_row
            videos += videos_of_row
            add_ranges(attributes, ranges_of_attributes(record.attributes))
            shortcuts_of_row = _shortcuts(record)
        except LeftOut as left_out:
            entries.append(_entry_left_out(left_out.reason))
        except RecordError as error:
            if strict:
                raise
            entries.append(_entry_left_out(_reason_of(error)))
            faults = count_faults([*faults.items(), (str(error), 1)], MAX_FAULTS_PER_BLOCK)
        shortcuts.append(shortcuts_of_row)
    image_sizes = np.array(sizes, np.uint32).reshape(-1, 2)
    video_sizes = np.array(videos, np.float64).reshape(-1, len(VideoSize._fields))
    return RowIndex(
        np.array(entries, ROW),
        image_sizes,
        video_sizes,
        faults,
        attributes=attributes,
        shortcuts=np.array(shortcuts, np.int8).reshape(-1, NUM_SHORTCUT_COLUMNS),
    )


def _usable_record(source: Source, row: int) -> Preference:
    """Return the validated record of a row.

    Raises:
        LeftOut: A response is empty, or a rule of the source leaves the row out.
        RecordError: The record cannot be used.
    """
    record = source.record(row)
    has_responses = all(response.is_visible for response in record.responses)
    if not has_responses and not record.is_question:
        raise LeftOut("empty", f"{record.identity}: a response is empty.")
    return validate(record)


def _reason_of(error: RecordError) -> str:
    """Return the member of REASONS for a record that cannot be used because of `error`."""
    if isinstance(error, MarkerInTextError):
        return "markers"
    if isinstance(error, ImageError):
        return "bad_image"
    return "bad_record"


def prompt_key(record: Preference) -> int:
    """Return a 64-bit key that is equal for records with the same prompt and the same images.

    Case and white space of the texts do not matter. An image counts by its encoded content. The
    identity of the record does not matter: two sources may use the same ones.

    Raises: ImageError for an image file that cannot be read.
    """
    return _keys(record).prompt


def pair_key(record: Preference) -> int:
    """Return a 64-bit key that is equal for records with the same prompt, images and responses.

    It does not matter which of the responses is preferred. An image counts by its encoded
    content, wherever its file is. In 16 hexadecimal digits, this key is the fingerprint that a
    file for `filters.leave_out` lists.

    Raises: ImageError for an image file that cannot be read.
    """
    return _keys(record).pair


def normalised(text: str) -> str:
    """Return `text` in lower case with single spaces, so that copies of a response are equal."""
    return " ".join(text.casefold().split())


def normalised_response(response: Response) -> str:
    """Return a text that is equal for copies of a response.

    It is the text of the response, normalised, and after it a line with the digest of each image
    and each video.
    """
    lines = [normalised(response.text)]
    lines += [content_digest(image) for image in response.images]
    lines += [content_digest(video.content) for video in response.videos]
    return "\n".join(lines)


def _entry(record: Preference) -> tuple[int, ...]:
    """Return a usable record's entry in the row index: figures about it, in the order of ROW."""
    texts_of_responses = [response.text for response in record.responses]
    all_texts = [*texts(record.prompt), *texts_of_responses]
    num_bytes = sum(len(text.encode(errors="surrogatepass")) for text in all_texts)
    keys = _keys(record)
    return (
        REASONS.index("kept"),
        _flags(record),
        len(record.all_images),
        num_bytes // BYTES_PER_TOKEN,
        len(record.chosen.text),
        len(record.rejected.text),
        keys.prompt,
        keys.pair,
        keys.record,
        keys.image,
        len(record.responses),
        len(set(record.ranks)),
        sum(map(len, texts_of_responses[1:-1])),
        len(record.images),
        len(record.all_videos),
        len(record.videos),
        record.difficulty or 0,
    )


def _shortcuts(record: Preference) -> tuple[int, ...]:
    """Return a usable record's row of ShortcutArrays.

    The signs of a record without a preference, which is a tie or a question, are UNKNOWN.
    """
    best, worst = measured_pair(record)
    overlap_in_percent = round(100 * overlap(best.words, worst.words))
    has_preference = record.ranks[-1] > 0 and not record.is_question
    if not has_preference:
        return (*(UNKNOWN,) * len(SHORTCUTS), overlap_in_percent)
    return (*signs(best, worst), overlap_in_percent)


def _entry_left_out(reason: str) -> tuple[int, ...]:
    """Return an unused row's entry in the row index: its reason, and 0 for all other figures.

    `reason` is one of REASONS.
    """
    num_other_fields = len(ROW.names or ()) - 1
    return (REASONS.index(reason), *[0] * num_other_fields)


def _shown(response: Response) -> tuple[list[str], list[str]]:
    """Return the words of a response as a reader sees them, and digests of images and videos."""
    digests = [content_digest(image) for image in response.images]
    digests += [content_digest(video.content) for video in response.videos]
    return shown_words(response.text), digests


def _flags(record: Preference) -> int:
    """Return a number whose bits, such as IDENTICAL and RATIONALE, are properties of a record."""
    flags = 0
    responses = record.responses
    first_shown = _shown(record.chosen)
    is_identical = all(_shown(response) == first_shown for response in responses[1:])
    if is_identical and not record.is_question:
        flags |= IDENTICAL
    texts_of_responses = [response.text for response in responses]
    if any(map(LEFT_OVER_MARKER.search, (*texts(record.prompt), *texts_of_responses))):
        flags |= MARKERS
    if any(map(LANGUAGE_MODEL_REFUSAL.search, texts_of_responses)):
        flags |= REFUSAL
    if normalised_response(record.chosen) < normalised_response(record.rejected):
        flags |= ORDER
    if record.rationale is not None:
        flags |= RATIONALE
        # Words that keep the rationale from being rewritten for the other order of the responses
        if obstacle(record.rationale) is not None:
            flags |= KEEPS_ORDER
        if record.first_in_rationale == "rejected":
            flags |= REJECTED_FIRST
    if _first_medium(record) == "video":
        flags |= BEGINS_WITH_VIDEO
    return flags


@dataclass(frozen=True, slots=True)
class _RecordKeys:
    """64-bit keys that are equal for records with the same content."""

    prompt: int
    """Equal for equal prompts on equal images."""
    pair: int
    """Equal for equal prompts with the same responses, whichever is preferred."""
    record: int
    """Equal for records that are equal in everything but their identity."""
    image: int
    """Equal for prompts that are equal up to the end of their first image or video; 0 without."""


def _keys(record: Preference) -> _RecordKeys:
    """Return the numbers by which records with equal contents are found.

    Raises: ImageError if an image file cannot be read.
    """
    try:
        images = [content_digest(image) for image in record.images]
        videos = [content_digest(video.content) for video in record.videos]
        responses = sorted(map(normalised_response, record.responses))
    except OSError as error:
        raise ImageError(
            f"{record.identity}: an image or a video cannot be read ({error})."
        ) from error
    prompt = [*images, *videos, *map(normalised, texts(record.prompt))]
    everything: tuple[object, ...] = (
        images,
        record.prompt,
        *map(response_content, record.responses),
        record.margin,
        record.chosen_critique,
        record.rejected_critique,
        record.rationale,
        record.source,
        record.category,
    )
    # Fields that a later version added count only if they are set. Without this, the keys of all
    # other records would have changed with that version.
    if record.truth is not None:
        everything = (*everything, record.truth)
    if record.first_in_rationale != "chosen":
        everything = (*everything, record.first_in_rationale)
    if not record.is_pair:
        everything = (*everything, record.ranks)
    if record.attributes:
        everything = (*everything, sorted(record.attributes.items()))
    if videos:
        everything = (*everything, videos)
    if record.difficulty is not None:
        everything = (*everything, ("difficulty", record.difficulty))
    first_medium = _first_medium(record)
    image_key = 0
    if first_medium is not None:
        digest = images[0] if first_medium == "image" else videos[0]
        image_key = hash64(repr((_before_first_image(record), digest)))
    return _RecordKeys(
        prompt=hash64(repr(prompt)),
        pair=hash64(repr((prompt, responses))),
        record=hash64(repr(everything)),
        image=image_key,
    )


def _first_medium(record: Preference) -> Literal["image", "video"] | None:
    """Return what comes first in a prompt, an image or a video; None if it has neither."""
    for message in record.prompt:
        for part in message["content"]:
            if part["type"] != "text":
                return part["type"]
    return None


def _before_first_image(record: Preference) -> list[tuple[str, list[str]]]:
    """Return the turns of a prompt up to its first image or video, each as its role and its texts.

    The texts are not normalised: the tokens before the image are computed once for several prompts
    only if they are equal.
    """
    turns: list[tuple[str, list[str]]] = []
    for message in record.prompt:
        texts_of_turn: list[str] = []
        turns.append((message["role"], texts_of_turn))
        for part in message["content"]:
            if part["type"] != "text":
                return turns
            texts_of_turn.append(part["text"])
    return turns
