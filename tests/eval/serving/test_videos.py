"""Requests with videos: the scores are the judge's own, and videos are limited and never fetched."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
pytest.importorskip("av")

from mmrm.data.encoded_video import Video
from mmrm.data.errors import RecordError
from mmrm.eval.judges.loading import LoadedJudge
from mmrm.eval.serving.dialects import parse_chatml
from mmrm.eval.serving.request_limits import RequestLimits
from mmrm.eval.serving.request_reader import Intake
from mmrm.eval.serving.service import JudgeToServe, Service
from tests.data.test_frames import video
from tests.eval.serving.client import data_uri, serving
from tests.models.exactness import RELATIVE

pytestmark = pytest.mark.usefixtures("module_in_float64")

QUESTION = {"type": "text", "text": "What happens?"}
NUM_PIXELS = 64 * 48
"""Number of pixels of a frame of the videos."""


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the videos `a.mp4` of 12 frames and `b.mp4` of 4."""
    folder = tmp_path_factory.mktemp("clips")
    video(folder / "a.mp4", 12)
    video(folder / "b.mp4", 4)
    return folder


def encoded(path: Path) -> str:
    """Return the bytes of a file in base64."""
    return base64.b64encode(path.read_bytes()).decode()


def part(path: Path) -> dict[str, Any]:
    """Return a video as a part of a request."""
    return {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{encoded(path)}"}}


async def post(client: httpx.AsyncClient, path: str, body: Any) -> Any:
    """Return the JSON of an answer with status 200."""
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.numerics
def test_scores_of_videos_are_the_judges_on_every_route(
    judges: dict[str, JudgeToServe], clips: Path
) -> None:
    first = part(clips / "a.mp4")
    second = part(clips / "b.mp4")
    uri = first["video_url"]["url"]
    judge = LoadedJudge(judges["scalar"].judge)
    turn = {"role": "user", "content": [first, QUESTION]}
    expected = judge.score([turn], ["A cat.", [second]])
    assert expected != pytest.approx(judge.score("What happens?", ["A cat.", [second]]))
    of_generated = judge.score([{"role": "user", "content": [QUESTION]}], [[first], [second]])

    async def use(client: httpx.AsyncClient, service: Service) -> None:
        groups = [
            {"messages": [turn], "responses": ["A cat.", [second]]},
            {"messages": "What happens?", "responses": ["A cat."], "videos": [uri]},
            {"messages": "<video>What happens?", "responses": ["A cat."], "videos": [uri]},
            {"messages": [turn], "responses": [[second]]},
        ]
        answer = await post(client, "/v1/rewards", {"groups": groups})
        scores = [group["scores"] for group in answer["groups"]]
        wanted = [expected, expected[:1], expected[:1], expected[1:]]
        for found, values in zip(scores, wanted, strict=True):
            assert found == pytest.approx(values, rel=RELATIVE)

        conversation = [turn, {"role": "assistant", "content": [second]}]
        answer = await post(client, "/classify", {"messages": conversation})
        assert answer["data"][0]["probs"] == pytest.approx(expected[1:], rel=RELATIVE)

        query = {"content": [first, QUESTION]}
        documents = ["A cat.", {"content": [second]}]
        answer = await post(client, "/rerank", {"query": query, "documents": documents})
        by_index = {result["index"]: result for result in answer["results"]}
        found = [by_index[index]["relevance_score"] for index in range(2)]
        assert found == pytest.approx(expected, rel=RELATIVE)

        requests = []
        for name in ("a.mp4", "b.mp4"):
            history = [{"text": "What happens?", "video_b64": encoded(clips / name)}]
            requests.append({"history": history, "required_rewards": ["reward_model"]})
        answer = await post(client, "/score", {"requests": requests})
        found = [result["reward_model"]["score"] for result in answer["results"]]
        assert found == pytest.approx(of_generated, rel=RELATIVE)

        prompt = (
            "<|im_start|>user\n<|vision_start|><|video_pad|><|video_pad|><|vision_end|>"
            "What happens?<|im_end|>\n<|im_start|>assistant\n"
        )
        label = f'{{"videos": ["{uri}"]}}'
        body = {"query": [f"{prompt}A cat."], "prompts": [prompt], "labels": [label]}
        answer = await post(client, "/get_reward", body)
        assert answer["rewards"] == pytest.approx(expected[:1], rel=RELATIVE)

    serving(judges["scalar"], use)


def test_tokens_of_images_and_videos_become_their_parts() -> None:
    rendered = (
        "<|im_start|>user\n<|vision_start|><|video_pad|><|vision_end|>a"
        "<|vision_start|><|image_pad|><|image_pad|><|vision_end|>b<|im_end|>\n"
    )
    [turn], _ = parse_chatml(rendered)
    assert [one["type"] for one in turn["content"]] == ["video", "text", "image", "text"]


def test_a_video_may_be_a_path_below_the_media_root(clips: Path) -> None:
    group = {"messages": "x", "responses": [[{"type": "video", "video": "b.mp4"}]]}
    group["videos"] = ["a.mp4"]
    candidates = Intake(RequestLimits(), clips, False)(group, "group 0")
    assert candidates.videos == (Video((clips / "a.mp4").read_bytes()),)
    assert candidates.responses[0].videos == (Video((clips / "b.mp4").read_bytes()),)
    with pytest.raises(RecordError, match="a video is given as a path, and this server reads no"):
        Intake(RequestLimits(), None, False)(group, "group 0")


PLAYLIST = base64.b64encode(b"#EXTM3U\n#EXTINF:10,\nfile:///etc/hosts\n#EXT-X-ENDLIST\n").decode()


@pytest.mark.parametrize(
    ("limits", "videos", "message"),
    [
        ({"videos": 1}, ["a.mp4", "a.mp4"], "2 videos; .*`--max-videos N`"),
        ({"pixels": NUM_PIXELS - 1}, ["a.mp4"], "a video of 64 x 48 pixels; .*`--max-pixels N`"),
        (
            {"footage": 16 * NUM_PIXELS - 1},
            ["a.mp4", "b.mp4"],
            "first 2 of 2 videos have 49,152 pixels; .*`--max-footage N`",
        ),
        ({"footage": 16 * NUM_PIXELS}, ["a.mp4", "b.mp4"], ""),
        ({}, ["../a.mp4"], "no readable file below this server"),
        ({}, ["https://example.org/a.mp4"], "nothing is fetched"),
        ({}, [data_uri(0)], "required is data:video/"),
        ({}, ["data:video/mp4;base64,AAAA"], "the video .* cannot be read"),
        ({}, [f"data:video/mp4;base64,{PLAYLIST}"], "the video .* cannot be read"),
        ({}, [3], "a video is a int"),
    ],
)
def test_videos_are_checked_before_one_is_decoded(
    clips: Path, limits: dict[str, int], videos: list[Any], message: str
) -> None:
    intake = Intake(RequestLimits.model_validate(limits), clips, False)
    group = {"messages": "x", "responses": ["a"], "videos": videos}
    if not message:
        assert len(intake(group, "group 0").videos) == len(videos)
        return
    with pytest.raises(RecordError, match=f"group 0: .*{message}"):
        intake(group, "group 0")
