"""Constrained decoding: which tokens may come next in an answer that follows a JSON schema, a regex or a grammar."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

# JSON is spaced like Python's json.dumps output: with only one way to write a document, keys and punctuation are forced
# and cost no draws.  A schema's own "x-guidance" wins, such as {"whitespace_flexible": true}.
SPACING: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
NOTHING = "NoExtensionBias"     # llguidance's error name for "no token can extend the text"
STUCK = "The answer cannot go on: no token of this model spells what its constraint asks for next."
NOT_INSTALLED = ("{} needs llguidance, which follows grammars and is not installed. Install it: pip install "
                 "longgraft[grammar].")

FEW = 4             # up to this many alternative texts are all proposed
MOST_READ = 64      # above this many allowed tokens, their texts are not compared
END = "<|an answer's end|>"     # end token that is added to llguidance's copy of the vocabulary
MOST_TEXT = 2 ** 20     # longest constraint, in characters
STACK = 2 ** 28         # thread stack in bytes, mostly never touched: llguidance recurses into references, 3 KiB each

_stack_size = threading.Lock()     # threading.stack_size is global to the process


class DeadEnd(ValueError):
    """The answer cannot continue under its constraint: no token is allowed."""


class Constraint:
    """The state of one answer's constraint; it advances with each token.

    End tokens are allowed exactly where the answer is complete, and then all of them are.
    """

    def __init__(self, matcher: Any, vocabulary: Any, vocab_size: int, ends: Sequence[int]) -> None:
        """matcher, vocabulary: llguidance's objects; ends: the end tokens of the answer."""
        self._matcher, self._vocabulary, self._vocab_size, self._ends = matcher, vocabulary, vocab_size, list(ends)
        self.ended = False

    def allowed(self) -> Tensor:
        """Returns [V] bool on the host: the tokens that may come next.  Raises DeadEnd if there is none."""
        bits = torch.zeros(self._vocab_size, dtype=torch.bool)
        if not self.ended and not self._matcher.is_stopped():
            found = _ids(self._matcher.compute_bitmask())
            self._check()
            # llguidance's own end token may share its number with a token of the model; that bit has no meaning here.
            bits[found[(found < self._vocab_size) & (found != self._vocabulary.eos_token)]] = True
        bits[self._ends] = self.ended or self._matcher.is_accepting()
        if not bits.any():
            raise DeadEnd(STUCK)
        return bits

    def advance(self, token: int) -> None:
        """Moves past an allowed token."""
        self.ended = self.ended or token in self._ends
        if not self.ended:
            self._matcher.consume_token(token)
            self._check()

    def accepted(self, tokens: Sequence[int]) -> int:
        """Returns how many of these tokens are allowed, one after the other.

        The first end token counts if all tokens before it are allowed: the draw decides if the answer ends there.
        """
        end = next((n for n, token in enumerate(tokens) if token in self._ends), len(tokens))
        followed = 0 if self.ended else self._matcher.validate_tokens(list(tokens[:end]))
        return followed + (followed == end < len(tokens))

    def continuations(self, tokens: Sequence[int] = ()) -> list[list[int]]:
        """Returns the texts that may follow the allowed `tokens`, each up to its next choice.

        There is one text if it is forced, and at most FEW; [] if there are more.
        """
        if self.ended or any(token in self._ends for token in tokens):
            return []
        ahead = self._matcher.deep_copy()
        ahead.consume_tokens(list(tokens))
        if forced := ahead.compute_ff_tokens():
            return [list(forced)]
        if ahead.is_stopped():
            return [self._ends] if len(self._ends) == 1 and not ahead.is_error() else []
        allowed = _ids(ahead.compute_bitmask())
        if len(allowed) > MOST_READ:
            return []
        return [[token, *self._forced(ahead, token)] for token in self._longest(allowed)]

    def _longest(self, tokens: Sequence[int]) -> list[int]:
        """Returns the tokens whose text is no proper prefix of another's; [] if they are more than FEW."""
        texts = {token: self._vocabulary.decode_bytes([token]) for token in tokens
                 if token != self._vocabulary.eos_token}
        kept = [token for token, text in texts.items()
                if not any(other.startswith(text) and other != text for other in texts.values())]
        return kept if len(kept) <= FEW else []

    @staticmethod
    def _forced(matcher: Any, token: int) -> list[int]:
        behind = matcher.deep_copy()
        return list(behind.compute_ff_tokens()) if behind.consume_token(token) else []

    def _check(self) -> None:
        if self._matcher.is_error():
            why = reason(self._matcher.get_error())
            raise DeadEnd(STUCK if why == NOTHING else f"The answer's constraint cannot be followed further: {why}.")


def constraint(name: str, text: str, tokenizer: Any, vocab_size: int, ends: Sequence[int]) -> Constraint:
    """Returns the constraint of one answer.

    Args:
        name: json_schema, regex (Rust's syntax) or grammar (Lark or GBNF).
        text: the schema, expression or grammar.
        tokenizer: the target's tokenizer.
        vocab_size: number of the target's logits.
        ends: the end tokens; one of them must follow a complete answer.

    Raises:
        ValueError: the constraint cannot be followed; the message begins with the name.
    """
    if not ends:
        raise ValueError(f"{name} needs an end token to follow a complete answer, and this model names none. Give eos.")
    if len(text) > MOST_TEXT:
        raise ValueError(f"{name} has {len(text):,} characters, and {MOST_TEXT:,} are allowed. Shorten it.")
    matcher = _compiled(name, text, tokenizer, vocab_size).deep_copy()
    found = Constraint(matcher, _vocabulary(tokenizer, vocab_size), vocab_size, ends)
    try:
        found.allowed()
    except DeadEnd as error:
        raise ValueError(f"{name} cannot be followed: {error}") from error
    return found


@lru_cache(maxsize=64)
def _compiled(name: str, text: str, tokenizer: Any, vocab_size: int) -> Any:
    """Returns llguidance's matcher at the beginning of an answer."""
    try:
        from llguidance import LLMatcher, grammar_from
    except ImportError as error:
        raise ValueError(NOT_INSTALLED.format(name)) from error
    vocabulary, form = _vocabulary(tokenizer, vocab_size), cast(Any, name)

    def compiled() -> Any:
        source = (LLMatcher.grammar_from_json_schema(text, defaults=SPACING) if name == "json_schema" else
                  grammar_from(form, text))
        wrong, messages = LLMatcher.validate_grammar_with_warnings(source, vocabulary)
        if wrong:
            raise ValueError(messages[0])
        matcher = LLMatcher(vocabulary, source, log_level=0)
        tried = matcher.deep_copy()
        if not tried.consume_tokens(tried.compute_ff_tokens()):     # A schema that requires itself has no document.
            raise ValueError(tried.get_error())
        return matcher
    try:
        return _with_stack(compiled)
    except ValueError as error:
        raise ValueError(f"{name} cannot be followed: {reason(str(error))}.") from error


def _with_stack(run: Callable[[], Any]) -> Any:
    """Runs in a thread with a large stack: deep nesting that overflows the stack would end the whole process."""
    with ThreadPoolExecutor(1) as pool:
        with _stack_size:
            before = threading.stack_size(STACK)
            try:
                running = pool.submit(run)      # starts the thread
            finally:
                threading.stack_size(before)
        return running.result()


@lru_cache(maxsize=4)
def _vocabulary(tokenizer: Any, vocab_size: int) -> Any:
    """Returns llguidance's view of a tokenizer; building it takes about a second.

    Its end token is an added one: which of the model's tokens end an answer differs by request (see `Constraint`).
    """
    from llguidance import LLTokenizer
    from tokenizers import Tokenizer

    if not hasattr(tokenizer, "backend_tokenizer"):
        raise ValueError("This model came without a tokenizer of the tokenizers library, by which grammars are "
                         "followed. Load the model with one.")
    whole = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    whole.no_padding()
    whole.no_truncation()
    whole.add_special_tokens([END])
    size = max(vocab_size, whole.get_vocab_size(with_added_tokens=True))
    try:
        return LLTokenizer(whole.to_str(), n_vocab=size, eos_token=whole.token_to_id(END))
    except ValueError as error:
        raise ValueError(f"No grammar can be followed with this model's tokenizer: {reason(str(error))}.") from error


def _ids(packed: bytes) -> Any:
    """Returns the tokens of a bit mask, ascending, as a numpy array."""
    return np.unpackbits(np.frombuffer(packed, dtype=np.uint8), bitorder="little").nonzero()[0]


def reason(message: str) -> str:
    """Returns one line of a message that may be a multi-line diagnostic."""
    if found := re.search(r"^error: (.+)$", message, re.MULTILINE):
        return found[1]
    first = message.strip().partition("\n")[0]
    return re.sub(r"^at \d+\(\d+\): ", "", first).rstrip(".: ")
