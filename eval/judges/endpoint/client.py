"""The client of an OpenAI-compatible endpoint.

It repeats requests that fail for a reason that may pass, and keeps answers on disk.
"""

import asyncio
import hashlib
import html
import json
import math
import os
import random
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
from pydantic import TypeAdapter, ValidationError

from mmrm.data.encoded_video import Video, video_uri
from mmrm.data.errors import EndpointError
from mmrm.data.images import data_uri
from mmrm.data.package import cache_folder
from mmrm.data.preference import EncodedImage, Message
from mmrm.data.storage.files import write_whole
from mmrm.eval.judges.endpoint.config import EndpointConfig

PASSING_STATUSES = (408, 425, 429)
"""HTTP statuses of failures that may pass, so that the request is repeated. Those of 500 and above
may pass too."""

REFUSAL_STATUSES = (400, 413, 422)
"""HTTP statuses that refuse one request, such as a filtered or too long prompt. Other requests of
the same caller may be answered."""

LONGEST_DELAY = 60.0
"""Largest number of seconds before a retry."""

CONNECT_SECONDS = 20.0

MOST_BYTES = 2**24
"""Largest number of bytes of an answer, which is read into memory. An answer of 100,000 tokens has
a thirtieth of them."""

QUOTED_CHARACTERS = 300
"""Number of characters of the endpoint's answer that a message quotes."""

MOST_TOKENS = 10**9
"""Largest number of tokens of one request that is believed. A larger one counts as 0."""


Body = Mapping[str, Any]
"""The JSON body of a chat completion request."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The endpoint's answer to one request."""

    text: str
    cut_off: bool
    """True if the answer ended at the limit of new tokens."""
    input_tokens: int
    """Number of prompt tokens, as the endpoint counts them."""
    output_tokens: int
    refusal: str = ""
    """The reason why the endpoint refused the request; empty if it answered."""
    cached: bool = False
    """True if the answer comes from the cache."""


@dataclass(frozen=True, slots=True)
class Client:
    """Sends requests to one endpoint and caches the answers. Several threads may share it."""

    config: EndpointConfig
    cache: Path
    """The folder of the cached answers."""
    key: str = field(default="", repr=False)
    """The API key; empty sends none."""
    trust: ssl.SSLContext = field(default_factory=httpx.create_ssl_context, repr=False)
    """The certificates that the client trusts."""

    def answer(self, body: Body) -> Answer:
        """Return the answer to a request, from the cache if it is there.

        Failed and refused requests are not cached.

        Raises: EndpointError if the request still fails after its retries, if no retry can help
        because the key, the model or the path is wrong, or if the file in the cache is damaged.
        """
        request = json.dumps({"url": self.config.url, "body": body}, sort_keys=True)
        digest = hashlib.sha256(request.encode()).hexdigest()
        file = self.cache / digest[:2] / f"{digest}.json"
        if file.is_file():
            return replace(read_cached_answer(file), cached=True)
        answer = self._send(body)
        if not answer.refusal:
            write_whole(file, json.dumps(asdict(answer), ensure_ascii=False))
        return answer

    def _send(self, body: Body) -> Answer:
        """Send a request, with retries, and return the answer or the endpoint's refusal.

        Raises: EndpointError once no retry is left, or for a status that no retry can help.
        """
        num_attempts = self.config.retries + 1
        for attempt in range(num_attempts):
            retry_after = ""
            try:
                status, retry_after, content = asyncio.run(self._post(body))
            except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
                problem = f"{type(error).__name__} {error}".strip()
            else:
                response_text = without_key(content.decode(errors="replace"), self.key)
                problem = f"HTTP {status}: {response_text}"
                if status in REFUSAL_STATUSES:
                    return refused_answer(self._quoted(problem))
                may_pass = status in PASSING_STATUSES or status >= 500
                if status != 200 and not may_pass:
                    raise EndpointError(
                        f"{self.config.url} said {self._quoted(problem)}. Check `url`, `model` and "
                        f"the key (`key_variable: {self.config.key_variable}`)."
                    )
                if status == 200:
                    answer = read_answer(content)
                    if answer is not None:
                        return replace(answer, text=without_key(answer.text, self.key))
                    beginning = response_text[:QUOTED_CHARACTERS]
                    problem = f"an answer that is no chat completion (check `url`): {beginning!r}"
            is_last = attempt == num_attempts - 1
            if not is_last:
                own_seconds = delay(self.config.first_delay_seconds, attempt)
                time.sleep(max(requested_delay(retry_after), own_seconds))
        raise EndpointError(
            f"{self.config.url} failed {self.config.retries + 1} times for one request, the last "
            f"time with: {self._quoted(problem)}. Nothing is scored from part of the answers. "
            "Those received are in the cache: run the same command again to go on."
        )

    def _quoted(self, text: str) -> str:
        """Return the beginning of a text for a message, with the API key replaced by ***."""
        return without_key(text, self.key)[:QUOTED_CHARACTERS]

    async def _post(self, body: Body) -> tuple[int, str, bytes]:
        """Send a request once, and return the status, the header `retry-after` and the content.

        Raises: TimeoutError if the content is not complete after `timeout_seconds`, also if some of
            it still arrives.
        """
        config = self.config
        content = bytearray()
        headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        timeout = httpx.Timeout(
            config.timeout_seconds, connect=min(CONNECT_SECONDS, config.timeout_seconds)
        )
        client = httpx.AsyncClient(
            base_url=config.url, headers=headers, timeout=timeout, verify=self.trust
        )
        async with (
            asyncio.timeout(config.timeout_seconds),
            client as http,
            # ASCII, because half of a surrogate pair in a text cannot be encoded otherwise.
            http.stream("POST", "chat/completions", content=json.dumps(body)) as response,
        ):
            async for piece in response.aiter_raw():
                content += piece
                if len(content) > MOST_BYTES:
                    raise EndpointError(
                        f"{config.url} sent an answer of more than {MOST_BYTES:,} bytes, which is "
                        "no judgement."
                    )
            return response.status_code, response.headers.get("retry-after", ""), bytes(content)


def open_client(config: EndpointConfig) -> Client:
    """Return a client of an endpoint with the API key from the environment.

    Raises: EndpointError if the configured environment variable is not set, or holds characters
        that no HTTP header can contain.
    """
    key = ""
    if config.key_variable is not None:
        key = os.environ.get(config.key_variable, "").strip()
        if not key:
            raise EndpointError(
                f"the environment variable {config.key_variable} is not set; put the key of "
                f"{config.url} there."
            )
    if not (key.isascii() and key.isprintable()):
        raise EndpointError(
            f"the environment variable {config.key_variable} holds characters that no header can "
            "send; copy it anew."
        )
    cache = Path(config.cache).expanduser() if config.cache else cache_folder() / "endpoint"
    return Client(config, cache, key)


def delay(first: float, attempt: int) -> float:
    """Return the seconds to wait after a failed attempt: `first`, doubled for each further one.

    They are multiplied by a random factor from 0.5 to 1. Without it, all requests that failed
    together would be repeated together.

    Args:
        first: The seconds after the first attempt.
        attempt: The index of the failed attempt: 0, 1 and so on.
    """
    seconds = min(LONGEST_DELAY, first * 2.0**attempt)
    return float(seconds * random.uniform(0.5, 1.0))


def requested_delay(retry_after: str) -> float:
    """Return the seconds of the header Retry-After, at most LONGEST_DELAY.

    They are 0 if the header is no number. It may be a date, which is not used.
    """
    try:
        seconds = float(retry_after)
    except ValueError:
        return 0.0
    if math.isnan(seconds):
        return 0.0
    return max(0.0, min(LONGEST_DELAY, seconds))


def without_key(text: str, key: str) -> str:
    """Return a text with the key replaced by ***, also where it is escaped for JSON or HTML."""
    if not key:
        return text
    escaped_forms = (json.dumps(key)[1:-1], key.replace("/", "\\/"), html.escape(key))
    for form in (*escaped_forms, key):
        text = text.replace(form, "***")
    return text


def read_cached_answer(file: Path) -> Answer:
    """Return the answer in a file of the cache; raise EndpointError if the file is damaged."""
    try:
        return TypeAdapter(Answer).validate_json(file.read_bytes(), strict=True)
    except ValidationError as error:
        raise EndpointError(
            f"{file} holds no answer of an endpoint: {error.errors()[0]['msg']}. The file is "
            "damaged. Delete it, and the request is sent again."
        ) from error


def refused_answer(reason: str) -> Answer:
    """Return the answer for a request that the endpoint refused for a reason."""
    return Answer(text="", cut_off=False, input_tokens=0, output_tokens=0, refusal=reason)


def read_answer(content: bytes) -> Answer | None:
    """Return the answer in the content of a chat completion; None if the content is no completion.

    A message without a text is an answer with an empty text. Half of a surrogate pair in the text
    becomes a question mark, because no file can hold it.
    """
    try:
        completion = json.loads(content)
        choice = completion["choices"][0]
        usage = completion.get("usage") or {}
        text = choice["message"].get("content") or ""
        answer = Answer(
            text.encode(errors="replace").decode(),
            cut_off=choice.get("finish_reason") == "length",
            input_tokens=token_count(usage.get("prompt_tokens")),
            output_tokens=token_count(usage.get("completion_tokens")),
        )
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return None
    return answer


def token_count(value: object) -> int:
    """Return a number of tokens that an endpoint reports; 0 if it cannot be one."""
    if isinstance(value, int | float) and 0 <= value <= MOST_TOKENS:
        return int(value)
    return 0


def messages(
    conversation: Sequence[Message],
    images: Sequence[EncodedImage],
    videos: Sequence[Video],
    record: str,
) -> list[dict[str, Any]]:
    """Return a conversation in the form of a chat completion request.

    A video is a part of the type `video_url`, as vLLM and SGLang read it. The server samples its
    frames by its own settings.

    Args:
        conversation: The turns.
        images: The images for the image parts of the turns, in order. They become data URIs.
        videos: The videos for the video parts of the turns, in order. They become data URIs.
        record: The name of the record, for the message about an image that cannot be read.
    """
    uris = (data_uri(image, record) for image in images)
    video_uris = (video_uri(video, record) for video in videos)
    turns: list[dict[str, Any]] = []
    for turn in conversation:
        parts: list[Any] = []
        for part in turn["content"]:
            if part["type"] == "text":
                parts.append(part)
            elif part["type"] == "video":
                parts.append({"type": "video_url", "video_url": {"url": next(video_uris)}})
            else:
                parts.append({"type": "image_url", "image_url": {"url": next(uris)}})
        turns.append({**turn, "content": parts})
    return turns
