"""Whatever is sent is answered with 4xx, and nothing else is harmed; 10,000 requests: measure_server.py --malformed."""

import json
import random
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.slow


pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

from mmrm.eval.serving.dialects import DIALECTS
from mmrm.eval.serving.service import JudgeToServe, Service
from tests.eval.serving.client import group, serving
from tests.eval.serving.malformed import SOUND, malformed

KEYS = [
    "groups",
    "messages",
    "responses",
    "images",
    "role",
    "content",
    "type",
    "text",
    "image_url",
    "url",
    "query",
    "documents",
]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=9)
    | st.sampled_from(["user", "image", *KEYS])
)
ANY = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=12,
)


def test_malformed_requests_get_4xx_beside_sound_ones(judges: dict[str, JudgeToServe]) -> None:
    rng = random.Random(0)

    async def use(client: httpx.AsyncClient, service: Service) -> None:
        expected = (await client.post("/v1/rewards", json={"groups": [group()]})).json()
        for count in range(400):
            path, content = malformed(rng)
            answer = await client.post(path, content=content)
            assert 400 <= answer.status_code < 500, (path, content, answer.text)
            assert answer.json()["error"]["message"]
            if count % 100 == 0:
                assert (
                    await client.post("/v1/rewards", json={"groups": [group()]})
                ).json() == expected
        for path, body in SOUND.items():
            assert (await client.post(path, json=body)).status_code == 200
        assert (service.num_requests, service.num_groups) == (0, 0)

    serving(judges["scalar"], use)


@given(st.lists(st.tuples(st.sampled_from(list(DIALECTS)), ANY), min_size=20, max_size=20))
@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_no_json_makes_the_server_fail(
    judges: dict[str, JudgeToServe], bodies: list[tuple[str, Any]]
) -> None:
    async def use(client: httpx.AsyncClient, service: Service) -> None:
        for path, body in bodies:
            asked = (
                {"groups": [{"messages": body, "responses": ["a"]}]}
                if path == "/v1/rewards"
                else body
            )
            answer = await client.post(path, content=json.dumps(asked))
            assert answer.status_code < 500, (path, asked, answer.text)

    serving(judges["scalar"], use)
