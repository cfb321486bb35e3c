"""The client of an OpenAI-compatible endpoint: requests are repeated if that helps, and answers are kept on disk."""

import asyncio
import hashlib
import json
import os
import random
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

from mmrm.data.errors import EndpointError
from mmrm.data.images import data_uri
from mmrm.data.preference import EncodedImage, Message
from mmrm.data.storage.files import write_whole
from mmrm.eval.judges.endpoint.config import EndpointConfig

AGAIN = (408, 425, 429)
"""Statuses that may pass; so may 500 and above."""

REFUSED = (400, 413, 422)
"""Statuses that are about one request (a content filter, too long a prompt), not about the caller."""

LONGEST_DELAY = 60.0

CONNECT_SECONDS = 20.0

LARGEST = 2**24
"""Largest number of bytes of an answer, which is read into memory. An answer of 100,000 tokens has a
thirtieth of them."""

QUOTED = 300


Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """The endpoint's answer to one request."""

    text: str
    cut_off: bool
    """It ended at the limit of new tokens."""
    input_tokens: int
    """Number of prompt tokens, as the endpoint counts them."""
    output_tokens: int
    refusal: str = ""
    """Why the endpoint would not answer; the text is then empty."""
    cached: bool = False


@dataclass(frozen=True, slots=True)
class Client:
    """Asks one endpoint; any number of threads may share it."""

    config: EndpointConfig
    cache: Path
    key: str = field(default="", repr=False)
    trust: ssl.SSLContext = field(default_factory=httpx.create_ssl_context, repr=False)

    def answer(self, body: Body) -> Answer:
        """Return the answer to a request, from the cache if it is there.

        Failed and refused requests are not cached.

        Raises: EndpointError once no retry is left, or for a status that no retry can help (a wrong key, model or path).
        """
        request = json.dumps({"url": self.config.url, "body": body}, sort_keys=True)
        digest = hashlib.sha256(request.encode()).hexdigest()
        file = self.cache / digest[:2] / f"{digest}.json"
        if file.is_file():
            return Answer(**json.loads(file.read_text(encoding="utf-8")) | {"cached": True})
        answer = self._asked(body)
        if not answer.refusal:
            write_whole(file, json.dumps(asdict(answer), ensure_ascii=False))
        return answer

    def _asked(self, body: Body) -> Answer:
        for attempt in range(self.config.retries + 1):
            retry_after = ""
            try:
                status, retry_after, content = asyncio.run(self._post(body))
            except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
                reason = f"{type(error).__name__} {error}".strip()
            else:
                quoted = content.decode(errors="replace")
                reason = f"HTTP {status}: {quoted}"
                if status in REFUSED:
                    return Answer("", False, 0, 0, refusal=self._shown(reason))
                if status != 200 and status not in AGAIN and status < 500:
                    raise EndpointError(
                        f"{self.config.url} said {self._shown(reason)}. Check `url`, `model` and the key "
                        f"(`key_variable: {self.config.key_variable}`)."
                    )
                if status == 200 and (answer := read_answer(content)):
                    return answer
                if status == 200:
                    reason = f"an answer that is no chat completion: {quoted[:QUOTED]!r}"
            if attempt < self.config.retries:
                asked = (
                    int(retry_after) if retry_after.isdigit() else 0
                )  # seconds; a date is not read
                time.sleep(
                    max(min(LONGEST_DELAY, asked), delay(self.config.first_delay_seconds, attempt))
                )
        raise EndpointError(
            f"{self.config.url} failed {self.config.retries + 1} times for one request, the last time with: "
            f"{self._shown(reason)}. Nothing is scored from part of the answers. Those received are in the cache: run the same "
            "command again to go on."
        )

    def _shown(self, text: str) -> str:
        """Return the beginning of the endpoint's answer, without the API key if the answer repeats it."""
        return (text.replace(self.key, "***") if self.key else text)[:QUOTED]

    async def _post(self, body: Body) -> tuple[int, str, bytes]:
        """Return status, `retry-after` and the bytes of the answer.

        Raises: TimeoutError if not all of it is there in `timeout_seconds`, however lively it arrives.
        """
        config = self.config
        content = bytearray()
        headers = {"Accept-Encoding": "identity"}
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
            http.stream("POST", "chat/completions", json=body) as response,
        ):
            async for piece in response.aiter_raw():
                content += piece
                if len(content) > LARGEST:
                    raise EndpointError(
                        f"{config.url} sent an answer of more than {LARGEST:,} bytes, which is no judgement."
                    )
            return response.status_code, response.headers.get("retry-after", ""), bytes(content)


def open_client(config: EndpointConfig) -> Client:
    """Return a client for `config`; raises EndpointError if the key's environment variable holds none."""
    key = os.environ.get(config.key_variable, "").strip() if config.key_variable is not None else ""
    if config.key_variable is not None and not key:
        raise EndpointError(
            f"the environment variable {config.key_variable} is not set; put the key of {config.url} there."
        )
    if not (key.isascii() and key.isprintable()):
        raise EndpointError(
            f"the environment variable {config.key_variable} holds characters that no header can send; copy it anew."
        )
    return Client(config, Path(config.cache).expanduser(), key)


def delay(first: float, attempt: int) -> float:
    """Return the seconds to wait before retry `attempt` (0, 1 …).

    They are doubled each time, and then multiplied by a random factor from 0.5 to 1.

    Without the random factor, all requests that failed together would be repeated together.
    """
    return float(min(LONGEST_DELAY, first * 2.0**attempt) * random.uniform(0.5, 1.0))


def read_answer(content: bytes) -> Answer | None:
    """Return the answer that a chat completion holds, None for anything else. A message without text is an empty text."""
    try:
        completion = json.loads(content)
        choice = completion["choices"][0]
        usage = completion.get("usage") or {}
        text = choice["message"].get("content") or ""
        cut_off = choice.get("finish_reason") == "length"
        answer = Answer(
            text,
            cut_off,
            int(usage.get("prompt_tokens", 0)),
            int(usage.get("completion_tokens", 0)),
        )
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return None
    return answer if isinstance(text, str) else None


def messages(
    conversation: Sequence[Message], images: Sequence[EncodedImage], record: str
) -> list[dict[str, Any]]:
    """Return a conversation as chat completions take it, its image parts filled with `images` in order, as data URIs."""
    uris = (data_uri(image, record) for image in images)
    turns: list[dict[str, Any]] = []
    for turn in conversation:
        parts: list[Any] = []
        for part in turn["content"]:
            if part["type"] == "text":
                parts.append(part)
            else:
                parts.append({"type": "image_url", "image_url": {"url": next(uris)}})
        turns.append({**turn, "content": parts})
    return turns
