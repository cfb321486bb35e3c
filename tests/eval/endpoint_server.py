"""A small OpenAI-compatible server on this machine, which fails as it is told to."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

RIGHT = "Overall Judgment: Answer 1 is better."


@dataclass
class Server:
    """What the server was asked, and what it does next."""

    url: str = ""
    failures: list[int | str | bytes] = field(default_factory=list)
    """What the next requests get, one each: an HTTP status, `slow`, `drip`, `garbage`, `empty`,
    `cut`, or bytes that are sent with status 200; then every one is answered."""
    retry_after: str | None = None
    """The header Retry-After of every answer; None sends none."""
    always: int | None = None
    """A status that every request gets."""
    text: str = RIGHT
    answers: Callable[[dict[str, Any]], str] | None = None
    """Returns the text for a request, in place of `text`."""
    repeats_key: bool = False
    """Answers that are errors repeat the header with the key."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    at_once: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def serve() -> Iterator[Server]:
    """Run a server for the time of a test."""
    state = Server()
    http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(state))
    state.url = f"http://127.0.0.1:{http.server_address[1]}/v1"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield state
    http.shutdown()
    thread.join()
    http.server_close()


def _handler(state: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with state.lock:
                state.requests.append(body)
                state.headers.append(dict(self.headers))
                state.at_once["now"] += 1
                state.at_once["most"] = max(state.at_once["most"], state.at_once["now"])
                planned = state.always or (state.failures.pop(0) if state.failures else 200)
            assert self.path == "/v1/chat/completions"
            if planned == "slow":
                time.sleep(1.5)
            time.sleep(0.005)
            with state.lock:
                state.at_once["now"] -= 1
            self._send(planned, body)

        def _send(self, planned: int | str | bytes, body: dict[str, Any]) -> None:
            status = planned if isinstance(planned, int) else 200
            if isinstance(planned, bytes):
                content = planned
            elif planned == "garbage" or status != 200:
                content = b"<html>busy</html>"
            else:
                content = json.dumps(_completion(planned, body)).encode()
            if status != 200 and state.repeats_key:
                content = f"wrong key: {self.headers['Authorization']}".encode()
            try:
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                if state.retry_after is not None:
                    self.send_header("Retry-After", state.retry_after)
                self.end_headers()
                for byte in content[:40] if planned == "drip" else b"":  # never silent, never done
                    self.wfile.write(bytes([byte]))
                    time.sleep(0.05)
                self.wfile.write(content[40:] if planned == "drip" else content)
            except (BrokenPipeError, ConnectionResetError):  # the client's patience was shorter
                pass

        def log_message(self, format: str, *arguments: Any) -> None:
            """Say nothing."""

    def _completion(planned: int | str, body: dict[str, Any]) -> dict[str, Any]:
        if planned == "empty":
            return {"choices": []}
        choice = {
            "message": {"content": state.answers(body) if state.answers else state.text},
            "finish_reason": "length" if planned == "cut" else "stop",
        }
        return {"choices": [choice], "usage": {"prompt_tokens": 100, "completion_tokens": 10}}

    return Handler
