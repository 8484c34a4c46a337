"""The jobs of one request, for several prompts and several answers to each, which take turns.

The other answers to a prompt begin when the first has read it, so that they find it among the kept prompts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from longgraft.acceptance.shaping import TokenLogprob
from longgraft.engine.step import Step
from longgraft.serve.formats.logprobs import unfollowed
from longgraft.serve.jobs import End, Job, Running
from longgraft.serve.worker import Worker

LOOK = 0.02         # seconds between looks at a full queue


class Turn:
    """A job with the interface of `Running`, which is submitted when its turn comes.

    Attributes:
        job: The job.
        leader: The first turn of the same prompt, which has the prompt's log-probabilities.
        logprobs: Log-probabilities of the answer's tokens so far.
        prompt_logprobs: Those of the prompt's tokens, once it is read.
    """

    def __init__(self, job: Job, worker: Worker, places: asyncio.Semaphore, leader: Turn | None = None,
                 only_reads: bool = False) -> None:
        """places: turns that may be taken at once; only_reads: leave out the token that reading a prompt yields"""
        self.job, self.leader = job, leader or self
        self.logprobs = list[TokenLogprob]()
        self.prompt_logprobs = [] if job.sampling.prompt_logprobs is None else [unfollowed(job.ids[0])]
        self._worker, self._places, self._only_reads = worker, places, only_reads
        self._running: Running | None = None
        self._cancelled = False
        self._read = asyncio.Event()

    @property
    def end(self) -> End | None:
        end = End("cancelled") if self._running is None else self._running.end
        if end is None or not self._only_reads or end.reason == "cancelled":
            return end
        return replace(end, reason="length", stats=replace(end.stats, new_tokens=0))

    def submit(self) -> None:
        """Submits the job now; raises the exceptions of `Worker.submit`."""
        self._running = self._worker.submit(self.job)

    def cancel(self) -> None:
        """Cancels the job like `Running.cancel`, also before its turn."""
        self._cancelled = True
        if self._running is not None:
            self._running.cancel()

    def __aiter__(self) -> AsyncIterator[Step]:
        return (step async for step in self.steps() if step is not None)

    async def steps(self, beat: float | None = None) -> AsyncIterator[Step | None]:
        """Yields steps like `Running.steps`, once it is this job's turn."""
        try:
            if self.leader is not self:
                await self.leader._read.wait()
            async with self._places:
                while self._running is None and not self._cancelled:
                    if self._worker.full:
                        await asyncio.sleep(LOOK)
                    else:
                        self.submit()
                if self._running is not None:
                    async for step in self._running.steps(beat):
                        yield None if step is None else self._seen(step)
        finally:
            self._read.set()

    def _seen(self, step: Step) -> Step:
        """Takes note of a step, and returns what of it the client gets."""
        self.prompt_logprobs += step.prompt_logprobs
        if step.tokens:
            self._read.set()
        if self._only_reads:
            return replace(step, tokens=(), origins=(), text="", logprobs=())
        self.logprobs += step.logprobs
        return step


def turns_of(worker: Worker, prompts: Sequence[Sequence[Job]], only_reads: bool = False) -> list[Turn]:
    """Returns the turns of the jobs of each prompt.  As many run at once as the worker decodes at once."""
    places, found = asyncio.Semaphore(worker.max_running), list[Turn]()
    for first, *others in prompts:
        leader = Turn(first, worker, places, only_reads=only_reads)
        found.append(leader)
        for job in others:
            alike = replace(job, sampling=replace(job.sampling, prompt_logprobs=None))
            found.append(Turn(alike, worker, places, leader, only_reads))
    return found
