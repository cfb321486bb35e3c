"""The description of the server's routes for `/openapi.json` (OpenAPI 3.1), and for `/docs`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from mmrm.eval.serving.api_models import (
    SCHEMAS,
    ClassifyAnswer,
    ClassifyRequest,
    ErrorAnswer,
    GetRewardAnswer,
    GetRewardRequest,
    HealthAnswer,
    ModelsAnswer,
    ReadyAnswer,
    RerankAnswer,
    RerankRequest,
    RewardNamesAnswer,
    RewardsAnswer,
    RewardsRequest,
    ScoreImagesAnswer,
    ScoreImagesRequest,
    StoredImage,
    WrittenGroup,
    WrittenParts,
    WrittenTurn,
)

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Route:
    """A route of the server, for people and programs that use it."""

    summary: str
    request: type[BaseModel] | None = None
    """The model of the body; None for a route that takes no body, whose method is GET."""
    example: Mapping[str, Any] | None = None
    """A body that is answered with status 200."""
    answer: type[BaseModel] | None = None
    """The model of the answer; None for a text."""
    needs_key: bool = True
    """True if a server that has a key requires it for this route."""

    @property
    def method(self) -> Literal["get", "post"]:
        """The HTTP method."""
        return "get" if self.request is None else "post"


WHITE_SQUARE = (
    "iVBORw0KGgoAAAANSUhEUgAAADgAAAA4CAAAAACN7WTCAAAAJUlEQVR42u3LMREA"
    "AAgEoNf+nbWC5ww7NfnpiKIoiqIoiqIoniwyIgFvCyLXLgAAAABJRU5ErkJggg=="
)
"""A PNG file of 56 x 56 white pixels in base64."""
RERANK = Route(
    summary="Rank responses, in the form of vLLM, Jina and Cohere",
    request=RerankRequest,
    example={"query": "What is 2 + 2?", "documents": ["4", "5"]},
    answer=RerankAnswer,
)
ROUTES: Mapping[str, Route] = {
    "/v1/rewards": Route(
        summary="Score groups of responses, each group to one prompt",
        request=RewardsRequest,
        example={"groups": [{"messages": "What is 2 + 2?", "responses": ["4", "5"]}]},
        answer=RewardsAnswer,
    ),
    "/classify": Route(
        summary="Score a conversation that ends with the response, in vLLM's form",
        request=ClassifyRequest,
        example={
            "messages": [
                {"role": "user", "content": "What is 2 + 2?"},
                {"role": "assistant", "content": "4"},
            ]
        },
        answer=ClassifyAnswer,
    ),
    "/rerank": RERANK,
    "/v1/rerank": RERANK,
    "/get_reward": Route(
        summary="Score texts of a prompt and a response, in OpenRLHF's form",
        request=GetRewardRequest,
        example={"query": ["What is 2 + 2? 4"], "prompts": ["What is 2 + 2? "]},
        answer=GetRewardAnswer,
    ),
    "/score": Route(
        summary="Score generated images and videos, in the form of UniRL's reward service",
        request=ScoreImagesRequest,
        example={
            "requests": [
                {
                    "history": [{"text": "A white square", "image_b64": WHITE_SQUARE}],
                    "required_rewards": ["reward_model"],
                }
            ]
        },
        answer=ScoreImagesAnswer,
    ),
    "/rewards": Route(summary="The names that /score knows", answer=RewardNamesAnswer),
    "/v1/models": Route(summary="Name, kind, fingerprint and limits", answer=ModelsAnswer),
    "/metrics": Route(summary="Counters and gauges for Prometheus"),
    "/health": Route(summary="Whether the process is alive", answer=HealthAnswer, needs_key=False),
    "/ready": Route(
        summary="Whether the model is loaded. The status is 503 while it loads or drains",
        answer=ReadyAnswer,
        needs_key=False,
    ),
}
"""The routes that clients use, in the order in which they are described."""
REFUSALS = {
    "400": "The body is not JSON.",
    "401": "The key is missing or wrong.",
    "404": "The server has no such model.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "415": "The body is a pickle.",
    "422": "The request is malformed, or exceeds a limit.",
    "429": "Too many requests wait. Repeat it after the seconds in `Retry-After`.",
    "500": "The server failed. Its log has the reason.",
    "503": "The model is being loaded, or the server is being shut down.",
}
"""Statuses of requests without scores, with their meanings."""
KEY = "key"
"""The name of the server's key among the security schemes."""


def openapi_document(needs_key: bool) -> Json:
    """Return the description of all routes.

    Args:
        needs_key: True if the server requires a key.
    """
    document: Json = {
        "openapi": "3.1.0",
        "info": {
            "title": "Reward model server",
            "version": "1",
            "description": "Scores of responses to prompts with images and videos. Higher is better.",
        },
        "paths": {path: {route.method: _operation(path, route)} for path, route in ROUTES.items()},
        "components": {"schemas": _schemas()},
    }
    if needs_key:
        document["components"]["securitySchemes"] = {KEY: {"type": "http", "scheme": "bearer"}}
        document["security"] = [{KEY: []}]
    return document


def _operation(path: str, route: Route) -> Json:
    """Return the description of a route: its body, its answers, and an example."""
    content: Json = {"text/plain": {"schema": {"type": "string"}}}
    if route.answer is not None:
        content = _json_content(route.answer)
    operation: Json = {
        "summary": route.summary,
        "operationId": f"{route.method} {path}",
        "responses": {"200": {"description": "Success.", "content": content}},
    }
    if route.request is not None:
        body = _json_content(route.request)
        body["application/json"]["example"] = route.example
        operation["requestBody"] = {"required": True, "content": body}
        for status, meaning in REFUSALS.items():
            refusal = {"description": meaning, "content": _json_content(ErrorAnswer)}
            operation["responses"][status] = refusal
    if not route.needs_key:
        operation["security"] = []
    return operation


def _json_content(model: type[BaseModel]) -> Json:
    """Return the description of a body or an answer that has the form of `model`."""
    return {"application/json": {"schema": {"$ref": f"{SCHEMAS}/{model.__name__}"}}}


def _schemas() -> Json:
    """Return the schemas of all models by their names."""
    # Only annotations refer to these four, see `described_as`, so they are named here.
    requests: list[type[BaseModel]] = [WrittenGroup, WrittenTurn, WrittenParts, StoredImage]
    answers: list[type[BaseModel]] = [ErrorAnswer]
    for route in ROUTES.values():
        if route.request is not None:
            requests.append(route.request)
        if route.answer is not None:
            answers.append(route.answer)
    models: list[tuple[type[BaseModel], Literal["validation", "serialization"]]] = []
    models += [(model, "validation") for model in dict.fromkeys(requests)]
    models += [(model, "serialization") for model in dict.fromkeys(answers)]
    _, schemas = models_json_schema(models, ref_template=f"{SCHEMAS}/{{model}}")
    definitions: Json = schemas["$defs"]
    return definitions
