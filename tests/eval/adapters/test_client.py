"""The client of all adapters: groups, retries, fingerprints, images, and what it refuses."""

from __future__ import annotations

import asyncio
import base64
import html
import io
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mmrm.eval.adapters import reward_client
from mmrm.eval.adapters.reward_client import (
    MOST_BYTES,
    RewardServer,
    RewardServerError,
    data_uri,
    sendable,
)
from mmrm.eval.adapters.trl_reward import Reward
from tests.models import tiny

A = [{"role": "user", "content": "a"}]
B = [{"role": "user", "content": "b"}]
IMAGE = {"type": "image"}
TEXT = {"type": "text", "text": "x"}


class Told(HTTPServer):
    """A reward server whose score of a response is the response's length.

    `answers` holds (status, headers, body) of answers to send before that; a body of bytes is sent
    as it is. `asked` holds the requests received, and `keys` their Authorization headers.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.answers: list[tuple[int, dict[str, str], Any]] = []
        self.asked: list[Any] = []
        self.keys: list[str | None] = []
        self.fingerprint = "abc"

    def scores(self, request: Any) -> dict[str, Any]:
        """Return the answer to a request as eval/serve.py writes it."""
        groups = []
        for group in request["groups"]:
            scores = [float(len(response)) for response in group["responses"]]
            groups.append({"scores": scores, "normalised": None})
        return {"fingerprint": self.fingerprint, "groups": groups}


class Answering(BaseHTTPRequestHandler):
    """The handler of `Told`."""

    server: Told

    def do_POST(self) -> None:
        """Record the request, and send the next answer."""
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(request)
        self.server.keys.append(self.headers["Authorization"])
        status = 200
        headers: dict[str, str] = {}
        body: Any = self.server.scores(request)
        if self.server.answers:
            status, headers, body = self.server.answers.pop(0)
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    monkeypatch.setattr(reward_client, "FIRST_DELAY", 0.01)
    told = Told()
    thread = threading.Thread(target=told.serve_forever)
    thread.start()
    yield told
    told.shutdown()
    thread.join()
    told.server_close()


def address(server: Told) -> str:
    return f"http://127.0.0.1:{server.server_port}"


def score(client: RewardServer, rows: list[tuple[Any, str]]) -> list[float]:
    return asyncio.run(client.score(rows))


def part_types(turn: dict[str, Any]) -> list[str]:
    return [part["type"] for part in turn["content"]]


def opened(uri: str) -> Image.Image:
    """Return the image in a data URI."""
    return Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))


# Requests and answers


@pytest.mark.slow
def test_equal_prompts_are_one_group_wherever_their_rows_are(server: Told) -> None:
    client = RewardServer(address(server))
    assert score(client, [(A, "x"), (B, "xx"), (A, "xxx")]) == [1.0, 2.0, 3.0]
    groups = [request["groups"][0] for request in server.asked]
    assert sorted(group["responses"] for group in groups) == [["x", "xxx"], ["xx"]]


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
@pytest.mark.parametrize(
    ("group", "message"),
    [
        ({"scores": [1.0, 2.0]}, "for 1 responses"),
        ({"scores": [float("nan")]}, "numbers of at most"),
        ({"error": {"message": "broken image"}}, "broken image"),
    ],
)
def test_an_answer_without_usable_scores_is_refused(
    server: Told, group: dict[str, Any], message: str
) -> None:
    server.answers = [(200, {}, {"fingerprint": "abc", "groups": [group]})]
    with pytest.raises(RewardServerError, match=message):
        score(RewardServer(address(server)), [("a", "x")])


@pytest.mark.slow
def test_another_checkpoint_is_refused(server: Told) -> None:
    client = RewardServer(address(server))
    assert score(client, [("a", "x")]) == [1.0]
    server.fingerprint = "another"
    with pytest.raises(RewardServerError, match="changed its checkpoint from abc to another"):
        score(client, [("a", "x")])


@pytest.mark.slow
def test_normalised_scores_need_reference_scores(server: Told) -> None:
    with pytest.raises(RewardServerError, match="no reference scores"):
        score(RewardServer(address(server), form="normalised"), [("a", "x")])
    group = {"scores": [5.0], "normalised": [0.5]}
    server.answers = [(200, {}, {"fingerprint": "abc", "groups": [group]})]
    assert score(RewardServer(address(server), form="normalised"), [("a", "x")]) == [0.5]


@pytest.mark.slow
def test_the_last_failure_is_in_the_error(server: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_client, "TRIES", 2)
    server.answers = [(503, {}, "x")] * 2
    with pytest.raises(RewardServerError, match="503"):
        score(RewardServer(address(server)), [("a", "x")])
    assert len(server.asked) == 2
    with pytest.raises(RewardServerError, match="ConnectError"):
        score(RewardServer("http://127.0.0.1:1"), [("a", "x")])


@pytest.mark.slow
def test_settings_come_from_the_environment_too(
    server: Told, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("secret\n")
    monkeypatch.setenv("REWARD_URL", address(server) + "/")
    monkeypatch.setenv("REWARD_API_KEY_FILE", str(key_file))
    assert score(RewardServer(), [("a", "x")]) == [1.0]
    assert server.keys == ["Bearer secret"]


# Attacks

KEY = 'sk-"secret"/<part>&more'
ESCAPED_KEYS = (KEY, json.dumps(KEY)[1:-1], KEY.replace("/", "\\/"), html.escape(KEY))


def client_with_key(server: Told, folder: Path) -> RewardServer:
    """Return a client with KEY as its key, in a folder for the file of the key."""
    key_file = folder / "key"
    key_file.write_text(KEY + "\n")
    return RewardServer(address(server), key_file=str(key_file))


@pytest.mark.slow
@pytest.mark.parametrize("echoed", ESCAPED_KEYS)
@pytest.mark.parametrize("num_letters_before", [0, reward_client.QUOTED_CHARACTERS - 5])
@pytest.mark.parametrize("status", [200, 401, 503])
def test_a_key_that_a_proxy_sends_back_is_not_printed(
    server: Told,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    echoed: str,
    num_letters_before: int,
    status: int,
) -> None:
    monkeypatch.setattr(reward_client, "TRIES", 1)
    server.answers = [(status, {}, ("x" * num_letters_before + echoed).encode())]
    with pytest.raises(RewardServerError) as raised:
        score(client_with_key(server, tmp_path), [("a", "x")])
    assert "sk-" not in str(raised.value)
    assert "***"[: reward_client.QUOTED_CHARACTERS - num_letters_before] in str(raised.value)


@pytest.mark.slow
def test_a_key_in_an_answer_with_the_servers_keys_is_not_printed(
    server: Told, tmp_path: Path
) -> None:
    client = client_with_key(server, tmp_path)
    assert score(client, [("a", "x")]) == [1.0]
    error_group = {"error": {"message": f"unknown key {KEY}"}}
    for answer in (
        {"fingerprint": "abc", "groups": [error_group]},
        {"fingerprint": "abc", "groups": [{"scores": [KEY]}]},
        {"fingerprint": KEY, "groups": [{"scores": [1.0]}]},
    ):
        server.answers = [(200, {}, answer)]
        with pytest.raises(RewardServerError) as raised:
            score(client, [("a", "x")])
        assert "sk-" not in str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "scores",
    [
        "null",
        "[null]",
        '["1"]',
        "[true]",
        "[1e999]",
        "[-1e999]",
        "[NaN]",
        "[" + "9" * 400 + "]",
        "[" + "9" * 5000 + "]",
        "[1e308]",
        "[" + str(2**60) + "]",
        "[[1.0]]",
        "{}",
        "1.0",
        '"1"',
        "[" * 100_000,
        "[" * 2000 + "]" * 2000,
    ],
)
def test_scores_that_are_no_finite_numbers_give_a_message(server: Told, scores: str) -> None:
    answer = f'{{"fingerprint": "abc", "groups": [{{"scores": {scores}}}]}}'
    server.answers = [(200, {}, answer.encode())]
    with pytest.raises(RewardServerError, match=r"127.0.0.1.* answered .*abc"):
        score(RewardServer(address(server)), [("a", "x")])


@pytest.mark.slow
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<html>Please log in</html>",
        b"\xff\xfe",
        b"null",
        b"[]",
        b"7",
        b'"text"',
        b"{}",
        b'{"groups": null}',
        b'{"groups": []}',
        b'{"groups": [null], "fingerprint": "abc"}',
        b'{"groups": [{"scores": [1.0]}]}',
        b'{"groups": {"0": 1}, "fingerprint": "abc"}',
        b'{"\\ud800": "\\udfff"}',
        "\ud800".encode(errors="surrogatepass"),
        b"[" * 100_000,
    ],
)
def test_an_answer_that_is_not_the_servers_gives_a_message(server: Told, content: bytes) -> None:
    server.answers = [(200, {}, content)]
    with pytest.raises(RewardServerError, match=r"is no answer of eval/serve\.py") as raised:
        score(RewardServer(address(server)), [("a", "x")])
    assert str(raised.value).encode()  # so that it can be printed


@pytest.mark.slow
def test_a_surrogate_in_a_response_and_in_an_error_can_be_printed(server: Told) -> None:
    client = RewardServer(address(server))
    assert score(client, [("a", "\ud800")]) == [1.0]
    error = {"error": {"message": "broken \ud800"}}
    server.answers = [(200, {}, {"fingerprint": "\ud800", "groups": [error]})]
    with pytest.raises(RewardServerError, match="broken") as raised:
        score(client, [("a", "x")])
    assert str(raised.value).encode()
    server.answers = [(200, {}, {"fingerprint": "\ud800", "groups": [{"scores": [1.0]}]})]
    with pytest.raises(RewardServerError, match="changed") as raised:
        score(client, [("a", "x")])
    assert str(raised.value).encode()


@pytest.mark.slow
@pytest.mark.parametrize(
    "retry_after", ["Wed, 21 Oct 2099 07:28:00 GMT", "9" * 5000, "nan", "inf", "-5", "", "\xb2"]
)
def test_every_retry_after_is_read_and_the_request_is_repeated(
    server: Told, monkeypatch: pytest.MonkeyPatch, retry_after: str
) -> None:
    monkeypatch.setattr(reward_client, "LONGEST_DELAY", 0.01)
    server.answers = [(503, {"Retry-After": retry_after}, {})]
    assert score(RewardServer(address(server)), [("a", "x")]) == [1.0]


@pytest.mark.slow
def test_content_that_is_not_packed_as_its_header_says_gives_a_message(
    server: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reward_client, "TRIES", 1)
    server.answers = [(200, {"Content-Encoding": "gzip"}, b"no gzip")]
    with pytest.raises(RewardServerError, match="DecodingError"):
        score(RewardServer(address(server)), [("a", "x")])


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:99999",
        "http://127.0.0.1:0",
        "http://127.0.0.1:-1",
        "http://127.0.0.1:x",
        "http://127.0.0.1:" + "9" * 5000,
        "127.0.0.1:8000",
        "ftp://127.0.0.1",
        "http://",
        "http://[::1",
        "http://a\nb",
        "http://user:sk-secret@127.0.0.1:99999",
    ],
)
def test_an_address_that_cannot_be_used_gives_a_message(url: str) -> None:
    with pytest.raises(RewardServerError, match=r"REWARD_URL is .*Correct the variable") as raised:
        RewardServer(url)
    assert "sk-secret" not in str(raised.value)


@pytest.mark.parametrize("timeout", ["x", "-1", "0", "nan", "inf", "1e999"])
def test_a_time_limit_that_cannot_be_used_gives_a_message(
    monkeypatch: pytest.MonkeyPatch, timeout: str
) -> None:
    monkeypatch.setenv("REWARD_TIMEOUT", timeout)
    with pytest.raises(RewardServerError, match=f"REWARD_TIMEOUT is '{timeout}'"):
        RewardServer()


def test_a_form_that_is_not_known_gives_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REWARD_FORM", "normalized")
    with pytest.raises(RewardServerError, match="REWARD_FORM is 'normalized'"):
        RewardServer()


@pytest.mark.parametrize("content", [None, b"", b"\xff", "ключ".encode(), b"sk-a\nsk-b"])
def test_a_key_file_that_cannot_be_used_gives_a_message(
    tmp_path: Path, content: bytes | None
) -> None:
    key_file = tmp_path / "key"
    if content is not None:
        key_file.write_bytes(content)
    with pytest.raises(RewardServerError, match=r"key file .*key") as raised:
        RewardServer(key_file=str(key_file))
    assert "sk-a" not in str(raised.value)


# Images


def test_images_of_every_form_arrive_unchanged(tmp_path: Path) -> None:
    image = tiny.picture(30, 20)
    file = tmp_path / "a.png"
    image.save(file)
    content = file.read_bytes()
    for form in (image, content, file, str(file), {"bytes": content}, {"path": str(file)}):
        uri = data_uri(form)
        assert opened(uri).tobytes() == image.tobytes()
        assert data_uri(uri) == uri
    with pytest.raises(RewardServerError, match="not fetched"):
        data_uri("https://example.org/a.png")


def test_the_orientation_of_an_opened_image_is_kept(tmp_path: Path) -> None:
    turned = Image.Exif()
    turned[0x0112] = 6
    tiny.picture(30, 20).save(tmp_path / "b.jpg", exif=turned)
    uri = data_uri(Image.open(tmp_path / "b.jpg"))
    assert opened(uri).getexif()[0x0112] == 6


def test_images_fill_image_parts_that_hold_none() -> None:
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [TEXT, IMAGE, {"type": "image", "path": "data:x"}, IMAGE]},
    ]
    turns = sendable(messages, [b"1", b"2"])
    assert part_types(turns[0]) == ["text"]
    assert part_types(turns[1]) == ["text", "image", "image", "image"]
    uris = [part["image"] for part in turns[1]["content"][1:]]
    assert uris == [data_uri(b"1"), "data:x", data_uri(b"2")]
    with pytest.raises(RewardServerError, match="1 more images"):
        sendable([{"role": "user", "content": [IMAGE]}], [b"1", b"2"])
    with pytest.raises(RewardServerError, match="'sound'"):
        sendable([{"role": "user", "content": [{"type": "sound"}]}])


def test_images_replace_as_many_markers_or_come_first() -> None:
    assert part_types(sendable("x", [b"1"])[0]) == ["image", "text"]
    messages = [{"role": "user", "content": "Is <image>\nlike <image>?"}]
    (turn,) = sendable(messages, [b"1", b"2"])
    assert part_types(turn) == ["text", "image", "text", "image", "text"]
    assert turn["content"][1] == {"type": "image", "image": data_uri(b"1")}
    texts = [part["text"] for part in turn["content"] if part["type"] == "text"]
    assert texts == ["Is ", "like ", "?"]
    # Another number of markers is left to the server, which refuses it.
    assert part_types(sendable(messages, [b"1"])[0]) == ["image", "text"]


# TRL


@pytest.mark.slow
def test_videos_are_placed_as_images_are(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(b"1")
    own = {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,MQ=="}}
    content = [own, {"type": "video"}, IMAGE, {"type": "text", "text": "x"}]
    [turn] = sendable([{"role": "user", "content": content}], [b"1"], [{"path": str(path)}])
    assert part_types(turn) == ["video", "video", "image", "text"]
    assert turn["content"][0]["video"] == "data:video/mp4;base64,MQ=="
    assert turn["content"][1]["video"] == "data:video/x;base64,MQ=="
    assert turn["content"][2]["image"] == "data:image/x;base64,MQ=="
    assert part_types(sendable("<image>a<video>\nb", [b"1"], [b"2"])[0]) == [
        *("image", "text", "video", "text")
    ]
    assert part_types(sendable("x", [b"1"], [b"2"])[0]) == ["video", "image", "text"]
    with pytest.raises(RewardServerError, match="more video parts than videos"):
        sendable([{"role": "user", "content": [{"type": "video"}]}])
    with pytest.raises(RewardServerError, match="1 more videos than video parts"):
        sendable([{"role": "user", "content": [own]}], [], [b"1"])
    with pytest.raises(RewardServerError, match="Give separate frames as images"):
        sendable("x", [], [[b"frame"]])
    with pytest.raises(RewardServerError, match="a video is the address"):
        sendable("x", [], ["https://example.org/a.mp4"])


def test_trl_passes_prompts_images_and_completions(server: Told) -> None:
    without_image: list[Any] = [{"role": "user", "content": "x"}]
    image = {"type": "image", "image": tiny.picture(30, 20)}
    with_image = [{"role": "user", "content": [image, TEXT]}]
    completions = [
        [{"role": "assistant", "content": "abc"}],
        [{"role": "assistant", "content": [TEXT, TEXT]}],
        "a",
    ]
    scores = asyncio.run(
        Reward(address(server))(
            [without_image, with_image, without_image],
            completions,
            images=[[b"1"], [b"2"], None],
            video=[None, None, b"3"],
            trainer_state=None,
        )
    )
    assert scores == [3.0, 2.0, 1.0]
    sent = [part_types(request["groups"][0]["messages"][0]) for request in server.asked]
    assert sorted(sent) == [["image", "text"], ["image", "text"], ["video", "text"]]


@pytest.mark.slow
def test_an_answer_larger_than_any_is_refused_with_a_message(server: Told) -> None:
    server.answers = [(200, {}, b" " * (MOST_BYTES + 1))]
    with pytest.raises(RewardServerError, match="more than 16,777,216 bytes"):
        score(RewardServer(address(server)), [("a", "x")])
    server.answers = [(503, {}, b" " * (MOST_BYTES + 1))]
    with pytest.raises(RewardServerError, match="more than 16,777,216 bytes"):
        score(RewardServer(address(server)), [("a", "x")])


@pytest.mark.slow
def test_an_answer_that_never_ends_is_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every single byte arrives in time, but not the answer."""
    monkeypatch.setattr(reward_client, "TRIES", 1)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            connection, _ = listener.accept()
            connection.recv(2**16)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n")
            with suppress(OSError):  # the client closes the connection
                for _ in range(10_000):
                    connection.sendall(b" ")
                    time.sleep(0.01)

        thread = threading.Thread(target=drip)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(RewardServerError, match="TimeoutError"):
            score(RewardServer(url, timeout=0.5), [("a", "x")])
        thread.join(60)
        assert not thread.is_alive()
