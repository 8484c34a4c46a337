"""Completes code from a repository: gathers snippets, lays out a prompt, and decodes to the end of the line or block.

With the layout next-edit the model rewrites the lines around the cursor, and the completion is what it changed.

The text is cut here where the line or block ends; the decoded tokens are the same either way.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from longgraft.acceptance.sampling import Sampling
from longgraft.acceptance.sampling_defaults import SamplingDefaults
from longgraft.completion.changes import changes_of, from_root
from longgraft.completion.cursor import locate
from longgraft.completion.options import LEAST, NEXT_EDIT, CompletionOptions, Layout, Until
from longgraft.completion.prompt.layout import CompletionPrompt, PromptLayout
from longgraft.completion.prompt.next_edit import NextEditLayout
from longgraft.completion.prompt.stable_order import ANEW, STEADY, place
from longgraft.completion.repository.files import repository
from longgraft.completion.retrieval.gather import Gathered, gather
from longgraft.completion.snippets import Cursor, Snippet, common, unified
from longgraft.completion.stopping import Ending
from longgraft.completion.window import Edit, RewriteEnding, Window
from longgraft.engine.encoder import stop_strings
from longgraft.engine.repetition import loops
from longgraft.engine.request import Request
from longgraft.engine.session import Generation, Session
from longgraft.loading import load

END_MARK = "</s>"  # a stop string of Sweep's clients, also with models that have no such token
FILES = 64  # files for which the order of the last prompt's snippets is kept
KEPT = "in the last prompt, which need not be read again"


@dataclass(frozen=True)
class Completion:
    """A completion.

    Attributes:
        text: The text that follows the cursor, with the file's line ends; of a next edit, the new lines.
        generation: All decoded tokens, to the end of the step in which the completion ended.
        ended: line, block, or the generation's finish reason.
        prompt: What the model read.
        gathered: The snippets from which the prompt's were chosen.
        seconds: Durations: gather, layout, first (from the call to the first token) and total.
        edit: The edit, with the layout next-edit; None if the model changes nothing or did not come to an end.
    """

    text: str
    generation: Generation
    ended: str
    cursor: Cursor
    prompt: CompletionPrompt
    gathered: Gathered
    seconds: Mapping[str, float]
    edit: Edit | None = None

    @property
    def used(self) -> tuple[Snippet, ...]:
        """The snippets that the model read, in the prompt's order."""
        return self.prompt.used

    @property
    def unused(self) -> tuple[Snippet, ...]:
        """The snippets for which the prompt had no room, best first."""
        return self.prompt.unused

    @property
    def loops(self) -> bool:
        """True if most of the text repeats itself, as small models' text does at times; it is seldom worth showing."""
        return loops(self.generation.token_ids)

    @property
    def reused(self) -> int:
        """Tokens of the prompt reused from earlier requests."""
        return self.generation.stats.reused_tokens


@dataclass
class _Last:
    """The state of one session: layouts by form, and the snippets of the last prompts by root and path."""

    layouts: dict[str, PromptLayout | NextEditLayout] = field(default_factory=dict)
    used: OrderedDict[tuple[Path, str], tuple[Snippet, ...]] = field(default_factory=OrderedDict)


_LAST: WeakKeyDictionary[Session, _Last] = WeakKeyDictionary()


class Completer:
    """A completer of code with one session.

    A prompt shares the longest possible beginning with the last prompt of its file, so that only the rest is read.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._last = _LAST.setdefault(session, _Last())

    def complete(
        self,
        root: Path,
        cursor: Cursor,
        options: CompletionOptions,
        sampling: Sampling | None = None,
        tell: Callable[[str], None] = lambda text: None,
    ) -> Completion:
        """Completes code at a cursor.

        Args:
            root: Folder of the repository, from whose files snippets are gathered.
            cursor: File, text before and text after the cursor.
            sampling: How tokens are drawn; None: greedily.
            tell: Called with each piece of text that is final; of a next edit, once with the new lines.

        Returns:
            The completion with its prompt and figures.

        Raises:
            ValueError: a setting is wrong, or the prompt does not fit the model's positions.
        """
        started = time.perf_counter()
        prompt, gathered, seconds = self.lay_out(root, cursor, options)
        eos = {*self.session.eos, *prompt.ends}
        limit = options.max_new_tokens
        rewrite = None
        if prompt.form == NEXT_EDIT:
            rewrite = RewriteEnding(options.until, Window.around(cursor), self._cuts(options.stop))
            limit = min(limit + len(prompt.prediction[0]), self._most_positions - len(prompt.ids))
        request = self.session.open(
            prompt.ids, limit, sampling, options.stop, tuple(eos), prediction=prompt.prediction or None
        )
        ending = rewrite or Ending(options.until, cursor.shown, prompt.form == "fim")

        def tell_more(text: str) -> None:
            if rewrite is None:  # what a rewritten window changes is known at its end
                tell(text.replace("\n", cursor.line_end))

        text = _CompletionText(ending, prompt.held, tell_more)
        generation = text.step_through(request)
        seconds |= {"first": text.first - started, "total": time.perf_counter() - started}
        ended = options.until if text.ended else generation.finish_reason
        in_file = text.text.replace("\n", cursor.line_end)
        completion = Completion(in_file, generation, ended, cursor, prompt, gathered, seconds)
        if rewrite is None:
            return completion
        edit = rewrite.edit(text.text, ended)
        text_of_edit = ""
        if edit is not None:
            text_of_edit = edit.text
            tell(text_of_edit)
        return replace(completion, text=text_of_edit, edit=edit)

    def lay_out(
        self, root: Path, cursor: Cursor, options: CompletionOptions
    ) -> tuple[CompletionPrompt, Gathered, dict[str, float]]:
        """Returns (prompt, gathered snippets, seconds of both)."""
        root = root.expanduser().resolve()
        form = options.layout
        started = time.perf_counter()
        cursor = cursor.shown
        tokens = self._room(options)
        layouts = self._last.layouts
        used = self._last.used
        if form not in layouts:
            habit = ANEW
            if self._kept:
                habit = STEADY
            tokenizer = self.session.tokenizer
            vocab_size = self.session.target.vocab_size
            if form == NEXT_EDIT:
                layouts[form] = NextEditLayout(tokenizer, vocab_size, habit)
            else:
                layouts[form] = PromptLayout(tokenizer, vocab_size, form, habit)
        gathered = gather(root, cursor, tokens)
        key = (root, cursor.path)
        before = [snippet for snippet in used.pop(key, ()) if self._kept and _is_there(root, snippet)]
        now = set(map(place, gathered.snippets))
        kept = [replace(snippet, why=KEPT) for snippet in before if place(snippet) not in now]
        snippets = (*gathered.snippets, *kept)
        gathered_at = time.perf_counter()
        prompt = layouts[form].lay_out(cursor, snippets, tokens, root.name, before)
        if form == NEXT_EDIT:
            most = self._most_of_rewrite(prompt, options)
            if most < len(prompt.ids):
                prompt = layouts[form].lay_out(cursor, snippets, most, root.name, before)
        used[key] = prompt.used
        if len(used) > FILES:
            used.popitem(last=False)
        return prompt, gathered, {"gather": gathered_at - started, "layout": time.perf_counter() - gathered_at}

    @property
    def _kept(self) -> bool:
        """True if the engine reuses the shared beginning of prompts."""
        return self.session.engine.prefixes is not None

    def _most_of_rewrite(self, prompt: CompletionPrompt, options: CompletionOptions) -> int:
        """Returns the most tokens of a next edit's prompt that leave room for the whole window, if the prompt
        has as many snippets to leave out."""
        answer = len(prompt.prediction[0]) + options.max_new_tokens
        excess = len(prompt.ids) + answer - self._most_positions
        return len(prompt.ids) - min(max(0, excess), sum(prompt.tokens))

    def _cuts(self, stop: Sequence[str]) -> bool:
        """True if a stop string may end the answer to a next edit within the window."""
        added = self.session.tokenizer.get_added_vocab()
        return any(text not in added and text != END_MARK for text in stop)

    @property
    def _most_positions(self) -> int:
        """Most tokens of prompt and answer together."""
        return min(self.session.engine.limits.values())

    def _room(self, options: CompletionOptions) -> int:
        """Returns the most tokens of a prompt; raises ValueError if too few are left."""
        limits = self.session.engine.limits
        name = min(limits, key=limits.__getitem__)
        left = limits[name] - options.max_new_tokens
        if left < LEAST:
            raise ValueError(
                f"{options.max_new_tokens:,} new tokens were asked for, and {name} allows "
                f"{limits[name]:,} positions. Ask for at most {limits[name] - LEAST:,}."
            )
        return min(options.tokens, left)


def _is_there(root: Path, snippet: Snippet) -> bool:
    """True if the file may still be shown and still has these lines at this place."""
    start = snippet.first_line - 1
    files = repository(root)
    if not files.shows(snippet.path):
        return False
    lines = files.text(snippet.path).split("\n")[start : start + snippet.text.count("\n")]
    return "\n".join(lines) + "\n" == snippet.text


class _CompletionText:
    """The decoded text, without the repeated blanks, up to the completion's end.

    Attributes:
        held: The blanks before the cursor.
    """

    def __init__(self, ending: Ending | RewriteEnding, held: str, tell: Callable[[str], None]) -> None:
        self.ending = ending
        self.held = held
        self.tell = tell
        self.raw = self.text = ""
        self.first = 0.0
        self.ended = False
        self._sent = 0

    def step_through(self, request: Request) -> Generation:
        """Decodes to the completion's end, and no step further."""
        ids = list[int]()
        with request:
            for step in request:
                ids += step.tokens
                if step.tokens and not self.first:
                    self.first = time.perf_counter()
                self.raw += step.text
                if self._reached(step.text):
                    break
        if not self.ended:
            self.text = self.ending.cut(self._completed())
        self._send(len(self.text))
        reason = request.finish_reason
        if self.ended or reason is None:
            reason = "stop"
        return Generation(self.raw, ids, request.stats, reason)

    def _reached(self, new: str) -> bool:
        if not new:
            return False
        self.text = self._completed()
        end = self.ending.of(self.text)
        if end is not None:
            self.text = self.text[:end]
            self.ended = True
        else:
            self._send(self.ending.certain(self.text))
        return self.ended

    def _completed(self) -> str:
        """Returns the decoded text, with line ends \\n, without the held blanks, which the model repeats."""
        return unified(self.raw[common(self.raw, self.held) :])

    def _send(self, end: int) -> None:
        if end > self._sent:
            self.tell(self.text[self._sent : end])
            self._sent = end


def complete(
    repo: str | os.PathLike[str],
    file: str | os.PathLike[str],
    line: int,
    column: int | None = None,
    session: Session | None = None,
    text: str | None = None,
    until: Until = "block",
    stop: str | Sequence[str] | None = (),
    max_new_tokens: int = 256,
    tokens: int = 8192,
    layout: Layout = "auto",
    tell: Callable[[str], None] = lambda text: None,
    changes: str = "",
    **options: Any,
) -> Completion:
    """Completes code at a cursor in a file of a repository.

    Args:
        file: The file: absolute, relative to the root, or relative to the current folder.
        line: The cursor's line, counted from 1.
        column: The cursor's column, counted from 1; None: the line's end.
        session: From `load`; None: one of the embedded pair, or of the model, drafter and `Settings` in options.
        text: The file's unsaved text; None: the file is read.
        until: line, block (by indentation or braces) or stop: the model's end, stop strings, max_new_tokens.
        tokens: Most tokens of the prompt.
        layout: Layout of the prompt: fim, left-to-right, auto, or next-edit, with which the model rewrites
            the lines around the cursor; `Completion.edit` is the result.
        tell: Called with each piece of the completion's text; of a next edit, once with the new lines.
        changes: Unified diff of recent changes, the last one last, from which a next edit is predicted.
        **options: The fields of `Settings` and `Sampling`, model and drafter.

    Returns:
        The completion.

    Raises:
        ValueError: there is no such place in the repository, the file may hold secrets, or an option is wrong.

    Examples:
        >>> import longgraft
        >>> from pathlib import Path
        >>> _ = Path("main.py").write_text("if __name__ ==")
        >>> longgraft.complete(".", "main.py", line=1, until="line").text
        ' "__main__":'
    """
    draw = {f.name: options.pop(f.name) for f in fields(Sampling) if f.name in options}
    SamplingDefaults().sampling(draw)  # checked before a model is loaded
    completion = CompletionOptions(until, max_new_tokens, stop_strings(stop), tokens, layout)
    cursor = replace(locate(repo, file, line, column, text), changes=from_root(Path(repo), changes_of(changes)))
    if session is not None and options:
        raise ValueError(f"A session was given, and {', '.join(options)} too: those are chosen when it is loaded.")
    session = session or load(tell=False, **options)
    return Completer(session).complete(Path(repo), cursor, completion, session.sampling(**draw), tell)
