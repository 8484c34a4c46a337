"""Where an editor's completion ends before its limit: at a line that is indented less, or with a line when time is up.

llama.cpp's n_indent and t_max_predict_ms.  Knows text and the worker; knows no HTTP.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace

from longgraft.engine.decoder import Step
from longgraft.serve.worker import End, Job, Running


@dataclass(frozen=True)
class Cut:
    """indent: blanks with which each line after the first begins at least; 0: any.  seconds: from the first token on,
    after which it ends with a line; None: no limit.  held: blanks that the model may say once more."""

    indent: int = 0
    seconds: float | None = None
    held: str = ""

    def reaches(self) -> Callable[[Step], bool]:
        """For a job: whether its answer has come to its end with this step."""
        said, until = "", 0.0

        def reached(step: Step) -> bool:
            nonlocal said, until
            said += step.text
            if step.tokens and self.seconds is not None:
                until = until or time.monotonic() + self.seconds
                if "\n" in step.text and time.monotonic() >= until:
                    return True
            return self.end(self.behind(said)) is not None

        return reached

    def behind(self, said: str) -> str:
        """Without what stands before the cursor already, as far as it is said."""
        same = 0
        while same < min(len(said), len(self.held)) and said[same] == self.held[same]:
            same += 1
        return said[same:]

    def end(self, text: str) -> int | None:
        """Before the first line that is indented less; None without one."""
        start = text.find("\n") + 1 if self.indent else 0
        while start:
            line = text[start:]
            if len(line) > _blanks(line) < self.indent:
                return start - 1
            start = text.find("\n", start) + 1
        return None

    def certain(self, text: str) -> int:
        """How much of a text without an end is kept, whatever follows: a last line may be too short to tell."""
        start = text.rfind("\n")
        return start if self.indent and start >= 0 and len(text) - start - 1 < self.indent else len(text)


class Cutting:
    """A job's steps as its client is told them: with the text up to the cut.

    drafted: nodes that were proposed
    """

    def __init__(self, running: Running, cut: Cut) -> None:
        self.running, self.cut = running, cut
        self.drafted = 0

    @property
    def job(self) -> Job:
        return self.running.job

    @property
    def end(self) -> End | None:
        return self.running.end

    def cancel(self) -> None:
        """As `Running` has it."""
        self.running.cancel()

    def __aiter__(self) -> AsyncIterator[Step]:
        return (step async for step in self.steps() if step is not None)

    async def steps(self, beat: float | None = None) -> AsyncIterator[Step | None]:
        """As `Running` has it."""
        said, text, told = "", "", 0
        async for step in self.running.steps(beat):
            if step is not None:
                self.drafted += 0 if step.tree is None else len(step.tree) - 1
                said += step.text
                text = self.cut.behind(said)
                end = self.cut.end(text)
                upto = max(told, self.cut.certain(text) if end is None else end)
                step, told = replace(step, text=text[told:upto]), upto
            yield step
        end = self.cut.end(text)
        if rest := text[told:end]:
            yield Step(text=rest)


def _blanks(line: str) -> int:
    """Spaces and tabs that it begins with."""
    return len(line) - len(line.lstrip(" \t"))
