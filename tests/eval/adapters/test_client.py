"""The client of all adapters: groups, retries, fingerprints and what it refuses, against a server that is told what to answer."""

import asyncio
import base64
import io
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mmrm.eval.adapters import trl_reward
from mmrm.eval.adapters.trl_reward import (
    Reward,
    RewardServer,
    RewardServerError,
    data_uri,
    sendable,
)
from tests.models import tiny

FOLDER = Path(trl_reward.__file__).parent
ADAPTERS = sorted(path.name for path in FOLDER.glob("*_reward.py"))


class Told(HTTPServer):
    """Answers the lengths of the responses as scores; `answers` are (status, headers, body) to give first."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.answers: list[tuple[int, dict[str, str], Any]] = []
        self.asked: list[Any] = []
        self.keys: list[str | None] = []
        self.fingerprint = "abc"


class Answering(BaseHTTPRequestHandler):
    """The server's handler."""

    server: Told

    def do_POST(self) -> None:
        """Note what is asked, and answer what was told."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(body)
        self.server.keys.append(self.headers["Authorization"])
        groups = [
            {"scores": [float(len(one)) for one in group["responses"]], "normalised": None}
            for group in body["groups"]
        ]
        status, headers, answer = (
            self.server.answers.pop(0)
            if self.server.answers
            else (200, {}, {"fingerprint": self.server.fingerprint, "groups": groups})
        )
        content = json.dumps(answer).encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: Any) -> None:
        """Stay silent."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    monkeypatch.setattr(trl_reward, "FIRST_DELAY", 0.01)
    told = Told()
    thread = threading.Thread(target=told.serve_forever)
    thread.start()
    yield told
    told.shutdown()
    thread.join()
    told.server_close()


def address(server: Told) -> str:
    return f"http://127.0.0.1:{server.server_port}"


def score(client: RewardServer, rows: list[Any]) -> list[float]:
    return asyncio.run(client.score(rows))


def test_the_client_is_the_same_in_every_adapter() -> None:
    pattern = re.compile(r"# --- client.*?# --- end of the client ---", re.DOTALL)
    blocks = {pattern.findall((FOLDER / name).read_text())[0] for name in ADAPTERS}
    assert len(ADAPTERS) == 5
    assert len(blocks) == 1


def test_adapters_import_nothing_of_this_project() -> None:
    for name in ADAPTERS:
        found = re.findall(r"^\s*(?:from|import) (\w+)", (FOLDER / name).read_text(), re.MULTILINE)
        assert not {"data", "models", "eval", "train"} & set(found)


@pytest.mark.slow
def test_equal_prompts_are_one_group_wherever_their_rows_stand(server: Told) -> None:
    one, other = [{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}]
    assert score(RewardServer(address(server)), [(one, "x"), (other, "xx"), (one, "xxx")]) == [
        1.0,
        2.0,
        3.0,
    ]
    assert sorted(len(body["groups"][0]["responses"]) for body in server.asked) == [1, 2]


@pytest.mark.slow
def test_a_busy_server_is_asked_again_and_a_refusal_is_not(server: Told) -> None:
    server.answers = [(503, {}, {}), (429, {"Retry-After": "0"}, {})]
    client = RewardServer(address(server))
    assert score(client, [("a", "x")]) == [1.0]
    assert len(server.asked) == 3
    server.answers = [(422, {}, {"error": "no image"})]
    with pytest.raises(RewardServerError, match=r"422.*no image"):
        score(client, [("a", "x")])
    assert len(server.asked) == 4


@pytest.mark.slow
def test_nothing_is_made_up(server: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trl_reward, "TRIES", 2)
    client = RewardServer(address(server))
    assert score(client, [("a", "x")]) == [1.0]
    answers: list[tuple[dict[str, Any], str]] = [
        ({"scores": [1.0, 2.0]}, "2"),
        ({"scores": [float("nan")]}, "finite"),
        ({"error": {"message": "broken image"}}, "broken image"),
    ]
    for group, said in answers:
        server.answers = [(200, {}, {"fingerprint": "abc", "groups": [group]})]
        with pytest.raises(RewardServerError, match=said):
            score(client, [("a", "x")])
    server.fingerprint = "another"
    with pytest.raises(RewardServerError, match="changed from abc to another"):
        score(client, [("a", "x")])
    server.answers = [(503, {}, "x")] * 2
    with pytest.raises(RewardServerError, match="503"):
        score(client, [("a", "x")])
    with pytest.raises(RewardServerError, match="no reference scores"):
        score(RewardServer(address(server), form="normalised"), [("a", "x")])
    with pytest.raises(RewardServerError, match="ConnectError"):
        score(RewardServer("http://127.0.0.1:1"), [("a", "x")])


@pytest.mark.slow
def test_settings_come_from_the_environment_too(
    server: Told, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("secret\n")
    monkeypatch.setenv("REWARD_URL", address(server) + "/")
    monkeypatch.setenv("REWARD_API_KEY_FILE", str(tmp_path / "key"))
    assert score(RewardServer(), [("a", "x")]) == [1.0]
    assert server.keys == ["Bearer secret"]


def test_images_of_every_form_arrive_as_they_are(tmp_path: Path) -> None:
    image = tiny.picture(30, 20)
    image.save(tmp_path / "a.png")
    content = (tmp_path / "a.png").read_bytes()
    for form in (
        image,
        content,
        tmp_path / "a.png",
        str(tmp_path / "a.png"),
        {"bytes": content},
        {"path": str(tmp_path / "a.png")},
    ):
        found = base64.b64decode(data_uri(form).partition(",")[2])
        assert Image.open(io.BytesIO(found)).tobytes() == image.tobytes()
        assert data_uri(data_uri(form)) == data_uri(form)
    turned = Image.Exif()
    turned[0x0112] = 6
    image.save(tmp_path / "b.jpg", exif=turned)
    again = Image.open(
        io.BytesIO(base64.b64decode(data_uri(Image.open(tmp_path / "b.jpg")).partition(",")[2]))
    )
    assert again.getexif()[0x0112] == 6
    with pytest.raises(RewardServerError, match="not fetched"):
        data_uri("https://example.org/a.png")


def test_images_stand_where_the_messages_say() -> None:
    place, words = {"type": "image"}, {"type": "text", "text": "x"}
    filled = sendable(
        [{"role": "system", "content": "s"}, {"role": "user", "content": [words, place, place]}],
        [b"1", b"2"],
    )
    assert [part["type"] for part in filled[1]["content"]] == ["text", "image", "image"]
    assert [part["type"] for part in sendable("x", [b"1"])[0]["content"]] == ["image", "text"]
    turns = [{"role": "user", "content": "Is <image>\nlike <image>?"}]
    parts = sendable(turns, [b"1", b"2"])[0]["content"]
    assert [part["type"] for part in parts] == ["text", "image", "text", "image", "text"]
    assert parts[1] == {"type": "image", "image": data_uri(b"1")}
    assert [part["text"] for part in parts if part["type"] == "text"] == ["Is ", "like ", "?"]
    # Another number of markers is left to the server, which refuses it.
    assert [part["type"] for part in sendable(turns, [b"1"])[0]["content"]] == ["image", "text"]
    with pytest.raises(RewardServerError, match="1 more images"):
        sendable([{"role": "user", "content": [place]}], [b"1", b"2"])
    with pytest.raises(RewardServerError, match="'video'"):
        sendable([{"role": "user", "content": [{"type": "video"}]}])


@pytest.mark.slow
def test_trl_hands_over_prompts_images_and_completions(server: Told) -> None:
    reward = Reward(address(server))
    words = {"type": "text", "text": "x"}
    plain: list[Any] = [{"role": "user", "content": "x"}]
    carried = [
        {"role": "user", "content": [{"type": "image", "image": tiny.picture(30, 20)}, words]}
    ]
    completions = [
        [{"role": "assistant", "content": "abc"}],
        [{"role": "assistant", "content": [words, words]}],
        "a",
    ]
    found = asyncio.run(
        reward(
            [plain, carried, plain], completions, images=[[b"1"], [b"2"], None], trainer_state=None
        )
    )
    assert found == [3.0, 2.0, 1.0]
    sent = [
        [part["type"] for part in body["groups"][0]["messages"][0]["content"]]
        for body in server.asked
    ]
    assert sorted(sent) == [["image", "text"], ["image", "text"], ["text"]]
