"""Options of `longgraft verify --endpoints`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le

from longgraft.config.options import Checked, option, options


@dataclass(frozen=True)
class EndpointOptions(Checked):
    """Two servers, compared instead of a method and plain decoding."""

    endpoints: tuple[str, str] | None = option(
        None,
        "Compare the completions of two servers, or of one before and after a restart (its URL twice)",
        none="a model is loaded here",
        metavar="URL URL",
    )
    model_name: str | None = option(None, "Model that requests to the servers name", none="they name none")
    key_env: str | None = option(
        None, "Environment variable that holds the servers' API key", none="no key is sent", metavar="NAME"
    )
    tie: Annotated[float, Ge(0), Le(100)] = option(
        0.0, "Largest top-2 margin of a difference between servers that counts as rounding", unit="nats"
    )
    request_timeout: Annotated[float, Gt(0), Le(10**6)] = option(
        600.0, "Longest time that a server may take for an answer", unit="s"
    )
    out: str | None = option(None, "New JSONL file of the servers' answers, a row for each prompt", none="none")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.endpoints is None:
            for name in given([self]):
                raise ValueError(f"{name} was given without --endpoints. Give two servers' URLs, or leave it out.")


def given(groups: Iterable[Any], read: Collection[str] = ()) -> list[str]:
    """Returns the flags of options that differ from their defaults, without the fields in `read`."""
    flags = []
    for group in groups:
        for name, described in options(type(group)).items():
            if name not in read and getattr(group, name) != described.default:
                flags.append(described.switch)
    return flags


def refuse_unread(groups: Iterable[Any]) -> None:
    """Raises ValueError for options that only a model in this process reads."""
    flags = given(groups, ("count", "max_new_tokens", "temperature", "seed"))
    if flags:
        raise ValueError(
            f"--endpoints goes without {', '.join(flags)}: no model is loaded here. Give such options to the servers."
        )
