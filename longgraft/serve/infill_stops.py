"""Stops of /infill answers before their token limit: at a line with less indentation, or after a time limit.

These are llama.cpp's n_indent and t_max_predict_ms.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from longgraft.completion.snippets import unified
from longgraft.engine.step import Step
from longgraft.serve.served_request import Steps


@dataclass(frozen=True)
class InfillStop:
    """The limits of one answer.

    Attributes:
        indent: Number of spaces and tabs with which every line after the first must begin.
        seconds: Time from the first token after which the answer ends with its current line; None: no limit.
        held: Spaces and tabs before the cursor that the prompt leaves out; the model may repeat them.
        line_end: The end of the client's lines, which the answer's lines get; "": they are left as they are.
        over: Characters of the decoded text up to the end of the line in which the time was up; empty before.
    """

    indent: int = 0
    seconds: float | None = None
    held: str = ""
    line_end: str = ""
    over: list[int] = field(default_factory=list)

    def detector(self) -> Callable[[Step], bool]:
        """Returns a function that is True for the step that completes the answer."""
        decoded = ""
        deadline = 0.0

        def complete(step: Step) -> bool:
            nonlocal decoded, deadline
            decoded += step.text
            if step.tokens and self.seconds is not None:
                deadline = deadline or time.monotonic() + self.seconds
                if "\n" in step.text and time.monotonic() >= deadline:
                    self.over.append(len(decoded) - len(step.text) + step.text.index("\n") + 1)
                    return True
            return self.end(self.after_cursor(decoded)) is not None

        return complete

    async def trimmed(self, steps: Steps) -> Steps:
        """Yields steps that have text only up to the stop."""
        decoded = ""
        text = ""
        sent = 0
        async for step in steps:
            if step is not None:
                decoded += step.text
                # A step may have decoded more than the line in which the time was up.
                text = self.after_cursor(decoded[: self.over[0]] if self.over else decoded)
                end = self.end(text)
                shown = max(sent, self.certain(text) if end is None else end)
                step = replace(step, text=self._in_file(text[sent:shown]))
                sent = shown
            yield step
        rest = text[sent : self.end(text)]
        if rest:
            yield Step(text=self._in_file(rest))

    def after_cursor(self, decoded: str) -> str:
        """Returns the text after the cursor: without the held spaces and tabs, as far as the model repeated them."""
        same = 0
        while same < min(len(decoded), len(self.held)) and decoded[same] == self.held[same]:
            same += 1
        text = decoded[same:]
        return unified(text) if self.line_end else text

    def _in_file(self, text: str) -> str:
        return text.replace("\n", self.line_end or "\n")

    def end(self, text: str) -> int | None:
        """Returns the position before the first line with too little indentation; None if there is none."""
        start = text.find("\n") + 1 if self.indent else 0
        while start:
            line = text[start:]
            if len(line) > _blanks(line) < self.indent:
                return start - 1
            start = text.find("\n", start) + 1
        return None

    def certain(self, text: str) -> int:
        """Returns how many characters are kept whatever follows.

        A short last line's indentation is not known yet.
        """
        start = text.rfind("\n")
        if self.indent and start >= 0 and len(text) - start - 1 < self.indent:
            return start
        return len(text)


def _blanks(line: str) -> int:
    """Returns the number of spaces and tabs at the line's beginning."""
    return len(line) - len(line.lstrip(" \t"))
