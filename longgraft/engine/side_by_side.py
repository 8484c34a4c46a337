"""Several requests at once, on one target: they share its passes, and each says what it would say alone."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

from longgraft.acceptance.sampling import Sampling
from longgraft.engine.decoder import Step
from longgraft.engine.encoder import Prompt
from longgraft.engine.predicted_output import Prediction
from longgraft.engine.request import Request
from longgraft.engine.session import Generation, Session
from longgraft.protocol.proposer import BatchLoad
from longgraft.runtime.device_memory import free_bytes
from longgraft.target_model.together import together

LOG = logging.getLogger(__name__)
READ = 128          # prompt tokens of all requests in a pass, where several run: longer chunks are hardly faster
LEAST = 16          # of them for the oldest request that reads
FILLED = 0.8        # share of the free memory that caches may fill
AGAIN = 10.0        # seconds after which a session that could not be made is tried again


class Sessions:
    """As many sessions of one target and method as requests run, made as they are needed and kept with the first.

    most: requests that run at once
    lone: whether a request that runs alone reads as much in a pass as in a common one, so that nobody who comes waits
          for long: not where nobody can join, nor on a GPU, where short chunks are much slower
    """

    def __init__(self, session: Session, most: int) -> None:
        self.first, self.most, self._again = session, most if session.repeatable else 1, 0.0
        self.lone = self.most > 1 and session.target.device.type == "cpu"

    def free(self, requests: Collection[Request], prompt_tokens: int, max_new_tokens: int) -> Session | None:
        """A session for another request, by its tokens; None while as many run as can, or as fit the memory.

        requests: those that run
        """
        if not requests:
            return self.first
        rows = self.first.engine.rows(prompt_tokens, max_new_tokens) + sum(one.unwritten for one in requests)
        if len(requests) >= self.most or rows > self._room():
            return None
        free = next((one for one in (self.first, *self.first.others) if not one.engine.busy), None) or self._made()
        if free is not None:
            free.follow(self.first)
        return free

    def filled(self, requests: Collection[Request]) -> float:
        """The share of all rows that memory has room for which these requests reserve, from 0 to 1.  From any
        thread."""
        written, reserved = sum(one.written for one in requests), sum(one.unwritten for one in requests)
        most = written + max(self._room(), reserved)
        return (written + reserved) / most if most else 0.0

    def _room(self) -> float:
        """Rows that the free memory has room for, when kept prompts take all of theirs."""
        engines = [session.engine for session in (self.first, *self.first.others)]
        free, kept = free_bytes(engines[0].target.device), engines[0].prefixes
        grows = 0 if kept is None else max(0, kept.most - kept.bytes)
        return (FILLED * free - grows) / max(engine.bytes_per_token for engine in engines)

    def _made(self) -> Session | None:
        if time.monotonic() < self._again:
            return None
        try:
            made = self.first.another()
        except Exception:       # those that run go on
            LOG.warning("no further session could be made, and fewer requests run at once", exc_info=True)
            self._again = time.monotonic() + AGAIN
            return None
        self.first.others.append(made)
        return made

    def steps(self, prompts: Sequence[Sequence[int]], max_new_tokens: int, opened: Callable[[Session, int], Request]
              ) -> Iterator[tuple[int, Step, Request]]:
        """(index of the prompt, step, its request) as answers to these prompts go on; closing it cancels those that
        run.  opened: begins the prompt of this index on this session."""
        waiting, running = deque(range(len(prompts))), dict[int, Request]()
        try:
            while waiting or running:
                while waiting and (free := self.free(running.values(), len(prompts[waiting[0]]), max_new_tokens)):
                    running[waiting[0]] = opened(free, waiting[0])
                    waiting.popleft()
                for (index, request), step in zip(list(running.items()), advance(list(running.values())), strict=True):
                    if isinstance(step, Exception):
                        raise step
                    assert step is not None, "nobody else cancels it"
                    if request.finish_reason is not None:
                        del running[index]
                    yield index, step, request
        finally:
            for request in running.values():
                request.close()


def advance(requests: Sequence[Request], lone: bool = False) -> list[Step | Exception | None]:
    """The next step of each, in order, as `Request.step` returns or raises it.  All wait for the slowest.

    requests: the oldest first; lone: as of `Sessions`
    """
    chunks = shares([one.unread for one in requests], [one.weight for one in requests])
    if len(requests) == 1:
        try:
            return [requests[0].step(BatchLoad(chunk=chunks[0] if lone else None))]
        except Exception as error:
            return [error]
    rows = sum(request.rows for request in requests)
    return together([partial(request.step, BatchLoad(len(requests) - 1, rows - request.rows, chunk))
                     for request, chunk in zip(requests, chunks, strict=True)])


def shares(unread: Sequence[int], weights: Sequence[float]) -> list[int]:
    """Prompt tokens that each may read in a common pass, which takes about as long as READ tokens do in the beginning
    of a prompt: of the oldest for LEAST of them, so that it ends at last; then the shortest rest first, so that a
    short prompt's answer begins before a long one is read.  Others may rest.

    unread: of each, the oldest first; 0 of one that decodes.  weights: what a token of it costs, as `Request.weight`
    """
    found, room = [0] * len(unread), float(READ)
    oldest = next((index for index, rest in enumerate(unread) if rest), None)
    if oldest is not None:
        found[oldest] = min(unread[oldest], max(1, int(LEAST / weights[oldest])))
        room -= found[oldest] * weights[oldest]
    for index in sorted(range(len(unread)), key=unread.__getitem__):
        more = max(0, min(unread[index] - found[index], int(room / weights[index])))
        found[index] += more
        room -= more * weights[index]
    return found


def generate_all(session: Session, prompts: Sequence[Prompt], max_new_tokens: int = 256,
                 stop: str | Sequence[str] | None = (), samplings: Sequence[Sampling] | None = None, most: int = 8, *,
                 predictions: Sequence[Prediction | None] | None = None, eos: int | Sequence[int] | None = None,
                 budget: int | None = None, corpus: str | None = None) -> list[Generation]:
    """The answers that `session.generate` gives to these prompts, found `most` at once; in order.

    samplings, predictions: of each prompt; None: greedy, none; eos, budget, corpus: of all, as in `Session.open`
    """
    ids = [session.encode(prompt) for prompt in prompts]
    own = list(zip(ids, samplings or [Sampling()] * len(ids), predictions or [None] * len(ids), strict=True))
    steps: list[list[Step]] = [[] for _ in ids]
    ended: dict[int, Request] = {}

    def opened(free: Session, index: int) -> Request:
        prompt, sampling, prediction = own[index]
        return free.open(prompt, max_new_tokens, sampling, stop, eos, prediction=prediction, budget=budget,
                         corpus=corpus)

    for index, step, request in Sessions(session, most).steps(ids, max_new_tokens, opened):
        steps[index].append(step)
        ended[index] = request
    return [_generation(steps[index], ended[index]) for index in range(len(ids))]


def _generation(steps: Sequence[Step], request: Request) -> Generation:
    assert request.finish_reason is not None
    return Generation("".join(step.text for step in steps), [token for step in steps for token in step.tokens],
                      request.stats, request.finish_reason, tuple(one for step in steps for one in step.logprobs))
