"""An answer token by token for the page: the origin of each piece of text, and the tree that each step verified.

Knows tokenizers, steps and trees; knows no HTTP.
"""

from __future__ import annotations

from typing import Any

from longgraft.engine.decoder import Step
from longgraft.engine.detokenizer import Detokenizer
from longgraft.trees.tree import DRAFT, RETRIEVED

BY = {DRAFT: "drafted", RETRIEVED: "retrieved", DRAFT | RETRIEVED: "both"}


def proposed_by(bits: int) -> str:
    """A token's origin in a word; a token that was not proposed is the target's."""
    return BY.get(bits & (DRAFT | RETRIEVED), "target")


class Spans:
    """Assigns a request's text to its tokens, as it becomes certain.

    A character of several tokens belongs to the last one.  Text that a stop string cuts off belongs to none.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._text = Detokenizer(tokenizer)
        self._tokens = 0
        self._open: list[tuple[int, str, int]] = []      # (token's place, origin, characters still to be shown)

    def push(self, step: Step) -> list[dict[str, Any]]:
        """The step's tokens, {at, origin, text}, after earlier ones with newly certain text.

        at: place in the answer.  The texts together are the step's.
        """
        for token, bits in zip(step.tokens, step.origins, strict=True):
            self._open.append((self._tokens, proposed_by(bits), len(self._text.push([token]))))
            self._tokens += 1
        spans, left, rest, new = list[dict[str, Any]](), [], step.text, self._tokens - len(step.tokens)
        for at, origin, length in self._open:
            shown, rest = rest[:length], rest[length:]
            if shown or at >= new:
                spans.append({"at": at, "origin": origin, "text": shown})
            if len(shown) < length:
                left.append((at, origin, length - len(shown)))
        if rest:        # bytes that are no character, flushed at the end
            spans[-1]["text"] += rest
        self._open = left
        return spans


class Pictures:
    """Trees as lists for JSON.  A token is its text; a part of a character is its entry in the vocabulary."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}

    def of(self, step: Step) -> dict[str, Any] | None:
        """Of a decoding step: tokens, parents, origins and scores of its nodes; the emitted path; the bonus
        token, None where an end cut it off."""
        tree = step.tree
        if tree is None:
            return None
        path = step.path[:1 + len(step.tokens)]
        return {"tokens": [self.text(token) for token in tree.tokens.tolist()], "parents": tree.parents.tolist(),
                "origins": [proposed_by(bits) for bits in tree.origin.tolist()],
                "scores": [round(score, 3) if score == score else None for score in tree.scores.tolist()],
                "path": path, "bonus": self.text(step.tokens[-1]) if len(path) == len(step.tokens) else None}

    def text(self, token: int) -> str:
        """Of one token."""
        if token not in self._known:
            spelt = str(self._tokenizer.convert_ids_to_tokens(token))
            text = self._tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)
            if "\ufffd" in text or not text:
                text = spelt
            elif spelt.startswith("\u2581") and not text.startswith(" "):    # SentencePiece's space, dropped at a start
                text = " " + text
            self._known[token] = text
        return self._known[token]
