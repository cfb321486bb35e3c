"""Slow clients, clients that go away, and the end of a server that still has work."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.slow


pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

from mmrm.eval.judges.packed_judge import Unit, UnitResult
from mmrm.eval.serving import app
from mmrm.eval.serving.request_limits import RequestLimits
from mmrm.eval.serving.service import JudgeToServe
from tests.eval.doubles import watched
from tests.eval.serving.client import group, listening


def blocked(
    judging: JudgeToServe, begun: threading.Event, goes_on: threading.Event
) -> JudgeToServe:
    """Return a judge whose model computes until `goes_on` is set."""

    def blocking(units: Sequence[Unit], results: list[UnitResult]) -> list[UnitResult]:
        begun.set()
        goes_on.wait(60)
        return results

    return replace(judging, judge=watched(judging.judge, after_run=blocking))


def is_closed_while_sending(connection: socket.socket, byte: bytes) -> bool:
    """Send one byte at a time for ten seconds at most; return True once the server closes the connection."""
    try:
        for _ in range(200):
            connection.sendall(byte)
            time.sleep(0.05)
    except ConnectionError:
        return True
    return False


def test_headers_that_come_byte_by_byte_close_the_connection(
    judges: dict[str, JudgeToServe], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "HEADER_SECONDS", 0.5)
    with listening(judges["scalar"], RequestLimits()) as (_, port):
        silent = socket.create_connection(("127.0.0.1", port))
        slow = socket.create_connection(("127.0.0.1", port))
        with silent, slow:
            assert is_closed_while_sending(slow, b"P")
            silent.settimeout(10)
            assert silent.recv(1) == b""  # closed by the server
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            for _ in range(3):  # over one connection, idle for longer than headers may take
                answer = client.post("/v1/rewards", json={"groups": [group()]})
                assert answer.status_code == 200
                time.sleep(0.7)


def test_headers_of_a_second_request_are_timed_too(
    judges: dict[str, JudgeToServe], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "HEADER_SECONDS", 0.5)
    with listening(judges["scalar"], RequestLimits()) as (_, port):
        connection = socket.create_connection(("127.0.0.1", port))
        with connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"200 OK" in connection.recv(1000)
            assert is_closed_while_sending(connection, b"G")


def test_a_server_ends_although_its_model_still_computes(judges: dict[str, JudgeToServe]) -> None:
    begun, goes_on = threading.Event(), threading.Event()
    answers: list[Any] = []
    judging = blocked(judges["scalar"], begun, goes_on)
    try:
        with listening(judging, RequestLimits(drain=1)) as (server, port):

            def ask() -> None:
                url = f"http://127.0.0.1:{port}/v1/rewards"
                answers.append(httpx.post(url, json={"groups": [group()] * 9}, timeout=60))

            client = threading.Thread(target=ask)
            client.start()
            assert begun.wait(60)
            server.handle_exit(15, None)
            client.join(60)
            [answer] = answers
            assert (answer.status_code, answer.json()["error"]["type"]) == (503, "draining")
            assert "1 seconds did not suffice" in answer.json()["error"]["message"]
    finally:
        goes_on.set()
