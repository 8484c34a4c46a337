"""Continuous batching: several requests on one target share its passes.

In float32, or with whole compiled layers, an exact method gives each request the answer that it would get alone;
elsewhere rounding may decide a near tie differently (docs/exactness.md).
"""

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
PASS_TOKENS = 128       # prefill tokens per shared pass; larger chunks are barely faster
OLDEST_TOKENS = 16      # how many of those are reserved for the oldest prefill
MEMORY_SHARE = 0.8      # share of the free memory that caches may fill
RETRY_SECONDS = 10.0    # time after which a session that could not be made is tried again


class Sessions:
    """Sessions of one target and method, one per running request; they are made when needed and kept in `first.others`.

    max_running: most requests that run at once; 1 if the session cannot be repeated
    low_latency: for `advance`, used by the server. True on a CPU if several requests may run: then a lone request also
           reads at most PASS_TOKENS prompt tokens per pass, so that a new request starts soon, and long prompts get
           fewer tokens while other requests decode. Requests that share a pass always divide PASS_TOKENS. On a GPU
           small chunks are much slower, so a lone request reads full chunks
    """

    def __init__(self, session: Session, max_running: int) -> None:
        self.first, self.max_running, self._retry_at = session, max_running if session.repeatable else 1, 0.0
        self.low_latency = self.max_running > 1 and session.target.device.type == "cpu"

    def free(self, requests: Collection[Request], prompt_tokens: int, max_new_tokens: int) -> Session | None:
        """Returns a session for another request, or None.

        If no request runs it is the first session, even if memory may not suffice.  None if max_running requests run,
        if memory has no room for another, or if no further session could be made.

        requests: the running ones
        """
        if not requests:
            return self.first
        rows = self.first.engine.rows(prompt_tokens, max_new_tokens) + sum(one.unwritten for one in requests)
        if len(requests) >= self.max_running or rows > self._room():
            return None
        free = next((one for one in (self.first, *self.first.others) if not one.engine.busy), None) or self._made()
        if free is not None:
            free.follow(self.first)
        return free

    def filled(self, requests: Collection[Request]) -> float:
        """Returns the share, from 0 to 1, of the KV cache's possible rows that these requests fill or reserve.

        It may be called from any thread.
        """
        written, reserved = sum(one.written for one in requests), sum(one.unwritten for one in requests)
        most = written + max(self._room(), reserved)
        return (written + reserved) / most if most else 0.0

    def _room(self) -> float:
        """Returns how many more KV rows memory has room for, less what the prefix cache may still grow by."""
        engines = [session.engine for session in (self.first, *self.first.others)]
        free, kept = free_bytes(engines[0].target.device), engines[0].prefixes
        grows = 0 if kept is None else max(0, kept.most - kept.bytes)
        return (MEMORY_SHARE * free - grows) / max(engine.bytes_per_token for engine in engines)

    def _made(self) -> Session | None:
        if time.monotonic() < self._retry_at:
            return None
        try:
            made = self.first.another()
        except Exception:       # the running requests go on
            LOG.warning("no further session could be made, and fewer requests run at once", exc_info=True)
            self._retry_at = time.monotonic() + RETRY_SECONDS
            return None
        self.first.others.append(made)
        return made

    def steps(self, prompts: Sequence[Sequence[int]], max_new_tokens: int, opened: Callable[[Session, int], Request]
              ) -> Iterator[tuple[int, Step, Request]]:
        """Yields (index of the prompt, step, its request) until all prompts are answered.

        Closing the iterator cancels the running requests.  A step is empty if its request rests in this pass.

        opened: (session, index of a prompt) -> its opened request
        """
        waiting, running = deque(range(len(prompts))), dict[int, Request]()
        try:
            while waiting or running:
                while waiting and (free := self.free(running.values(), len(prompts[waiting[0]]), max_new_tokens)):
                    running[waiting[0]] = opened(free, waiting[0])
                    waiting.popleft()
                for (index, request), step in zip(list(running.items()), advance(list(running.values())), strict=True):
                    if isinstance(step, Exception):
                        raise step
                    assert step is not None, "only a cancelled request has no step"
                    if request.finish_reason is not None:
                        del running[index]
                    yield index, step, request
        finally:
            for request in running.values():
                request.close()


def advance(requests: Sequence[Request], low_latency: bool = False) -> list[Step | Exception | None]:
    """Runs the next step of each request, and returns what `Request.step` returns or raises, in order.

    All requests wait for the slowest.  requests: the oldest first; low_latency: as in `Sessions`
    """
    # The rows of each request's last pass stand for those of the pass to come.
    decoding = sum(one.rows for one in requests if not one.unread) if low_latency else 0
    chunks = shares([one.unread for one in requests], [one.weight for one in requests],
                    max(OLDEST_TOKENS, decoding) if decoding else PASS_TOKENS)
    if len(requests) == 1:
        try:
            return [requests[0].step(BatchLoad(chunk=chunks[0] if low_latency else None))]
        except Exception as error:
            return [error]
    rows = sum(request.rows for request in requests)
    return together([partial(request.step, BatchLoad(len(requests) - 1, rows - request.rows, chunk))
                     for request, chunk in zip(requests, chunks, strict=True)])


def shares(unread: Sequence[int], weights: Sequence[float], long_tokens: int = PASS_TOKENS) -> list[int]:
    """Returns the prompt tokens that each request may prefill in a shared pass.

    Tokens are weighted by their cost: the pass takes about as long as PASS_TOKENS tokens at the beginning of a prompt.
    OLDEST_TOKENS of them are for the oldest prefill, so that it never starves.  The rest goes to the shortest remaining
    prompts first, so that a short prompt is answered before a long one is read.  A request with 0 rests in this pass.

    Args:
        unread: Remaining prompt tokens, the oldest request first; 0 for one that decodes.
        weights: Cost of each request's next token, as in `Request.weight`.
        long_tokens: Limit, in weighted tokens, for all prompts together that have more than PASS_TOKENS tokens left.
            `advance` sets it to the number of decoding rows: a pass then has about twice as many rows, so a streamed
            answer waits about twice as long for its next token.
    """
    found, room, long_room = [0] * len(unread), float(PASS_TOKENS), float(long_tokens)
    oldest = next((index for index, rest in enumerate(unread) if rest), None)
    if oldest is not None:
        found[oldest] = min(unread[oldest], max(1, int(OLDEST_TOKENS / weights[oldest])))
        room -= found[oldest] * weights[oldest]
        long_room -= found[oldest] * weights[oldest] * (unread[oldest] > PASS_TOKENS)
    for index in sorted(range(len(unread)), key=unread.__getitem__):
        is_long = unread[index] > PASS_TOKENS
        available = min(room, long_room) if is_long else room
        more = max(0, min(unread[index] - found[index], int(available / weights[index])))
        found[index] += more
        room -= more * weights[index]
        long_room -= more * weights[index] * is_long
    return found


def generate_all(session: Session, prompts: Sequence[Prompt], max_new_tokens: int = 256,
                 stop: str | Sequence[str] | None = (), samplings: Sequence[Sampling] | None = None, most: int = 8, *,
                 predictions: Sequence[Prediction | None] | None = None, eos: int | Sequence[int] | None = None,
                 budget: int | None = None, corpus: str | None = None) -> list[Generation]:
    """Answers several prompts, `most` at once, and returns the answers in order.

    Each answer is the one that `session.generate` gives.

    Args:
        session: The session to answer on.
        prompts: Text, chat messages or token ids each.
        max_new_tokens: Most tokens of each answer.
        stop: Stop strings.
        samplings: One per prompt; None: greedy.
        most: Most requests that run at once.
        predictions: One per prompt, texts that the answer may repeat; None: none.
        eos: End tokens of all answers, as in `Session.open`.
        budget: Most nodes per verification, as in `Session.open`.
        corpus: Name of a corpus, as in `Session.open`.

    Raises:
        ValueError: a prompt or a setting is wrong.
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
                      request.stats, request.finish_reason, tuple(one for step in steps for one in step.logprobs),
                      tuple(one for step in steps for one in step.prompt_logprobs))
