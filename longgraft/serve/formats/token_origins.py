"""An answer token by token, as it is shown: whose each piece of text is, and the tree that a step verified.

Knows tokenizers, steps and trees; knows no HTTP.
"""

from __future__ import annotations

from typing import Any

from longgraft.engine.decoder import Step
from longgraft.engine.text import Detokenizer
from longgraft.trees.tree import DRAFT, RETRIEVED

BY = {DRAFT: "drafted", RETRIEVED: "retrieved", DRAFT | RETRIEVED: "both"}


def proposed_by(bits: int) -> str:
    """A token's origin in a word; what nobody proposed is the target's."""
    return BY.get(bits & (DRAFT | RETRIEVED), "target")


class Spans:
    """Shares a request's text out among its tokens, as it becomes certain.

    A character that several tokens make is the last one's.  What a stop string cuts off is nobody's.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._text = Detokenizer(tokenizer)
        self._tokens = 0
        self._open: list[tuple[int, str, int]] = []      # (token's place, origin, characters still to be shown)

    def push(self, step: Step) -> list[dict[str, Any]]:
        """The step's tokens, {at, origin, text}, behind earlier ones of which more is certain now.

        at: place in the answer.  The texts together are the step's.
        """
        for token, bits in zip(step.tokens, step.origins, strict=True):
            self._open.append((self._tokens, proposed_by(bits), len(self._text.push([token]))))
            self._tokens += 1
        told, left, rest, new = list[dict[str, Any]](), [], step.text, self._tokens - len(step.tokens)
        for at, origin, length in self._open:
            shown, rest = rest[:length], rest[length:]
            if shown or at >= new:
                told.append({"at": at, "origin": origin, "text": shown})
            if len(shown) < length:
                left.append((at, origin, length - len(shown)))
        if rest:        # bytes that are no character, given out at the end
            told[-1]["text"] += rest
        self._open = left
        return told


class Pictures:
    """Trees as lists for JSON.  A token is shown by its text; a part of a character as the vocabulary spells it."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}

    def of(self, step: Step) -> dict[str, Any] | None:
        """Of a decoding step: tokens, parents, origins and scores of its nodes; the path that was emitted; the bonus,
        None where an end cut it off."""
        tree = step.tree
        if tree is None:
            return None
        path = step.path[:1 + len(step.tokens)]
        return {"tokens": [self.text(token) for token in tree.tokens.tolist()], "parents": tree.parents.tolist(),
                "origins": [proposed_by(bits) for bits in tree.origin.tolist()],
                "scores": [round(score, 3) if score == score else None for score in tree.scores.tolist()],
                "path": path, "bonus": self.text(step.tokens[-1]) if len(path) == len(step.tokens) else None}

    def text(self, token: int) -> str:
        """One token alone."""
        if token not in self._known:
            spelt = str(self._tokenizer.convert_ids_to_tokens(token))
            text = self._tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)
            if "\ufffd" in text or not text:
                text = spelt
            elif spelt.startswith("\u2581") and not text.startswith(" "):    # SentencePiece's space, dropped at a start
                text = " " + text
            self._known[token] = text
        return self._known[token]
