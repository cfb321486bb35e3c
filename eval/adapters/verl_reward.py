r"""A reward model behind eval/serve.py as a reward manager of verl, images included; written against verl 0.9.1.

    python -m verl.trainer.main_ppo … reward.reward_manager.source=importlib reward.reward_manager.name=Reward \
        reward.reward_manager.module.path=/path/to/verl_reward.py

The server's address and settings come from the environment (REWARD_URL …) of the reward workers. verl asks for one response at a
time; the server puts those of one prompt together. A failure raises and ends the run. Needs httpx and nothing of the project that
serves.
"""

import asyncio
import base64
import io
import json
import math
import os
import random
from pathlib import Path
from typing import Any

import httpx
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

# --- client: the same lines in every file of this folder, so that each can be copied alone ---
TRIES, FIRST_DELAY, LONGEST_DELAY, AT_ONCE = 8, 1.0, 60.0, 64
"""Requests for one group, seconds before the second of them and at most, and requests under way."""
BUSY = (429, 502, 503, 504)


class RewardServerError(RuntimeError):
    """There is no score. Training must stop here: any number in its place would be learned from."""


class RewardServer:
    """Asks eval/serve.py for scores; each setting not given comes from the environment.

    REWARD_URL (http://127.0.0.1:8000), REWARD_API_KEY_FILE, REWARD_FORM (`raw`, or `normalised`: by mean and standard
    deviation of the checkpoint's own scores), REWARD_TIMEOUT (seconds for one answer, 300).
    """

    def __init__(
        self, url: str = "", key_file: str = "", form: str = "", timeout: float = 0.0
    ) -> None:
        setting = os.environ.get
        self.url = (url or setting("REWARD_URL", "http://127.0.0.1:8000")).rstrip(
            "/"
        ) + "/v1/rewards"
        key_file = key_file or setting("REWARD_API_KEY_FILE", "")
        self.headers = (
            {"Authorization": f"Bearer {Path(key_file).read_text().strip()}"} if key_file else {}
        )
        self.scores = {"raw": "scores", "normalised": "normalised"}[
            form or setting("REWARD_FORM", "raw")
        ]
        self.timeout = timeout or float(setting("REWARD_TIMEOUT", "300"))
        self.fingerprint: str | None = None

    async def score(self, rows: Any) -> list[float]:
        """Return the score of each row (messages, response); rows with equal messages are asked for together."""
        groups: dict[str, list[int]] = {}
        for place, (messages, _) in enumerate(rows):
            groups.setdefault(json.dumps(messages), []).append(place)
        limit = asyncio.Semaphore(AT_ONCE)
        async with httpx.AsyncClient(headers=self.headers, timeout=self.timeout) as http:
            asked = [
                self._ask(http, limit, rows[own[0]][0], [rows[place][1] for place in own])
                for own in groups.values()
            ]
            answers = await asyncio.gather(*asked)
        found = {
            place: score
            for own, scores in zip(groups.values(), answers, strict=True)
            for place, score in zip(own, scores, strict=True)
        }
        return [found[place] for place in range(len(rows))]

    async def _ask(
        self, http: httpx.AsyncClient, limit: asyncio.Semaphore, messages: Any, responses: list[str]
    ) -> list[float]:
        wrong = ""
        for attempt in range(TRIES):
            delay = min(LONGEST_DELAY, FIRST_DELAY * 2**attempt * (0.5 + random.random()))
            try:
                async with limit:
                    answer = await http.post(
                        self.url, json={"groups": [{"messages": messages, "responses": responses}]}
                    )
            except httpx.TransportError as error:
                wrong = f"{type(error).__name__} {error}"
            else:
                if answer.status_code == 200:
                    return self._read(answer.json(), len(responses))
                wrong = f"HTTP {answer.status_code} {answer.text[:500]}"
                if answer.status_code not in BUSY:
                    break
                delay = max(delay, min(LONGEST_DELAY, float(answer.headers.get("Retry-After", 0))))
            if attempt < TRIES - 1:
                await asyncio.sleep(delay)
        raise RewardServerError(
            f"{self.url} gave no scores: {wrong}. Is eval/serve.py running, and reached at REWARD_URL?"
        )

    def _read(self, answer: Any, count: int) -> list[float]:
        group = answer["groups"][0]
        if "error" in group:
            raise RewardServerError(
                f"{self.url} could not score a group: {group['error']['message']}"
            )
        if self.fingerprint not in (None, answer["fingerprint"]):
            raise RewardServerError(
                f"the checkpoint behind {self.url} changed from {self.fingerprint} to {answer['fingerprint']} in the middle of "
                "the run; scores of two reward models cannot be compared. Serve the first one again."
            )
        self.fingerprint, scores = answer["fingerprint"], group[self.scores]
        if scores is None:
            raise RewardServerError(
                "REWARD_FORM=normalised, but the checkpoint holds no reference scores; ask for raw ones"
            )
        if len(scores) != count or not all(map(math.isfinite, scores)):
            raise RewardServerError(
                f"{self.url} answered {scores} for {count} responses; required are as many finite numbers"
            )
        return [float(score) for score in scores]


def sendable(messages: Any, images: Any = ()) -> list[dict[str, Any]]:
    """Return messages as JSON takes them, every image as a data URI; `images` fill image parts that have none.

    Where there are no image parts, they stand in the place of `<image>` if it occurs as often as
    there are images, else before the first text of the user. The server refuses a marker that is
    left.
    """
    rest = iter(images)
    found: list[dict[str, Any]] = []
    turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    for turn in turns:
        parts: list[dict[str, Any]] = []
        content = turn["content"]
        for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            if part["type"] == "text":
                parts.append({"type": "text", "text": part["text"]})
            elif part["type"] in ("image", "image_url"):
                held = [
                    part[key]
                    for key in ("image", "image_url", "url", "bytes", "path")
                    if part.get(key) is not None
                ]
                parts.append({"type": "image", "image": data_uri(held[0] if held else next(rest))})
            else:
                raise RewardServerError(
                    f"a part of a message is of type {part['type']!r}; required is text or image"
                )
        found.append({"role": turn["role"], "content": parts})
    left = [{"type": "image", "image": data_uri(image)} for image in rest]
    if left and any(part["type"] == "image" for turn in found for part in turn["content"]):
        raise RewardServerError(f"{len(left)} more images than image parts in the messages")
    texts = [part.get("text", "") for turn in found for part in turn["content"]]
    if left and "".join(texts).count("<image>") == len(left):
        return [turn | {"content": placed(turn["content"], left)} for turn in found]
    if left:
        user = next(turn for turn in found if turn["role"] == "user")
        user["content"] = left + user["content"]
    return found


def placed(parts: list[dict[str, Any]], images: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return text parts with an image, taken from `images`, in the place of each `<image>`."""
    found: list[dict[str, Any]] = []
    for part in parts:
        pieces = part["text"].split("<image>")
        for number, piece in enumerate(pieces):
            if number > 0:
                found.append(images.pop(0))
            text = piece.strip("\n") if len(pieces) > 1 else piece
            if text:
                found.append({"type": "text", "text": text})
    return found


def data_uri(image: Any) -> str:
    """Return an image (PIL, bytes, path, data URI, or a struct of these) as a data URI; the server looks at its content."""
    if isinstance(image, dict):
        image = next(image[key] for key in ("bytes", "path", "url") if image.get(key) is not None)
    if isinstance(image, str) and image.startswith("data:"):
        return image
    if isinstance(image, str) and image.startswith(("http://", "https://")):
        raise RewardServerError(
            f"an image is the address {image[:80]}; addresses are not fetched, give files or bytes"
        )
    if isinstance(image, (str, Path)):
        path = Path(str(image).removeprefix("file://"))
        if path.exists() and not path.is_file():
            raise RewardServerError(
                f"the image {path} is no regular file; reading it may never end"
            )
        image = path.read_bytes()
    if not isinstance(image, bytes):  # opened by Pillow; it may still have to be turned upright
        buffer = io.BytesIO()
        kept = (
            image
            if image.mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")
            else image.convert("RGB")
        )
        kept.save(buffer, "PNG", compress_level=1, exif=image.getexif())
        image = buffer.getvalue()
    return "data:image/x;base64," + base64.b64encode(image).decode()


# --- end of the client ---


class Reward(RewardManagerBase):  # type: ignore[misc]
    """Scores the last response of a trajectory; its prompt's original images are in `raw_prompt`."""

    def __init__(
        self,
        config: Any,
        tokenizer: Any,
        compute_score: Any,
        reward_router_address: Any = None,
        reward_model_tokenizer: Any = None,
    ) -> None:
        super().__init__(config, tokenizer, compute_score)
        self.server = RewardServer()

    async def run_single(self, data: Any) -> dict[str, Any]:
        """Return the score of one row of a DataProto."""
        row = data[-1:][0]
        responses, mask = row.batch["responses"], row.batch["attention_mask"]
        own = responses[mask[-len(responses) :].bool()]
        response = await self.loop.run_in_executor(
            None, lambda: self.tokenizer.decode(own, skip_special_tokens=True)
        )
        scores = await self.server.score(
            [(sendable(list(row.non_tensor_batch["raw_prompt"])), response)]
        )
        return {"reward_score": scores[0], "reward_extra_info": {"reward_model": scores[0]}}
