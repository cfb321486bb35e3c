r"""An adapter that makes a reward model behind eval/serve.py a reward function of ms-swift.

It passes images and videos on, and is written against ms-swift 4.6.0.

    swift rlhf --rlhf_type grpo --external_plugins /path/to/ms_swift_reward.py \
        --reward_funcs reward_model …

The server's address and the other settings of `RewardServer` are read from the environment
(REWARD_URL …). Equal prompts of a batch are scored together. A failure raises an error and ends the
run. The file needs httpx, and nothing of the project that serves.
"""

import asyncio
import base64
import html
import io
import json
import math
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from swift.rewards import AsyncORM, orms

# --- The client of eval/serve.py. `make adapters` writes it from reward_client.py. ---

TRIES = 8
"""Number of requests for one group, the first one included."""

FIRST_DELAY = 1.0
"""Seconds before the second request, on average. Each later delay is twice as long."""

LONGEST_DELAY = 60.0
"""Seconds that no delay exceeds."""

MAX_CONCURRENT = 64
"""Largest number of requests that are under way at the same time."""

BUSY_STATUSES = (429, 502, 503, 504)
"""HTTP statuses after which a request is repeated."""

SCORE_KEYS = {"raw": "scores", "normalised": "normalised"}
"""Keys of the server's answer by the form of the scores."""

LARGEST_SCORE = 1e15
"""The largest score that is believed. The difference of two larger ones may be infinite."""

MOST_BYTES = 2**24
"""Largest number of bytes of an answer, which is read into memory. The scores of a million responses
have fewer."""

QUOTED_CHARACTERS = 500
"""Number of characters of the server's answer that a message quotes."""

PART_KINDS = {"image": "image", "image_url": "image", "video": "video", "video_url": "video"}
"""The kind of a part of a message, image or video, by its type."""

FILE_KEYS = {
    "image": ("image", "image_url", "url", "bytes", "path"),
    "video": ("video", "video_url", "url", "bytes", "path"),
}
"""Keys under which a part of a message may hold its image or its video."""

PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")
"""Modes of Pillow that a PNG file keeps."""


class RewardServerError(RuntimeError):
    """The error that there are no scores, or that the scores cannot be used.

    Training must stop then: the policy would learn from any number in their place.
    """


class RewardServer:
    """A client of eval/serve.py, which requests the scores of responses.

    The variables that the arguments name are variables of the environment.

    Args:
        url: The server's address. If it is empty, the variable REWARD_URL is used, or else
            http://127.0.0.1:8000.
        key_file: A file that holds the server's key. If it is empty, the variable
            REWARD_API_KEY_FILE is used, or else no key.
        form: "raw", or "normalised" by mean and standard deviation of the checkpoint's own scores.
            If it is empty, the variable REWARD_FORM is used, or else "raw".
        timeout: Seconds that a whole answer may take. If it is 0, the variable REWARD_TIMEOUT is used,
            or else 300.

    Raises:
        RewardServerError: If one of these settings cannot be used.
    """

    def __init__(
        self, url: str = "", key_file: str = "", form: str = "", timeout: float = 0.0
    ) -> None:
        address = url or os.environ.get("REWARD_URL", "") or "http://127.0.0.1:8000"
        check_address(address)
        self.url = address.rstrip("/") + "/v1/rewards"

        self.headers = {"Content-Type": "application/json"}
        self.key = ""
        key_file = key_file or os.environ.get("REWARD_API_KEY_FILE", "")
        if key_file:
            self.key = read_key(Path(key_file))
            self.headers["Authorization"] = f"Bearer {self.key}"

        form = form or os.environ.get("REWARD_FORM", "") or "raw"
        if form not in SCORE_KEYS:
            raise RewardServerError(
                f"REWARD_FORM is {form!r}; required is 'raw' or 'normalised'. Correct the variable."
            )
        self.score_key = SCORE_KEYS[form]
        self.timeout = timeout or seconds(os.environ.get("REWARD_TIMEOUT", "") or "300")
        # A digest of the server's checkpoint, which is known from its first answer on.
        self.fingerprint: str | None = None

    async def score(self, rows: list[tuple[Any, Any]]) -> list[float]:
        """Return the score of each row, in the order of the rows.

        Rows with equal messages are sent as one group in one request, wherever they are in `rows`.
        The server computes the prompt of a group once.

        Args:
            rows: Pairs of a prompt's messages, in the form of `sendable`, and one response: a text,
                or the content of a turn that `sendable` returned.

        Raises:
            RewardServerError: If one of the rows has no score.
        """
        row_indices_by_prompt: dict[str, list[int]] = {}
        for index, (messages, _) in enumerate(rows):
            row_indices_by_prompt.setdefault(json.dumps(messages), []).append(index)
        row_indices_by_group = list(row_indices_by_prompt.values())

        limit = asyncio.Semaphore(MAX_CONCURRENT)
        async with httpx.AsyncClient(headers=self.headers, timeout=self.timeout) as http:
            requests = []
            for row_indices in row_indices_by_group:
                messages, _ = rows[row_indices[0]]  # the same in all rows of the group
                responses = [rows[index][1] for index in row_indices]
                requests.append(self._score_group(http, limit, messages, responses))
            scores_by_group = await asyncio.gather(*requests)

        score_by_row: dict[int, float] = {}
        for row_indices, scores in zip(row_indices_by_group, scores_by_group, strict=True):
            score_by_row.update(zip(row_indices, scores, strict=True))
        return [score_by_row[index] for index in range(len(rows))]

    async def _score_group(
        self, http: httpx.AsyncClient, limit: asyncio.Semaphore, messages: Any, responses: list[Any]
    ) -> list[float]:
        """Request the scores of responses to one prompt, and return them.

        The request is repeated up to `TRIES` times if the server cannot be reached or is busy.

        Args:
            http: The HTTP client.
            limit: A semaphore that limits the number of requests under way.
            messages: The prompt, as `sendable` returns it.
            responses: The responses.

        Raises:
            RewardServerError: If the server gave no scores.
        """
        # ASCII, because half of a surrogate pair in a response cannot be encoded otherwise.
        body = json.dumps({"groups": [{"messages": messages, "responses": responses}]})
        problem = ""
        for attempt in range(TRIES):
            # The delay is random, so that requests that failed together are not repeated together.
            delay = min(LONGEST_DELAY, FIRST_DELAY * 2**attempt * (0.5 + random.random()))
            try:
                async with limit:
                    status, retry_after, content = await asyncio.wait_for(
                        self._post(http, body), self.timeout
                    )
            except (httpx.RequestError, TimeoutError) as error:
                problem = f"{type(error).__name__} {error}"
            else:
                if status == 200:
                    return self._read_answer(content, len(responses))
                text = content.decode(errors="replace")
                problem = f"HTTP {status} {self._quoted(text)}"
                if status not in BUSY_STATUSES:
                    break
                delay = max(delay, requested_delay(retry_after))
            if attempt < TRIES - 1:
                await asyncio.sleep(delay)
        raise self._error(
            f"gave no scores: {problem}. Is eval/serve.py running, and reached at REWARD_URL?"
        )

    async def _post(self, http: httpx.AsyncClient, body: str) -> tuple[int, str, bytes]:
        """Send a request once, and return the status, the header Retry-After and the content.

        Raises:
            RewardServerError: If the content has more than MOST_BYTES.
        """
        content = bytearray()
        async with http.stream("POST", self.url, content=body) as answer:
            async for piece in answer.aiter_bytes():
                content += piece
                if len(content) > MOST_BYTES:
                    raise self._error(
                        f"sent an answer of more than {MOST_BYTES:,} bytes, which are no scores. "
                        "Does REWARD_URL name eval/serve.py?"
                    )
            return answer.status_code, answer.headers.get("Retry-After", ""), bytes(content)

    def _read_answer(self, content: bytes, num_responses: int) -> list[float]:
        """Check the server's answer to a request with one prompt, and return the responses' scores.

        Args:
            content: The answer, which should be JSON.
            num_responses: Number of responses in the request.

        Raises:
            RewardServerError: If there are no scores, or if they cannot be used.
        """
        quoted = self._quoted(content.decode(errors="replace"))
        try:
            answer = json.loads(content)
            group = answer["groups"][0]  # the only one
            fingerprint = answer["fingerprint"]
            has_error = "error" in group
            scores = None if has_error else group[self.score_key]
        except (ValueError, LookupError, TypeError, RecursionError):
            raise self._error(
                f"answered {quoted!r}, which is no answer of eval/serve.py. Does REWARD_URL name "
                "that server, or is a proxy in between?"
            ) from None
        if has_error:
            raise self._error(f"could not score a group: {quoted}")
        self._check_fingerprint(str(fingerprint))

        if scores is None and self.score_key == SCORE_KEYS["normalised"]:
            raise self._error(
                "holds no reference scores, and REWARD_FORM=normalised needs them; ask for raw ones"
            )
        numbers = numbers_in(scores)
        if len(numbers) != num_responses:
            raise self._error(
                f"answered {quoted} for {num_responses} responses; required are as many "
                f"numbers of at most {LARGEST_SCORE:.0e}. Check the checkpoint that it serves."
            )
        return numbers

    def _check_fingerprint(self, fingerprint: str) -> None:
        """Remember the checkpoint of the first answer, and raise an error if it changes.

        `fingerprint` is the digest of the checkpoint that gave an answer.
        """
        if self.fingerprint is not None and self.fingerprint != fingerprint:
            raise self._error(
                f"changed its checkpoint from {self.fingerprint} to {self._quoted(fingerprint)} in "
                "the middle of the run; scores of two reward models cannot be compared. Serve the "
                "first one again."
            )
        self.fingerprint = fingerprint

    def _quoted(self, text: str) -> str:
        """Return the beginning of a text for a message, with the key replaced by ***.

        The key is replaced first, so that no part of it remains at the end of the beginning.
        """
        return without_key(text, self.key)[:QUOTED_CHARACTERS]

    def _error(self, problem: str) -> RewardServerError:
        """Return the error whose message is the server's address and a problem, without the key.

        Characters that no terminal can show, such as half of a surrogate pair, are escaped.
        """
        shown_address = re.sub("//[^/]*@", "//", self.url)  # without a user and a password
        message = without_key(f"{shown_address} {problem}", self.key)
        return RewardServerError(message.encode(errors="backslashreplace").decode())


def check_address(address: str) -> None:
    """Raise RewardServerError if an address is not one of HTTP with a host and a possible port."""
    try:
        url = httpx.URL(address)
    except httpx.InvalidURL:
        url = httpx.URL("")
    is_possible_port = url.port is None or 0 < url.port < 2**16
    if url.scheme in ("http", "https") and url.host and is_possible_port:
        return
    shown_address = re.sub("//[^/]*@", "//", address)  # without a user and a password
    raise RewardServerError(
        f"REWARD_URL is {shown_address!r}; required is an address such as http://127.0.0.1:8000, "
        "whose port is at most 65535. Correct the variable."
    )


def read_key(path: Path) -> str:
    """Return the server's key from a file.

    Raises:
        RewardServerError: If the file cannot be read, or its content cannot be sent in a header.
    """
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise RewardServerError(
            f"the key file {path} cannot be read: {type(error).__name__}. "
            "Correct REWARD_API_KEY_FILE."
        ) from None
    if not key or not (key.isascii() and key.isprintable()):
        raise RewardServerError(
            f"the key file {path} is empty, or holds characters that no header can send. "
            "Write the key into it again, on one line."
        )
    return key


def seconds(text: str) -> float:
    """Return the value of REWARD_TIMEOUT; raise RewardServerError unless it is above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not (0 < value < math.inf):
        raise RewardServerError(
            f"REWARD_TIMEOUT is {text!r}; required is a number of seconds above 0. "
            "Correct the variable."
        )
    return value


def without_key(text: str, key: str) -> str:
    """Return a text with the key replaced by ***, also where it is escaped for JSON or HTML."""
    if not key:
        return text
    escaped_forms = (json.dumps(key)[1:-1], key.replace("/", "\\/"), html.escape(key))
    for form in (*escaped_forms, key):
        text = text.replace(form, "***")
    return text


def requested_delay(retry_after: str) -> float:
    """Return the seconds of the header Retry-After, at most LONGEST_DELAY.

    They are 0 if the header is no number. It may be a date, which is not used.
    """
    try:
        requested_seconds = float(retry_after)
    except ValueError:
        return 0.0
    if math.isnan(requested_seconds):
        return 0.0
    return min(LONGEST_DELAY, requested_seconds)


def numbers_in(scores: Any) -> list[float]:
    """Return the items of a list as floats, or an empty list if one of them cannot be a score.

    A score is a number of at most LARGEST_SCORE. The list is also empty if `scores` is no list.
    """
    if not isinstance(scores, list):
        return []
    for score in scores:
        is_number = isinstance(score, (int, float)) and not isinstance(score, bool)
        if not is_number or not abs(score) <= LARGEST_SCORE:  # `not <=` refuses NaN, too
            return []
    return [float(score) for score in scores]


def sendable(messages: Any, images: Any = (), videos: Any = ()) -> list[dict[str, Any]]:
    """Return messages in a form that JSON can hold, with every image and video as a data URI.

    The images go into the image parts that hold no image yet. If the messages have no image parts,
    the images replace the markers `<image>` in the texts, provided that there are as many markers
    as images. Otherwise the images are inserted before the first text of the user. The same is then
    done with the videos, whose marker is `<video>`. The server refuses a marker that remains.

    Args:
        messages: A text of the user, or a list of turns. The content of a turn is a text or a list
            of parts.
        images: Images that the messages do not hold themselves, in any form that `data_uri` takes.
        videos: Videos that the messages do not hold themselves, in the same forms, but not opened.

    Raises:
        RewardServerError: If the numbers of images and image parts, or of videos and video parts,
            differ, or a part is of another type.
    """
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    remaining = {"image": iter(images), "video": iter(videos)}
    turns = []
    for turn in messages:
        parts = _parts(turn["content"], remaining)
        turns.append({"role": turn["role"], "content": parts})
    for kind, remaining_files in remaining.items():
        # Images or videos that no part of the messages has taken.
        new_parts = [{"type": kind, kind: data_uri(file, kind)} for file in remaining_files]
        if new_parts:
            turns = _with_new_parts(turns, new_parts, kind)
    return turns


def _with_new_parts(
    turns: list[dict[str, Any]], new_parts: list[dict[str, Any]], kind: str
) -> list[dict[str, Any]]:
    """Return turns with further image parts, or video parts, in their places; see `sendable`.

    Args:
        turns: Turns whose contents are lists of parts.
        new_parts: The parts to be placed.
        kind: "image" or "video".

    Raises:
        RewardServerError: If the turns have parts of this kind already.
    """
    parts_of_all_turns = [part for turn in turns for part in turn["content"]]
    if any(part["type"] == kind for part in parts_of_all_turns):
        raise RewardServerError(f"{len(new_parts)} more {kind}s than {kind} parts in the messages")
    texts = [part["text"] for part in parts_of_all_turns if part["type"] == "text"]
    marker = f"<{kind}>"
    if "".join(texts).count(marker) == len(new_parts):
        parts_for_markers = iter(new_parts)
        for turn in turns:
            turn["content"] = _replace_markers(turn["content"], marker, parts_for_markers)
        return turns
    first_user_turn = next(turn for turn in turns if turn["role"] == "user")
    first_user_turn["content"] = new_parts + first_user_turn["content"]
    return turns


def _parts(content: Any, remaining: dict[str, Iterator[Any]]) -> list[dict[str, Any]]:
    """Return the content of a turn as text parts, image parts and video parts.

    An image part that holds no image takes the next one of `remaining["image"]`, and a video part
    that holds no video the next one of `remaining["video"]`.
    """
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    parts: list[dict[str, Any]] = []
    for part in content:
        if part["type"] == "text":
            parts.append({"type": "text", "text": part["text"]})
        elif part["type"] in PART_KINDS:
            kind = PART_KINDS[part["type"]]
            own_files = [part[key] for key in FILE_KEYS[kind] if part.get(key) is not None]
            # The first of them: an image may be given under several keys.
            file = own_files[0] if own_files else next(remaining[kind], None)
            if file is None:
                raise RewardServerError(f"the messages have more {kind} parts than {kind}s")
            parts.append({"type": kind, kind: data_uri(file, kind)})
        else:
            raise RewardServerError(
                f"a part of a message is of type {part['type']!r}; required is text, image or video"
            )
    return parts


def _replace_markers(
    parts: list[dict[str, Any]], marker: str, new_parts: Iterator[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return parts with an image part, or a video part, in place of each marker in the texts.

    Line breaks next to a marker are removed with it.

    Args:
        parts: The parts of a turn.
        marker: The marker, `<image>` or `<video>`.
        new_parts: The image or video parts, in the order of the markers.
    """
    replaced: list[dict[str, Any]] = []
    for part in parts:
        if part["type"] != "text":
            replaced.append(part)
            continue
        pieces = part["text"].split(marker)
        if len(pieces) > 1:
            pieces = [piece.strip("\n") for piece in pieces]
        for index, piece in enumerate(pieces):
            if index > 0:
                replaced.append(next(new_parts))
            if piece:
                replaced.append({"type": "text", "text": piece})
    return replaced


def data_uri(file: Any, kind: str = "image") -> str:
    """Return an image or a video as a data URI, a text that contains the bytes of its file.

    The media type in the URI is a placeholder: the server recognises the format by the content.

    Args:
        file: The bytes of a file, a path, a data URI, or a mapping that holds one of them as
            "bytes", "path" or "url". An image may also be an image of Pillow.
        kind: "image" or "video".

    Raises:
        RewardServerError: If the file is an address, a path of something that is no file, or a
            video of another form, such as a list of frames.
    """
    if isinstance(file, dict):
        file = next(file[key] for key in ("bytes", "path", "url") if file.get(key) is not None)
    if isinstance(file, str) and file.startswith("data:"):
        return file
    article = "an" if kind == "image" else "a"
    if isinstance(file, str) and file.startswith(("http://", "https://")):
        raise RewardServerError(
            f"{article} {kind} is the address {file[:80]}; addresses are not fetched, give files "
            "or bytes"
        )

    if isinstance(file, bytes):
        content = file
    elif isinstance(file, (str, Path)):
        content = _file_content(Path(str(file).removeprefix("file://")), kind)
    elif kind == "image":
        content = _png_content(file)
    else:
        raise RewardServerError(
            f"a video is a {type(file).__name__}; required is the bytes of a video file, its path "
            "or a data URI. Give separate frames as images."
        )
    return f"data:{kind}/x;base64," + base64.b64encode(content).decode()


def _file_content(path: Path, kind: str) -> bytes:
    """Return the bytes of a file of an image or a video, which `kind` says.

    Raises:
        RewardServerError: If the path is no regular file.
    """
    if path.exists() and not path.is_file():
        raise RewardServerError(f"the {kind} {path} is no regular file; reading it may never end")
    return path.read_bytes()


def _png_content(image: Any) -> bytes:
    """Return the bytes of a PNG file that holds an image of Pillow."""
    saved_image = image
    if image.mode not in PNG_MODES:
        saved_image = image.convert("RGB")
    buffer = io.BytesIO()
    # The EXIF data hold the orientation: the image may still have to be turned upright.
    saved_image.save(buffer, "PNG", compress_level=1, exif=image.getexif())
    return buffer.getvalue()


# --- End of the client ---


class Reward(AsyncORM):  # type: ignore[misc]
    """A reward function that scores the last turn of each conversation."""

    def __init__(self, args: Any = None, **kwargs: Any) -> None:
        super().__init__(args, **kwargs)
        self.server = RewardServer()

    async def __call__(
        self,
        completions: list[str],
        messages: list[Any],
        images: Any = None,
        videos: Any = None,
        **columns: Any,
    ) -> list[float]:
        """Return a score for each completion.

        Args:
            completions: The responses.
            messages: Whole conversations. The last turn of each is its completion.
            images: The images of each conversation, or None for a conversation without images.
            videos: The videos of each conversation, or None for a conversation without videos.
            columns: Further columns of the data set, which are not needed.
        """
        rows = []
        for index, (completion, turns) in enumerate(zip(completions, messages, strict=True)):
            images_of_row: list[Any] = []
            if images:
                images_of_row = images[index] or []
            videos_of_row: list[Any] = []
            if videos:
                videos_of_row = videos[index] or []
            rows.append((sendable(turns[:-1], images_of_row, videos_of_row), completion))
        return await self.server.score(rows)


orms["reward_model"] = Reward
