"""Compares the completions of two servers: the first difference, the margin there, and each server with itself."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from longgraft.comparison.levels import first_divergence
from longgraft.config.endpoint_options import EndpointOptions
from longgraft.eval.checks.completion_server import CompletionServer, RefusedError, Reply, TopTokens

TOP = 5  # log-probabilities for each token, the most that OpenAI's completions give
SEEDED_TEMPERATURE = 1.0  # of the seeded answers, unless --temperature says another
SERVERS = ("A", "B")
SHOWN = 24  # characters of a token, or of a text from the difference on
# What a row may say. The last two are differences that a setting of the servers made.
EQUAL, OTHER_PROMPT, UNSTEADY, TIE = "equal", "other prompt", "unsteady", "near tie"
VARIES, DIFFERS = "varies", "differs"


@dataclass(frozen=True)
class Asked:
    """The fields of all requests."""

    max_tokens: int
    temperature: float
    seed: int


@dataclass(frozen=True)
class Answers:
    """All answers of one server to one prompt.

    Attributes:
        greedy: The answers to two equal greedy requests.
        explained: The greedy answer with log-probabilities; None if such a request is refused.
        seeded: The answers to two equal requests with a seed; () if they are refused.
        refusals: What the server does not do, in sentences.
    """

    greedy: tuple[Reply, Reply]
    explained: Reply | None = None
    seeded: tuple[Reply, ...] = ()
    refusals: tuple[str, ...] = ()

    @property
    def seeded_steady(self) -> bool | None:
        """True if the two seeded answers are equal; None if there are none."""
        if not self.seeded:
            return None
        return self.seeded[0].text == self.seeded[1].text


def servers_of(options: EndpointOptions) -> list[CompletionServer]:
    """Returns the two servers; raises ValueError if the variable of the key is not set."""
    key = None
    if options.key_env is not None:
        key = os.environ.get(options.key_env)
        if not key:
            raise ValueError(f"The environment variable {options.key_env} of --key-env is not set. Set it to the key.")
    urls = options.endpoints or ()
    return [CompletionServer(url, options.model_name, key, options.request_timeout) for url in urls]


def answers_of(server: CompletionServer, prompt: str, asked: Asked) -> Answers:
    """Asks a server five times for one prompt."""
    greedy = [server.complete(prompt, asked.max_tokens, temperature=0) for _ in range(2)]
    refusals = []
    explained = None
    try:  # on its own, because servers may decode without speculation where log-probabilities are asked for
        explained = server.complete(prompt, asked.max_tokens, temperature=0, logprobs=TOP)
        if not any(token.top for token in explained.tokens):
            refusals.append("gives no log-probabilities, so margins are unknown")
    except RefusedError as error:
        refusals.append(f"refuses logprobs, so margins are unknown: {error}")
    seeded: list[Reply] = []
    drawn = {"temperature": asked.temperature, "seed": asked.seed}
    try:
        seeded = [server.complete(prompt, asked.max_tokens, **drawn) for _ in range(2)]
    except RefusedError as error:
        refusals.append(f"refuses seed, so seeded answers are not compared: {error}")
    return Answers((greedy[0], greedy[1]), explained, tuple(seeded), tuple(refusals))


def check(
    servers: Sequence[CompletionServer], prompts: Sequence[str], asked: Asked, tie: float, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Asks both servers, the second after the first, and returns the comparison.

    Args:
        tie: Differences with a smaller margin, or this one, count as rounding.
        tell: Is told what happens; the request to restart a server that is given twice comes this way, too.

    Raises:
        ValueError: A server cannot be reached, or refuses greedy completions.
    """
    found: list[list[Answers]] = []
    for name, server in zip(SERVERS, servers, strict=True):
        if found and server.address == servers[0].address:
            tell(f"restart {server.url} with the other setting, and press Enter when it is ready")
            if not input_line():
                raise ValueError("Standard input ended before the restart. Run both settings, on two ports.")
        answers = []
        for number, prompt in enumerate(prompts, 1):
            tell(f"{name}, {server.url}: prompt {number} of {len(prompts)}")
            answers.append(answers_of(server, prompt, asked))
        found.append(answers)
    rows = []
    for number, (a, b) in enumerate(zip(*found, strict=True), 1):
        rows.append({"prompt": number, **compared(a, b, tie)})
    verdicts = Counter(row["verdict"] for row in rows)
    return {
        "a": servers[0].url,
        "b": servers[1].url,
        "max_tokens": asked.max_tokens,
        "temperature": asked.temperature,
        "seed": asked.seed,
        "tie": tie,
        "verdicts": dict(verdicts),
        "differ": verdicts[DIFFERS] + verdicts[VARIES],
        "rows": rows,
        "notes": refusal_notes(found),
    }


def refusal_notes(found: Sequence[Sequence[Answers]]) -> list[str]:
    """Returns what the servers do not do: one sentence for each kind, because its words may hold a request's number."""
    notes = []
    for name, answers in zip(SERVERS, found, strict=True):
        kinds = {text.partition(":")[0]: text for each in answers for text in each.refusals}
        notes += [f"{name} {text}" for text in kinds.values()]
    return notes


def input_line() -> str:
    """Waits for a line of standard input; "" if that has ended."""
    return sys.stdin.readline()


def compared(a: Answers, b: Answers, tie: float) -> dict[str, Any]:
    """Returns the comparison of the answers to one prompt, with the first two texts that differ."""
    one, other = a.greedy[0], b.greedy[0]
    for pair in reversed(list(product(a.greedy, b.greedy))):
        if pair[0].text != pair[1].text:
            one, other = pair
    at = first_divergence(one.text, other.text)
    own = [own_difference(a), own_difference(b)]
    row: dict[str, Any] = {
        "prompt_tokens": [one.prompt_tokens, other.prompt_tokens],
        "new_tokens": [one.new_tokens, other.new_tokens],
        "own_differences": own,
        "seeded_steady": [a.seeded_steady, b.seeded_steady],
        "seeded_equal": None,
        "first_difference": None,
        "texts": [one.text, other.text],
    }
    if a.seeded and b.seeded:
        row["seeded_equal"] = a.seeded[0].text == b.seeded[0].text
    margins: list[float | None] = []
    if at is not None:
        row["first_difference"] = difference([one.text, other.text], [a.explained, b.explained], at)
        margins = row["first_difference"]["margins"]
    return row | {"verdict": verdict(row, margins, tie)}


def verdict(row: dict[str, Any], margins: Sequence[float | None], tie: float) -> str:
    """Says what a comparison shows."""
    counts = {count for count in row["prompt_tokens"] if count is not None}
    known = [margin for margin in margins if margin is not None]
    if len(counts) > 1:
        return OTHER_PROMPT
    if all(row["own_differences"]):
        return UNSTEADY
    if row["first_difference"] is None:
        return EQUAL
    if known and max(known) <= tie:
        return TIE
    if any(row["own_differences"]):
        return VARIES
    return DIFFERS


def own_difference(answers: Answers) -> dict[str, Any] | None:
    """Describes the first difference of a server's two greedy answers; None if they are equal."""
    texts = [reply.text for reply in answers.greedy]
    at = first_divergence(*texts)
    if at is None:
        return None
    return difference(texts, [answers.explained] * 2, at)


def difference(texts: Sequence[str], explained: Sequence[Reply | None], at: int) -> dict[str, Any]:
    """Describes the first difference of two greedy texts.

    Tokens are known only where the answer with log-probabilities is the same up to there.

    Args:
        texts: The two texts.
        explained: The answers with log-probabilities of the servers that they came from.
        at: The first character that differs.
    """
    listed = [tokens_of(text, reply, at) for text, reply in zip(texts, explained, strict=True)]
    index = None
    if all(listed):
        index = first_divergence([token.spelt for token in listed[0]], [token.spelt for token in listed[1]])
    found: dict[str, Any] = {"character": at, "token": index, "shown": [], "margins": [], "top": []}
    for text, tokens in zip(texts, listed, strict=True):
        place = index
        if tokens and place is None:
            place = covering(tokens, len(text[:at].encode()))
            found["token"] = place
        token = tokens[place] if place is not None and place < len(tokens) else None
        found["shown"].append(text[at : at + SHOWN] if token is None else token.spelt.decode(errors="replace"))
        found["margins"].append(None if token is None else token.margin)
        found["top"].append([] if token is None else [list(pair) for pair in token.top])
    return found


def tokens_of(text: str, reply: Reply | None, at: int) -> Sequence[TopTokens]:
    """Returns the tokens of an answer; none if they do not spell the text up to and with this character."""
    start = text[: at + 1].encode()
    if reply is None or not b"".join(token.spelt for token in reply.tokens).startswith(start):
        return ()
    return reply.tokens


def covering(tokens: Sequence[TopTokens], offset: int) -> int:
    """Returns the index of the token that has the byte at this offset; their number if none has."""
    for index, token in enumerate(tokens):
        offset -= len(token.spelt)
        if offset < 0:
            return index
    return len(tokens)
