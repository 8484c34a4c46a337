"""The server's options."""

from __future__ import annotations

import ipaddress
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Le

from longgraft.config.options import KEY, Checked, Option, option

KEY_VARIABLE = "LONGGRAFT_API_KEY"
Policy = Literal["allow", "escape", "refuse"]


@dataclass(frozen=True)
class Serving(Checked):
    """Address, access control and limits.

    Attributes:
        cors: Origins whose pages may send requests.
        hosts: Further names of the server.
    """

    host: str = option("127.0.0.1", "Address to listen on; require a key if other machines can reach it")
    port: Annotated[int, Ge(0), Le(65535)] = option(
        8012, "Port to listen on; 0: any that is free", source="llama.vim's"
    )
    # Not in the repr, which ends up in logs and tracebacks.
    api_key: str | None = field(
        default=None,
        repr=False,
        metadata={
            KEY: Option(
                help=f"Key that clients must send as Bearer; better set {KEY_VARIABLE}, which no process list shows",
                none="the value of that variable; if it is not set, no key is needed",
            )
        },
    )
    cors: tuple[str, ...] = option(
        (), "Origin whose pages may send requests; *: any; repeatable", many=True, metavar="ORIGIN"
    )
    hosts: tuple[str, ...] = option(
        (),
        "Further name that the Host header may give this server; repeatable",
        flag="--allow-host",
        many=True,
        metavar="NAME",
    )
    max_running: Annotated[int, Ge(1), Le(256)] = option(
        8, "Requests that are answered at once; further ones wait", unit="requests"
    )
    queue: Annotated[int, Ge(0), Le(4096)] = option(
        16, "Requests that may wait; further ones are refused with 429", unit="requests"
    )
    max_prompt_tokens: Annotated[int, Ge(1)] | None = option(
        None, "Longest prompt of a request", unit="tokens", none="what the model allows"
    )
    max_answer_tokens: Annotated[int, Ge(1), Le(2**20)] = option(
        4096, "Longest answer of a request; higher limits are lowered to it", unit="tokens"
    )
    max_body: Annotated[int, Ge(1), Le(4096)] = option(16, "Largest body of a request", unit="MiB")
    max_seconds: Annotated[float, Ge(0.001)] | None = option(
        None, "Time for decoding one answer, which then ends as it is", unit="seconds", none="no limit"
    )
    beat: Annotated[float, Ge(0.01), Le(3600)] = option(
        5.0, "Time between comments on a stream that has nothing else to send", unit="seconds"
    )
    # Clients keep idle connections for up to 90 s (Go's, reqwest's), gateways for 60 s. If the server closed one first,
    # a request that is just being sent would fail.
    keep_alive: Annotated[int, Ge(1), Le(86400)] = option(
        120, "Time for which a connection without a request stays open", unit="seconds"
    )
    drain_timeout: Annotated[float, Ge(0.0), Le(86400)] = option(
        30.0, "Time after SIGTERM for requests that run or wait; what is left is cut off", unit="seconds"
    )
    metrics_prefix: str = option("longgraft:", "Prefix of the names at /metrics; vllm: if a gateway reads vLLM's names")
    log_requests: Literal["on", "off"] | None = option(
        None,
        "Write a line about each request to stderr: path, status, tokens and seconds; no prompts and no keys",
        none="on if stderr is a terminal",
    )
    otlp_endpoint: str | None = option(
        None,
        "Collector that gets OpenTelemetry traces over OTLP/HTTP, such as http://127.0.0.1:4318; extra otel",
        none="no traces",
        metavar="URL",
    )
    special_tokens_in_content: Policy = option(
        "escape",
        "What to do with special tokens that messages and tools spell: encode them as text (escape), let "
        "them count as tokens (allow), or refuse the request",
    )
    model_name: str | None = option(None, "Name of the model for clients", none="its own")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.host.strip():
            raise ValueError("The host is empty. Give an address to listen on, such as 127.0.0.1 or 0.0.0.0.")
        if not re.fullmatch("[a-zA-Z_:][a-zA-Z0-9_:]*", self.metrics_prefix):
            raise ValueError(
                f"The metrics' prefix is {self.metrics_prefix!r}; it must be of letters, "
                "digits, _ and :, such as vllm:."
            )
        if self.otlp_endpoint is not None and not re.match("https?://.", self.otlp_endpoint):
            raise ValueError(
                f"The OTLP endpoint is {self.otlp_endpoint!r}; it must be a URL, such as http://127.0.0.1:4318."
            )
        if self.api_key is not None and not self.api_key.strip():
            raise ValueError(
                f"The API key is empty. Give one of at least one character, or leave --api-key and {KEY_VARIABLE} out."
            )

    @property
    def local(self) -> bool:
        """True if only this machine can reach the server."""
        return of_this_machine(self.host)


def of_this_machine(host: str) -> bool:
    """Returns True if a host name or address can only mean this machine."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


@dataclass(frozen=True)
class Replicas(Checked):
    """Replicas on a Ray cluster, extra ray.

    Each has its own model, queue and kept prompts; --queue, --max-running and --prefixes hold for each.
    """

    ray: str | None = option(
        None,
        "Serve from replicas on a Ray cluster: auto, HOST:PORT, or local to start "
        "one here. Models and files given as paths must be there on every node",
        metavar="ADDRESS",
        none="no cluster; the model is loaded here",
    )
    replicas: Annotated[int, Ge(1), Le(4096)] | None = option(
        None, "Number of replicas", none="one per GPU, else per node"
    )
    autoscale: str | None = option(
        None,
        "Fewest and most replicas; their number follows the running requests",
        metavar="MIN:MAX",
        none="a fixed number",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ray is None and (self.replicas or self.autoscale):
            flag = "--replicas" if self.replicas else "--autoscale"
            raise ValueError(f"{flag} needs a Ray cluster. Give --ray local to start one here, or the address of one.")
        if self.replicas and self.autoscale:
            raise ValueError("--replicas is a fixed number, and --autoscale lets it change. Leave one out.")
        if self.autoscale is not None and (
            not re.fullmatch(r"[1-9]\d{0,3}:[1-9]\d{0,3}", self.autoscale) or self.fewest > (self.most or 0)
        ):
            raise ValueError(
                f"--autoscale is {self.autoscale!r}; it must be the fewest and the most replicas, such as 1:4."
            )

    @property
    def fewest(self) -> int:
        """Fewest replicas that --autoscale leaves."""
        return int((self.autoscale or "1").partition(":")[0])

    @property
    def most(self) -> int | None:
        """Most replicas; None if the cluster decides."""
        if self.autoscale is None:
            return self.replicas
        return int(self.autoscale.partition(":")[2])
