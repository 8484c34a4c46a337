"""Options of the plug-ins, and the versions of engines that they were tried with."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

# Engines' versions, the newest last.
TRIED = {"sglang": ("0.5.23",), "vllm": ("0.32.0", "0.33.0"), "llama-cpp-python": ("0.3.36",)}
BYTES = 1_700  # most bytes of a token: ten contexts, in a table that is at least a quarter full
LEAST = 2 * BYTES  # a token of the prompt and one of the answer


@dataclass(frozen=True)
class TextOptions:
    """Limits of the texts' memory, and the price of a proposed token.

    Attributes:
        price: Time of one more row in a pass, as a share of a plain step; 0.003 is an 8B's on an H100.
        text_bytes: Most bytes of one text; the end of a longer one is read.
        all_bytes: Most bytes of all texts; a request that finds no room decodes plainly.
        idle_steps: Steps after which a text that no request asked for is forgotten.

    Raises:
        ValueError: a value is no positive number, or `text_bytes` holds no text.
    """

    price: float = 0.003
    text_bytes: int = 2**28
    all_bytes: int = 2**32
    idle_steps: int = 64

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            kind: Any = type(field.default)
            if isinstance(value, bool) or not isinstance(value, int | kind) or not 0 < value < math.inf:
                raise ValueError(f"longgraft's option {field.name} is {value!r}. Give a positive {kind.__name__}.")
        if self.text_bytes < LEAST:
            raise ValueError(f"longgraft's option text_bytes is {self.text_bytes:,}. Give at least {LEAST:,}.")

    @staticmethod
    def of(given: Mapping[str, float]) -> TextOptions:
        """Returns the options with these values.

        Raises:
            ValueError: a name is unknown, or a value does not fit.
        """
        known = [field.name for field in fields(TextOptions)]
        for name in given:
            if name not in known:
                raise ValueError(f"longgraft's plug-in has no option {name!r}. Its options are {', '.join(known)}.")
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
