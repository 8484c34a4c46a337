"""Lays out the prompt of a next edit, and finds the current window in a prompt of this layout.

The layout is that of Sweep's Next-Edit models of 0.5B and 1.5B, which Qwen2.5-Coder follows untrained: after
each separator token a path and a text, namely other files, recent changes, the window before the last change,
the window now, and the beginning of the rewritten window, which is the answer:

    <|file_sep|>utils.py
    ...
    <|file_sep|>greet.py.diff
    original:
    ...
    updated:
    ...
    <|file_sep|>original/greet.py
    ...
    <|file_sep|>current/greet.py
    ...
    <|file_sep|>updated/greet.py

Sources: `run_model.py` in the hub's repository sweepai/sweep-next-edit-1.5B; "Our Format" in
blog.sweep.dev/posts/oss-next-edit (the window of 21 lines); Zed's crates/edit_prediction/src/sweep_prompt.rs
(zed-industries/zed#51139: three changes of 40 lines); sweepai/vscode-nes, src/local/completions.ts.  The last
three end the prompt with a line end, as is done here; `run_model.py` leaves it to the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from longgraft.completion.changes import before_last_change
from longgraft.completion.options import NEXT_EDIT
from longgraft.completion.prompt.encoding import PartEncoder
from longgraft.completion.prompt.fim import fim_of
from longgraft.completion.prompt.layout import CompletionPrompt, Ids
from longgraft.completion.prompt.stable_order import USUAL, Habit, arrange
from longgraft.completion.snippets import Change, Cursor, Snippet
from longgraft.completion.window import Window

SEPARATOR = "<|file_sep|>"
CURSOR = "<|cursor|>"  # marks the cursor in the current window of Sweep's 7B
CURRENT = "current/"
UPDATED = "updated/"
CHANGES = 3  # most recent changes of a prompt
CHANGE_LINES = 40  # most lines of each side of a change; the middle of more is left out


class NextEditLayout:
    """A layout of next-edit prompts for one tokenizer.

    Attributes:
        habit: How the order of snippets is kept.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, habit: Habit = USUAL) -> None:
        added = {} if tokenizer is None else tokenizer.get_added_vocab()
        separator = added.get(SEPARATOR, vocab_size)
        if separator >= vocab_size:
            raise ValueError(
                f"The model has no {SEPARATOR}, which separates the parts of a next edit's prompt. Load one of Sweep's "
                "or Qwen2.5-Coder, such as --model sweep-next-edit-1.5b."
            )
        fim = fim_of(tokenizer, vocab_size)
        self.habit = habit
        self.separator = separator
        self.ends: Ids = tuple(sorted({separator, *(fim.ends if fim else ())}))
        self.coder = PartEncoder(tokenizer, (SEPARATOR, *(fim.family.spellings if fim else ())))

    def lay_out(
        self,
        cursor: Cursor,
        snippets: Sequence[Snippet] = (),
        tokens: int = 8192,
        name: str = "",
        before: Sequence[Snippet] = (),
    ) -> CompletionPrompt:
        """Lays out a prompt; the arguments are those of `PromptLayout.lay_out`, and the repository's name is not used.

        Raises:
            ValueError: the tokens leave no room for the window.
        """
        window = Window.around(cursor)
        original = before_last_change(window.path, window.first_line, window.lines, cursor.changes)
        windows = (
            *self._block(f"original/{window.path}", "\n".join(original)),
            *self._block(f"{CURRENT}{window.path}", "\n".join(window.lines)),
            *self._block(f"{UPDATED}{window.path}", ""),
        )
        left = tokens - len(self.coder.begin) - len(windows)
        if left < 0:
            raise ValueError(
                f"The lines around the cursor take {len(windows):,} tokens, and the prompt may "
                f"have {tokens:,}. Allow more, or take a model with more positions."
            )
        changes = self._changes(cursor.changes, left)
        used = arrange(snippets, self._cost, left - len(changes), before, self.habit)
        ids = (*self.coder.begin, *chain.from_iterable(map(self._snippet, used)), *changes, *windows)
        unused = tuple(snippet for snippet in snippets if snippet not in used)
        return CompletionPrompt(
            ids,
            NEXT_EDIT,
            tuple(used),
            tuple(map(self._cost, used)),
            unused,
            len(changes) + len(windows),
            0,
            self.ends,
            prediction=(self.coder.encode("\n".join(window.lines)),),
        )

    def _changes(self, changes: Sequence[Change], room: int) -> Ids:
        """Returns the ids of the last changes that fit."""
        blocks = list[Ids]()
        for change in changes[: -CHANGES - 1 : -1]:
            body = f"original:\n{_shortened(change.before)}\nupdated:\n{_shortened(change.after)}"
            block = self._block(f"{change.path}.diff", body)
            room -= len(block)
            if room < 0:
                break
            blocks.append(block)
        return tuple(chain.from_iterable(reversed(blocks)))

    def _snippet(self, snippet: Snippet) -> Ids:
        return self._block(snippet.path, snippet.text)

    def _cost(self, snippet: Snippet) -> int:
        return len(self._snippet(snippet))

    def _block(self, path: str, text: str) -> Ids:
        """Returns the ids of a separator, a path and a text, which are encoded together as in training."""
        ended = text if text.endswith("\n") or not text else text + "\n"
        return (self.separator, *self.coder.ids(f"{path}\n{ended}"))


def current_window(prompt: str) -> str | None:
    """Returns what the answer to a next edit's prompt is likely to repeat: the current window, without the
    beginning that the prompt already rewrites.  Returns None for another prompt.

    Editors send such prompts as text (Zed, cursortab.nvim, vscode-nes).  Sweep's 7B has lines after the
    paths, a mark at the cursor, and the answer's beginning at the end.
    """
    head, _, updated = prompt.rpartition(SEPARATOR)
    place, _, begun = updated.partition("\n")
    if not place.startswith(UPDATED):
        return None
    # The window may spell the separator, as this file does.
    path = place.removeprefix(UPDATED)
    window = head.rpartition(f"{SEPARATOR}{CURRENT}{path}\n")[2]
    if window == head:
        return None
    window = window.replace(CURSOR, "")
    return window.removeprefix(begun) or None


def _shortened(lines: Sequence[str]) -> str:
    """Joins lines; of many only the first and the last ones."""
    if len(lines) > CHANGE_LINES:
        half = CHANGE_LINES // 2
        lines = [*lines[:half], "...", *lines[half + 1 - CHANGE_LINES :]]
    return "\n".join(lines)
