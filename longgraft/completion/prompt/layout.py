"""Lays out a cursor's file and snippets of other files as a prompt, in an order that stays while the file is edited.

The layout uses the model's fill-in-the-middle tokens, or is left to right as in RepoBench-P (arXiv
2306.03091): each snippet under its file's path, then the file up to the cursor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

from longgraft.completion.prompt.encoding import BLOCK, PartEncoder, blocks
from longgraft.completion.prompt.fim import Fim, FimFamily, fim_of
from longgraft.completion.prompt.stable_order import USUAL, Habit, arrange
from longgraft.completion.snippets import Cursor, Snippet
from longgraft.engine.text_length import PER_TOKEN

Form = Literal["fim", "left-to-right", "next-edit"]
Ids = tuple[int, ...]
LEFT_TO_RIGHT = FimFamily("left to right", "", "", order="before", among="snippets path before")
SUFFIX = 512  # most tokens after the cursor: if they follow the prefix, each edit has them read again
SUFFIX_SHARE = 16  # the suffix has at most 1 / 16 of the budget
# The same without snippets; llama.cpp's server gives the prefix 3 / 4 and the suffix 1 / 4.
ALONE = 4
ROOMS = 8  # the snippets' room is a multiple of 1 / 8 of the budget, at most a half
PER_LINE = 128  # budget tokens per line of the steps in which the text before the cursor is cut


@dataclass(frozen=True)
class CompletionPrompt:
    """A prompt."""

    ids: Ids  # token ids of the whole prompt
    form: Form  # fim, left-to-right or next-edit
    used: tuple[Snippet, ...]  # snippets in the order of the prompt
    tokens: tuple[int, ...]  # tokens of each used snippet
    unused: tuple[Snippet, ...]  # the other snippets, best first
    before: int  # number of the prompt's tokens before the cursor, from the cursor's file
    after: int  # number of the prompt's tokens after the cursor
    ends: Ids = ()  # ids that end a completion, besides the request's
    # Blanks before the cursor that are left out of the prompt; the model decodes them in its first tokens.
    held: str = ""
    prediction: tuple[Ids, ...] = ()  # ids of texts that are not in the prompt, the most useful last, for retrievers


class PromptLayout:
    """A layout of prompts for one tokenizer.

    Attributes:
        form: fim, left-to-right, or auto: fim if the tokenizer has a family's tokens.
        habit: How the order of snippets is kept.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, form: str = "auto", habit: Habit = USUAL) -> None:
        fim = fim_of(tokenizer, vocab_size)
        if tokenizer is None:
            raise ValueError("The model came without a tokenizer, and a completion begins as text. Load one with it.")
        if form == "fim" and fim is None:
            raise ValueError(
                "The tokenizer has no fill-in-the-middle tokens of a known family. Leave the "
                "layout to auto, or load a model that was trained to fill in."
            )
        if fim and form != "left-to-right":
            self.form: Form = "fim"
        else:
            self.form = "left-to-right"
        self.habit = habit
        if fim and self.form == "fim":
            self.fim = fim
        else:
            self.fim = Fim(LEFT_TO_RIGHT, {}, fim.ends if fim else ())
        self.coder = PartEncoder(tokenizer, fim.family.spellings if fim else ())

    def lay_out(
        self,
        cursor: Cursor,
        snippets: Sequence[Snippet] = (),
        tokens: int = 8192,
        name: str = "",
        before: Sequence[Snippet] = (),
    ) -> CompletionPrompt:
        """Lays out a prompt.

        Args:
            snippets: Snippets of other files, best first.
            tokens: Most tokens of the whole prompt.
            before: The snippets of the last prompt, in its order.

        Raises:
            ValueError: the tokens leave no room for the file, or there is nothing to complete.
        """
        family = self.fim.family
        # Blanks at a prompt's end mislead: tokenizers join the last one to the word that follows.  Text that
        # belongs to no file is continued exactly as it stands.
        held = ""
        if cursor.path:
            held = _blanks(cursor.before)
        text = _end(cursor.before[: len(cursor.before) - len(held)], 2 * PER_TOKEN * tokens)
        most = min(SUFFIX, tokens // SUFFIX_SHARE) if snippets else tokens // ALONE
        after: Ids = ()
        if self.form == "fim":
            after = self.coder.encode(cursor.after[: 16 * most])[:most]
        marks = len(self.coder.begin) + len(self.fim.ids)
        marks += len(self._headed(cursor.path)) + len(self._named(name))
        left = tokens - marks - len(after)
        if left < 1:
            raise ValueError(
                f"{tokens:,} tokens leave no room for the file. Allow more, or take a model with more positions."
            )
        shown, dropped = self._tail(text, left - self._room(snippets, tokens), tokens)
        used = arrange(snippets, self._cost, left - len(shown), before, self.habit)
        texts = {
            "before": shown,
            "after": after,
            "path": self._headed(cursor.path),
            "name": self._named(name),
            "snippets": _concatenated(map(self._snippet, used)),
        }
        # Repository tokens are left out without snippets: around nothing they mislead models that know them.
        order = family.order
        if used or not (text or after):
            order = family.among
        ids = self.coder.begin + self._spelled(order, texts)
        if not ids:
            raise ValueError("There is nothing to complete: the file is empty, and no other text was found.")
        unused = tuple(snippet for snippet in snippets if snippet not in used)
        rest = self.coder.encode(cursor.after[: PER_TOKEN * tokens])[len(after) :][: tokens // 2]
        return CompletionPrompt(
            ids,
            self.form,
            tuple(used),
            tuple(map(self._cost, used)),
            unused,
            len(shown),
            len(after),
            self.fim.ends,
            held,
            self._prediction(unused, dropped, rest, tokens),
        )

    def _cost(self, snippet: Snippet) -> int:
        return len(self._snippet(snippet))

    def _tail(self, text: str, tokens: int, budget: int) -> tuple[Ids, Ids]:
        """Returns (ids of the text's end that fit, some of the ids before them).

        The text is cut at a multiple of some lines, so that the cut does not move with the cursor.
        """
        for lines in sorted({min(BLOCK, max(1, budget // PER_LINE)), 1}, reverse=True):
            parts = blocks(text, lines)
            first = self._since(parts, tokens)
            if first < len(parts) or not parts:
                kept_ids = _concatenated(map(self.coder.ids, parts[first:]))
                dropped = parts[self._since(parts[:first], tokens) : first]
                return kept_ids, _concatenated(map(self.coder.ids, dropped))
        line = self.coder.ids(parts[-1])
        start = -(-(len(line) - tokens) // BLOCK) * BLOCK
        return line[start:], line[:start]

    def _since(self, parts: Sequence[str], tokens: int) -> int:
        """Returns the index of the first part from which on all parts fit."""
        total = 0
        for first in range(len(parts), 0, -1):
            total += len(self.coder.ids(parts[first - 1]))
            if total > tokens:
                return first
        return 0

    def _room(self, snippets: Sequence[Snippet], tokens: int) -> int:
        """Returns the tokens for snippets, in whole parts of the budget, so that they and the file's cut
        rarely change."""
        part = max(1, tokens // ROOMS)
        needed = 0
        for snippet in snippets:
            if needed >= ROOMS // 2 * part:
                break
            needed += self._cost(snippet)
        return min(-(-round(needed / self.habit.filled) // part), ROOMS // 2) * part

    def _snippet(self, snippet: Snippet) -> Ids:
        ended = snippet.text
        if not snippet.text.endswith("\n"):
            ended = snippet.text + "\n"
        return self._spelled(
            self.fim.family.snippet,
            {"path": self._headed(snippet.path), "text": _concatenated(map(self.coder.ids, blocks(ended)))},
        )

    def _spelled(self, order: str, texts: Mapping[str, Ids]) -> Ids:
        """Returns the ids of an order's tokens and texts."""
        ids = self.fim.ids
        spelled = list[int]()
        for word in self.fim.words(order):
            if word in ids:
                spelled.append(ids[word])
            else:
                spelled.extend(texts[word])
        return tuple(spelled)

    def _headed(self, path: str) -> Ids:
        if path:
            return self.coder.ids(self.fim.family.headed.format(path))
        return ()

    def _named(self, name: str) -> Ids:
        if name:
            return self.coder.ids(self.fim.family.named.format(name))
        return ()

    def _prediction(self, unused: Sequence[Snippet], dropped: Ids, rest: Ids, tokens: int) -> tuple[Ids, ...]:
        """Returns unused snippets, the best last, then the text cut off before the prompt, then that after
        the cursor."""
        texts = [rest, dropped[-tokens // 4 :]]
        left = tokens - sum(map(len, texts))
        for snippet in unused:
            ids = self._snippet(snippet)
            if len(ids) > left:
                break
            left -= len(ids)
            texts.append(ids)
        return tuple(filter(None, reversed(texts)))


def _concatenated(parts: Iterable[Ids]) -> Ids:
    return tuple(chain.from_iterable(parts))


def _end(text: str, characters: int) -> str:
    """Returns at least so many characters of a text's end, as what is before them would not fit.

    The text is cut at a multiple of `characters`, so that the cut does not move with the cursor.
    """
    return text[max(0, len(text) // characters - 1) * characters :]


def _blanks(text: str) -> str:
    """Returns the spaces and tabs at a text's end."""
    return text[len(text.rstrip(" \t")) :]
