"""Constrained decoding: which tokens may come next in an answer that follows a JSON schema, a regex or a grammar."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longgraft.acceptance.json_schemas import SPACING, problems
from longgraft.acceptance.large_stack import with_large_stack

NOTHING = "NoExtensionBias"  # llguidance's error name for "no token can extend the text"
STUCK = "The answer cannot go on: no token of this model spells what its constraint asks for next."
TOO_MUCH_WORK = "it leaves too many possibilities open at one place; simplify it"
NOT_INSTALLED = (
    "{} needs llguidance, which follows grammars and is not installed. Install it: pip install longgraft[grammar]."
)

# llguidance's limits of the work for one token. With these an ambiguous grammar takes at most about 50 ms
# for a token on a 3 GHz core, and llama.cpp's json.gbnf still passes with a vocabulary of 150,000 (it needs
# 25,000 items).
LIMITS: Any = {
    "step_max_items": 30_000,
    "initial_lexer_fuel": 300_000,
    "step_lexer_fuel": 100_000,
    "max_grammar_size": 100_000,
    "verbose_errors": False,
}
# Parser items at one place of the text. In an ambiguous grammar, which a schema never is, their work grows
# cubically.  A grammar of tool calls is made of schemas, and has an item for each tool.
MOST_ITEMS = {"json_schema": 2000, "regex": 500, "grammar": 500, "tool_calls": 4000}
FIT_SECONDS = 0.02  # CPU time of a step for fitting its tree; what is not looked at by then is not proposed
FEW = 4  # texts among which a choice is proposed as a whole
MOST_READ = 64  # tokens that may come next, for their texts to be compared
END = "<|an answer's end|>"
# Characters of a constraint. llguidance looks ahead through all of a regular expression's forced text for each token.
MOST_TEXT = {"json_schema": 2**20, "grammar": 2**18, "regex": 2**15, "tool_calls": 2**20}
# CPU seconds for GBNF to Lark, which llguidance does in Python: the time grows quadratically with the rules.
CONVERT_SECONDS = 2
# Seconds after which the process is given up, on a machine that has no time for it.
CONVERT_PATIENCE = 20
# Runs in a process of its own, which the system ends after these seconds.
CONVERT = """import os, resource, sys
os.nice(10)
resource.setrlimit(resource.RLIMIT_CPU, 2 * (int(sys.argv[1]),))
from llguidance.gbnf_to_lark import any_to_lark
try:
    sys.stdout.write(any_to_lark(sys.stdin.read()))
except Exception as error:
    sys.exit(f"Failed to convert the grammar from GBNF to Lark: {error}")"""


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
            schemas).
        text: The schema, expression or grammar.
        tokenizer: The target's tokenizer.
        vocab_size: Number of the target's logits.
        ends: The end tokens; one of them must follow a complete answer.

    Raises:
        ValueError: the constraint cannot be followed; the message begins with the name.
    """
    if not ends:
        raise ValueError(f"{name} needs an end token to follow a complete answer, and this model names none. Give eos.")
    most = MOST_TEXT[name]
    if len(text) > most:
        raise ValueError(f"{name} has {len(text):,} characters, and {most:,} are allowed. Shorten it.")
    matcher = _compiled(name, text, tokenizer, vocab_size).deep_copy()
    begun = Constraint(matcher, _vocabulary(tokenizer, vocab_size), vocab_size, ends)
    try:
        begun.allowed()
    except DeadEnd as error:
        raise ValueError(f"{name} cannot be followed: {error}") from error
    return begun


@lru_cache(maxsize=64)
def _compiled(name: str, text: str, tokenizer: Any, vocab_size: int) -> Any:
    """Returns llguidance's matcher at the beginning of an answer."""
    try:
        from llguidance import LLMatcher, LLParserLimits
    except ImportError as error:
        raise ValueError(NOT_INSTALLED.format(name)) from error
    vocabulary = _vocabulary(tokenizer, vocab_size)

    def compiled() -> Any:
        source = _source(name, text)
        limits = LLParserLimits(max_items_in_row=MOST_ITEMS[name], **LIMITS)
        matcher = LLMatcher(vocabulary, source, log_level=0, limits=limits)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        trial = matcher.deep_copy()
        # A schema that requires itself has no document.
        if not trial.consume_tokens(trial.compute_ff_tokens()):
            raise ValueError(trial.get_error())
        return matcher

    try:
        return with_large_stack(compiled)
    except ValueError as error:
        raise ValueError(f"{name} cannot be followed: {reason(str(error))}.") from error


def _source(name: str, text: str) -> str:
    """Returns llguidance's grammar for a constraint."""
    from llguidance import LLMatcher

    if name == "json_schema":
        return _of_schema(text)
    if name == "regex":
        return LLMatcher.grammar_from_regex(text)
    lark = text if name == "tool_calls" else _as_lark(text)
    return LLMatcher.grammar_from_lark(lark)


def _of_schema(text: str) -> str:
    """Converts a JSON schema."""
    from llguidance import LLMatcher

    try:
        unfollowable = problems(json.loads(text))
    except RecursionError as error:
        raise ValueError("it nests too deeply") from error
    if unfollowable:
        raise ValueError(f"{unfollowable[0]}. Leave it out")
    return LLMatcher.grammar_from_json_schema(text, defaults=SPACING)


def _as_lark(text: str) -> str:
    """Converts GBNF to Lark, which is left as it is."""
    from llguidance.gbnf_to_lark import is_lark_syntax

    if is_lark_syntax(text):
        return text
    slow = f"it takes more than {CONVERT_SECONDS} s to convert from GBNF; simplify it, or write it in Lark"
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-X", "utf8", "-c", CONVERT, str(CONVERT_SECONDS)],
            input=text,
            capture_output=True,
            encoding="utf-8",
            timeout=CONVERT_PATIENCE,
        )
    except subprocess.TimeoutExpired as error:  # on a machine that has no time for it
        raise ValueError(slow) from error
    if done.returncode < 0:
        raise ValueError(slow)
    if done.returncode:
        raise ValueError(done.stderr.strip())
    return done.stdout


@lru_cache(maxsize=4)
def _vocabulary(tokenizer: Any, vocab_size: int) -> Any:
    """Returns llguidance's view of a tokenizer; building it takes about a second.

    Its end token is an added one: which of the model's tokens end an answer differs by request (see
        `Constraint`).
    """
    from llguidance import LLTokenizer
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
    try:
        return LLTokenizer(whole.to_str(), n_vocab=size, eos_token=whole.token_to_id(END))
    except ValueError as error:
        raise ValueError(f"No grammar can be followed with this model's tokenizer: {reason(str(error))}.") from error


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
