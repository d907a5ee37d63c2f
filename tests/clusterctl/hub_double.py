"""A hub on this machine: the endpoints that its client asks for a model, with ranges and faults."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

REVISION = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """Serves `files` as one model."""

    def __init__(self, files: dict[str, bytes], model_id: str) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.files, self.model_id = files, model_id
        self.revision = REVISION
        self.large = {name for name in files if name.endswith(".safetensors")}
        self.asked: list[tuple[str, str, str | None]] = []
        """Method, path and range of each request."""
        self.cut: list[int] = []
        """After so many bytes the next answers with a large file break off."""
        self.refuse: list[tuple[int, dict[str, str]]] = []
        """The next answers about the model: a status and headers."""
        self.instead: dict[str, bytes] = {}
        """What is sent instead of a file."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def ranges_of(self, name: str) -> list[str | None]:
        return [asked for method, path, asked in self.asked if method == "GET" and path.endswith(f"/{name}")]

    def document(self) -> dict[str, Any]:
        siblings = []
        for name, content in self.files.items():
            git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            sibling = {"rfilename": name, "size": len(content), "blobId": git}
            if name in self.large:
                sha256 = hashlib.sha256(content).hexdigest()
                sibling["lfs"] = {"size": len(content), "sha256": sha256, "pointerSize": 130}
            siblings.append(sibling)
        return {
            "id": self.model_id,
            "modelId": self.model_id,
            "sha": self.revision,
            "siblings": siblings,
            "tags": [],
        }


class _Answers(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_words: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub, path = self.server, urlsplit(self.path).path
        hub.asked.append((self.command, path, self.headers["Range"]))
        if path.startswith(f"/api/models/{hub.model_id}"):
            if hub.refuse:
                self._send(*hub.refuse.pop(0))
            elif "/revision/" in path and not path.endswith(("/main", REVISION)):
                self._send(404, {"X-Error-Code": "RevisionNotFound"})
            else:
                self._send(200, {"Content-Type": "application/json"}, json.dumps(hub.document()).encode())
            return
        found = re.fullmatch(rf"/{hub.model_id}/resolve/[^/]+/(.+)", path)
        if found and found[1] in hub.files:
            self._file(found[1])
        else:
            code = "EntryNotFound" if found else "RepoNotFound"
            self._send(404 if found else 401, {"X-Error-Code": code})

    def _file(self, name: str) -> None:
        hub = self.server
        content = hub.files[name]
        large = name in hub.large
        etag = hashlib.sha256(content).hexdigest() if large else hashlib.sha1(content).hexdigest()
        content = hub.instead.get(name, content)
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": hub.revision, "Accept-Ranges": "bytes"}
        if self.command == "HEAD":
            self._send(200, {**headers, "X-Linked-Size": str(len(content))}, content)
            return
        begin = (
            int(self.headers["Range"].removeprefix("bytes=").split("-")[0]) if self.headers["Range"] else 0
        )
        status = 206 if begin else 200
        if begin:
            headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        cut = hub.cut.pop(0) if large and hub.cut else None
        self._send(status, headers, content[begin:], cut)

    def _send(
        self, status: int, headers: dict[str, str], content: bytes = b"", cut: int | None = None
    ) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[:cut])
        if cut is not None:
            self.close_connection = True


@contextmanager
def hub_of(files: dict[str, bytes], model_id: str = "org/m") -> Iterator[Hub]:
    """The hub, running."""
    hub = Hub(files, model_id)
    hub.daemon_threads = True
    thread = Thread(target=hub.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()
