"""Attack a running server from this machine and print how it holds out; every attack ends by itself.

    python tools/attack_server.py CHECKPOINT

It starts `eval/serve.py CHECKPOINT` anew for each attack: turns, characters, slow headers, images that
are large once decoded, JSON of many small values. While each runs, a small request is sent every half
second. Printed are its slowest answer, the server's largest memory, and the seconds from SIGTERM, with
the attack under way, to the end of the process.
"""

from __future__ import annotations

import base64
import io
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
from PIL import Image

CLONE = Path(__file__).resolve().parents[1]
SECONDS = 25
"""Seconds that each attack may take before the server gets the signal to end."""
PATIENCE = 60
"""Seconds to wait for the end of the process."""
SMALL = {"groups": [{"messages": "2 + 2?", "responses": ["4", "5"]}]}


def rewards(messages: Any, responses: list[str], images: list[str] | None = None) -> bytes:
    group = {"messages": messages, "responses": responses, "images": images or []}
    return json.dumps({"groups": [group]}).encode()


def many_turns(count: int) -> bytes:
    turns = [{"role": ("user", "assistant")[i % 2], "content": f"turn {i}"} for i in range(count)]
    return rewards(turns, ["a", "b"])


def large_image(side: int) -> str:
    buffer = io.BytesIO()
    Image.new("1", (side, side)).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def bodies() -> dict[str, list[bytes]]:
    """Return the requests of each attack; all of one attack are sent at once."""
    words = "word " * 6_000_000
    image = large_image(5_000)
    return {
        "2 x 4,001 turns": [many_turns(4_001)] * 2,
        "30 MB of text": [rewards(words, ["a"])],
        "10 x 30 MB of text": [rewards(words, ["a"])] * 10,
        "450,000 characters, 64 responses": [rewards("word " * 90_000, ["a"] * 64)],
        "64 images of 25 million pixels": [rewards("x", ["a"], [image] * 64)],
        "11 million empty lists": [b'{"groups": [' + b"[]," * 11_000_000 + b"[]]}"],
        "a key twice among a million": [
            b"{" + b"".join(b'"%d":1,' % i for i in range(1_000_000)) + b'"999999":1}'
        ],
    }


@contextmanager
def running(checkpoint: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Start a server, wait until it is ready, and end it at last."""
    command = [sys.executable, str(CLONE / "eval/serve.py"), checkpoint, "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout is not None
        line = next(line for line in server.stdout if line.startswith("serving"))
        port = int(line.split("127.0.0.1:")[1].split(";")[0])
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if httpx.get(f"http://127.0.0.1:{port}/ready").status_code == 200:
                break
            time.sleep(0.5)
        try:
            yield server, port
        finally:
            server.kill()


def attacked(checkpoint: str, attack: Callable[[int], list[threading.Thread]]) -> str:
    """Return in a line how a server holds out."""
    with running(checkpoint) as (server, port):
        process = psutil.Process(server.pid)
        slowest, memory, num_unanswered = 0.0, 0, 0
        began = time.monotonic()
        threads = attack(port)
        while time.monotonic() - began < SECONDS and any(one.is_alive() for one in threads):
            asked = time.monotonic()
            try:
                httpx.post(f"http://127.0.0.1:{port}/v1/rewards", json=SMALL, timeout=SECONDS)
            except httpx.TimeoutException:
                num_unanswered += 1
            slowest = max(slowest, time.monotonic() - asked)
            memory = max(memory, process.memory_info().rss)
            time.sleep(0.5)
        lasted = time.monotonic() - began
        server.send_signal(signal.SIGTERM)
        asked = time.monotonic()
        try:
            status = server.wait(PATIENCE)
            ended = f"ends {time.monotonic() - asked:.1f} s after SIGTERM with status {status}"
        except subprocess.TimeoutExpired:
            ended = f"is alive {PATIENCE} s after SIGTERM"
        return (
            f"{lasted:.1f} s of attack, small request answered in {slowest:.1f} s at most"
            f"{f', {num_unanswered} not answered' if num_unanswered else ''}, "
            f"{memory / 2**30:.2f} GiB, {ended}"
        )


def posting(contents: list[bytes], said: list[str]) -> Callable[[int], list[threading.Thread]]:
    """Return an attack that posts `contents` at once and notes the answers."""

    def post(port: int, content: bytes) -> None:
        began = time.monotonic()
        try:
            answer = httpx.post(f"http://127.0.0.1:{port}/v1/rewards", content=content, timeout=90)
            text = f"{answer.status_code} {answer.text[:140]}"
        except httpx.HTTPError as error:
            text = type(error).__name__
        said.append(f"{time.monotonic() - began:.1f} s: {text}")

    def attack(port: int) -> list[threading.Thread]:
        threads = [threading.Thread(target=post, args=(port, one)) for one in contents]
        for thread in threads:
            thread.start()
        return threads

    return attack


def slow_headers(port: int) -> list[threading.Thread]:
    """Send a byte of a request's headers a second, over 50 connections."""

    def send() -> None:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            for byte in b"POST /v1/rewards HTTP/1.1\r\nX-Header: " + b"x" * 1000:
                try:
                    connection.sendall(bytes([byte]))
                except OSError:
                    return
                time.sleep(1)

    threads = [threading.Thread(target=send, daemon=True) for _ in range(50)]
    for thread in threads:
        thread.start()
    return threads


def main(checkpoint: str, only: str) -> None:
    """Run all attacks whose names contain `only`."""
    for name, contents in bodies().items():
        if only in name:
            said: list[str] = []
            print(f"{name}: {attacked(checkpoint, posting(contents, said))}", flush=True)
            for line in said[:2]:
                print(f"    {line}", flush=True)
    if only in "slow headers":
        print(f"slow headers: {attacked(checkpoint, slow_headers)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "")
