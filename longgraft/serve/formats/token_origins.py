"""An answer token by token for the page: the origin of each piece of text, and the tree that each step verified."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from longgraft.engine.detokenizer import Detokenizer
from longgraft.engine.step import Step
from longgraft.trees.tree import DRAFT, RETRIEVED

BY = {DRAFT: "drafted", RETRIEVED: "retrieved", DRAFT | RETRIEVED: "both"}


def proposed_by(bits: int) -> str:
    """Returns a token's origin in one word; a token that was not proposed is the target's."""
    return BY.get(bits & (DRAFT | RETRIEVED), "target")


class Spans:
    """The assignment of a request's text to its tokens, made when the text becomes certain.

    A character of several tokens belongs to the last one.  Text that a stop string cuts off belongs to none.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int] = ()) -> None:
        """prompt: token ids that the answer follows"""
        self._text = Detokenizer(tokenizer, prompt=prompt)
        self._tokens = 0
        self._open: list[tuple[int, str, int]] = []  # (token's place, origin, characters not shown yet)

    def push(self, step: Step) -> list[dict[str, Any]]:
        """Returns the step's tokens as {at, origin, text}, after earlier tokens whose text has become certain.

        at: the token's place in the answer.  The texts together are the step's text.
        """
        for token, bits in zip(step.tokens, step.origins, strict=True):
            self._open.append((self._tokens, proposed_by(bits), len(self._text.push([token]))))
            self._tokens += 1
        first_new = self._tokens - len(step.tokens)
        rest = step.text
        spans = list[dict[str, Any]]()
        still_open = []
        for place, origin, length in self._open:
            shown = rest[:length]
            rest = rest[length:]
            if shown or place >= first_new:
                spans.append({"at": place, "origin": origin, "text": shown})
            if len(shown) < length:
                still_open.append((place, origin, length - len(shown)))
        if rest:  # bytes that form no character, flushed at the end
            spans[-1]["text"] += rest
        self._open = still_open
        return spans


class Pictures:
    """Trees as lists for JSON.

    A token is given by its text, a part of a character by its vocabulary entry.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[int, str] = {}

    def of(self, step: Step) -> dict[str, Any] | None:
        """Returns a decoding step's tree: tokens, parents, origins and scores of its nodes, and the emitted path.

        The bonus token is None if an end cut it off.
        """
        tree = step.tree
        if tree is None:
            return None
        path = step.path[: 1 + len(step.tokens)]
        bonus = None
        if len(path) == len(step.tokens):
            bonus = self.text(step.tokens[-1])
        return {
            "tokens": list(map(self.text, tree.tokens.tolist())),
            "parents": tree.parents.tolist(),
            "origins": list(map(proposed_by, tree.origin.tolist())),
            "scores": list(map(_rounded, tree.scores.tolist())),
            "path": path,
            "bonus": bonus,
        }

    def text(self, token: int) -> str:
        """Returns the text of one token."""
        if token not in self._texts:
            spelt = str(self._tokenizer.convert_ids_to_tokens(token))
            text = self._tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)
            if "\ufffd" in text or not text:
                text = spelt
            elif spelt.startswith("\u2581") and not text.startswith(" "):  # SentencePiece drops a space at the start
                text = " " + text
            self._texts[token] = text
        return self._texts[token]


def _rounded(score: float) -> float | None:
    return None if math.isnan(score) else round(score, 3)
