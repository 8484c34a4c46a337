"""A request: one prompt and its answer, step by step; a step is a prefill chunk or a decode step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import torch

from longgraft.engine.decoder import Decoder, FinishReason, Step
from longgraft.engine.stats import Stats
from longgraft.prefill.chunked import read_prompt
from longgraft.protocol.observation import Observation
from longgraft.protocol.proposer import SINGLE_REQUEST, BatchLoad
from longgraft.runtime.clock import Clock


class PromptReader(Protocol):
    """Recalls the beginning of one prompt, and keeps what is read of it."""

    @property
    def first_difference(self) -> int | None:
        """The first token that differs from earlier prompts, as in `Stats`."""

    @property
    def cell(self) -> int | None:
        """Tokens of a cell, as in `read_prompt`; None: no cells are kept."""

    def recall(self) -> int:
        """Restores the target's cache and the memories; returns the number of tokens that need not be read."""

    def keep(self, seen: Observation) -> None:
        """Keeps the rows of the chunk that was just observed."""


class Request:
    """One prompt and its answer.  Iterate it, or call `step` until it returns None.

    It releases model and memories when it ends, when it is closed, and at the end of a `with` block.  Use it from one
    thread at a time; `cancel` may be called from any thread.

    Attributes:
        finish_reason: None while it runs; then stop, length, eos or cancelled.
        stats: Costs and acceptance so far.

    Examples:
        >>> import longgraft
        >>> session = longgraft.load(tell=False)
        >>> with session.open("if __name__ ==", stop=":") as request:
        ...     text = "".join(step.text for step in request)
        >>> text, request.finish_reason
        (' "__main__"', 'stop')
    """

    def __init__(self, decoder: Decoder, ids: Sequence[int], chunk: int | None, give_back: Callable[[], None],
                 peak_memory: Callable[[], int], reader: PromptReader | None = None,
                 keeps: Callable[[Sequence[int]], None] | None = None) -> None:
        """chunk: tokens per prefill step; None: as many as memory allows.  give_back: called once when the request
        ends.

        reader: None: nothing is recalled or kept.  keeps: called once with the answer's tokens when the request ends
        """
        self.decoder, self._ids, self._chunk, self.reader = decoder, ids, chunk, reader
        self._give_back, self._peak_memory, self._keeps = give_back, peak_memory, keeps
        self._answer = list[int]()
        self._clock: Clock = decoder.verifier.clock
        self._prefill: Iterator[Step] | None = self._prefill_steps()
        self._reused = 0
        self._seconds: dict[str, float] = {}
        self._forwards: dict[str, int] = {}
        self._prefill_seconds = 0.0
        self._peak = 0
        self._finish: FinishReason | None = None
        self._cancelled = self._superseded = False
        self._batch = SINGLE_REQUEST
        self._rows = 1
        self._stepping = threading.Lock()
        self._stepper = threading.current_thread()      # the thread that steps the request, or that opened it

    @property
    def prompt_tokens(self) -> int:
        return len(self._ids)

    @property
    def finish_reason(self) -> FinishReason | None:
        return self._finish

    @property
    def stats(self) -> Stats:
        """Costs and acceptance so far."""
        return self.decoder.tally.stats(
            prompt_tokens=len(self._ids), reused_tokens=self._reused,
            first_difference=None if self.reader is None else self.reader.first_difference,
            prefill_seconds=self._prefill_seconds, decode_seconds=sum(self._seconds.values()),
            seconds_by_part=dict(self._seconds), forwards=dict(self._forwards),
            peak_memory_bytes=self._peak)

    @property
    def unread(self) -> int:
        """Number of prompt tokens that are still to be read."""
        return 0 if self._prefill is None else len(self._ids) - self.written

    @property
    def written(self) -> int:
        """Number of committed rows of the target's cache."""
        return self.decoder.verifier.cache.length

    @property
    def unwritten(self) -> int:
        """Number of rows of the target's cache that it reserved and has not committed yet."""
        cache = self.decoder.verifier.cache
        return cache.capacity - cache.length

    @property
    def weight(self) -> float:
        """Cost of reading its next token, relative to a token at the beginning of a prompt."""
        return 1 + self.written / self.decoder.verifier.target.costly_context

    @property
    def constraint_seconds(self) -> float:
        """CPU time of its last step for its constraint; 0.0 without one."""
        shaping = self.decoder.shaping
        return 0.0 if shaping is None or shaping.constraint is None else shaping.seconds

    @property
    def rows(self) -> int:
        """Number of rows of its last pass; 1 before the first pass."""
        return self._rows

    def step(self, batch: BatchLoad = SINGLE_REQUEST) -> Step | None:
        """Runs the next prefill chunk or decode step.

        Args:
            batch: The other work in the pass, if requests share passes.

        Returns:
            The step's result; None when the answer has ended.

        Raises:
            RuntimeError: another request was started on the session, or another thread is stepping this one.
        """
        if self._superseded:
            raise RuntimeError("Another request was started on this session; it serves one at a time. Finish this one "
                               "before the next, or load another session.")
        if not self._stepping.acquire(blocking=False):
            raise RuntimeError("This request is in the middle of a step in another thread. Wait for that step to end.")
        self._stepper, self._batch = threading.current_thread(), batch
        try:
            if self._cancelled and self._finish is None:
                self._end("cancelled")
            return self._advance() if self._finish is None else None
        finally:
            self._stepping.release()

    def _advance(self) -> Step:
        try:
            step = self._prefill_step() if self._prefill is not None else self._decode()
        except BaseException:       # also Ctrl-C: model and memories are released
            self._end("cancelled")
            raise
        self._answer += step.tokens
        self._rows = len(step.tree) if step.tree is not None else max(1, step.read - step.reused)
        if self.decoder.finish_reason is not None:
            self._end(self.decoder.finish_reason)
        return step

    def _prefill_step(self) -> Step:
        assert self._prefill is not None
        if self._batch.chunk == 0:     # the pass is left to shorter prompts
            return Step()
        with self._clock.part("host"):      # time outside all other parts, such as that of a memory
            step = next(self._prefill)
        if step.tokens:
            self._prefill = None
        self._prefill_seconds += sum(self._clock.lap().values())
        self._clock.counted()       # forwards on the prompt are not drafts
        return step

    def _prefill_steps(self) -> Iterator[Step]:
        """Recalls a known prefix, then reads chunk by chunk; the last chunk yields the first token."""
        decoder, reader = self.decoder, self.reader
        shaping = decoder.shaping
        whole = shaping is not None and shaping.reads_prompt        # recalled tokens have no logits
        if reader is not None and not whole and (known := reader.recall()):
            self._reused = known
            yield Step(read=known, reused=known)
        rest = torch.tensor(self._ids[self._reused:])
        for seen in read_prompt(decoder.verifier, rest, decoder.wants, self._chunk,
                                cell=None if reader is None else reader.cell, most=lambda: self._batch.chunk):
            decoder.observe(seen)
            if reader is not None:
                reader.keep(seen)
            step = Step()
            if decoder.verifier.cache.length == len(self._ids):
                step = decoder.begin(seen.next_token)
            yield replace(step, read=len(seen.tree),
                          prompt_logprobs=() if shaping is None else shaping.taken_of_prompt())

    def _decode(self) -> Step:
        with self._clock.part("host"):
            step = self.decoder.step(self._batch)
        for part, seconds in self._clock.lap().items():
            self._seconds[part] = self._seconds.get(part, 0.0) + seconds
        for kind, times in self._clock.counted().items():
            self._forwards[kind] = self._forwards.get(kind, 0) + times
        return step

    def cancel(self) -> None:
        """Ends the answer before its next step."""
        self._cancelled = True

    def close(self) -> None:
        """Releases model and memories; an unfinished answer is cancelled.

        It waits for a step in another thread.  Within a step of this thread (in a signal handler) it only cancels, and
        the next step closes.
        """
        if self._stepping.locked() and self._stepper is threading.current_thread():
            return self.cancel()
        with self._stepping:
            if self._finish is None:
                self._end("cancelled")

    def supersede(self) -> None:
        """Closes it for a new request; a later `step` raises.  RuntimeError if another, living thread steps it."""
        if self._finish is not None:
            return
        if self._stepper is not threading.current_thread() and self._stepper.is_alive():
            raise RuntimeError("This session is answering a prompt in another thread, and serves one at a time. Wait "
                               "for it, or load another session.")
        self.close()
        self._superseded = True

    def _end(self, reason: FinishReason) -> None:
        self._finish, self._prefill = reason, None
        self._peak = self._peak_memory()
        if self._keeps is not None:
            self._keeps(self._answer)
        self._give_back()

    def __iter__(self) -> Iterator[Step]:
        while (step := self.step()) is not None:
            yield step

    def __enter__(self) -> Request:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
