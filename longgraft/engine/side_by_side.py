"""Several requests at once, on one target: they share its passes, and each says what it would say alone.

Knows sessions and requests; knows no method and no text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from functools import partial

from longgraft.acceptance.sampling import Sampling
from longgraft.engine.decoder import Step
from longgraft.engine.encoder import Prompt
from longgraft.engine.request import Request
from longgraft.engine.session import Generation, Session
from longgraft.protocol.proposer import Beside
from longgraft.runtime.device_memory import free_bytes
from longgraft.target_model.together import together

READ = 128          # prompt tokens of all requests in a pass, where several run: longer chunks are hardly faster
LEAST = 16          # of one request
FILLED = 0.8        # share of the free memory that caches may fill


class Sessions:
    """As many sessions of one target and method as requests run, made as they are needed.

    most: requests that run at once
    """

    def __init__(self, session: Session, most: int) -> None:
        self.most, self._sessions, self._room = most if session.repeatable else 1, [session], 0.0

    def free(self, requests: Collection[Request], prompt_tokens: int, max_new_tokens: int) -> Session | None:
        """A session for another request, by its tokens; None while as many run as can, or as fit the memory.

        requests: those that run
        """
        first = self._sessions[0]
        if not requests:
            self._room = FILLED * free_bytes(first.target.device) / first.target.cache_bytes_per_token()
            return first
        rows = first.engine.rows(prompt_tokens, max_new_tokens) + sum(request.reserved for request in requests)
        if len(requests) >= self.most or rows > self._room:
            return None
        if (free := next((session for session in self._sessions if not session.engine.busy), None)) is None:
            try:
                self._sessions.append(free := first.another())
            except (MemoryError, RuntimeError):     # out of memory is either; those that run go on
                self.most = len(self._sessions)
        return free


def advance(requests: Sequence[Request]) -> list[Step | Exception | None]:
    """The next step of each, in order, as `Request.step` returns or raises it.  All wait for the slowest."""
    if len(requests) == 1:
        return together([requests[0].step])
    rows, reading = sum(request.rows for request in requests), sum(request.reads for request in requests)
    chunk = max(LEAST, READ // max(1, reading))
    return together([partial(request.step, Beside(len(requests) - 1, rows - request.rows, chunk))
                     for request in requests])


def generate_all(session: Session, prompts: Sequence[Prompt], max_new_tokens: int = 256,
                 stop: str | Sequence[str] | None = (), samplings: Sequence[Sampling] | None = None, most: int = 8
                 ) -> list[Generation]:
    """The answers that `session.generate` gives to these prompts, found `most` at once; in order.

    samplings: of each prompt; None: greedy
    """
    asked = [(session.encode(prompt), law) for prompt, law in
             zip(prompts, samplings or [Sampling()] * len(prompts), strict=True)]
    sessions, waiting = Sessions(session, most), deque(range(len(asked)))
    running: dict[int, Request] = {}
    steps: list[list[Step]] = [[] for _ in asked]
    found: dict[int, Generation] = {}
    try:
        while waiting or running:
            while waiting and (free := sessions.free(running.values(), len(asked[waiting[0]][0]), max_new_tokens)):
                ids, law = asked[waiting[0]]
                running[waiting.popleft()] = free.open(ids, max_new_tokens, law, stop)
            for (index, request), step in zip(list(running.items()), advance(list(running.values())), strict=True):
                if isinstance(step, Exception):
                    raise step
                assert step is not None, "nobody else cancels it"
                steps[index].append(step)
                if request.finish_reason is not None:
                    del running[index]
                    text, tokens = "".join(one.text for one in steps[index]), [one.tokens for one in steps[index]]
                    found[index] = Generation(text, [token for some in tokens for token in some], request.stats,
                                              request.finish_reason)
    finally:
        for request in running.values():
            request.close()
    return [found[index] for index in range(len(asked))]
