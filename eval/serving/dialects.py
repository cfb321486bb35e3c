"""Formats of requests and answers: this project's own, and the formats of other projects' clients.

A dialect reads a request's body into groups (messages, responses, images), and writes their scores
into the answer. Scores are raw, and higher is better. Clients normalise or squash them themselves.
"""

import json
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from mmrm.data.errors import RecordError
from mmrm.data.storage.strict_json import parse_json
from mmrm.eval.serving.batcher import ScoredGroup

HEADER = "<|im_start|>assistant\n"
TURN = re.compile(r"<\|im_start\|>(system|user|assistant)\n(.*?)<\|im_end\|>\n?", re.DOTALL)
PADDING = re.compile(r"(?:<\|endoftext\|>)*")
END = re.compile(r"<\|im_end\|>|<\|endoftext\|>")
AFTER = re.compile(r"(?:\s|<\|im_end\|>|<\|endoftext\|>)*")
PICTURE = re.compile(r"<\|vision_start\|>(?:<\|image_pad\|>)+<\|vision_end\|>")
"""An image in a rendered conversation; frameworks send its tokens one by one."""
FOREIGN = re.compile(r"<\|\w+\|>|\[/?INST\]|<<SYS>>|<(?:start|end)_of_turn>")
"""Markers of other models' chat templates, which this model would read as text."""


@dataclass(frozen=True, slots=True)
class ServedCheckpoint:
    """The identity of the served checkpoint, for the answers."""

    name: str
    kind: str
    fingerprint: str
    reference: Mapping[str, Any] | None
    """`reference_scores` of the checkpoint's config.json."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A group without scores."""

    message: str
    type: str
    status: int


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """A request that was read."""

    groups: Sequence[Any]
    """Groups in the form of `/v1/rewards`; they are not checked yet."""
    write: Callable[[Sequence[ScoredGroup | Failure]], dict[str, Any]]
    """Returns the answer, from the scores or the failure of each group."""
    partial: bool = False
    """True if the answer can hold the failure of a group. Otherwise one failure fails the request."""


class _Body(BaseModel):
    model_config = ConfigDict(strict=True)

    model: str | None = None


class _Rewards(_Body):
    model_config = ConfigDict(strict=True, extra="forbid")

    groups: list[Any] = Field(min_length=1)


class _Classify(_Body):
    messages: list[Any] | None = None
    input: str | list[str] | None = None
    use_activation: bool | None = None
    add_generation_prompt: bool = False


class _Rerank(_Body):
    query: str | dict[str, Any]
    documents: list[str] = Field(min_length=1)
    top_n: int = Field(default=0, ge=0)


class _GetReward(_Body):
    query: list[str] = Field(min_length=1)
    prompts: list[str] | None = None
    labels: list[Any] | None = None


def rewards(body: Any, served: ServedCheckpoint) -> ScoreRequest:
    """Read a request of this project.

    The request is `{"groups": [{"messages": …, "responses": [str, …], "images": […]}]}`. The answer
    has an `error` in place of the scores of a failed group.
    """
    reference = served.reference

    def group(found: ScoredGroup | Failure) -> dict[str, Any]:
        if isinstance(found, Failure):
            return {"error": {"message": found.message, "type": found.type}}
        scores = found.scores
        normalised = reference and [
            (value - reference["mean"]) / reference["std"] for value in scores.values
        ]
        return {
            "scores": scores.values,
            "normalised": normalised,
            "order": scores.order,
            "margin": scores.margin,
            "tokens": found.tokens,
            "tokens_unshared": found.tokens_unshared,
            "judgements": scores.usage.judgements,
            "unread": scores.usage.unread,
        }

    def write(found: Sequence[ScoredGroup | Failure]) -> dict[str, Any]:
        return {
            "model": served.name,
            "fingerprint": served.fingerprint,
            "groups": [group(one) for one in found],
        }

    return ScoreRequest(_Rewards.model_validate(body).groups, write, partial=True)


def classify(body: Any, served: ServedCheckpoint) -> ScoreRequest:
    """Read a request of vLLM's `/classify`.

    It has `messages` whose last turn is the assistant's, or `input`, the rendered conversations.

    The answer's `probs` hold the raw score.

    Raises: RecordError for `use_activation: true`, which requires a score that is not raw.
    """
    request = _Classify.model_validate(body)
    if request.use_activation or request.add_generation_prompt:
        raise RecordError(
            "`use_activation` and `add_generation_prompt` must be false or left out: `probs` holds the raw score of an answer."
        )
    if (request.messages is None) == (request.input is None):
        raise RecordError("give either `messages`, whose last turn is the assistant's, or `input`.")
    if request.messages is not None:
        groups = [_answered(request.messages)]
    else:
        texts = [request.input] if isinstance(request.input, str) else request.input or []
        groups = [
            {"messages": turns, "responses": [response]}
            for turns, response in map(response_of, texts)
        ]

    def write(found: Sequence[Any]) -> dict[str, Any]:
        data = [
            {"index": index, "label": None, "probs": list(one.scores.values), "num_classes": 1}
            for index, one in enumerate(found)
        ]
        tokens = sum(one.tokens_unshared for one in found)
        usage = {
            "prompt_tokens": tokens,
            "total_tokens": tokens,
            "completion_tokens": 0,
            "prompt_tokens_details": None,
        }
        about = {
            "id": f"classify-{uuid.uuid4().hex}",
            "object": "list",
            "created": int(time.time()),
            "model": served.name,
        }
        return {**about, "data": data, "usage": usage}

    return ScoreRequest(groups, write)


def _answered(messages: list[Any]) -> dict[str, Any]:
    last = messages[-1] if messages and isinstance(messages[-1], dict) else {}
    content = last.get("content")
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, dict) and part.get("type") == "text"]
        texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
        content = "".join(texts) if len(texts) == len(content) else None
    if last.get("role") != "assistant" or not isinstance(content, str):
        raise RecordError(
            "the last of the messages must be the assistant's turn with the text to be scored."
        )
    return {"messages": messages[:-1], "responses": [content]}


def rerank(body: Any, served: ServedCheckpoint) -> ScoreRequest:
    """Read vLLM's request: the `query` is the prompt (a text, or {"content": parts}), the `documents` are responses."""
    request = _Rerank.model_validate(body)
    content = request.query if isinstance(request.query, str) else request.query.get("content")
    group = {"messages": [{"role": "user", "content": content}], "responses": request.documents}

    def write(found: Sequence[Any]) -> dict[str, Any]:
        [one] = found
        results = [
            {
                "index": place,
                "document": {"text": request.documents[place], "multi_modal": None},
                "relevance_score": one.scores.values[place],
            }
            for place in one.scores.order[: request.top_n or None]
        ]
        usage = {"prompt_tokens": one.tokens_unshared, "total_tokens": one.tokens_unshared}
        return {
            "id": f"rerank-{uuid.uuid4().hex}",
            "model": served.name,
            "usage": usage,
            "results": results,
        }

    return ScoreRequest([group], write)


def get_reward(body: Any, served: ServedCheckpoint) -> ScoreRequest:
    """Read OpenRLHF's request; queries with equal prompts and images are one group.

    `query` holds prompt and response as one text, `prompts` the prompt alone; see `response_of`. A label may be JSON with
    "images", the prompt's images as `/v1/rewards` takes them; other labels are not read.
    """
    request = _GetReward.model_validate(body)
    number = len(request.query)
    prompts: Sequence[str | None] = request.prompts or [None] * number
    labels = request.labels or [None] * number
    if not number == len(prompts) == len(labels):
        raise RecordError(
            f"{number} queries, {len(prompts)} prompts and {len(labels)} labels; required are equally many."
        )
    groups: dict[str, dict[str, Any]] = {}
    places: dict[str, list[int]] = {}
    for place, (query, prompt, label) in enumerate(
        zip(request.query, prompts, labels, strict=True)
    ):
        try:
            turns, response = response_of(query, prompt)
        except RecordError as error:
            raise RecordError(f"query {place}: {error}") from error
        group = {"messages": turns, "responses": [], "images": _images(label)}
        key = json.dumps(group)
        groups.setdefault(key, group)["responses"].append(response)
        places.setdefault(key, []).append(place)

    def write(found: Sequence[Any]) -> dict[str, Any]:
        scores = [0.0] * number
        for own, one in zip(places.values(), found, strict=True):
            for place, score in zip(own, one.scores.values, strict=True):
                scores[place] = score
        return {"rewards": scores, "scores": scores, "extra_logs": {}}

    return ScoreRequest(list(groups.values()), write)


def _images(label: Any) -> list[Any]:
    if not isinstance(label, str) or not label.lstrip().startswith("{"):
        return []
    try:
        found = parse_json(label)
    except RecordError:  # a reference answer that begins with a brace
        return []
    images = found.get("images")
    return images if isinstance(images, list) else []


def response_of(query: str, prompt: str | None = None) -> tuple[list[dict[str, Any]], str]:
    """Return the turns and the response of a rendered conversation.

    The conversation is in ChatML (Qwen's template), or the prompt and response are plain texts.

    - Padding (<|endoftext|>) in front is removed. The response ends before <|im_end|> or
      <|endoftext|>; only blanks and these tokens may follow.
    - If there is a `prompt`, the query must begin with it, and the remaining text is the response.
      Text that the template put at the beginning of the assistant's turn belongs to the response. A
      prompt without ChatML is one turn of the user.
    - If there is no `prompt`, the query must be ChatML, and its last turn is the response.
    - An image's tokens become an image part, to be filled with the images of the request.

    Raises: RecordError for another form. The encoder later refuses other control tokens inside the
    response.
    """
    rendered = PADDING.sub("", query, 1)
    if prompt is not None:
        rendered_prompt = PADDING.sub("", prompt, 1)
        if not rendered.startswith(rendered_prompt):
            raise RecordError(
                f"it does not begin with its prompt, so that the response cannot be told: {rendered[:80]!r}"
            )
        turns, unfinished = turns_of(rendered_prompt)
        remainder = rendered[len(rendered_prompt) :]
        if unfinished is None:
            return turns, _ended(remainder.removeprefix(HEADER))
        return turns, _ended(unfinished + remainder)
    turns, unfinished = turns_of(rendered)
    if unfinished is not None:
        return turns, _ended(unfinished)
    last_turn = turns.pop()
    if last_turn["role"] != "assistant" or any(
        part["type"] == "image" for part in last_turn["content"]
    ):
        raise RecordError(
            "a text without its prompt must be a conversation in ChatML that ends with an assistant's text."
        )
    return turns, "".join(part["text"] for part in last_turn["content"])


def _ended(response: str) -> str:
    end = END.search(response)
    if end and not AFTER.fullmatch(response, end.start()):
        raise RecordError(
            f"the response goes on after the end of its turn: {response[end.start() :][:80]!r}"
        )
    return response[: end.start()] if end else response


def turns_of(rendered: str) -> tuple[list[dict[str, Any]], str | None]:
    """Return the turns of a rendered prompt, and the beginning of the assistant's unfinished turn.

    The second value is None if the prompt does not end with an unfinished turn of the assistant. A
    text without ChatML is one turn of the user.
    """
    if "<|im_start|>" not in rendered:
        if marker := FOREIGN.search(rendered):
            raise RecordError(
                f"the text contains {marker[0]!r}, which another model's chat template writes. Required is ChatML, or plain text."
            )
        return [{"role": "user", "content": [{"type": "text", "text": rendered}]}], None
    turns: list[dict[str, Any]] = []
    position = 0
    while turn := TURN.match(rendered, position):
        turns.append({"role": turn[1], "content": _parts(turn[2])})
        position = turn.end()
    unfinished = PADDING.sub("", rendered[position:], 1)
    if unfinished and not unfinished.startswith(HEADER):
        raise RecordError(f"this is not the end of a conversation in ChatML: {unfinished[:80]!r}")
    return turns, unfinished.removeprefix(HEADER) if unfinished else None


def _parts(content: str) -> list[dict[str, Any]]:
    """Return the content of a rendered turn as texts, and an image between every two of them."""
    parts: list[dict[str, Any]] = []
    for number, text in enumerate(PICTURE.split(content)):
        if number > 0:
            parts.append({"type": "image"})
        if text:
            parts.append({"type": "text", "text": text})
    return parts


DIALECTS: dict[str, Callable[[Any, ServedCheckpoint], ScoreRequest]] = {
    "/v1/rewards": rewards,
    "/classify": classify,
    "/rerank": rerank,
    "/v1/rerank": rerank,
    "/get_reward": get_reward,
}
