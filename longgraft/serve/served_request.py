"""A request of the server: it waits for its turn, is decoded by the worker, and streams its steps to a coroutine."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, Protocol

from longgraft.acceptance.shaping import TokenLogprob
from longgraft.engine.generation_request import GenerationRequest
from longgraft.engine.scheduler import Scheduled
from longgraft.engine.session import Session
from longgraft.engine.stats import Stats
from longgraft.engine.step import FinishReason, Step
from longgraft.serve.answer_context import AnswerContext
from longgraft.serve.formats.logprobs import unfollowed

if TYPE_CHECKING:
    from longgraft.serve.worker import Worker

LOOK = 0.02  # seconds between looks at a full queue
TRACE: ContextVar[Mapping[str, str]] = ContextVar("longgraft_trace", default=MappingProxyType({}))
"""Headers of the request that name the trace it belongs to."""
CLIENT = ContextVar("longgraft_client", default="")
"""A digest of the API key that the request came with; "" without a key."""
TOKENS: ContextVar[Tokens | None] = ContextVar("longgraft_tokens", default=None)
"""The counts of the HTTP request that is being answered; None if nobody asks for them."""
Steps = AsyncIterator[Step | None]
"""Steps, and None after every beat without one."""


@dataclass
class Tokens:
    """Token counts of all answers to one HTTP request.

    Attributes:
        read: Tokens of prompts that were read or recalled.
        kept: Those that were recalled from kept prompts.
        written: Tokens of answers.
    """

    read: int = 0
    kept: int = 0
    written: int = 0

    def add(self, read: int, kept: int, written: int) -> None:
        """Adds further tokens."""
        self.read += read
        self.kept += kept
        self.written += written


@dataclass(frozen=True)
class End:
    """The end of a request.

    Attributes:
        reason: The answer's finish reason; or time, by `ServedRequest.seconds`; or cut, by
            `ServedRequest.complete`.
        stats: Costs and acceptance.
        queued: Seconds in the queue.
        stopped_by: The stop string, or the special token of one, that ended the answer; None if none did.
    """

    reason: FinishReason | Literal["time", "cut"]
    stats: Stats = field(default_factory=Stats)
    queued: float = 0.0
    stopped_by: str | int | None = None


class Watcher(Protocol):
    """Observer of every request.  The decoding thread calls it and waits for it."""

    def stepped(self, served: ServedRequest, step: Step, seconds: float) -> None:
        """Observes a step.

        Args:
            seconds: Duration of the step, which other requests may share.
        """

    def ended(self, served: ServedRequest, end: End | None) -> None:
        """Observes the end of a request.

        Args:
            end: None if decoding raised an exception.
        """


class ServedRequest(Scheduled):
    """A request of the server, made in the coroutine that answers it.

    Iterate over it once for its steps; `end` is set afterwards.  It is queued by `submit`, or by the
    iteration, after its leader has read their prompt.
    Iteration raises Failed if decoding failed, ValueError if the session refused the request, and Closing at
    shutdown.

    Args:
        worker: Decodes it.
        requested: The request.
        context: What its answer's format must know of the prompt.
        session: Answers it, and must be free; None: the worker's.
        seconds: Time limit of decoding, from the first new token; None: no limit.
        complete: Called in the decoding thread; returns True for the step that completes the answer.
        trim: Cuts the text of the steps for the client.
        leader: The first request with the same prompt, which reads it; None: this one.
        body: The same for all answers to one body; None: this one is the only one.

    Attributes:
        logprobs: Log-probabilities of the answer's tokens so far.
        prompt_logprobs: Those of the prompt's tokens, once it is read.
        until: Time at which `seconds` are over.
        end: Its end; None while it goes on.
        trace: Headers that name the trace it belongs to.
    """

    def __init__(
        self,
        worker: Worker,
        requested: GenerationRequest,
        context: AnswerContext | None = None,
        *,
        session: Session | None = None,
        seconds: float | None = None,
        complete: Callable[[Step], bool] | None = None,
        trim: Callable[[Steps], Steps] | None = None,
        leader: ServedRequest | None = None,
        body: object = None,
    ) -> None:
        if requested.client is not None:
            # The threads that encode prompts do not know the client.
            requested = replace(requested, client=CLIENT.get())
        super().__init__(requested, session)
        self.context = context or AnswerContext()
        self.seconds = seconds
        self.complete = complete
        self.leader = leader or self
        self.body = body or self
        self.logprobs = list[TokenLogprob]()
        self.prompt_logprobs = list[TokenLogprob]()
        if requested.sampling.prompt_logprobs is not None:
            self.prompt_logprobs.append(unfollowed(requested.ids[0]))
        self.until = math.inf
        self.end: End | None = None
        self.trace = TRACE.get()
        self._tokens = TOKENS.get() or Tokens()
        self._worker = worker
        self._trim = trim
        self._submitted = False
        self._prompt_read = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Step | End | Exception] = asyncio.Queue()

    def submit(self) -> None:
        """Queues it now; raises the exceptions of `Worker.submit`."""
        self.since = time.monotonic()
        self._worker.submit(self)
        self._submitted = True

    def cancel(self) -> None:
        """Ends it before its next step, also before its turn.

        It may be called from any thread, repeatedly.
        """
        self.cancelled = True
        self._worker.cancel(self)

    def __aiter__(self) -> AsyncIterator[Step]:
        return (step async for step in self.steps() if step is not None)

    def steps(self, beat: float | None = None) -> Steps:
        """Returns an iterator of the steps, with None after every `beat` seconds without one."""
        steps = self._in_turn(beat)
        return steps if self._trim is None else self._trim(steps)

    def shown_step(self, step: Step) -> Step:
        """Returns what of a step the client gets, and what counts as its answer."""
        if self.context.only_reads:
            return replace(step, tokens=(), origins=(), text="", logprobs=())
        return step

    def shown_end(self, end: End) -> End:
        """Returns what of the end the client gets."""
        if not self.context.only_reads or end.reason == "cancelled":
            return end
        return replace(end, reason="length", stats=replace(end.stats, new_tokens=0), stopped_by=None)

    def send(self, event: Step | End | Exception) -> None:
        """Sends an event to the coroutine that iterates; it may be called from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)
        except RuntimeError:  # the loop is closed: no coroutine is left
            self.cancelled = True

    async def _in_turn(self, beat: float | None) -> Steps:
        """Queues the request if that is still to be done, and yields the steps."""
        try:
            if self.leader is not self:
                await self.leader._prompt_read.wait()
            while not self._submitted and not self.cancelled:
                if self._worker.full:
                    await asyncio.sleep(LOOK)
                else:
                    self.submit()
            if not self._submitted:
                self.end = End("cancelled")
            while self.end is None:
                event = await self._event(beat)
                if isinstance(event, End):
                    self.end = event
                elif event is None:
                    yield None
                else:
                    self._note(event)
                    yield event
        finally:
            self._prompt_read.set()

    async def _event(self, beat: float | None) -> Step | End | None:
        """Returns the next event, or None after `beat` seconds without one.

        Raises an exception that was sent.
        """
        if beat is None or not self._events.empty():  # no timeout without need: it costs time
            event = await self._events.get()
        else:
            try:
                event = await asyncio.wait_for(self._events.get(), beat)
            except TimeoutError:
                return None
        if isinstance(event, Exception):
            raise event
        return event

    def _note(self, step: Step) -> None:
        """Takes note of a step."""
        self.prompt_logprobs += step.prompt_logprobs
        if step.tokens:
            self._prompt_read.set()
        self._tokens.add(step.read, step.reused, len(step.tokens))
        self.logprobs += step.logprobs
