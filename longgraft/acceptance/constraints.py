"""Constrained decoding: which tokens may come next in an answer that follows a JSON schema, a regex or a grammar."""

from __future__ import annotations

import hashlib
import math
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longgraft.acceptance.grammars import compiled, keep_vocabulary, tried
from longgraft.acceptance.grammars import vocabulary as vocabulary_view
from longgraft.acceptance.json_schemas import TooExpensive, llguidance_process, on_trial
from longgraft.runtime.large_stack import with_large_stack

NOTHING = "NoExtensionBias"  # llguidance's error name for "no token can extend the text"
STUCK = "The answer cannot go on: no token of this model spells what its constraint asks for next."
TOO_MUCH_WORK = "it leaves too many possibilities open at one place; simplify it"
NOT_INSTALLED = (
    '{} needs llguidance, which follows grammars and is not installed. Install it: pip install "longgraft[grammar]".'
)

FIT_SECONDS = 0.02  # CPU time of a step for fitting its tree; what is not looked at by then is not proposed
FEW = 4  # texts among which a choice is proposed as a whole
MOST_READ = 64  # tokens that may come next, for their texts to be compared
END = "<|an answer's end|>"
# Characters of a constraint. llguidance looks ahead through all of a regular expression's forced text for each token.
MOST_TEXT = {"json_schema": 2**20, "grammar": 2**18, "regex": 2**15, "tool_calls": 2**20}
# Most bytes of the matchers that are kept for further requests.
CACHE_BYTES = 2**27
LEAST_BYTES = 2**20  # that count for each of them: copies share most of what a small one takes


class DeadEnd(ValueError):
    """The answer cannot continue under its constraint: no token is allowed."""


class Constraint:
    """The state of one answer's constraint; it advances with each token.

    End tokens are allowed exactly where the answer is complete, and then all of them are.
    """

    def __init__(self, matcher: Any, vocabulary: Any, vocab_size: int, ends: Sequence[int]) -> None:
        """Takes llguidance's matcher and vocabulary, the number of logits, and the end tokens of the answer."""
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._vocab_size = vocab_size
        self._ends = list(ends)
        self.ended = False
        self._next: Any = None  # ids that the grammar allows next, once they are computed

    def allowed(self) -> Tensor:
        """Returns [V] bool on the host: the tokens that may come next.  Raises DeadEnd if there is none."""
        self._check()  # the last token may have been one too many
        bits = torch.zeros(self._vocab_size, dtype=torch.bool)
        if not self.ended and not self._matcher.is_stopped():
            ids = self._next_ids()
            self._check()
            # llguidance's own end token may share its number with a token of the model; that bit has no meaning here.
            bits[ids[(ids < self._vocab_size) & (ids != self._vocabulary.eos_token)]] = True
        bits[self._ends] = self.ended or self._matcher.is_accepting()
        if not bits.any():
            raise DeadEnd(STUCK)
        return bits

    def advance(self, token: int) -> None:
        """Moves past an allowed token."""
        self.ended = self.ended or token in self._ends
        if not self.ended:
            self._next = None
            self._matcher.consume_token(token)
            self._check()

    def accepted(self, tokens: Sequence[int], deadline: float = math.inf) -> int:
        """Counts how many of these tokens may come next, one after the other, as far as `deadline` allows.

        The first end token counts where only allowed tokens precede it: the draw decides about it.
        """
        ahead = self._matcher.deep_copy()  # `validate_tokens` has no limit on the items of a row
        for count, token in enumerate(tokens):
            if token in self._ends:
                return count + 1
            if self.ended or time.thread_time() > deadline or not ahead.consume_token(token):
                return count
        return len(tokens)

    def continuations(self, tokens: Sequence[int] = ()) -> list[list[int]]:
        """Lists the texts that may follow `tokens`, which are allowed: each up to its next choice.

        Returns:
            At most FEW lists of tokens; [] where more texts may follow.
        """
        if self.ended or any(token in self._ends for token in tokens):
            return []
        ahead = self._matcher.deep_copy()
        ahead.consume_tokens(list(tokens))
        forced = ahead.compute_ff_tokens()
        if forced:
            return [list(forced)]
        if ahead.is_stopped():
            if len(self._ends) == 1 and not ahead.is_error():
                return [self._ends]
            return []
        allowed = _ids(ahead.compute_bitmask()) if tokens else self._next_ids()
        if len(allowed) > MOST_READ:
            return []
        return [[token, *self._forced(ahead, token)] for token in self._longest(allowed)]

    def _next_ids(self) -> Any:
        if self._next is None:
            self._next = _ids(self._matcher.compute_bitmask())
        return self._next

    def _longest(self, tokens: Sequence[int]) -> list[int]:
        """Returns the tokens whose text is no proper prefix of another's; [] if they are more than FEW."""
        texts = {
            token: self._vocabulary.decode_bytes([token]) for token in tokens if token != self._vocabulary.eos_token
        }
        longest = []
        for token, text in texts.items():
            if not any(longer.startswith(text) and longer != text for longer in texts.values()):
                longest.append(token)
        return longest if len(longest) <= FEW else []

    @staticmethod
    def _forced(matcher: Any, token: int) -> list[int]:
        behind = matcher.deep_copy()
        if behind.consume_token(token):
            return list(behind.compute_ff_tokens())
        return []

    def _check(self) -> None:
        if not self._matcher.is_error():
            return
        why = reason(self._matcher.get_error())
        if why == NOTHING:
            raise DeadEnd(STUCK)
        raise DeadEnd(f"The answer's constraint cannot be followed further: {why}.")


def constraint(name: str, text: str, tokenizer: Any, vocab_size: int, ends: Sequence[int]) -> Constraint:
    """Returns the constraint of one answer.

    Args:
        name: json_schema, regex (Rust's syntax), grammar (Lark or GBNF) or tool_calls (Lark with checked
            schemas); or one of the first three after CALLS_OR.
        text: The schema, expression or grammar; or JSON of it and of the grammar of the calls.
        tokenizer: The target's tokenizer.
        vocab_size: Number of the target's logits.
        ends: The end tokens; one of them must follow a complete answer.

    Raises:
        ValueError: the constraint cannot be followed; the message begins with the name.
    """
    if not ends:
        raise ValueError(f"{name} needs an end token to follow a complete answer, and this model names none. Give eos.")
    most = MOST_TEXT[name.partition(" or ")[0]]
    if len(text) > most:
        raise ValueError(f"{name} has {len(text):,} characters, and {most:,} are allowed. Shorten it.")
    matcher = _matchers.get(name, text, tokenizer, vocab_size).deep_copy()
    begun = Constraint(matcher, _vocabulary(tokenizer, vocab_size).view, vocab_size, ends)
    try:
        begun.allowed()
    except DeadEnd as error:
        raise ValueError(f"{name} cannot be followed: {error}") from error
    return begun


@dataclass(frozen=True)
class _Vocabulary:
    """A tokenizer as llguidance reads it.

    Attributes:
        digest: Its name in llguidance's own process.
        parts: The arguments of `grammars.vocabulary`.
        view: llguidance's view of it.
    """

    digest: str
    parts: tuple[str, int, int]
    view: Any


class _Matchers:
    """The matchers of the last constraints, at the beginning of an answer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[Any, tuple[Any, int]] = OrderedDict()

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()

    def get(self, name: str, text: str, tokenizer: Any, vocab_size: int) -> Any:
        """Returns a constraint's matcher, compiled if it is not kept; others are compiled meanwhile."""
        key = name, text, tokenizer, vocab_size
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key][0]
        matcher, size = _compiled(name, text, tokenizer, vocab_size)
        with self._lock:
            self._kept[key] = matcher, size
            while sum(taken for _, taken in self._kept.values()) > CACHE_BYTES:
                self._kept.popitem(last=False)
        return matcher


_matchers = _Matchers()


def _compiled(name: str, text: str, tokenizer: Any, vocab_size: int) -> tuple[Any, int]:
    """Returns llguidance's matcher at the beginning of an answer, and the bytes that it takes."""
    if find_spec("llguidance") is None:
        raise ValueError(NOT_INSTALLED.format(name))
    vocabulary = _vocabulary(tokenizer, vocab_size)
    digest, parts = vocabulary.digest, vocabulary.parts
    llguidance_process().keep(digest, keep_vocabulary, lambda: (digest, *parts))
    try:
        source, size = on_trial(name, tried, name, text, digest)
        matcher = with_large_stack(partial(compiled, name, source, vocabulary.view))
    except TooExpensive:
        raise
    except ValueError as error:
        raise ValueError(f"{name} cannot be followed: {reason(str(error))}.") from error
    return matcher, len(text) + max(size, LEAST_BYTES)


@lru_cache(maxsize=4)
def _vocabulary(tokenizer: Any, vocab_size: int) -> _Vocabulary:
    """Returns a tokenizer as llguidance reads it.

    Its end token is an added one: which of the model's tokens end an answer differs by request (see
        `Constraint`).
    """
    from tokenizers import Tokenizer

    if not hasattr(tokenizer, "backend_tokenizer"):
        raise ValueError(
            "This model came without a tokenizer of the tokenizers library, by which grammars "
            "are followed. Load the model with one."
        )
    whole = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    whole.no_padding()
    whole.no_truncation()
    whole.add_special_tokens([END])
    size = max(vocab_size, whole.get_vocab_size(with_added_tokens=True))
    end: Any = whole.token_to_id(END)
    parts = whole.to_str(), size, end
    try:
        view = vocabulary_view(*parts)
    except ValueError as error:
        raise ValueError(f"No grammar can be followed with this model's tokenizer: {reason(str(error))}.") from error
    return _Vocabulary(hashlib.sha256(repr(parts).encode()).hexdigest(), parts, view)


def _ids(packed: bytes) -> Any:
    """Returns the tokens of a bit mask, ascending, as a numpy array."""
    return np.unpackbits(np.frombuffer(packed, dtype=np.uint8), bitorder="little").nonzero()[0]


def reason(message: str) -> str:
    """Returns one line of a message of llguidance, which may be a multi-line diagnostic."""
    if re.search("too many items|row has .* items|fuel", message, re.IGNORECASE):
        return TOO_MUCH_WORK
    error = re.search(r"^error: (.+)$", message, re.MULTILINE)
    if error:
        return error[1]
    first = message.strip().partition("\n")[0]
    return re.sub(r"^at \d+\(\d+\): ", "", first).rstrip(".: ")
