"""The description of the routes: it is complete, and requests and answers have its form."""

from collections.abc import Iterator
from typing import Any, Literal

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

from fastapi.openapi.models import OpenAPI
from fastapi.routing import APIRoute

from mmrm.eval.serving.api_description import REFUSALS, ROUTES, Route, openapi_document
from mmrm.eval.serving.api_models import (
    ErrorAnswer,
    GroupScores,
    RewardsAnswer,
    WrittenGroup,
    WrittenTurn,
)
from mmrm.eval.serving.app import PAGE_PATHS, application
from mmrm.eval.serving.service import JudgeToServe, Service
from mmrm.models.portable.conversations import ConversationError, read_conversation
from tests.eval.serving.client import data_uri, group, serving
from tests.eval.serving.malformed import SOUND

CONVERSATION = TypeAdapter(str | list[WrittenTurn])
IMAGES = ["data:image/png;base64,AAAA", "a.png", {"path": "a.png"}, {"bytes": "a.png"}, None]
VIDEOS = ["data:video/mp4;base64,AAAA", "a.mp4", {"path": "a.mp4"}, None]
ADDRESSES = [*IMAGES[:2], {"url": "data:image/png;base64,AAAA"}, None]
PARTS = st.one_of(
    st.fixed_dictionaries({"type": st.sampled_from(["text", "input_text"]), "text": st.just("x")}),
    st.fixed_dictionaries(
        {"type": st.just("image")}, optional={"image": st.sampled_from(IMAGES), "detail": st.just(1)}
    ),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["image_url", "input_image"])},
        optional={"image_url": st.sampled_from(ADDRESSES)},
    ),
    st.fixed_dictionaries(
        {"type": st.just("video")}, optional={"video": st.sampled_from(VIDEOS)}
    ),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["video_url", "input_video"])},
        optional={"video_url": st.sampled_from([*VIDEOS[:2], {"url": VIDEOS[0]}, None])},
    ),
)  # fmt: skip
CONTENT = st.just("x") | st.lists(PARTS, max_size=3)
CONVERSATIONS = st.one_of(
    st.just("x"),
    st.builds(
        lambda system, contents: [
            *({"role": "system", "content": one} for one in system),
            *(
                {"role": ("user", "assistant")[index % 2], "content": one}
                for index, one in enumerate(contents)
            ),
        ],
        st.lists(st.just("x"), max_size=1),
        st.lists(CONTENT, min_size=1, max_size=3),
    ),
)


def references(value: Any) -> Iterator[str]:
    """Yield all references in a JSON value."""
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for inside in value.values():
            yield from references(inside)
    if isinstance(value, list):
        for inside in value:
            yield from references(inside)


@pytest.mark.parametrize("needs_key", [False, True])
def test_it_is_openapi_and_all_its_references_lead_somewhere(needs_key: bool) -> None:
    document = openapi_document(needs_key)
    OpenAPI.model_validate(document)
    names = {reference.removeprefix("#/components/schemas/") for reference in references(document)}
    assert names == document["components"]["schemas"].keys()
    is_open = {
        path: ("security" not in document or one.get("security") == [])
        for path, methods in document["paths"].items()
        for one in methods.values()
    }
    without_key = {path for path, one in is_open.items() if one}
    assert without_key == ({"/health", "/ready"} if needs_key else set(ROUTES))


def test_all_routes_of_the_app_are_described(judges: dict[str, JudgeToServe]) -> None:
    app = application(Service(lambda: judges["scalar"]))
    methods = {
        route.path: set(route.methods or ()) for route in app.routes if isinstance(route, APIRoute)
    }
    assert methods.keys() == {*ROUTES, *PAGE_PATHS}
    assert {path: {route.method.upper()} for path, route in ROUTES.items()} == {
        path: methods[path] for path in ROUTES
    }


def check_answer(route: Route, answer: httpx.Response) -> None:
    """Fail unless an answer has its described form, without one key more or less."""
    assert answer.status_code == 200, answer.text
    if route.answer is None:
        assert answer.headers["content-type"].startswith("text/plain")
    else:
        read = route.answer.model_validate(answer.json(), strict=True)
        assert read.model_dump(exclude_unset=True) == answer.json()


@pytest.mark.parametrize("kind", ["scalar", "critic", "generative"])
def test_examples_are_answered_in_the_described_form(
    judges: dict[str, JudgeToServe], kind: Literal["scalar", "critic", "generative"]
) -> None:
    async def use(client: httpx.AsyncClient, service: Service) -> None:
        document = (await client.get("/openapi.json")).json()
        assert document == openapi_document(False)
        for path, route in ROUTES.items():
            if route.request is None:
                check_answer(route, await client.get(path))
            elif kind != "generative" or path in ("/v1/rewards", "/rerank"):
                # A judge that compares requires two responses.
                operation = document["paths"][path]["post"]
                example = operation["requestBody"]["content"]["application/json"]["example"]
                check_answer(route, await client.post(path, json=example))
        body = {"groups": [group(images=1), {"messages": 3, "responses": ["a"]}], "texts": True}
        answer = await client.post("/v1/rewards", json=body)
        check_answer(ROUTES["/v1/rewards"], answer)
        scores, failure = RewardsAnswer.model_validate(answer.json()).groups
        assert isinstance(scores, GroupScores)
        assert not isinstance(failure, GroupScores)
        assert len(scores.critiques) == (2 if kind == "critic" else 0)
        assert [vote.shown for vote in scores.votes] == (
            [[0, 1], [1, 0]] if kind == "generative" else []
        )

    serving(judges[kind], use)


def test_texts_are_those_of_the_judge_and_come_on_request(judges: dict[str, JudgeToServe]) -> None:
    async def use(client: httpx.AsyncClient, service: Service) -> None:
        body = {"groups": [group(images=1)]}
        silent = (await client.post("/v1/rewards", json=body)).json()["groups"][0]
        written = (await client.post("/v1/rewards", json=body | {"texts": True})).json()["groups"][
            0
        ]
        assert "critiques" not in silent
        assert silent == {name: written[name] for name in silent}
        assert all(written["critiques"])
        refused = await client.post("/v1/rewards", json=body | {"texts": 1})
        assert (refused.status_code, "texts" in refused.text) == (422, True)

    serving(judges["critic"], use)


def test_refusals_have_the_described_form(judges: dict[str, JudgeToServe]) -> None:
    async def use(client: httpx.AsyncClient, service: Service) -> None:
        bodies = [b"{", b"[]", b'{"groups": []}', b'{"groups": [1]}', b'{"model": "other"}']
        for path, route in ROUTES.items():
            if route.request is None:
                continue
            for body in bodies:
                answer = await client.post(path, content=body)
                assert str(answer.status_code) in REFUSALS
                ErrorAnswer.model_validate(answer.json())

    serving(judges["scalar"], use)


@pytest.mark.parametrize("path", list(SOUND))
def test_sound_requests_have_the_described_form(path: str) -> None:
    request = ROUTES[path].request
    assert request is not None
    read = request.model_validate(SOUND[path])
    for one in getattr(read, "groups", []):
        WrittenGroup.model_validate(one)
        CONVERSATION.validate_python(one["messages"])
    for turn in getattr(read, "messages", []):
        WrittenTurn.model_validate(turn)


@given(CONVERSATIONS)
@settings(max_examples=300, deadline=None)
def test_conversations_that_the_server_reads_have_the_described_form(conversation: Any) -> None:
    try:
        read_conversation(conversation)
    except ConversationError:
        return
    CONVERSATION.validate_python(conversation)


@pytest.mark.parametrize(
    "conversation",
    [
        3,
        [{"role": "tool", "content": "x"}],
        [{"role": "user", "content": 3}],
        [{"role": "user"}],
        [{"role": "user", "content": [{"type": "sound"}]}],
        [{"role": "user", "content": [{"type": "video_url", "video_url": 3}]}],
        [{"role": "user", "content": [{"type": "text", "text": 3}]}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": 3}]}],
    ],
)
def test_malformed_conversations_do_not_have_the_described_form(conversation: Any) -> None:
    with pytest.raises(ConversationError):
        read_conversation(conversation)
    with pytest.raises(ValidationError):
        CONVERSATION.validate_python(conversation)


def test_images_of_a_group_have_the_described_form(judges: dict[str, JudgeToServe]) -> None:
    document = openapi_document(False)["components"]["schemas"]
    assert document["WrittenGroup"]["properties"]["images"]["items"] == {
        "anyOf": [{"type": "string"}, {"$ref": "#/components/schemas/StoredImage"}]
    }

    async def use(client: httpx.AsyncClient, service: Service) -> None:
        for image in (data_uri(), {"bytes": data_uri()}, {"path": data_uri()}):
            body = {"groups": [group() | {"images": [image]}]}
            assert (await client.post("/v1/rewards", json=body)).status_code == 200

    serving(judges["scalar"], use)
