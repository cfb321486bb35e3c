"""A local stand-in of the Hugging Face hub's HTTP API, as far as an upload of a folder needs it."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_for_tests"
LARGE = (".safetensors", ".bin")
"""Endings of files that go to the large-file store."""


@dataclass
class Hub:
    """The address of the stand-in, and the repositories and files that were uploaded to it."""

    address: str = ""
    private: dict[str, bool] = field(default_factory=dict)
    """Whether each repository is private, by its name."""
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """The files of each repository, by their paths."""
    objects: dict[str, bytes] = field(default_factory=dict)
    """The large files by their SHA-256."""


@contextmanager
def running_hub() -> Iterator[Hub]:
    """Serve a hub on a free port of this machine."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.answer(404, {"error": "Repository not found"})

        def do_PUT(self) -> None:
            hub.objects[self.path.rpartition("/")[2]] = self.body()
            self.answer(200, {})

        def do_POST(self) -> None:
            body = self.body()
            path, _, _ = self.path.partition("?")
            if self.headers.get("authorization") != f"Bearer {TOKEN}":
                self.answer(401, {"error": "Invalid username or password."})
            elif path == "/api/repos/create":
                asked = json.loads(body)
                name = f"{asked['organization']}/{asked['name']}"
                # Version 2 of huggingface_hub sends `visibility`, version 1 sends `private`.
                hub.private[name] = asked.get("private", asked.get("visibility") == "private")
                self.answer(200, {"url": f"{hub.address}/{name}"})
            elif path == "/api/validate-yaml":
                self.answer(200, {"warnings": [], "errors": []})
            elif path.endswith("/preupload/main"):
                self.answer(200, {"files": [mode(file) for file in json.loads(body)["files"]]})
            elif path.endswith(".git/info/lfs/objects/batch"):
                self.answer(200, batch(json.loads(body)))
            elif path.endswith("/commit/main"):
                name = path.removeprefix("/api/models/").removesuffix("/commit/main")
                self.commit(name, [json.loads(line) for line in body.splitlines()])
            else:
                self.answer(404, {"error": f"no {path} here"})

        def commit(self, name: str, lines: list[dict[str, Any]]) -> None:
            files = hub.files.setdefault(name, {})
            for line in lines:
                value = line["value"]
                if line["key"] == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                if line["key"] == "lfsFile":
                    files[value["path"]] = hub.objects[value["oid"]]
            url = f"{hub.address}/{name}/commit/abc"
            self.answer(200, {"success": True, "commitOid": "abc", "commitUrl": url})

        def body(self) -> bytes:
            if self.headers.get("transfer-encoding") == "chunked":
                chunks = []
                while size := int(self.rfile.readline(), 16):
                    chunks.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(chunks)
            return self.rfile.read(int(self.headers.get("content-length", 0)))

        def answer(self, status: int, content: Any) -> None:
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    def mode(file: dict[str, Any]) -> dict[str, Any]:
        is_large = file["path"].endswith(LARGE)
        return {
            "path": file["path"],
            "uploadMode": "lfs" if is_large else "regular",
            "shouldIgnore": False,
            "oid": None,
        }

    def batch(asked: dict[str, Any]) -> dict[str, Any]:
        objects = []
        for entry in asked["objects"]:
            upload = {"href": f"{hub.address}/objects/{entry['oid']}"}
            objects.append({**entry, "authenticated": True, "actions": {"upload": upload}})
        return {"transfer": "basic", "objects": objects}

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
