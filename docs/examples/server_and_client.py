"""Starts a server of the embedded toy model and asks it as an OpenAI client does (extra `serve`).

python docs/examples/server_and_client.py
"""

import json
import socket
import subprocess
import sys
import time
from urllib.error import URLError
from urllib.request import Request, urlopen


def free_port() -> int:
    """Returns a port on which nobody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


PORT = str(free_port())
ADDRESS = f"http://127.0.0.1:{PORT}"
COMMAND = [sys.executable, "-m", "longgraft", "serve", "--port", PORT]


def wait_until_ready(server: subprocess.Popen) -> None:
    """Returns when the server answers; raises RuntimeError if it ended."""
    while server.poll() is None:
        try:
            urlopen(f"{ADDRESS}/health").close()
            return
        except URLError:  # it still loads the model
            time.sleep(0.2)
    raise RuntimeError(f"The server ended with status {server.returncode}.")


def ask(path: str, body: dict) -> dict:
    request = Request(ADDRESS + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request) as reply:
        return json.load(reply)


with subprocess.Popen(COMMAND) as server:
    try:
        wait_until_ready(server)
        reply = ask("/v1/completions", {"prompt": "def add(a, b):\n    return", "max_tokens": 16, "temperature": 0})
        print(reply["choices"][0]["text"])
        print(reply["usage"])
    finally:
        server.terminate()
