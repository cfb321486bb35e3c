"""The pages of a running server in headless Chromium: scores, keys, photos, copies, and what is seen."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

from mmrm.eval.serving.request_limits import RequestLimits
from mmrm.eval.serving.service import JudgeToServe
from mmrm.eval.serving.web_pages import examples
from tests.eval.browser import Browser, browser
from tests.eval.serving.client import listening, png

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = [
    pytest.mark.skipif(
        CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium"
    ),
    pytest.mark.slow,
]
WINDOWS = [(400, False), (400, True), (1400, False), (1400, True)]
KEY = "sk-a-key-that-nobody-may-see"
AXE = "axe.run().then(found => found.violations.map(one => `${one.impact}: ${one.id} in ${one.nodes[0].html}`))"
HOSTILE = (
    """it's "50%" $HOME `id` \\n <img src=x onerror="document.title='run'">\nEND\n\u2028 ü 😀"""
)
CTRL = 2


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert CHROMIUM is not None
    with browser(CHROMIUM, tmp_path_factory.mktemp("profile")) as started:
        permissions = ["clipboardReadWrite", "clipboardSanitizedWrite"]
        started.call("Browser.grantPermissions", permissions=permissions)
        started.call("Emulation.setFocusEmulationEnabled", enabled=True)
        yield started


@pytest.fixture(scope="module")
def address(judges: dict[str, JudgeToServe]) -> Iterator[str]:
    """Return the address of a server of a scalar judge."""
    with listening(judges["scalar"]) as (_, port):
        yield f"http://127.0.0.1:{port}/"


@pytest.fixture
def tab(chromium: Browser, address: str) -> Iterator[Browser]:
    chromium.size(1400, 900)
    opened(chromium, address)
    yield chromium
    assert chromium.problems == []


def opened(tab: Browser, address: str) -> None:
    """Open the page of a server and wait until it has asked for the model."""
    tab.open_address("about:blank")
    tab.problems.clear()
    tab.requests.clear()
    tab.open_address(address)
    tab.wait_until("!document.getElementById('model').textContent.includes('…')")


def click(tab: Browser, selector: str) -> None:
    tab.run(f"document.querySelector({selector!r}).click()")


def text(tab: Browser, selector: str) -> str:
    return str(tab.run(f"document.querySelector({selector!r}).textContent"))


def fill(tab: Browser, selector: str, content: str) -> None:
    """Write into a field as a person does."""
    tab.run(f"document.querySelector({selector!r}).focus()")
    tab.run("document.activeElement.select()")
    tab.type(content)


def scored(tab: Browser) -> None:
    """Wait until scores of the present form are shown."""
    tab.wait_until(
        "document.querySelector('#results li') && !running && document.getElementById('stale').hidden"
    )


def shown_scores(tab: Browser) -> dict[int, float]:
    """Return the score of each answer that the page shows, by its index, best first."""
    rows = tab.run(
        "[...document.querySelectorAll('#results > li')].map(li => "
        "[li.querySelector('h3').textContent, li.querySelector('data').value, li.querySelector('data').textContent])"
    )
    scores: dict[int, float] = {}
    for place, (name, value, shown) in enumerate(rows):
        rank, number = re.fullmatch(r"(\d+)\. Answer (\d+)", name).groups()  # type: ignore[union-attr]
        assert int(rank) == place + 1
        assert shown == f"{float(value):.3f}".replace("-", "−")
        scores[int(number) - 1] = float(value)
    return scores


def of_api(address: str, body: Any, key: str = "") -> dict[str, Any]:
    """Return the only group of the API's answer."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    answer = httpx.post(f"{address}v1/rewards", json=body, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["groups"][0])


def body_of(example: Any) -> dict[str, Any]:
    """Return the request that an example makes."""
    images = [photo["uri"] for photo in example["photos"]]
    group = {"messages": example["question"], "responses": example["answers"], "images": images}
    return {"groups": [group], "texts": True}


def check_shown(tab: Browser, group: dict[str, Any]) -> None:
    """Fail unless the page shows the scores, the order and the tokens of a group of the API."""
    scores = shown_scores(tab)
    assert list(scores) == group["order"]
    assert [scores[index] for index in range(len(scores))] == group["scores"]
    facts = text(tab, "#facts")
    assert f"Tokens computed{group['tokens']:,}" in facts
    assert f"{group['tokens_unshared']:,} if each" in facts
    widths = tab.run("[...document.querySelectorAll('.fill')].map(e => e.style.width)")
    assert [float(width.rstrip("%")) for width in widths] == sorted(
        (float(width.rstrip("%")) for width in widths), reverse=True
    )


def tabbed_to(tab: Browser, selector: str) -> None:
    """Press Tab until an element has the focus."""
    for _ in range(60):
        tab.press("Tab", 9)
        if tab.run(f"document.activeElement.matches({selector!r})"):
            return
    raise AssertionError(f"Tab does not reach {selector}")


def test_an_example_is_scored_by_keyboard_alone(tab: Browser, address: str) -> None:
    example = examples()[0]
    tabbed_to(tab, "#examples button")
    tab.press("Enter", 13, "\r")
    assert tab.run("document.getElementById('question').value") == example["question"]
    tabbed_to(tab, "#files")
    assert (
        tab.run("getComputedStyle(document.querySelector('#files + label')).outlineStyle")
        == "solid"
    )
    tabbed_to(tab, "#add")
    tab.press("Enter", 13, "\r")
    assert tab.run("document.activeElement.id") == "answer-3"
    tab.type("it is far away")
    tabbed_to(tab, "#score")
    tab.press("Enter", 13, "\r")
    scored(tab)
    body = body_of(example)
    body["groups"][0]["responses"].append("it is far away")
    check_shown(tab, of_api(address, body))
    assert tab.run("document.activeElement.id") == "results-heading"
    assert {url for url in tab.requests if not url.startswith("data:")} == {
        address, f"{address}ready", f"{address}v1/models", f"{address}v1/rewards",
    }  # fmt: skip


def test_ctrl_and_enter_score_from_a_text_and_changes_make_scores_stale(
    tab: Browser, address: str
) -> None:
    click(tab, "#examples li:last-child button")
    tab.run("document.getElementById('answer-2').focus()")
    tab.press("Enter", 13, "\r", CTRL)
    scored(tab)
    example = examples()[-1]
    check_shown(tab, of_api(address, body_of(example)))
    assert f"Right answer in the dataAnswer {example['right'] + 1}" in text(tab, "#facts")
    fill(tab, "#answer-1", "blue, of course")
    assert tab.run("document.getElementById('stale').hidden") is False
    tab.press("Enter", 13, "\r", CTRL)
    scored(tab)
    assert "Right answer" not in text(tab, "#facts")
    assert "blue, of course" in text(tab, "#results")


def test_a_wrong_choice_of_the_model_is_named(tab: Browser, address: str) -> None:
    outcomes = set()
    for index, example in enumerate(examples()):
        click(tab, f"#examples li:nth-child({index + 1}) button")
        click(tab, "#score")
        scored(tab)
        tab.wait_until("document.getElementById('facts').textContent.includes('Right answer')")
        [best, *_] = of_api(address, body_of(example))["order"]
        is_wrong = best != example["right"]
        outcomes.add(is_wrong)
        remark = "The model prefers a wrong answer here."
        assert (remark in text(tab, "#status")) == is_wrong
    assert outcomes == {True, False}  # a judge with random weights has both


def test_normalised_scores_have_their_unit(
    chromium: Browser, judges: dict[str, JudgeToServe]
) -> None:
    judging = judges["scalar"]
    reference = {"mean": 2.0, "std": 4.0, "n": 9, "source": "x"}
    served = replace(judging.served, reference=reference)
    with listening(replace(judging, served=served)) as (_, port):
        opened(chromium, f"http://127.0.0.1:{port}/")
        click(chromium, "#examples button")
        click(chromium, "#score")
        scored(chromium)
        unit = " standard deviations from the mean of this model's scores"
        for score in shown_scores(chromium).values():
            shown = f"{(score - 2) / 4:.3f}".replace("-", "−")
            assert f"{shown}{unit}" in text(chromium, "#results")


def test_a_change_while_the_model_computes_makes_the_scores_stale(tab: Browser) -> None:
    click(tab, "#examples button")
    tab.run(
        "globalThis.fetched = fetch; globalThis.held = new Promise(done => { globalThis.release = done }); 0"
    )
    tab.run(
        "globalThis.fetch = async (...request) => { await held; return fetched(...request) }; 0"
    )
    click(tab, "#score")
    fill(tab, "#answer-1", "something else")
    tab.run("release()")
    tab.wait_until("document.querySelector('#results li') && !running")
    assert tab.run("document.getElementById('stale').hidden") is False
    assert "something else" not in text(tab, "#results")


def test_two_to_eight_answers(tab: Browser) -> None:
    count = "document.querySelectorAll('#answers textarea').length"
    disabled = "[...document.querySelectorAll('#answers button')].map(b => b.ariaDisabled)"
    assert (tab.run(count), tab.run(disabled)) == (2, ["true", "true"])
    click(tab, "#answers button")
    assert tab.run(count) == 2
    for number in range(3, 12):
        click(tab, "#add")
        if number <= 8:
            tab.type(f"answer {number}")
    assert tab.run(count) == 8
    assert tab.run("document.getElementById('add').ariaDisabled") == "true"
    click(tab, "#answers li:nth-child(3) button")
    assert tab.run("document.activeElement.id") == "answer-3"
    assert tab.run("document.activeElement.value") == "answer 4"
    labels = "[...document.querySelectorAll('#answers textarea')].map(a => a.labels[0].textContent)"
    assert tab.run(labels) == [f"Answer {number}" for number in range(1, 8)]


def test_what_is_missing_is_said_where_it_is_missing(tab: Browser) -> None:
    focused = "[document.activeElement.id, document.activeElement.ariaInvalid]"
    click(tab, "#score")
    assert (text(tab, "#problem"), tab.run(focused)) == (
        "There is no question.",
        ["question", "true"],
    )
    tab.type("What is it?")
    assert (text(tab, "#problem"), tab.run(focused)) == ("", ["question", None])
    fill(tab, "#answer-1", "a cat")
    click(tab, "#score")
    assert text(tab, "#problem") == ("Answer 2 is empty. Write it, add an image, or remove it.")
    assert tab.run(focused) == ["answer-2", "true"]


def test_photos_are_chosen_dropped_and_pasted(tab: Browser, address: str, tmp_path: Path) -> None:
    files = [tmp_path / "first.png", tmp_path / "second.png"]
    for seed, file in enumerate(files):
        file.write_bytes(png(seed, 200, 150))
    count = "document.querySelectorAll('#photos img').length"
    tab.choose_files("#files", files)
    tab.wait_until(f"{count} === 2")
    third = base64.b64encode(png(2)).decode()
    make_transfer = (
        f"(() => {{ const bytes = Uint8Array.from(atob({third!r}), c => c.charCodeAt(0)); const data = new DataTransfer();"
        " data.items.add(new File([bytes], 'third.png', { type: 'image/png' })); return data; })()"
    )
    drop = f"new DragEvent('drop', {{ dataTransfer: {make_transfer}, bubbles: true, cancelable: true }})"
    assert tab.run(f"document.querySelector('h1').dispatchEvent({drop})") is False  # not opened
    tab.wait_until(f"{count} === 3")
    paste = f"new ClipboardEvent('paste', {{ clipboardData: {make_transfer}, bubbles: true, cancelable: true }})"
    assert tab.run(f"document.getElementById('question').dispatchEvent({paste})") is False
    tab.wait_until(f"{count} === 4")
    click(tab, "#photos li:nth-child(3) button")
    assert tab.run(count) == 3
    assert tab.run("document.activeElement.ariaLabel") == "Remove photo 3, third.png"
    fill(tab, "#question", "What is it?")
    fill(tab, "#answer-1", "a cat")
    fill(tab, "#answer-2", "a dog")
    click(tab, "#score")
    scored(tab)
    uris = [
        f"data:image/png;base64,{base64.b64encode(content).decode()}"
        for content in (files[0].read_bytes(), files[1].read_bytes(), png(2))
    ]
    group = {"messages": "What is it?", "responses": ["a cat", "a dog"], "images": uris}
    check_shown(tab, of_api(address, {"groups": [group]}))
    (tmp_path / "notes.txt").write_text("no photo")
    tab.choose_files("#files", [tmp_path / "notes.txt"])
    tab.wait_until("document.getElementById('problem').textContent !== ''")
    assert text(tab, "#problem") == "notes.txt is no photo."
    assert tab.run(count) == 3


def test_answers_hold_images(tab: Browser, address: str, tmp_path: Path) -> None:
    contents = [png(seed, 120, 90) for seed in range(3)]
    files = []
    for number, content in enumerate(contents):
        file = tmp_path / f"drawing-{number}.png"
        file.write_bytes(content)
        files.append(file)
    uris = [f"data:image/png;base64,{base64.b64encode(content).decode()}" for content in contents]
    images = [{"type": "image_url", "image_url": {"url": uri}} for uri in uris]
    counts = "[...document.querySelectorAll('#answers > li')].map(li => li.querySelectorAll('img').length)"

    fill(tab, "#question", "Draw a circle.")
    tab.choose_files("#answer-images-1", files[:2])
    tab.wait_until(f"{counts}.join() === '2,0'")
    fill(tab, "#answer-2", "Here it is.")
    tab.choose_files("#answer-images-2", files[2:])
    tab.wait_until(f"{counts}.join() === '2,1'")
    click(tab, "#score")
    scored(tab)
    # An answer of images alone, and a text with an image behind it
    responses = [images[:2], [{"type": "text", "text": "Here it is."}, images[2]]]
    group = {"messages": "Draw a circle.", "responses": responses, "images": []}
    check_shown(tab, of_api(address, {"groups": [group]}))
    assert tab.run("document.querySelectorAll('#results img').length") == 3
    for name in ("curl", "python"):
        if name == "curl" and shutil.which("curl") is None:
            continue
        ran = run_copy(name, copied(tab, name), tmp_path)
        assert list(shown_scores(tab)) == ran["order"]

    click(tab, "#answers li:first-child .photos li:first-child button")
    assert tab.run(counts) == [1, 1]
    assert tab.run("document.getElementById('stale').hidden") is False
    assert tab.run("document.activeElement.ariaLabel") == (
        "Remove answer 1, image 1, drawing-1.png"
    )
    click(tab, "#score")
    scored(tab)
    group = {**group, "responses": [images[1:2], responses[1]]}
    check_shown(tab, of_api(address, {"groups": [group]}))
    # The images stay with their answer when another answer is removed.
    click(tab, "#add")
    click(tab, "#answers > li:first-child .head button")
    assert tab.run(counts) == [1, 0]
    assert tab.run("document.querySelector('#answers img').alt").endswith("drawing-2.png")


def test_images_that_are_dropped_on_an_answer_belong_to_it(tab: Browser) -> None:
    content = base64.b64encode(png(2)).decode()
    transfer = (
        f"(() => {{ const bytes = Uint8Array.from(atob({content!r}), c => c.charCodeAt(0)); const data = new DataTransfer();"
        " data.items.add(new File([bytes], 'drawn.png', { type: 'image/png' })); return data; })()"
    )
    drop = f"new DragEvent('drop', {{ dataTransfer: {transfer}, bubbles: true, cancelable: true }})"
    paste = f"new ClipboardEvent('paste', {{ clipboardData: {transfer}, bubbles: true, cancelable: true }})"
    assert tab.run(f"document.getElementById('answer-2').dispatchEvent({drop})") is False
    tab.wait_until("document.querySelectorAll('#answers > li:nth-child(2) img').length === 1")
    assert tab.run(f"document.getElementById('answer-1').dispatchEvent({paste})") is False
    tab.wait_until("document.querySelectorAll('#answers > li:nth-child(1) img').length === 1")
    assert tab.run("document.querySelectorAll('#photos img').length") == 0


def test_text_is_pasted_as_text(tab: Browser) -> None:
    event = (
        "(() => { const data = new DataTransfer(); data.setData('text/plain', 'words');"
        " data.items.add(new File(['x'], 'words.png', { type: 'image/png' }));"
        " return new ClipboardEvent('paste', { clipboardData: data, bubbles: true, cancelable: true }); })()"
    )
    assert tab.run(f"document.getElementById('question').dispatchEvent({event})") is True
    assert tab.run("document.querySelectorAll('#photos img').length") == 0


def test_texts_of_a_critic_are_shown(chromium: Browser, judges: dict[str, JudgeToServe]) -> None:
    with listening(judges["critic"]) as (_, port):
        address = f"http://127.0.0.1:{port}/"
        opened(chromium, address)
        click(chromium, "#examples button")
        click(chromium, "#score")
        scored(chromium)
        group = of_api(address, body_of(examples()[0]))
        check_shown(chromium, group)
        critiques = chromium.run(
            "[...document.querySelectorAll('#results details .body')].map(e => e.textContent)"
        )
        assert critiques == [group["critiques"][index] for index in group["order"]]
        assert all(critiques)
        assert chromium.problems == []


def test_judgements_of_a_judge_that_compares_are_shown(
    chromium: Browser, judges: dict[str, JudgeToServe]
) -> None:
    with listening(judges["generative"], RequestLimits(compared=3)) as (_, port):
        address = f"http://127.0.0.1:{port}/"
        opened(chromium, address)
        assert "compares every two answers" in text(chromium, "#model")
        click(chromium, "#examples button")
        click(chromium, "#score")
        scored(chromium)
        group = of_api(address, body_of(examples()[0]))
        scores = shown_scores(chromium)
        assert list(scores) == group["order"]
        assert [scores[index] for index in range(2)] == group["scores"]
        texts = chromium.run(
            "[...document.querySelectorAll('#votes .body')].map(e => e.textContent)"
        )
        assert texts == [vote["text"] for vote in group["votes"]]
        assert "Judgement 2: answer 2 before answer 1" in text(chromium, "#votes")
        for _ in range(2):  # more answers than this server allows: its message is shown
            click(chromium, "#add")
            chromium.type("another one")
        click(chromium, "#score")
        chromium.wait_until("document.getElementById('problem').textContent !== ''")
        assert "4 responses; this server allows 3" in text(chromium, "#problem")
        assert text(chromium, "#status") == ""
        chromium.problems.clear()  # the browser's own line about status 422


def test_the_key_is_sent_and_kept_nowhere(
    chromium: Browser, judges: dict[str, JudgeToServe], caplog: pytest.LogCaptureFixture
) -> None:
    with listening(judges["scalar"], key=KEY) as (server, port):
        address = f"http://127.0.0.1:{port}/"
        opened(chromium, address)
        assert text(chromium, "#model") == "This server needs its key."
        click(chromium, "#examples button")
        click(chromium, "#score")
        assert text(chromium, "#problem") == "This server needs its key."
        assert chromium.run("document.activeElement.id") == "key"
        assert server.service.metrics.errors.labels("unauthorized")._value.get() == 0

        chromium.type("kéy")
        click(chromium, "#score")
        assert "no key" in text(chromium, "#problem")
        assert server.service.metrics.errors.labels("unauthorized")._value.get() == 0
        fill(chromium, "#key", "wrong")
        chromium.press("Enter", 13, "\r")  # as a person sends a form
        chromium.wait_until("document.getElementById('problem').textContent.includes('accept')")
        assert chromium.run("document.activeElement.id") == "key"
        chromium.wait_until("!document.getElementById('model').textContent.includes('needs')")
        chromium.problems.clear()  # the browser's own lines about status 401

        fill(chromium, "#key", KEY)
        chromium.press("Enter", 13, "\r")
        scored(chromium)
        check_shown(chromium, of_api(address, body_of(examples()[0]), KEY))
        chromium.wait_until("model !== null")
        copies = [copied(chromium, name) for name in ("curl", "python")]
        kept = {
            "address": chromium.run("location.href"),
            "storage": chromium.run(
                "JSON.stringify([[localStorage, sessionStorage].map(storage => Array.from(storage, (_, index) => "
                "storage.getItem(storage.key(index)))), document.cookie, history.state])"
            ),
            "databases": chromium.run("indexedDB.databases().then(JSON.stringify)"),
            "page": chromium.run("document.documentElement.outerHTML"),
            "copies": "\n".join(copies),
            "requests": "\n".join(chromium.requests),
            "log": caplog.text,
            "metrics": server.service.metrics.text().decode(),
        }
        assert kept["storage"] == '[[[],[]],"",null]'
        assert kept["databases"] == "[]"
        assert kept["address"] == address
        assert {name for name, content in kept.items() if KEY in content} == set()
        assert chromium.problems == []
        # A page that is opened again does not have it any more.
        chromium.load_anew("location.reload()")
        assert chromium.run("document.getElementById('key').value") == ""


def copied(tab: Browser, name: str) -> str:
    """Press a button that copies, and return the clipboard's text."""
    tab.run("document.getElementById('copied').textContent = ''")
    click(tab, f"#copy-{name}")
    tab.wait_until("document.getElementById('copied').textContent !== ''")
    assert text(tab, "#copied").startswith("Copied")
    return str(tab.run("navigator.clipboard.readText()"))


def run_copy(name: str, content: str, folder: Path) -> dict[str, Any]:
    """Run a copied request as a person does, and return the answer's only group."""
    file = folder / f"request.{name}"
    file.write_text(content, encoding="utf-8")
    program = ["sh"] if name == "curl" else [sys.executable]
    environment = os.environ | {"REWARD_API_KEY": KEY}
    ran = subprocess.run(
        [*program, str(file)], capture_output=True, text=True, env=environment, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    return dict(json.loads(ran.stdout)["groups"][0])


@pytest.mark.parametrize("key", [None, KEY])
def test_copies_run_and_get_the_scores_that_are_shown(
    chromium: Browser, judges: dict[str, JudgeToServe], tmp_path: Path, key: str | None
) -> None:
    """The photo alone is more than a command's argument may hold."""
    with listening(judges["scalar"], key=key) as (_, port):
        opened(chromium, f"http://127.0.0.1:{port}/")
        if key is not None:
            fill(chromium, "#key", key)
        (tmp_path / "photo.png").write_bytes(png(0, 300, 300))
        chromium.choose_files("#files", [tmp_path / "photo.png"])
        chromium.wait_until("photos.length === 1")
        fill(chromium, "#question", HOSTILE)
        fill(chromium, "#answer-1", HOSTILE + "1")
        fill(chromium, "#answer-2", "<b>no</b>")
        click(chromium, "#score")
        scored(chromium)
        scores = shown_scores(chromium)
        copies = {name: copied(chromium, name) for name in ("curl", "python")}
        assert len(copies["curl"]) > 200_000
        assert "paste it into a file" in text(chromium, "#copied")
        for name, content in copies.items():
            if name == "curl" and shutil.which("curl") is None:
                continue
            group = run_copy(name, content, tmp_path)
            assert list(scores) == group["order"]
            assert [scores[index] for index in range(2)] == group["scores"]
        # What is seen of it has no whole photo, and hostile texts are texts.
        chromium.run("document.querySelectorAll('details').forEach(one => { one.open = true })")
        chromium.wait_until("document.querySelector('#shown-python pre').textContent !== ''")
        for name in copies:
            assert "characters in the copy" in text(chromium, f"#shown-{name} pre")
            assert len(text(chromium, f"#shown-{name} pre")) < 3000
        assert "<b>no</b>" in text(chromium, "#results")
        assert chromium.run("document.title") == "Try the reward model"
        assert chromium.problems == []


def test_copies_without_the_clipboard_of_secure_pages(tab: Browser) -> None:
    """At http://HOST, where HOST is another machine, there is no navigator.clipboard."""
    click(tab, "#examples button")
    expected = copied(tab, "curl")
    tab.run("globalThis.clipboard = navigator.clipboard; clipboard.writeText('')")
    tab.run(
        "Object.defineProperty(navigator, 'clipboard', { value: undefined, configurable: true })"
    )
    tab.run("document.getElementById('copy-curl').focus()")
    tab.press("Enter", 13, "\r")  # browsers copy so when a person presses a key, not for a script
    tab.wait_until("document.getElementById('copied').textContent.startsWith('Copied')")
    assert tab.run("clipboard.readText()") == expected
    assert tab.run("document.activeElement.id") == "copy-curl"


def test_scoring_can_be_cancelled_and_a_server_that_ends_is_said(
    chromium: Browser, judges: dict[str, JudgeToServe]
) -> None:
    with listening(judges["scalar"]) as (server, port):
        opened(chromium, f"http://127.0.0.1:{port}/")
        click(chromium, "#examples button")
        running = server.service.running
        server.service.running = None
        click(chromium, "#score")
        chromium.wait_until("document.getElementById('problem').textContent !== ''")
        assert "the model is being loaded" in text(chromium, "#problem")
        server.service.running = running
        # The page waits for ever: its request is answered by nobody.
        chromium.run("globalThis.fetched = fetch; globalThis.fetch = (url, options) => new Promise("
                     "(_, fail) => options.signal.addEventListener('abort', () => fail(options.signal.reason)))")  # fmt: skip
        click(chromium, "#score")
        assert chromium.run("document.getElementById('cancel').hidden") is False
        click(chromium, "#cancel")
        chromium.wait_until("document.getElementById('cancel').hidden")
        assert text(chromium, "#problem") == ""
        chromium.run("globalThis.fetch = fetched; 0")
    click(chromium, "#score")
    chromium.wait_until("document.getElementById('problem').textContent !== ''")
    assert "The server does not answer" in text(chromium, "#problem")
    chromium.problems.clear()  # the browser's own lines about refused connections


def test_a_page_that_is_opened_too_early_waits_for_the_model(
    chromium: Browser, judges: dict[str, JudgeToServe]
) -> None:
    with listening(judges["scalar"]) as (server, port):
        running = server.service.running
        server.service.running = None
        chromium.open_address(f"http://127.0.0.1:{port}/")
        chromium.wait_until("document.getElementById('model').textContent.includes('being loaded')")
        server.service.running = running
        chromium.wait_until("document.getElementById('model').textContent === 'scalar (scalar).'")
        chromium.problems.clear()  # the browser's own lines about status 503


@pytest.mark.parametrize(("width", "dark"), WINDOWS)
@pytest.mark.parametrize("kind", ["scalar", "critic", "generative"])
def test_everything_is_inside_the_window_and_axe_finds_nothing(
    chromium: Browser,
    judges: dict[str, JudgeToServe],
    tmp_path: Path,
    kind: str,
    width: int,
    dark: bool,
) -> None:
    drawing = tmp_path / "drawing.png"
    drawing.write_bytes(png(3, 120, 90))
    axe = pytest.importorskip(
        "axe_core_python", reason="no axe-core here: pip install axe-core-python"
    )
    axe_script = Path(axe.__file__).with_name("axe.min.js").read_text(encoding="utf-8") + ";0"
    with listening(judges[kind], key=KEY if kind == "critic" else None) as (_, port):
        chromium.size(width, 900, dark=dark)
        opened(chromium, f"http://127.0.0.1:{port}/")
        chromium.run(axe_script)
        assert chromium.run(AXE) == []
        if kind == "critic":
            fill(chromium, "#key", KEY)
        click(chromium, "#score")
        assert chromium.run(AXE) == []  # with a message about the form
        click(chromium, "#examples button")
        click(chromium, "#add")
        chromium.type("Unbreakable" * 30)
        chromium.choose_files("#answer-images-3", [drawing])
        chromium.wait_until("document.querySelectorAll('#answers img').length === 1")
        click(chromium, "#score")
        scored(chromium)
        chromium.run("document.querySelectorAll('details').forEach(one => { one.open = true })")
        fill(chromium, "#answer-3", "Unbreakable" * 31)
        assert chromium.run(AXE) == []
        check_window(chromium, dark)


@pytest.mark.parametrize(("width", "dark"), WINDOWS)
def test_the_page_of_routes(chromium: Browser, address: str, width: int, dark: bool) -> None:
    axe = pytest.importorskip(
        "axe_core_python", reason="no axe-core here: pip install axe-core-python"
    )
    chromium.size(width, 900, dark=dark)
    chromium.requests.clear()
    chromium.problems.clear()
    chromium.open_address(f"{address}docs")
    assert [url for url in chromium.requests if not url.startswith("data:")] == [f"{address}docs"]
    assert f'curl {address}v1/rewards -d \'{{"groups"' in text(chromium, "#v1-rewards pre")
    chromium.run(Path(axe.__file__).with_name("axe.min.js").read_text(encoding="utf-8") + ";0")
    assert chromium.run(AXE) == []
    check_window(chromium, dark)


def check_window(tab: Browser, dark: bool) -> None:
    """Fail if the page is wider than the window, has another colour scheme, or has problems."""
    assert tab.run("document.documentElement.scrollWidth <= window.innerWidth")
    wide = (
        "[...document.querySelectorAll('main *')].filter(e => getComputedStyle(e).overflowX === 'visible' "
        "&& getComputedStyle(e).display !== 'inline' && e.scrollWidth > e.clientWidth + 1 "
        "&& !e.closest('.scroll, .unseen, svg')).map(e => e.outerHTML.slice(0, 200))"
    )
    assert tab.run(wide) == []
    background = tab.run("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(20, 23, 26)") == dark
    assert tab.problems == []
