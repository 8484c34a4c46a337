"""Options of the plug-ins, and the versions of engines that they were tried with."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields

# Engines' versions, the newest last.
TRIED = {"sglang": ("0.5.23",), "vllm": ("0.32.0", "0.33.0"), "llama-cpp-python": ("0.3.36",)}


@dataclass(frozen=True)
class TextOptions:
    """Limits of the texts' memory, and the price of a proposed token.

    Attributes:
        price: Time of one more row in a pass, as a share of a plain step; 0.003 is an 8B's on an H100.
        text_bytes: Most bytes of one text; the end of a longer one is read.
        all_bytes: Most bytes of all texts; a request that finds no room decodes plainly.
        idle_steps: Steps after which a text that no request asked for is forgotten.
    """

    price: float = 0.003
    text_bytes: int = 2**28
    all_bytes: int = 2**32
    idle_steps: int = 64

    @staticmethod
    def of(given: Mapping[str, float]) -> TextOptions:
        """Returns the options with these values.

        Raises:
            ValueError: a name is unknown, or a value is no positive number.
        """
        kinds = {field.name: type(field.default) for field in fields(TextOptions)}
        for name, value in given.items():
            if name not in kinds:
                raise ValueError(f"longgraft's plug-in has no option {name!r}. Its options are {', '.join(kinds)}.")
            if isinstance(value, bool) or not isinstance(value, int | kinds[name]) or value <= 0:
                raise ValueError(f"longgraft's option {name} is {value!r}. Give a positive {kinds[name].__name__}.")
        return TextOptions(**given)  # type: ignore[arg-type]


def untried(engine: str, found: str) -> str:
    """Returns a sentence about a version that the plug-in was not tried with."""
    tried = TRIED[engine]
    return (
        f"longgraft's plug-in was tried with {engine} {' and '.join(tried)}, and this is {found}. "
        f"If it fails, install {engine}=={tried[-1]}."
    )


def warn_if_untried(engine: str, found: str, log: logging.Logger) -> None:
    """Logs the sentence if this version was not tried."""
    if found.partition("+")[0] not in TRIED[engine]:  # behind the plus sign is the build
        log.warning(untried(engine, found))
