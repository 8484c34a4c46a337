"""The server's options."""

from __future__ import annotations

import ipaddress
import re
from contextlib import suppress
from dataclasses import dataclass, field

from longgraft.config.options import KEY, Option, check, option

KEY_VARIABLE = "LONGGRAFT_API_KEY"


@dataclass(frozen=True)
class Serving:
    """Address, access control and limits.

    cors: origins whose pages may send requests; hosts: names of the server beside its own
    """

    host: str = option("127.0.0.1", "Address to listen on; beyond this machine only with a key")
    port: int = option(8012, "To listen on; 0: any that is free", low=0, high=65535, source="llama.vim's")
    # Not in the repr, which ends up in logs and tracebacks.
    api_key: str | None = field(default=None, repr=False, metadata={KEY: Option(
        help=f"That clients must send as Bearer; better in {KEY_VARIABLE}, which no list of processes shows",
        none="that variable's; where it is not set, no key is needed")})
    cors: tuple[str, ...] = option((), "Origin whose pages may send requests, *: any; repeatable", many=True,
                                   metavar="ORIGIN")
    hosts: tuple[str, ...] = option((), "Name of this server in the Host header beside its own; repeatable",
                                    flag="--allow-host", many=True, metavar="NAME")
    max_running: int = option(8, "Requests that are answered at once; further ones wait; 1 with CUDA graphs",
                              unit="requests", low=1, high=256)
    queue: int = option(16, "Requests that may wait; further ones are refused with 429", unit="requests", low=0,
                        high=4096)
    max_prompt_tokens: int | None = option(None, "Of one request", unit="tokens", low=1, none="what the model allows")
    max_answer_tokens: int = option(4096, "Of one request; more are cut to these", unit="tokens", low=1,
                                    high=2 ** 20)
    max_body: int = option(16, "Of one request", unit="MiB", low=1, high=4096)
    max_seconds: float | None = option(None, "Of decoding one answer, which then ends as it is", unit="seconds",
                                       low=0.001, none="no limit")
    beat: float = option(5.0, "Between comments on a stream that has nothing to send", unit="seconds",
                         low=0.01, high=3600)
    drain_timeout: float = option(30.0, "After SIGTERM, for requests that run or wait; what is left is cut off",
                                  unit="seconds", low=0.0, high=86400)
    metrics_prefix: str = option("longgraft:", "Of the names at /metrics; vllm: where a gateway reads those of vLLM")
    model_name: str | None = option(None, "By which clients see the model", none="its own")

    def __post_init__(self) -> None:
        check(self)
        if not self.host.strip():
            raise ValueError("The host is empty. Give an address to listen on, such as 127.0.0.1 or 0.0.0.0.")
        if not re.fullmatch("[a-zA-Z_:][a-zA-Z0-9_:]*", self.metrics_prefix):
            raise ValueError(f"The metrics' prefix is {self.metrics_prefix!r}; it must be of letters, digits, _ and :, "
                             "such as vllm:.")
        if self.api_key is not None and not self.api_key.strip():
            raise ValueError(f"The API key is empty. Give one of at least one character, or leave --api-key and "
                             f"{KEY_VARIABLE} out.")

    @property
    def local(self) -> bool:
        """Whether only this machine can reach it."""
        return of_this_machine(self.host)


def of_this_machine(host: str) -> bool:
    """Whether a name or address leads nowhere else."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
