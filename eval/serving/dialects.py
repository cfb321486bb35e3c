"""Formats of requests and answers: this project's own, and the formats of other projects' clients.

A dialect reads a request's body into groups (messages, responses, images, videos), and writes their scores
into the answer. Scores are raw, and higher is better. Clients normalise or squash them themselves.
"""

import json
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mmrm.data.errors import RecordError
from mmrm.data.storage.strict_json import parse_json
from mmrm.eval.candidates import Scores
from mmrm.eval.serving.api_models import (
    Classification,
    ClassifyAnswer,
    ClassifyRequest,
    ClassifyUsage,
    Document,
    Error,
    GetRewardAnswer,
    GetRewardRequest,
    GroupFailure,
    GroupScores,
    RankedDocument,
    RerankAnswer,
    RerankRequest,
    RerankUsage,
    RewardsAnswer,
    RewardsRequest,
    ScoredHistory,
    ScoreImagesAnswer,
    ScoreImagesRequest,
    WrittenVote,
)
from mmrm.eval.serving.batcher import ScoredGroup

REWARD_NAME = "reward_model"
"""The name of the served model's reward for clients of UniRL, whose servers have several rewards."""
ASSISTANT_HEADER = "<|im_start|>assistant\n"
"""The beginning of an assistant's turn in ChatML, the form of Qwen's chat template."""
FINISHED_TURN = re.compile(
    r"<\|im_start\|>(system|user|assistant)\n(.*?)<\|im_end\|>\n?", re.DOTALL
)
"""A whole turn in ChatML: its role and its content."""
LEADING_PADDING = re.compile(r"\A(?:<\|endoftext\|>)*")
END_TOKEN = re.compile(r"<\|im_end\|>|<\|endoftext\|>")
END_TOKENS_AND_BLANKS = re.compile(r"(?:\s|<\|im_end\|>|<\|endoftext\|>)*")
MEDIUM_TOKENS = re.compile(r"<\|vision_start\|>(<\|(?:image|video)_pad\|>)\1*<\|vision_end\|>")
"""An image or a video in a rendered conversation; frameworks send its tokens one by one. The group
is one of its tokens. A video of Qwen3-VL, which has times between its frames, is not recognised."""
PART_TYPES = {"<|image_pad|>": "image", "<|video_pad|>": "video"}
"""The type of the part that the tokens of an image or a video become."""
FOREIGN_MARKER = re.compile(r"<\|\w+\|>|\[/?INST\]|<<SYS>>|<(?:start|end)_of_turn>")
"""A marker of another model's chat template, which this model would read as text."""


@dataclass(frozen=True, slots=True)
class ServedCheckpoint:
    """The properties of the served checkpoint that answers contain."""

    name: str
    kind: str
    fingerprint: str
    reference: Mapping[str, Any] | None
    """`reference_scores` of the checkpoint's config.json."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a group of a request has no scores."""

    message: str
    type: str
    status: int
    """The HTTP status of the answer if the whole request fails for this reason."""


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """The groups of a request, and the form of its answer.

    A group is a prompt with the responses to it.
    """

    groups: Sequence[Any]
    """Groups in the form of `/v1/rewards`; they are not checked yet."""
    write_answer: Callable[[Sequence[Any]], dict[str, Any]]
    """Returns the answer, from the `ScoredGroup` or the `Failure` of each group."""
    holds_failures: bool = False
    """True if the answer can hold the failure of a group. Otherwise one failure fails the request,
    and `write_answer` is called with scored groups alone."""


def read_rewards_request(body: Any, served: ServedCheckpoint) -> ScoreRequest:
    """Read the body of a request to `/v1/rewards`, this project's own route.

    The body is `{"groups": [{"messages": …, "responses": [str, …], "images": […], "videos": […]}]}`.
    The answer has an `error` in place of the scores of a failed group. With `"texts": true` it also has the
    texts that the judge wrote.
    """
    request = RewardsRequest.model_validate(body)
    return ScoreRequest(
        request.groups,
        write_answer=partial(_rewards_answer, served, request.texts),
        holds_failures=True,
    )


def _rewards_answer(
    served: ServedCheckpoint, with_texts: bool, results: Sequence[ScoredGroup | Failure]
) -> dict[str, Any]:
    """Return the answer of `/v1/rewards` from the result of each group.

    Args:
        served: The served checkpoint.
        with_texts: True if the answer holds the texts that the judge wrote.
        results: The scores or the failure of each group.
    """
    groups: list[GroupScores | GroupFailure] = []
    for result in results:
        if isinstance(result, Failure):
            groups.append(GroupFailure(error=Error(message=result.message, type=result.type)))
        else:
            groups.append(_group_scores(served, with_texts, result))
    answer = RewardsAnswer(model=served.name, fingerprint=served.fingerprint, groups=groups)
    return answer.model_dump(exclude_unset=True)


def _group_scores(served: ServedCheckpoint, with_texts: bool, result: ScoredGroup) -> GroupScores:
    """Return the entry of a scored group in the answer of `/v1/rewards`.

    Args:
        served: The served checkpoint.
        with_texts: True if the entry holds the texts that the judge wrote.
        result: The scores of the group.
    """
    scores = result.scores
    normalised = None
    if served.reference:
        mean = served.reference["mean"]
        standard_deviation = served.reference["std"]
        normalised = [(value - mean) / standard_deviation for value in scores.values]
    entry = GroupScores(
        scores=list(scores.values),
        normalised=normalised,
        order=scores.order,
        margin=scores.margin,
        tokens=result.tokens,
        tokens_unshared=result.tokens_unshared,
        judgements=scores.usage.judgements,
        unread=scores.usage.unread,
    )
    if scores.attributes:
        # Set only then: the answer leaves out what is not set.
        entry.attributes = {name: list(values) for name, values in scores.attributes.items()}
    if scores.votes:
        entry.verdicts = "soft" if scores.is_soft else "hard"
    if with_texts:
        entry.critiques = _critiques(scores)
        entry.votes = [
            WrittenVote(shown=list(vote.shown), named=vote.named, text=vote.text)
            for vote in scores.votes
        ]
    return entry


def _critiques(scores: Scores) -> list[str]:
    """Return the text that the judge wrote about each response; empty if it wrote none.

    The texts of a judge that compares are those of its votes.
    """
    return [] if scores.votes else list(scores.texts)


def read_classify_request(body: Any, served: ServedCheckpoint) -> ScoreRequest:
    """Read the body of a request to `/classify`, a route of vLLM.

    The body has `messages` whose last turn is the assistant's, or `input`: one or several such
    conversations as texts of the chat template. The answer's `probs` hold the raw scores.

    Raises: RecordError for `use_activation: true`, which requires a score that is not raw, and for
    a conversation that does not end with a response.
    """
    request = ClassifyRequest.model_validate(body)
    if request.use_activation or request.add_generation_prompt:
        raise RecordError(
            "`use_activation` and `add_generation_prompt` must be false or left out: `probs` holds "
            "the raw score of an answer."
        )
    has_messages = request.messages is not None
    has_input = request.input is not None
    if has_messages == has_input:
        raise RecordError("give either `messages`, whose last turn is the assistant's, or `input`.")

    groups: list[dict[str, Any]] = []
    if request.messages is not None:
        groups.append(_group_of_conversation(request.messages))
    if request.input is not None:
        texts = [request.input] if isinstance(request.input, str) else request.input
        for text in texts:
            turns, response = split_rendered(text)
            groups.append({"messages": turns, "responses": [response]})
    return ScoreRequest(groups, write_answer=partial(_classify_answer, served))


def _classify_answer(served: ServedCheckpoint, results: Sequence[ScoredGroup]) -> dict[str, Any]:
    """Return the answer of `/classify`, which has one raw score for each conversation.

    Next to it are the further numbers of the head, if it computes any.
    """
    data: list[Classification] = []
    for index, result in enumerate(results):
        scores = result.scores
        # A conversation has one response.
        attributes = {name: values[0] for name, values in scores.attributes.items()}
        data.append(Classification(index=index, probs=list(scores.values), attributes=attributes))
    num_tokens = sum(result.tokens_unshared for result in results)
    answer = ClassifyAnswer(
        id=f"classify-{uuid.uuid4().hex}",
        created=int(time.time()),
        model=served.name,
        data=data,
        usage=ClassifyUsage(prompt_tokens=num_tokens, total_tokens=num_tokens),
    )
    return answer.model_dump()


def _group_of_conversation(messages: list[Any]) -> dict[str, Any]:
    """Return a group, a prompt with one response: the last message is the response.

    Raises: RecordError if the last message is not the assistant's, or has neither text nor parts.
    """
    last_turn = messages[-1] if messages and isinstance(messages[-1], dict) else {}
    response = last_turn.get("content")
    if last_turn.get("role") != "assistant" or not isinstance(response, str | list):
        raise RecordError(
            "the last of the messages must be the assistant's turn with the response to be scored, "
            "a text or a list of parts."
        )
    return {"messages": messages[:-1], "responses": [response]}


def read_rerank_request(body: Any, served: ServedCheckpoint) -> ScoreRequest:
    """Read the body of a request to `/rerank`, a route of vLLM.

    The `query` is the prompt, a text or `{"content": parts}`. The `documents` are the responses,
    each in one of these forms.
    """
    request = RerankRequest.model_validate(body)
    turn = {"role": "user", "content": _written_content(request.query)}
    responses = [_written_content(document) for document in request.documents]
    group = {"messages": [turn], "responses": responses}
    return ScoreRequest([group], write_answer=partial(_rerank_answer, served, request))


def _written_content(text_or_parts: str | dict[str, Any]) -> Any:
    """Return the content of a query or a document, which is a text or `{"content": parts}`."""
    return text_or_parts if isinstance(text_or_parts, str) else text_or_parts.get("content")


def _rerank_answer(
    served: ServedCheckpoint, request: RerankRequest, results: Sequence[ScoredGroup]
) -> dict[str, Any]:
    """Return the answer of `/rerank`: the `top_n` best documents, or all if `top_n` is 0.

    `results` holds the scores of the request's only group.
    """
    [result] = results
    num_shown = request.top_n or len(request.documents)
    ranked_documents: list[RankedDocument] = []
    for index in result.scores.order[:num_shown]:
        content = _written_content(request.documents[index])
        is_text = isinstance(content, str)
        document = Document(text=content) if is_text else Document(multi_modal=content)
        ranked_documents.append(
            RankedDocument(
                index=index,
                document=document,
                relevance_score=result.scores.values[index],
            )
        )
    num_tokens = result.tokens_unshared
    answer = RerankAnswer(
        id=f"rerank-{uuid.uuid4().hex}",
        model=served.name,
        usage=RerankUsage(prompt_tokens=num_tokens, total_tokens=num_tokens),
        results=ranked_documents,
    )
    return answer.model_dump()


def read_get_reward_request(body: Any, served: ServedCheckpoint) -> ScoreRequest:
    """Read the body of a request to `/get_reward`, a route of OpenRLHF.

    Each `query` holds a prompt and a response as one text, and `prompts` hold the prompts alone;
    see `split_rendered`. A label may be JSON with the prompt's "images" and "videos", in the form
    that `/v1/rewards` takes. Other labels are ignored. Queries with equal prompts, images and
    videos become one group.

    Raises: RecordError if a query cannot be split, or the numbers of queries, prompts and labels
    differ.
    """
    request = GetRewardRequest.model_validate(body)
    num_queries = len(request.query)
    prompts: Sequence[str | None] = request.prompts or [None] * num_queries
    labels = request.labels or [None] * num_queries
    if not num_queries == len(prompts) == len(labels):
        raise RecordError(
            f"{num_queries} queries, {len(prompts)} prompts and {len(labels)} labels; required are "
            "equally many."
        )
    group_by_prompt: dict[str, dict[str, Any]] = {}
    query_indices_by_prompt: dict[str, list[int]] = {}
    for index, (query, prompt, label) in enumerate(
        zip(request.query, prompts, labels, strict=True)
    ):
        try:
            turns, response = split_rendered(query, prompt)
        except RecordError as error:
            raise RecordError(f"query {index}: {error}") from error
        images = _listed_in_label(label, "images")
        videos = _listed_in_label(label, "videos")
        prompt_key = json.dumps([turns, images, videos])
        if prompt_key not in group_by_prompt:
            prompt_of_group = {"messages": turns, "images": images, "videos": videos}
            group_by_prompt[prompt_key] = {**prompt_of_group, "responses": []}
            query_indices_by_prompt[prompt_key] = []
        group_by_prompt[prompt_key]["responses"].append(response)
        query_indices_by_prompt[prompt_key].append(index)

    query_indices_by_group = list(query_indices_by_prompt.values())
    return ScoreRequest(
        list(group_by_prompt.values()),
        write_answer=partial(_get_reward_answer, query_indices_by_group),
    )


def _get_reward_answer(
    query_indices_by_group: Sequence[Sequence[int]], results: Sequence[ScoredGroup]
) -> dict[str, Any]:
    """Return the answer of `/get_reward`: a score for each query, in the order of the request.

    Args:
        query_indices_by_group: The index of the query of each response, group by group.
        results: The scores of each group.
    """
    values_by_group = [result.scores.values for result in results]
    scores = _by_query(query_indices_by_group, values_by_group)
    logs: dict[str, list[float]] = {}
    # All groups have the same names, which are those of the checkpoint's head.
    for name in results[0].scores.attributes:
        values_by_group = [result.scores.attributes[name] for result in results]
        logs[name] = _by_query(query_indices_by_group, values_by_group)
    return GetRewardAnswer(rewards=scores, scores=scores, extra_logs=logs).model_dump()


def _by_query(
    query_indices_by_group: Sequence[Sequence[int]], values_by_group: Sequence[Sequence[float]]
) -> list[float]:
    """Return a number for each query or image, in the order of the request, from each group's."""
    value_by_query: dict[int, float] = {}
    for query_indices, values in zip(query_indices_by_group, values_by_group, strict=True):
        value_by_query.update(zip(query_indices, values, strict=True))
    return [value_by_query[index] for index in range(len(value_by_query))]


def _listed_in_label(label: Any, name: str) -> list[Any]:
    """Return the list `name` of a label that is a JSON object, or an empty list for other labels.

    Args:
        label: The label.
        name: "images" or "videos".
    """
    if not isinstance(label, str) or not label.lstrip().startswith("{"):
        return []
    try:
        fields = parse_json(label)
    except RecordError:  # a reference answer that begins with a brace
        return []
    listed = fields.get(name)
    return listed if isinstance(listed, list) else []


def read_score_request(body: Any, served: ServedCheckpoint) -> ScoreRequest:
    """Read the body of a request to `/score`, the route of UniRL's reward service.

    Each of its requests is a generated image or video with its prompt. Requests with equal prompts become
    one group. UniRL's client gives an image without a score the reward 0 and marks it as failed, so
    this server never answers with a part of the scores: one failure fails the request.

    The protocol is that of `unirl-reward-service/reward_service/schemas.py` of
    https://github.com/Tencent-Hunyuan/UniRL, commit 1a7b501.

    Raises: RecordError if another reward is requested, or a request has another form.
    """
    request = ScoreImagesRequest.model_validate(body)
    group_by_prompt: dict[str, dict[str, Any]] = {}
    request_indices_by_prompt: dict[str, list[int]] = {}
    for index, scored_history in enumerate(request.requests):
        _refuse_other_rewards(index, scored_history.required_rewards)
        prompt_content, response = _split_history(index, scored_history)
        prompt_key = json.dumps(prompt_content)
        if prompt_key not in group_by_prompt:
            turn = {"role": "user", "content": prompt_content}
            group_by_prompt[prompt_key] = {"messages": [turn], "responses": []}
            request_indices_by_prompt[prompt_key] = []
        group_by_prompt[prompt_key]["responses"].append(response)
        request_indices_by_prompt[prompt_key].append(index)

    request_indices_by_group = list(request_indices_by_prompt.values())
    return ScoreRequest(
        list(group_by_prompt.values()),
        write_answer=partial(_score_images_answer, request_indices_by_group),
    )


def _refuse_other_rewards(index: int, required_rewards: list[str]) -> None:
    """Raise RecordError unless a request requires the reward of this server, and no other.

    Args:
        index: Index of the request, for the message.
        required_rewards: The names of the rewards that the request requires.
    """
    if required_rewards != [REWARD_NAME]:
        raise RecordError(
            f"request {index} has the `required_rewards` {str(required_rewards)[:200]}, and this "
            f"server has one reward, {REWARD_NAME!r}. Require that one alone."
        )


def _split_history(
    index: int, scored_history: ScoredHistory
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the content of the prompt of a request to `/score`, and its generated image as parts.

    The prompt of an edited image holds the source image before the text. An image may also be a
    video.

    Args:
        index: Index of the request, for messages.
        scored_history: The request.

    Raises:
        RecordError: If a turn has neither an image nor a video, or both, or the path of a video, or
            the turns are those of neither a generated nor an edited image.
    """
    turns = scored_history.history
    media: list[dict[str, Any]] = []
    for turn_index, turn in enumerate(turns):
        name = f"request {index}, turn {turn_index}"
        if turn.video_path is not None:
            raise RecordError(
                f"{name} has the path of a video, and this server reads no files of its clients. "
                "Send its bytes as `video_b64`."
            )
        has_image = turn.image_b64 is not None
        has_video = turn.video_b64 is not None
        if has_image == has_video:
            number = "both an image and a video" if has_image else "no image"
            raise RecordError(
                f"{name} has {number}; required is either `image_b64` or `video_b64` in each turn."
            )
        # The server recognises the format by the content.
        if has_image:
            media.append({"type": "image", "image": f"data:image/x;base64,{turn.image_b64}"})
        else:
            media.append({"type": "video", "video": f"data:video/x;base64,{turn.video_b64}"})

    prompts = {turn.text for turn in turns}
    if len(turns) not in (1, 2) or len(prompts) != 1:
        raise RecordError(
            f"request {index} has {len(turns)} turns with {len(prompts)} different texts; required "
            "is one turn with the generated image, or two with the same text: the source image and "
            "the edited image."
        )
    *sources, generated = media
    return [*sources, {"type": "text", "text": turns[0].text}], [generated]


def _score_images_answer(
    request_indices_by_group: Sequence[Sequence[int]], results: Sequence[ScoredGroup]
) -> dict[str, Any]:
    """Return the answer of `/score`: the score of each image, in the order of the request.

    The further numbers of a head are left out, because clients may average all numbers of a reward.

    Args:
        request_indices_by_group: The index of the request of each response, group by group.
        results: The scores of each group.
    """
    values_by_group = [result.scores.values for result in results]
    scores = _by_query(request_indices_by_group, values_by_group)
    answer = ScoreImagesAnswer(
        results=[{REWARD_NAME: {"score": score}} for score in scores], errors=[{} for _ in scores]
    )
    return answer.model_dump()


def split_rendered(query: str, prompt: str | None = None) -> tuple[list[dict[str, Any]], str]:
    """Split a rendered conversation into a prompt and a response.

    Returns the turns of the prompt, and the response. The tokens of an image in the prompt become
    an image part without an image, which is later filled with one of the request's images. The same
    holds for a video.

    Args:
        query: A prompt and its response in one text, in ChatML or as plain text. Padding
            (<|endoftext|>) in front is removed. The response ends before <|im_end|> or
            <|endoftext|>, which only blanks and such tokens may follow.
        prompt: The prompt alone, with which the query must begin. The remaining text is the
            response, together with text that the chat template puts at the beginning of the
            assistant's turn. A prompt without ChatML becomes one turn of the user. If it is None,
            the query must be ChatML, and its last turn is the response.

    Raises:
        RecordError: If the query has another form. Control tokens inside the response are refused
            later, by the encoder.
    """
    rendered = LEADING_PADDING.sub("", query)
    if prompt is not None:
        rendered_prompt = LEADING_PADDING.sub("", prompt)
        if not rendered.startswith(rendered_prompt):
            raise RecordError(
                "it does not begin with its prompt, so that the response cannot be told: "
                f"{rendered[:80]!r}"
            )
        turns, beginning_of_response = parse_chatml(rendered_prompt)
        remainder = rendered[len(rendered_prompt) :]
        if beginning_of_response is None:
            # The prompt ends with a whole turn, so the assistant's turn begins in the remainder.
            return turns, _without_end(remainder.removeprefix(ASSISTANT_HEADER))
        return turns, _without_end(beginning_of_response + remainder)

    turns, unfinished_response = parse_chatml(rendered)
    if unfinished_response is not None:
        return turns, _without_end(unfinished_response)
    last_turn = turns.pop()
    has_media = any(part["type"] != "text" for part in last_turn["content"])
    if last_turn["role"] != "assistant" or has_media:
        raise RecordError(
            "a text without its prompt must be a conversation in ChatML that ends with an "
            "assistant's text."
        )
    return turns, "".join(part["text"] for part in last_turn["content"])


def _without_end(response: str) -> str:
    """Return a response up to its first end token, or unchanged if it has none.

    Raises: RecordError if anything but blanks and further end tokens follows.
    """
    end_token = END_TOKEN.search(response)
    if end_token is None:
        return response
    if not END_TOKENS_AND_BLANKS.fullmatch(response, end_token.start()):
        raise RecordError(
            "the response goes on after the end of its turn: "
            f"{response[end_token.start() :][:80]!r}"
        )
    return response[: end_token.start()]


def parse_chatml(rendered: str) -> tuple[list[dict[str, Any]], str | None]:
    """Return the finished turns of a conversation in ChatML, and its unfinished turn at the end.

    The second value is the text that an unfinished turn of the assistant holds so far, or None if
    every turn is finished. A text without ChatML is one finished turn of the user.

    Raises: RecordError for another chat template, and for other text after the finished turns.
    """
    if "<|im_start|>" not in rendered:
        if marker := FOREIGN_MARKER.search(rendered):
            raise RecordError(
                f"the text contains {marker[0]!r}, which another model's chat template writes. "
                "Required is ChatML, or plain text."
            )
        return [{"role": "user", "content": [{"type": "text", "text": rendered}]}], None
    turns: list[dict[str, Any]] = []
    position = 0
    while turn := FINISHED_TURN.match(rendered, position):
        role, content = turn.groups()
        turns.append({"role": role, "content": _parts_of_turn(content)})
        position = turn.end()
    remainder = LEADING_PADDING.sub("", rendered[position:])
    if not remainder:
        return turns, None
    if not remainder.startswith(ASSISTANT_HEADER):
        raise RecordError(f"this is not the end of a conversation in ChatML: {remainder[:80]!r}")
    return turns, remainder.removeprefix(ASSISTANT_HEADER)


def _parts_of_turn(content: str) -> list[dict[str, Any]]:
    """Return the rendered content of a turn as parts: images, videos, and the texts around them."""
    parts: list[dict[str, Any]] = []
    # Texts, with a token of an image or a video between every two of them.
    for index, piece in enumerate(MEDIUM_TOKENS.split(content)):
        is_token = index % 2 == 1
        if is_token:
            parts.append({"type": PART_TYPES[piece]})
        elif piece:
            parts.append({"type": "text", "text": piece})
    return parts


DIALECTS: dict[str, Callable[[Any, ServedCheckpoint], ScoreRequest]] = {
    "/v1/rewards": read_rewards_request,
    "/classify": read_classify_request,
    "/rerank": read_rerank_request,
    "/v1/rerank": read_rerank_request,
    "/get_reward": read_get_reward_request,
    "/score": read_score_request,
}
"""The function that reads the requests to each route."""
