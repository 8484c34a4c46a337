"""Servers of OpenAI's completions that answer what a test gives them, over a real socket."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]


@dataclass
class ToyServer:
    """Answers with the same words, spelt token by token, unless told otherwise.

    Attributes:
        words: The tokens of the greedy answer.
        margin: Difference of the two largest log-probabilities at each token.
        logprobs: Makes the field from (tokens, margin); None: the field is left out.
        refused: Fields whose presence is an error 400.
        drifts: True if each answer has another last token than the one before.
        last: The last tokens of the first answers of a server that drifts.
        prompt_tokens: The count in the usage.
        asked: The bodies of all requests.
    """

    words: Sequence[str]
    margin: float = 2.0
    logprobs: Callable[[Sequence[str], float], Any] | None = None
    refused: Sequence[str] = ()
    drifts: bool = False
    last: Sequence[str] = ()
    prompt_tokens: int = 7
    asked: list[Body] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)

    def answer(self, body: Body) -> tuple[int, Body]:
        """Returns the status and the response."""
        self.asked.append(body)
        for name in self.refused:
            if name in body:
                return 400, {"error": {"message": f"{name} is not supported"}}
        words = list(self.words)
        if self.drifts:
            words[-1] = dict(enumerate(self.last, 1)).get(len(self.asked), f" {len(self.asked)}")
        choice: Body = {"text": "".join(words), "index": 0, "finish_reason": "length", "logprobs": None}
        if self.logprobs is not None and "logprobs" in body:
            choice["logprobs"] = self.logprobs(words, self.margin)
        usage = {"prompt_tokens": self.prompt_tokens, "completion_tokens": len(words)}
        return 200, {"object": "text_completion", "choices": [choice], "usage": usage}


def columns(words: Sequence[str], margin: float) -> Body:
    """Log-probabilities as OpenAI's completions have them: vLLM, SGLang, longgraft."""
    return {
        "tokens": list(words),
        "token_logprobs": [-0.1] * len(words),
        "top_logprobs": [{word: -0.1, "?": -0.1 - margin} for word in words],
        "text_offset": [0] * len(words),
    }


def rows(words: Sequence[str], margin: float) -> Body:
    """Log-probabilities as llama-server's completions have them."""
    content = []
    for word in words:
        top = [{"token": word, "logprob": -0.1, "id": 1}, {"token": "?", "logprob": -0.1 - margin, "id": 2}]
        content.append({"id": 1, "token": word, "bytes": list(word.encode()), "logprob": -0.1, "top_logprobs": top})
    return {"content": content}


@contextmanager
def served(toy: ToyServer) -> Iterator[str]:
    """Serves a toy and yields its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            toy.keys.append(self.headers["Authorization"])
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, found = toy.answer(body)
            if self.path != "/v1/completions":
                status, found = 404, {"error": {"message": self.path}}
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
