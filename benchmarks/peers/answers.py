"""Prompts that every engine continues, and their answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.json_rows import read_objects


@dataclass(frozen=True)
class Prompt:
    """Token ids that all engines continue.

    Attributes:
        suite: The suite's name.
        length: The bucket's length in tokens; 0: the prompt is whole.
        id: The row's id in its suite.
        ids: The token ids.
    """

    suite: str
    length: int
    id: str
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Answer:
    """One engine's answer to a prompt, always of the wanted number of tokens.

    Attributes:
        read_seconds: Seconds until the first token.
        decode_seconds: Seconds from the first token to the last.
        ids: The new tokens.
        new_tokens: Number of them as the engine counts it.
        first: Tokens that reading yields; more than one if a proposal is verified in the same pass.
        steps: Passes after reading; None: the engine does not tell.
        drafted: Proposed tokens; None: the engine does not tell.
        accepted: Proposed tokens that were kept; None: the engine does not tell.
        encoded_again: True if the engine returns a text only, and `ids` are the ids of this text.
    """

    read_seconds: float
    decode_seconds: float
    ids: Sequence[int]
    new_tokens: int
    first: int = 1
    steps: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    encoded_again: bool = False

    def row(self, prompt: Prompt) -> dict[str, Any]:
        """Returns the answer's fields of a row, with its rates in tokens per second."""
        later = self.new_tokens - self.first
        return asdict(self) | {
            "prompt_tokens": len(prompt.ids),
            "read": len(prompt.ids) / self.read_seconds,
            "decode": later / self.decode_seconds,
            "tokens_per_step": later / self.steps if self.steps else None,
            "seconds": self.read_seconds + self.decode_seconds,
        }


@dataclass(frozen=True)
class Setup:
    """The settings that an engine runs with.

    Attributes:
        file: The GGUF file.
        methods: Names of methods; empty: those that the engine has by default.
        new: Tokens of each answer; end tokens are ignored.
        threads: Threads of a pass.
        longest: Tokens of the longest prompt.
        command: Command line of a server.
        keep: Keep one server for all prompts, with what it has learnt from those before.
    """

    file: str
    methods: tuple[str, ...] = ()
    new: int = 64
    threads: int = 1
    longest: int = 0
    command: str = ""
    keep: bool = False


Decode = Callable[[Sequence[int]], Answer]
Engine = Callable[[Setup], Iterator[tuple[str, Decode]]]  # yields the name of each method and its decoding


def read_prompts(path: Path) -> list[Prompt]:
    """Reads prompts, one JSON object a line; raises ValueError if the file is none of prompts."""
    rows = read_objects(path, Prompt.__dataclass_fields__, "Make prompts with the command prompts.")
    return [Prompt(**row | {"ids": tuple(row["ids"])}) for row in rows]


def chosen(methods: Sequence[str], known: Mapping[str, Any]) -> list[str]:
    """Returns the wanted methods, all if none is named; raises ValueError if one is unknown."""
    for name in methods:
        if name not in known:
            raise ValueError(f"There is no method {name}. Give some of: {', '.join(known)}.")
    return list(methods or known)


def answer_of_pieces(pieces: Sequence[tuple[float, Sequence[int]]], began: float) -> Answer:
    """Returns the answer of an engine that streams the tokens of each pass in one piece.

    Args:
        pieces: For each pass, the time at which its tokens came, and these tokens.
        began: The time at which the engine was asked.
    """
    ids = [token for _, tokens in pieces for token in tokens]
    first = len(pieces[0][1])
    steps = len(pieces) - 1
    return Answer(
        pieces[0][0] - began,
        pieces[-1][0] - pieces[0][0],
        ids,
        len(ids),
        first,
        steps,
        accepted=len(ids) - first - steps,
    )
