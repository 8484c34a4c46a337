"""A local HTTP server in the place of the hub, which has one file and counts what it serves."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

FILE = "toys/toy/toy.gguf"      # OWNER/REPOSITORY/FILE


class ToyHub(ThreadingHTTPServer):
    """The server.

    Attributes:
        content: Bytes of the file.
        etag: What the hub states of the file: its SHA-256, or anything else.
        cut: Byte of the file at which connections break; None for none.
        served: Number of bytes that it has sent of the file.
        downloads: Number of downloads that began, at any byte.
    """

    def __init__(self, content: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content, self.etag = content, hashlib.sha256(content).hexdigest()
        self.cut: int | None = None
        self.served = self.downloads = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def toy_hub(content: bytes) -> Iterator[ToyHub]:
    """Serve this content as FILE from a thread."""
    with ToyHub(content) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    server: ToyHub

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        if (start := self._answer()) is None:
            return
        end = len(self.server.content) if self.server.cut is None else max(start, self.server.cut)
        self.server.downloads += 1
        self.server.served += len(self.server.content[start:end])
        self.wfile.write(self.server.content[start:end])

    def _answer(self) -> int | None:
        """Send the headers; return the first byte that is asked for, or None where it is of another file."""
        owner, repository, file = FILE.split("/")
        if self.path not in ("/", f"/{owner}/{repository}/resolve/main/{file}"):
            self.send_error(404)
            return None
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        self.send_response(206 if start else 200)
        size = len(self.server.content)
        for name, value in {"Content-Length": size - start, "Content-Range": f"bytes {start}-{size - 1}/{size}",
                            "ETag": f'"{self.server.etag}"', "X-Repo-Commit": "0" * 40}.items():
            self.send_header(name, str(value))
        self.end_headers()
        return start

    def log_message(self, *_) -> None:
        """Print nothing."""
