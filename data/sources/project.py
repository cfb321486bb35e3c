"""The format of this project: one object a record, as JSON lines, a JSON list, parquet or Arrow.

    {"images": ["cats/1.png"], "prompt": "Which colour is the cat?", "chosen": "Black.",
     "rejected": "White."}

`images` is a list of paths (relative to the image folder), data URIs, or structs {bytes, path}, and
may be missing. So may `videos`, which has the same form. `prompt` is a text, or a list of turns
{role, content} whose content is a text or a list of {type: text | image | video} parts. Without
image parts and `<image>`, the images come before the user's first text; for videos, the marker is
`<video>`.

Optional keys are margin (a number), chosen_critique, rejected_critique, rationale, source, category,
first_in_rationale (chosen or rejected), the response that the rationale calls Response 1, and
difficulty (a whole number from 1), the number of tries that an annotator needed. If
first_in_rationale is missing, Response 1 is the chosen one.

In place of chosen and rejected, a record may have `responses`, a list of two or more texts, with
`ranks` (a whole number for each, the smallest is the best, equal ones are tied), with `ratings`
(lists of numbers by the name of an aspect, a higher number is better, null is unknown), or with
both. Without ranks, the mean rating ranks the responses.

    {"prompt": "Which colour is the cat?", "responses": ["White.", "It is black.", "Black."],
     "ratings": {"correctness": [0, 5, 5], "brevity": [5, 2, 5]}}

If the columns of a file have other names, a recipe lists them: columns: {prompt: question}.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isnan, nan
from typing import Any, Literal

from pydantic import Field

from mmrm.data.encoded_video import Video, video_uri
from mmrm.data.errors import RecordError
from mmrm.data.images import data_uri
from mmrm.data.preference import LARGEST_MARGIN, EncodedImage, Preference, Response
from mmrm.data.sources.shared.conversation import as_turns
from mmrm.data.sources.shared.file_source import SourceRow
from mmrm.data.sources.shared.ratings import (
    MIN_RESPONSES,
    best_and_worst,
    with_ranked_responses,
    with_rated_responses,
)
from mmrm.data.sources.shared.renamed_columns import RenamedColumnsConfig
from mmrm.data.sources.shared.responses import WrittenResponse, read_row, written_pair
from mmrm.data.sources.shared.ties import TiedComparisonsConfig

MAX_RESPONSES = 64
"""The largest number of responses in a record."""
KEYS_OF_LISTS = ("responses", "ranks", "ratings")
"""The keys of a record with a list of responses, in place of chosen and rejected."""
KEYS = frozenset(
    {
        *("prompt", "chosen", "rejected"),
        *KEYS_OF_LISTS,
        *("images", "chosen_images", "rejected_images", "margin", "source", "category"),
        *("videos", "chosen_videos", "rejected_videos"),
        *("chosen_critique", "rejected_critique", "rationale", "first_in_rationale"),
        "difficulty",
    }
)
"""All keys that a record may have."""


class ProjectConfig(TiedComparisonsConfig, RenamedColumnsConfig):
    """A source of preference files in this project's own format."""

    LATER_KEYS = frozenset({"columns", "pairs", "ties"})
    COLUMNS = ("prompt",)
    RESPONSES_WITH_IMAGES = True
    VIDEOS = True
    NAMES = KEYS
    has_critiques = True
    has_rationales = True

    type: Literal["project"]
    files: list[str] = Field(default=["*.jsonl", "*.json", "*.parquet", "*.arrow"])
    """Which files of a folder belong to the source."""
    pairs: Literal["hardest", "none"] = "hardest"
    """Of a record with more than two responses: the pair of the best and the worst one, or none,
    the whole record."""

    @property
    def gives_lists(self) -> bool:
        """True if records keep all their responses."""
        return self.pairs == "none"

    @property
    def patterns(self) -> list[str]:
        """The `fnmatch` patterns, set in the recipe, of the files that belong to the source."""
        return self.files

    def convert(self, row: SourceRow) -> Preference:
        """Return the preference record of a row in this project's own format.

        Raises:
            LeftOut: If all responses are tied and ties are left out, or fewer than two are rated.
            RecordError: If a key is missing, unknown or of another type.
        """
        return record_of_row(self.with_format_names(row), self.pairs, self.check_tie)


def record_of_row(
    row: SourceRow, pairs: Literal["hardest", "none"], check_tie: Callable[[str], None]
) -> Preference:
    """Return the preference record of a row with the keys of this project's format.

    Args:
        row: The row.
        pairs: Whether a list of responses becomes the pair of its best and its worst one.
        check_tie: Called with a sentence about the row if all its responses are tied.

    Raises:
        LeftOut: If `check_tie` raises it, or fewer than two responses are rated.
        RecordError: If a key is missing, unknown or of another type.
    """
    unknown = sorted(row.columns.keys() - KEYS)
    if unknown:
        raise RecordError(
            f"the record has the unknown {_key_or_keys(unknown)}. A record may hold "
            f"{', '.join(sorted(KEYS))}. Rename or remove the rest, or give the names of your "
            "columns in the recipe, such as columns: {prompt: question}."
        )
    images = row.all_images(row.columns.get("images"))
    videos = row.all_videos(row.columns.get("videos"))
    has_list = any(row.columns.get(name) is not None for name in KEYS_OF_LISTS)
    written = _listed_responses(row) if has_list else _pair_of_responses(row)
    read = read_row(row, as_turns(row.value("prompt", str | list)), written, images, videos)
    record = Preference(
        row.identity,
        read.prompt,
        read.responses,
        read.images,
        margin=row.optional_number("margin"),
        chosen_critique=row.optional_value("chosen_critique", str),
        rejected_critique=row.optional_value("rejected_critique", str),
        rationale=row.optional_value("rationale", str),
        first_in_rationale=first_in_rationale(row),
        source=row.text_or_empty("source"),
        category=row.text_or_empty("category"),
        videos=read.videos,
        difficulty=_difficulty(row),
    )
    if not has_list:
        return record
    record = with_listed_responses(record, row)
    if max(record.ranks) == 0:
        check_tie("all responses have the same rank.")
    return record if pairs == "none" else best_and_worst(record)


def with_listed_responses(record: Preference, row: SourceRow) -> Preference:
    """Return `record` with the ranks and ratings of a row that lists its responses, best first.

    The margin of the record is kept if the row has one.

    Raises:
        LeftOut: If the row has no ranks, and its ratings do not rank two responses.
        RecordError: If a list is missing, or has another form or length.
    """
    for name in ("chosen", "rejected"):
        if row.columns.get(name) is not None:
            raise RecordError(
                f"the record holds {name!r} beside {', '.join(KEYS_OF_LISTS)}. Required is either "
                "chosen and rejected, or responses with ranks or ratings. Remove one of the two."
            )
    responses = record.responses
    ratings = _ratings(row, len(responses))
    ranks = row.optional_value("ranks", list)
    if ranks is None and not ratings:
        raise RecordError(
            "the record has 'responses' and neither 'ranks' nor 'ratings', so that it is unknown "
            "which response is better. Add one of them, or remove the record."
        )
    if ranks is None:
        rated = with_rated_responses(record, responses, ratings)
        return rated if record.margin is None else replace(rated, margin=record.margin)
    if len(ranks) != len(responses) or not all(map(_is_whole_number, ranks)):
        raise RecordError(
            f"'ranks' is {ranks!r:.60}; required is a whole number for each of the "
            f"{len(responses)} responses, the smallest for the best. Correct the record."
        )
    return with_ranked_responses(record, responses, ranks, ratings)


def _pair_of_responses(row: SourceRow) -> list[WrittenResponse]:
    """Return the responses of a row under `chosen` and `rejected`."""
    chosen = _written_response(row.value("chosen", str | list))
    rejected = _written_response(row.value("rejected", str | list))
    return written_pair(row, chosen, rejected)


def _written_response(value: str | list[Any]) -> str | list[Any]:
    """Return a response that is a text or a list of parts as a text or a list of one turn."""
    if isinstance(value, str):
        return value
    return [{"role": "assistant", "content": value}]


def _listed_responses(row: SourceRow) -> list[WrittenResponse]:
    """Return the responses that a row lists; raise RecordError if one is no text and no list."""
    responses: list[WrittenResponse] = []
    for number, response in enumerate(row.value("responses", list), start=1):
        if not isinstance(response, str | list):
            raise RecordError(
                f"response {number} is a {type(response).__name__}; required is a text, or a list "
                "of text parts and image parts. Correct the record, or remove it."
            )
        name = f"response {number}"
        responses.append(WrittenResponse(name, _written_response(response)))
    if not MIN_RESPONSES <= len(responses) <= MAX_RESPONSES:
        raise RecordError(
            f"the record has {len(responses)} responses; required are {MIN_RESPONSES} to "
            f"{MAX_RESPONSES}. Correct the record, or remove it."
        )
    return responses


def _ratings(row: SourceRow, num_responses: int) -> dict[str, list[float]]:
    """Return the ratings of a row by the name of an aspect, with NaN in place of null.

    The result is empty without the key `ratings`. An aspect whose list is null is not in it,
    because parquet files write null for the aspects that a row does not have.

    Raises:
        RecordError: If an aspect has another form than a list of finite numbers and nulls, one for
            each response.
    """
    ratings: dict[str, list[float]] = {}
    for name, values in (row.optional_value("ratings", dict) or {}).items():
        if values is None:
            continue
        is_list = isinstance(values, list) and len(values) == num_responses
        if not is_list or not all(map(_is_rating, values)):
            raise RecordError(
                f"the rating {name!r} is {values!r:.60}; required is a list with a finite number "
                f"or null for each of the {num_responses} responses. Correct the record."
            )
        ratings[name] = [nan if value is None else float(value) for value in values]
    return ratings


def _is_whole_number(value: Any) -> bool:
    """Return True if a value is a whole number, and no boolean."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_rating(value: Any) -> bool:
    """Return True if a value is None or a finite number, and no boolean."""
    if value is None:
        return True
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= LARGEST_MARGIN


def first_in_rationale(row: SourceRow) -> Literal["chosen", "rejected"]:
    """Return "chosen" or "rejected", the response that the rationale of a row calls Response 1.

    Without the column `first_in_rationale` it is "chosen".
    """
    first = row.optional_value("first_in_rationale", str)
    if first not in (None, "chosen", "rejected"):
        raise RecordError(
            f"'first_in_rationale' is {first!r}; required is 'chosen' or 'rejected', the response "
            "that the rationale calls Response 1. Remove it if Response 1 is the chosen one."
        )
    return "rejected" if first == "rejected" else "chosen"


def _difficulty(row: SourceRow) -> int | None:
    """Return the difficulty of a row, or None if it has none.

    Raises: RecordError if it is no whole number.
    """
    difficulty: int | float | None = row.optional_value("difficulty", int | float)
    if difficulty is None:
        return None
    # A parquet file that lacks the number in some rows holds the others as floating-point numbers.
    if difficulty != int(difficulty):
        raise RecordError(
            f"'difficulty' is {difficulty!r}; required is a whole number from 1, the number of "
            "tries that an annotator needed. Correct or remove it."
        )
    return int(difficulty)


WriteImage = Callable[[EncodedImage, str], Any]
"""Turns an image into a value of a row. The second argument is the identity of its record."""
WriteVideo = Callable[[Video, str], Any]
"""Turns a video into a value of a row. The second argument is the identity of its record."""


def project_row(
    record: Preference,
    rationale: str | None,
    write_image: WriteImage = data_uri,
    write_video: WriteVideo = video_uri,
    *,
    as_list: bool = False,
) -> dict[str, Any]:
    """Return a record as an object in this project's own format, by default with data URIs.

    A record that is no pair, or that has attributes, lists its responses with their ranks and
    ratings. So does every record with `as_list`.

    Args:
        record: The record.
        rationale: Replaces the record's own rationale; with None the object has no rationale.
        write_image: Turns each image into its value in the object.
        write_video: Turns each video into its value in the object.
        as_list: The object lists the responses in their order in the record.
    """
    # Media of the prompt come before those of the responses, as where they are read.
    images = [write_image(image, record.identity) for image in record.images]
    videos = [write_video(video, record.identity) for video in record.videos]
    written = [
        _written(response, record.identity, write_image, write_video)
        for response in record.responses
    ]
    row: dict[str, Any] = {"prompt": record.prompt}
    if record.is_pair and not record.attributes and not as_list:
        chosen, rejected = written
        row |= {"chosen": chosen, "rejected": rejected}
    else:
        row |= {"responses": written, "ranks": list(record.ranks)}
        if record.attributes:
            row["ratings"] = _ratings_without_nan(record.attributes)
    row |= {
        "images": images,
        "videos": videos,
        "margin": record.margin,
        "chosen_critique": record.chosen_critique,
        "rejected_critique": record.rejected_critique,
        "rationale": rationale,
    }
    if rationale is not None and record.first_in_rationale == "rejected":
        row["first_in_rationale"] = record.first_in_rationale
    row |= {
        "difficulty": record.difficulty,
        "source": record.source,
        "category": record.category,
    }
    if not record.videos:
        row.pop("videos")
    return {name: value for name, value in row.items() if value not in (None, "")}


def _written(
    response: Response, identity: str, write_image: WriteImage, write_video: WriteVideo
) -> str | list[dict[str, Any]]:
    """Return a response as a text, or as a list of parts if it has images or videos.

    Args:
        response: The response.
        identity: The name of its record, for messages.
        write_image: Turns each image into its value in the object.
        write_video: Turns each video into its value in the object.
    """
    if not response.images and not response.videos:
        return response.text
    parts: list[dict[str, Any]] = []
    for part in response.content:
        if isinstance(part, str):
            parts.append({"type": "text", "text": part})
        elif isinstance(part, Video):
            parts.append({"type": "video", "video": write_video(part, identity)})
        else:
            parts.append({"type": "image", "image": write_image(part, identity)})
    return parts


def _ratings_without_nan(
    attributes: Mapping[str, Sequence[float]],
) -> dict[str, list[float | None]]:
    """Return the numbers of attributes with None in place of NaN, which JSON cannot hold."""
    ratings: dict[str, list[float | None]] = {}
    for name, values in attributes.items():
        ratings[name] = [None if isnan(value) else value for value in values]
    return ratings


def _key_or_keys(names: list[str]) -> str:
    """Return names for a message, such as "key 'a'" or "keys 'a', 'b'"."""
    word = "key" if len(names) == 1 else "keys"
    return f"{word} {', '.join(map(repr, names))}"
