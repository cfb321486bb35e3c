"""Limits of turns, texts and images: before any work, and the same in training, in scoring files and in the server."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

from PIL import Image

from mmrm.data.errors import RecordError
from mmrm.data.limits import DEFAULTS, Limits, written_sizes
from mmrm.data.storage.strict_json import count_values, parse_json
from mmrm.eval import score
from mmrm.eval.selection.candidate_records import open_records
from mmrm.eval.serving.request_limits import RequestLimits
from mmrm.eval.serving.request_reader import Intake
from mmrm.eval.serving.service import JudgeToServe, Service
from tests.eval.serving.client import data_uri, group, serving

PARTS = [{"type": "text", "text": "x"}]


def turns(count: int, num_parts: int = 1) -> list[dict[str, Any]]:
    roles = ("user", "assistant")
    return [{"role": roles[turn % 2], "content": PARTS * num_parts} for turn in range(count)]


TOO_LARGE: dict[str, dict[str, Any]] = {
    "turns": {"messages": turns(501), "responses": ["a"]},
    "parts": {"messages": turns(1, 10_001), "responses": ["a"]},
    "images": {"messages": "x", "responses": ["a"], "images": ["gone.png"] * 257},
    "videos": {"messages": "x", "responses": ["a"], "videos": ["gone.mp4"] * 33},
    "characters": {"messages": "x" * 400_000, "responses": ["a", "y" * 100_001]},
}


def test_defaults_are_the_same_everywhere() -> None:
    server = RequestLimits()
    options = score.parse(["judge", "in.jsonl", "out.jsonl"])
    for name in Limits.model_fields:
        assert getattr(server, name) == getattr(DEFAULTS, name)
    assert score.limits_of(options) == DEFAULTS == Limits()


@pytest.mark.parametrize("name", TOO_LARGE)
def test_the_server_refuses_before_any_work(name: str) -> None:
    """`Intake` holds no tokenizer and no model, and the images named here do not exist."""
    intake = Intake(RequestLimits(), None, False)
    with pytest.raises(RecordError, match=rf"group 0: [\d,]+ {name}; .*`--max-{name} N`"):
        intake(TOO_LARGE[name], "group 0")
    if name not in ("images", "videos"):
        wider = Intake(RequestLimits.model_validate({name: 10**6}), None, False)
        assert wider(TOO_LARGE[name] | {"messages": TOO_LARGE[name]["messages"][:499]}, "group 0")


@pytest.mark.parametrize("name", TOO_LARGE)
def test_scoring_of_files_refuses_the_same(name: str, tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    record = {**TOO_LARGE[name], "prompt": TOO_LARGE[name]["messages"], "messages": None}
    file.write_text(json.dumps(record) + "\n")
    records = open_records(file, None)
    with pytest.raises(RecordError, match=rf"row 0: [\d,]+ {name}; .*`--max-{name} N`"):
        records.answered_prompt(records.row(0))
    options = score.parse(["judge", "in", "out", f"--max-{name}", "60000"])
    assert getattr(score.limits_of(options), name) == 60_000


def test_sizes_are_counted_in_every_form_of_a_conversation() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:…"}}
    given = {"type": "image", "image": None, "text": None}
    video = {"type": "video_url", "video_url": {"url": "data:…"}}
    other = {"type": "video", "video": None}
    content = [image, given, video, other, *PARTS]
    messages = [{"role": "user", "content": content}, {"role": "user"}, 3, None]
    responses = ["ab", [{"type": "video", "video": "a.mp4"}]]
    assert written_sizes(messages, responses, ["a.png"], ["b.mp4"]) == {
        "turns": 4,
        "parts": 9,
        "images": 2,
        "videos": 3,
        "characters": 3,
    }
    assert written_sizes("abc", [], None)["characters"] == 3


def test_pixels_of_all_images_are_counted_before_one_is_decoded() -> None:
    buffer = io.BytesIO()
    Image.new("1", (1000, 1000)).save(buffer, "PNG")  # a million pixels in a few hundred bytes
    bomb = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    asked = {"messages": "x", "responses": ["a"], "images": [bomb] * 4}
    with pytest.raises(RecordError, match=r"first 3 of 4 images have 3,000,000 pixels"):
        Intake(RequestLimits(area=2_500_000), None, False)(asked, "group 0")
    assert len(Intake(RequestLimits(), None, False)(asked, "group 0").images) == 4


@pytest.mark.parametrize(
    ("content", "number"),
    [(b"1", 1), (b'{"a,b": [1, 2], "c\\",": "["}', 7), (b'["a', 2), (b'"\\"\\"', 1)],
)
def test_values_are_counted_outside_of_strings(content: bytes, number: int) -> None:
    assert count_values(content) == number


def test_a_request_of_too_many_values_is_not_read(judges: dict[str, JudgeToServe]) -> None:
    async def use(client: httpx.AsyncClient, service: Service) -> None:
        body = b'{"groups": [' + b"[]," * 2000 + b"[]]}"
        answer = await client.post("/v1/rewards", content=body)
        assert answer.status_code == 422
        assert "`--max-values N`" in answer.json()["error"]["message"]
        sound = await client.post("/v1/rewards", json={"groups": [group("a,b" * 2000)]})
        assert sound.status_code == 200, sound.text

    serving(judges["scalar"], use, limits=RequestLimits(values=1000))


def test_a_key_twice_is_found_in_linear_time() -> None:
    content = "{" + "".join(f'"{number}":1,' for number in range(200_000)) + '"199999":1}'
    with pytest.raises(RecordError, match="'199999' occurs twice"):
        parse_json(content)


def test_requests_together_hold_no_more_than_is_allowed(judges: dict[str, JudgeToServe]) -> None:
    async def use(client: httpx.AsyncClient, service: Service) -> None:
        large = {"groups": [group() | {"images": [data_uri()]}]}
        service.num_held_bytes = 9_000  # of requests that are being answered
        answer = await client.post("/v1/rewards", json=large)
        assert (answer.status_code, answer.json()["error"]["type"]) == (429, "overloaded")
        assert service.num_held_bytes == 9_000
        service.num_held_bytes = 0
        answers = await asyncio.gather(*(client.post("/rerank", content=b"{}") for _ in range(9)))
        assert {one.status_code for one in answers} == {422}
        assert service.num_held_bytes == 0

    serving(judges["scalar"], use, limits=RequestLimits(held=10_000))
