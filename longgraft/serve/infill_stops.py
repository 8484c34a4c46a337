"""Where an /infill answer ends before its token limit: before a line with less indentation, or after a time limit.

llama.cpp's n_indent and t_max_predict_ms.  Knows text and the worker; knows no HTTP.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace

from longgraft.engine.decoder import Step
from longgraft.serve.jobs import End, Job, Running


@dataclass(frozen=True)
class InfillStop:
    """The limits of one answer.

    indent:  spaces and tabs with which every line after the first must begin; 0: any
    seconds: from the first token; the answer then ends with its line; None: no limit
    held:    spaces and tabs before the cursor that the prompt leaves out, so that the model may repeat them
    """

    indent: int = 0
    seconds: float | None = None
    held: str = ""

    def detector(self) -> Callable[[Step], bool]:
        """For a job: whether the answer is complete with this step."""
        decoded, deadline = "", 0.0

        def complete(step: Step) -> bool:
            nonlocal decoded, deadline
            decoded += step.text
            if step.tokens and self.seconds is not None:
                deadline = deadline or time.monotonic() + self.seconds
                if "\n" in step.text and time.monotonic() >= deadline:
                    return True
            return self.end(self.without_held(decoded)) is not None

        return complete

    def without_held(self, decoded: str) -> str:
        """The text behind the cursor: without the held blanks, as far as the model repeated them."""
        same = 0
        while same < min(len(decoded), len(self.held)) and decoded[same] == self.held[same]:
            same += 1
        return decoded[same:]

    def end(self, text: str) -> int | None:
        """The place before the first line with too little indentation; None without one."""
        start = text.find("\n") + 1 if self.indent else 0
        while start:
            line = text[start:]
            if len(line) > _blanks(line) < self.indent:
                return start - 1
            start = text.find("\n", start) + 1
        return None

    def certain(self, text: str) -> int:
        """Characters that are kept whatever follows: of a short last line the indentation is not known yet."""
        start = text.rfind("\n")
        return start if self.indent and start >= 0 and len(text) - start - 1 < self.indent else len(text)


class TrimmedJob:
    """A running job whose steps have their text up to the stop.

    drafted: proposed nodes so far
    """

    def __init__(self, running: Running, stop: InfillStop) -> None:
        self.running, self.stop = running, stop
        self.drafted = 0

    @property
    def job(self) -> Job:
        return self.running.job

    @property
    def end(self) -> End | None:
        return self.running.end

    def cancel(self) -> None:
        """As `Running.cancel`."""
        self.running.cancel()

    def __aiter__(self) -> AsyncIterator[Step]:
        return (step async for step in self.steps() if step is not None)

    async def steps(self, beat: float | None = None) -> AsyncIterator[Step | None]:
        """As `Running.steps`."""
        decoded, text, sent = "", "", 0
        async for step in self.running.steps(beat):
            if step is not None:
                self.drafted += 0 if step.tree is None else len(step.tree) - 1
                decoded += step.text
                text = self.stop.without_held(decoded)
                end = self.stop.end(text)
                upto = max(sent, self.stop.certain(text) if end is None else end)
                step, sent = replace(step, text=text[sent:upto]), upto
            yield step
        end = self.stop.end(text)
        if rest := text[sent:end]:
            yield Step(text=rest)


def _blanks(line: str) -> int:
    """Spaces and tabs at the line's beginning."""
    return len(line) - len(line.lstrip(" \t"))
