"""A cache, a pip and a hub for tests of fetching; a local HTTP server replaces the hub and counts what it sends."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from huggingface_hub import constants

FILE = "toys/toy/toy.gguf"  # OWNER/REPOSITORY/FILE
CLOSED = "http://127.0.0.1:9"  # an address without a server


def isolated(tmp_path: Path, monkeypatch) -> Path:
    """Gives longgraft and the hub's client empty caches, and returns longgraft's folder of models.

    pip finds only the files in the folder `wheels`.
    """
    for name, value in {
        "LONGGRAFT_CACHE": tmp_path / "cache",
        "PIP_NO_INDEX": 1,
        "PIP_FIND_LINKS": tmp_path / "wheels",
        "PIP_CONFIG_FILE": "/dev/null",
    }.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 100)  # bytes that an interrupted download may lose
    monkeypatch.setattr("time.sleep", lambda _: None)  # between the client's attempts
    return tmp_path / "cache" / "models"


def ask_hub_at(address: str, monkeypatch) -> None:
    """Makes the hub's client use this server."""
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")


def requirements_asked(monkeypatch) -> list[str]:
    """Returns a list to which each call of pip adds its requirement."""
    requirements, real = [], subprocess.run

    def recorded(command, **options):
        requirements.append(command[-1])
        return real(command, **options)

    monkeypatch.setattr(subprocess, "run", recorded)
    return requirements


def left(cache: Path) -> list[str]:
    """Lists the files in the cache of models."""
    return sorted(path.name for path in cache.glob("*") if path.name != "lock")


class ToyHub(ThreadingHTTPServer):
    """A server of one file, in the place of the hub.

    Attributes:
        content: Bytes of the file.
        etag: Hash of the file that the server states, which tests may falsify.
        cut: Byte of the file at which connections break, or None.
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
    """Serves this content as FILE from a thread."""
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
        """Sends the headers; returns the first byte of the requested range, or None for another file."""
        owner, repository, file = FILE.split("/")
        if self.path not in ("/", f"/{owner}/{repository}/resolve/main/{file}"):
            self.send_error(404)
            return None
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        self.send_response(206 if start else 200)
        size = len(self.server.content)
        for name, value in {
            "Content-Length": size - start,
            "Content-Range": f"bytes {start}-{size - 1}/{size}",
            "ETag": f'"{self.server.etag}"',
            "X-Repo-Commit": "0" * 40,
        }.items():
            self.send_header(name, str(value))
        self.end_headers()
        return start

    def log_message(self, *_) -> None:
        """Prints nothing."""
