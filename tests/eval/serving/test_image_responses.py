"""Responses with images: the scores are the judge's own, and the limits count these images."""

import base64
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

from mmrm.data.errors import ImageError, RecordError
from mmrm.eval.judges.loading import LoadedJudge
from mmrm.eval.serving.request_limits import RequestLimits
from mmrm.eval.serving.request_reader import Intake
from mmrm.eval.serving.service import JudgeToServe, Service
from tests.eval.serving.client import data_uri, png, serving
from tests.models.exactness import RELATIVE

pytestmark = pytest.mark.usefixtures("module_in_float64")

QUESTION = "Draw a cat"
NUM_PIXELS = 60 * 80
"""Number of pixels of a picture of `data_uri`."""


def image_part(seed: int) -> dict[str, Any]:
    """Return a picture of noise as a part in transformers' form."""
    return {"type": "image", "image": data_uri(seed)}


def openai_part(seed: int) -> dict[str, Any]:
    """Return the same picture as a part in OpenAI's form."""
    return {"type": "image_url", "image_url": {"url": data_uri(seed)}}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def history_turn(text: str, seed: int) -> dict[str, Any]:
    """Return the same picture in the form of UniRL's client."""
    return {"text": text, "image_b64": base64.b64encode(png(seed)).decode()}


def history(*turns: dict[str, Any]) -> dict[str, Any]:
    """Return a request of UniRL's client for one image."""
    return {"history": list(turns), "required_rewards": ["reward_model"], "metadata": None}


RESPONSES: list[Any] = [
    [image_part(1)],
    [text_part("Here: "), image_part(2), text_part(" It is "), image_part(3), text_part("black.")],
    "No.",
    [text_part("N"), text_part("o.")],
]


async def post(client: httpx.AsyncClient, path: str, body: Any) -> Any:
    """Return the JSON of an answer with status 200."""
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.numerics
@pytest.mark.parametrize("images", [[], [data_uri(7)]])
def test_scores_of_responses_with_images_are_the_judges(
    judges: dict[str, JudgeToServe], images: list[str]
) -> None:
    expected = LoadedJudge(judges["scalar"].judge).score(QUESTION, RESPONSES, images)
    assert len(set(expected)) == 3  # the last two responses have equal texts

    async def use(client: httpx.AsyncClient, service: Service) -> None:
        group = {"messages": QUESTION, "responses": RESPONSES, "images": images}
        answer = await post(client, "/v1/rewards", {"groups": [group]})
        assert answer["groups"][0]["scores"] == pytest.approx(expected, rel=RELATIVE)

    serving(judges["scalar"], use)


@pytest.mark.numerics
@pytest.mark.parametrize("kind", ["critic", "generative"])
def test_judges_that_write_read_responses_with_images(
    judges: dict[str, JudgeToServe], kind: str
) -> None:
    responses = [[image_part(1)], [text_part("A cat: "), image_part(2)]]
    expected = LoadedJudge(judges[kind].judge).score(QUESTION, responses)

    async def use(client: httpx.AsyncClient, service: Service) -> None:
        group = {"messages": QUESTION, "responses": responses}
        answer = await post(client, "/v1/rewards", {"groups": [group]})
        assert answer["groups"][0]["scores"] == pytest.approx(expected, rel=RELATIVE)

    serving(judges[kind], use)


@pytest.mark.numerics
def test_vllms_routes_take_content_parts_as_responses(judges: dict[str, JudgeToServe]) -> None:
    parts = [text_part("A cat: "), openai_part(2)]
    responses: list[Any] = [parts, "No.", [openai_part(1)]]
    judge = LoadedJudge(judges["scalar"].judge)
    expected = judge.score(QUESTION, responses)

    async def use(client: httpx.AsyncClient, service: Service) -> None:
        turns = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": parts}]
        answer = await post(client, "/classify", {"messages": turns})
        assert answer["data"][0]["probs"] == pytest.approx(expected[:1], rel=RELATIVE)

        documents = [{"content": parts}, "No.", {"content": [openai_part(1)]}]
        answer = await post(client, "/rerank", {"query": QUESTION, "documents": documents})
        results = {result["index"]: result for result in answer["results"]}
        scores = [results[index]["relevance_score"] for index in range(3)]
        assert scores == pytest.approx(expected, rel=RELATIVE)
        assert results[0]["document"] == {"text": None, "multi_modal": parts}
        assert results[1]["document"] == {"text": "No.", "multi_modal": None}

    serving(judges["scalar"], use)


# UniRL


@pytest.mark.numerics
def test_score_groups_images_by_prompt_and_answers_in_order(
    judges: dict[str, JudgeToServe],
) -> None:
    judge = LoadedJudge(judges["scalar"].judge)
    cats = judge.score(QUESTION, [[image_part(1)], [image_part(2)]])
    dogs = judge.score("Draw a dog", [[image_part(1)]])
    edits = judge.score(QUESTION, [[image_part(1)]], [data_uri(3)])

    async def use(client: httpx.AsyncClient, service: Service) -> None:
        requests = [
            history(history_turn(QUESTION, 1)),
            history(history_turn("Draw a dog", 1)),
            history(history_turn(QUESTION, 3), history_turn(QUESTION, 1)),
            history(history_turn(QUESTION, 2)),
        ]
        answer = await post(client, "/score", {"requests": requests})
        assert answer["errors"] == [{}, {}, {}, {}]
        scores = [result["reward_model"]["score"] for result in answer["results"]]
        expected = [cats[0], dogs[0], edits[0], cats[1]]
        assert scores == pytest.approx(expected, rel=RELATIVE)
        assert service.metrics.responses._value.get() == 4

        health = (await client.get("/health")).json()
        assert health == {"status": "alive", "rewards": {"reward_model": ["ready"]}}
        assert (await client.get("/rewards")).json() == {"rewards": ["reward_model"]}

    serving(judges["scalar"], use)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"required_rewards": ["clip"]}, "one reward, 'reward_model'"),
        ({"required_rewards": []}, "one reward, 'reward_model'"),
        ({"required_rewards": ["reward_model", "clip"]}, "one reward, 'reward_model'"),
        ({"history": []}, "has 0 turns"),
        ({"history": [history_turn("x", 1)] * 3}, "has 3 turns"),
        ({"history": [history_turn("x", 1), history_turn("y", 2)]}, "2 different texts"),
        ({"history": [{"text": "x"}]}, "turn 0 has no image"),
        ({"history": [{"text": "x", "video_b64": "AAAA"}]}, "the video (given as bytes)"),
        (
            {"history": [{**history_turn("x", 1), "video_b64": "AAAA"}]},
            "turn 0 has both an image and a video",
        ),
        (
            {"history": [{**history_turn("x", 1), "video_path": "/etc/passwd"}]},
            "turn 0 has the path of a video",
        ),
        ({"history": [{"text": "x", "image_b64": "AAAA"}]}, "image"),
        ({"history": [{"text": "x", "image_b64": "%"}]}, "base64"),
        ({"history": [{"text": "x", "image_b64": 3}]}, "image_b64"),
    ],
)
def test_score_fails_whole_if_one_image_has_no_score(
    judges: dict[str, JudgeToServe], change: dict[str, Any], message: str
) -> None:
    async def use(client: httpx.AsyncClient, service: Service) -> None:
        sound = history(history_turn("x", 1))
        answer = await client.post("/score", json={"requests": [sound, {**sound, **change}]})
        assert answer.status_code == 422
        assert answer.json().keys() == {"error"}
        assert message in answer.json()["error"]["message"]

    serving(judges["scalar"], use)


# verl-omni


@pytest.mark.parametrize("path", ["/", "/v1/rewards", "/score", "/other"])
@pytest.mark.parametrize("protocol", [2, pickle.DEFAULT_PROTOCOL])
def test_a_pickle_is_refused_unread_and_the_adapter_is_named(
    judges: dict[str, JudgeToServe], tmp_path: Path, path: str, protocol: int
) -> None:
    mark = tmp_path / "read"

    class Hostile:
        """An object whose pickle creates a file when it is read."""

        def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
            return (Path.touch, (mark,))

    body = pickle.dumps({"images": [png()], "prompts": [Hostile()], "metadata": {}}, protocol)

    async def use(client: httpx.AsyncClient, service: Service) -> None:
        headers = {"Content-Type": "application/octet-stream"}
        answer = await client.post(path, content=body, headers=headers)
        assert answer.status_code == 415
        assert "eval/adapters/verl_omni_reward.py" in answer.json()["error"]["message"]
        assert not mark.exists()

    serving(judges["scalar"], use)
    pickle.loads(body)
    assert mark.exists()  # the pickle was hostile indeed


# Limits


@pytest.mark.parametrize(
    ("limit", "name"), [({"images": 4}, "5 images"), ({"parts": 8}, "9 parts"), ({"characters": 28}, "29 characters")]
)  # fmt: skip
def test_images_parts_and_characters_of_responses_are_limited(
    limit: dict[str, int], name: str
) -> None:
    """The prompt has 1 part, 2 images and 10 characters; the longest response has 19 characters."""
    group = {
        "messages": QUESTION,
        "responses": [*RESPONSES, "x" * 7],
        "images": [data_uri(7), data_uri(8)],
    }
    with pytest.raises(RecordError, match=f"group 0: {name}; this server allows"):
        Intake(RequestLimits(**limit), None, False)(group, "group 0")
    [(key, count)] = limit.items()
    allowed = Intake(RequestLimits(**{key: count + 1}), None, False)(group, "group 0")
    assert [len(response.images) for response in allowed.responses] == [1, 2, 0, 0, 0]
    assert len(allowed.images) == 2


def test_pixels_of_responses_are_limited() -> None:
    group = {"messages": "x", "responses": RESPONSES, "images": [data_uri(7)]}
    with pytest.raises(ImageError, match="60 x 80 pixels"):
        Intake(RequestLimits(pixels=NUM_PIXELS - 1), None, False)({**group, "images": []}, "g")
    with pytest.raises(ImageError, match="the first 4 of 4 images"):
        Intake(RequestLimits(area=4 * NUM_PIXELS - 1), None, False)(group, "g")
    assert Intake(RequestLimits(area=4 * NUM_PIXELS), None, False)(group, "g")


def test_files_of_responses_are_read_below_the_media_root_alone(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "inside.png").write_bytes(png(1))
    (tmp_path / "outside.png").write_bytes(png(2))

    def group(path: str) -> dict[str, Any]:
        return {"messages": "x", "responses": [[{"type": "image", "image": path}]]}

    intake = Intake(RequestLimits(), root, False)
    assert intake(group("inside.png"), "g").responses[0].images == (png(1),)
    for path in ("../outside.png", str(tmp_path / "outside.png"), "missing.png"):
        with pytest.raises(ImageError, match="is no readable file below"):
            intake(group(path), "g")
    with pytest.raises(ImageError, match="reads no files"):
        Intake(RequestLimits(), None, False)(group("inside.png"), "g")


@pytest.mark.parametrize(
    ("response", "message"),
    [
        ([{"type": "image"}], "1 image parts and 0 images"),
        ([{"type": "image", "image": "data:image/png;base64,AAAA"}], "image"),
        ([{"type": "image", "image": "https://example.org/a.png"}], "nothing is fetched"),
        ([{"type": "video", "video": "a.mp4"}], "a video is given as a path"),
        ([text_part("<image>"), image_part(1)], "<image>"),
        ([3], "int"),
        (3, "responses"),
        ({"content": []}, "responses"),
    ],
)
def test_a_response_that_cannot_be_read_fails_its_group_alone(
    judges: dict[str, JudgeToServe], response: Any, message: str
) -> None:
    async def use(client: httpx.AsyncClient, service: Service) -> None:
        sound = {"messages": "x", "responses": ["a"]}
        broken = {"messages": "x", "responses": ["a", response]}
        answer = await post(client, "/v1/rewards", {"groups": [sound, broken]})
        assert "scores" in answer["groups"][0]
        assert message in answer["groups"][1]["error"]["message"]

    serving(judges["scalar"], use)
