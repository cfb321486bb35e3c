"""The pages for browsers: who gets them, what they hold, and what they may load."""

import base64
import hashlib
import html
import json
import re
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

from mmrm.data.synthetic.world import ShapesGenerator
from mmrm.eval.serving.api_description import ROUTES, openapi_document
from mmrm.eval.serving.app import PAGE_PATHS
from mmrm.eval.serving.service import JudgeToServe, Service
from mmrm.eval.serving.web_pages import EXAMPLES, examples, reference_page, try_page
from tests.eval.serving.client import group, serving

KEY = "sk-a-key-that-nobody-may-see"


def policy(page: str) -> dict[str, str]:
    """Return the directives of a page's content security policy."""
    [written] = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    directives = [one.strip().partition(" ") for one in html.unescape(written).split(";")]
    return {name: sources for name, _, sources in directives}


def test_pages_open_without_the_key_and_routes_do_not(judges: dict[str, JudgeToServe]) -> None:
    async def use(client: httpx.AsyncClient, service: Service) -> None:
        for path in PAGE_PATHS:
            answer = await client.get(path)
            assert answer.status_code == 200
            assert answer.headers["content-security-policy"] == "frame-ancestors 'none'"
            served = judges["scalar"].served
            for secret in (KEY, f'"{served.name}"', served.fingerprint):
                assert secret not in answer.text
            assert (await client.post(path)).status_code == 405
        for path in ("/v1/models", "/metrics", "/docs/", "/index.html"):
            assert (await client.get(path)).status_code == 401, path
        assert (await client.post("/v1/rewards", json={"groups": [group()]})).status_code == 401

    serving(judges["scalar"], use, key=KEY)


def test_pages_are_counted_by_their_names(judges: dict[str, JudgeToServe]) -> None:
    async def use(client: httpx.AsyncClient, service: Service) -> None:
        for path in PAGE_PATHS:
            await client.get(path)
        metrics = (await client.get("/metrics")).text
        for path in PAGE_PATHS:
            assert f'reward_seconds_count{{path="{path}"}} 1.0' in metrics

    serving(judges["scalar"], use)


@pytest.mark.parametrize("needs_key", [False, True])
def test_pages_load_nothing_and_run_their_own_script_only(needs_key: bool) -> None:
    for page in (try_page(needs_key), reference_page(openapi_document(needs_key))):
        assert not re.findall(r"""(?:src|href|action)=["']?(?:https?:)?//""", page)
        scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
        [digest] = [hashlib.sha256(script.encode()).digest() for script in scripts]
        rules = policy(page)
        assert rules["default-src"] == "'none'"
        assert rules["script-src"] == f"'sha256-{base64.b64encode(digest).decode()}'"
    rules = policy(try_page(needs_key))
    assert (rules["connect-src"], rules["form-action"]) == ("'self'", "'none'")
    assert ('<input id="key" type="password"' in try_page(needs_key)) == needs_key


def test_examples_are_of_the_generated_data() -> None:
    world = ShapesGenerator("demo", 0, "validation")
    shown = examples()
    assert len(shown) == len(EXAMPLES)
    for (kind, index), example in zip(EXAMPLES, shown, strict=True):
        record = world.item(index, (kind,)).preference()
        contents = [base64.b64decode(one["uri"].partition(",")[2]) for one in example["photos"]]
        assert contents == list(record.images)
        assert example["answers"][example["right"]] == record.chosen.text
        assert example["answers"][1 - example["right"]] == record.rejected.text
    assert {one["right"] for one in shown} == {0, 1}
    page_settings: list[Any] = re.findall(r'id="settings">(.*?)</script>', try_page(False))
    assert json.loads(page_settings[0])["examples"] == shown


def test_the_page_tells_what_the_model_of_the_demo_cannot_do() -> None:
    page = " ".join(try_page(False).split())
    assert "2.6 M parameters" in page
    assert "errs in about one of nine pairs of its benchmarks" in page
    assert "its scores of photographs mean nothing" in page


def test_the_page_of_routes_shows_every_route_and_every_schema() -> None:
    document = openapi_document(True)
    page = reference_page(document)
    for path in ROUTES:
        assert f"</span> {path}</h3>" in page
    for name in document["components"]["schemas"]:
        assert f'<article id="{name}">' in page
    for target in re.findall(r'href="#([^"]+)"', page):
        assert f'id="{target}"' in page
