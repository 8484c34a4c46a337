"""A request: one prompt and its answer, step by step; a step is a prefill chunk or a decode step."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NoReturn

import torch

from longgraft.acceptance.shaping import Shaping, TokenLogprob
from longgraft.engine.answer_end import AnswerEnd
from longgraft.engine.prompt_reader import PromptReader
from longgraft.engine.stats import Stats, Tally
from longgraft.engine.step import FinishReason, Step
from longgraft.prefill.chunked import read_prompt
from longgraft.protocol.observation import Observation, Wants
from longgraft.protocol.proposer import SINGLE_REQUEST, Ask, BatchLoad, Proposer
from longgraft.runtime.device_memory import peak_memory
from longgraft.target_model.verifier import Verifier
from longgraft.trees.padded import PaddedTree, on_host
from longgraft.trees.tree import ROOT, ProposalTree


class Request:
    """One prompt and its answer.  Iterate it, or call `step` until it returns None.

    A step reads a chunk of the prompt, or proposes a tree, verifies it and shows the memories what came of
    it.

    It releases model and memories when it ends, when it is closed, and at the end of a `with` block.  Use it
    from one thread at a time; `cancel` may be called from any thread.

    Args:
        ids: Token ids of the prompt.
        verifier: Runs the target on chunks and trees, and draws tokens.
        proposer: Proposes a tree per step.
        budget: Most nodes of a tree, root included.
        end: Where the answer ends, and its text.
        give_back: Called once when the request ends.
        chunk: Prompt tokens per prefill step; None: as many as memory allows.
        shaping: Changes logits by the tokens before them; None: nothing does.
        reader: Recalls and keeps the prompt; None: nothing is recalled or kept.
        keep_answer: Called once with the answer's tokens when the request ends.

    Attributes:
        finish_reason: None while it runs; then stop, length, eos or cancelled.
        stats: Costs and acceptance so far.
        rows: Rows of its last pass; 1 before the first pass.

    Examples:
        >>> import longgraft
        >>> session = longgraft.load(tell=False)
        >>> with session.open("if __name__ ==", stop=":") as request:
        ...     text = "".join(step.text for step in request)
        >>> text, request.finish_reason
        (' "__main__"', 'stop')
    """

    def __init__(
        self,
        ids: Sequence[int],
        verifier: Verifier,
        proposer: Proposer,
        budget: int,
        end: AnswerEnd,
        give_back: Callable[[], None],
        chunk: int | None = None,
        shaping: Shaping | None = None,
        reader: PromptReader | None = None,
        keep_answer: Callable[[Sequence[int]], None] | None = None,
    ) -> None:
        self.verifier = verifier
        self.proposer = proposer
        self.reader = reader
        self.rows = 1
        self._ids = ids
        self._budget = budget
        self._answer_end = end
        self._give_back = give_back
        self._chunk = chunk
        self._shaping = shaping
        self._keep_answer = keep_answer
        self._wants = Wants.union(memory.wants for memory in proposer.memories)
        self._answer = list[int]()
        self._tally = Tally()
        self._prefill: Iterator[Step] | None = self._prefill_steps()
        self._root = -1  # the last token of the answer, once it has one
        # Waits for the pass that was launched for the next step; None if there is none.
        self._launched: Callable[[], Observation] | None = None
        self._reused = 0
        self._prefill_seconds = 0.0
        self._decode_seconds: dict[str, float] = {}  # by part of a step
        self._recording_seconds = 0.0
        self._forwards = Counter[str]()
        self._peak = 0
        self._finish: FinishReason | None = None
        self._cancelled = False
        self._superseded = False
        self._batch = SINGLE_REQUEST
        self._stepping = threading.Lock()
        self._stepper = threading.current_thread()  # the thread that steps the request, or that opened it

    @property
    def prompt_tokens(self) -> int:
        return len(self._ids)

    @property
    def finish_reason(self) -> FinishReason | None:
        return self._finish

    @property
    def stopped_by(self) -> str | int | None:
        """The stop string or the stop token that ended the answer; None if none did."""
        return self._answer_end.stopped_by

    @property
    def stats(self) -> Stats:
        """Costs and acceptance so far."""
        difference = None
        if self.reader is not None:
            difference = self.reader.first_difference
        return self._tally.stats(
            prompt_tokens=len(self._ids),
            reused_tokens=self._reused,
            first_difference=difference,
            prefill_seconds=self._prefill_seconds,
            decode_seconds=sum(self._decode_seconds.values()),
            seconds_by_part=dict(self._decode_seconds),
            recording_seconds=self._recording_seconds,
            forwards=dict(self._forwards),
            peak_memory_bytes=self._peak,
        )

    @property
    def unread(self) -> int:
        """Number of prompt tokens that are still to be read."""
        if self._prefill is None:
            return 0
        return len(self._ids) - self.written

    @property
    def written(self) -> int:
        """Number of committed rows of the target's cache."""
        return self.verifier.cache.length

    @property
    def unwritten(self) -> int:
        """Number of rows of the target's cache that it reserved and has not committed yet."""
        return self.verifier.cache.capacity - self.verifier.cache.length

    @property
    def weight(self) -> float:
        """Cost of reading its next token, relative to a token at the beginning of a prompt."""
        return 1 + self.written / self.verifier.target.costly_context

    @property
    def constraint_seconds(self) -> float:
        """CPU time of its last step for its constraint; 0.0 without one."""
        if self._shaping is None or self._shaping.constraint is None:
            return 0.0
        return self._shaping.seconds

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
            raise RuntimeError(
                "Another request was started on this session; it serves one at a time. Finish "
                "this one before the next, or load another session."
            )
        if not self._stepping.acquire(blocking=False):
            raise RuntimeError("This request is in the middle of a step in another thread. Wait for that step to end.")
        self._stepper = threading.current_thread()
        self._batch = batch
        try:
            if self._cancelled and self._finish is None:
                self._end("cancelled")
            if self._finish is not None:
                return None
            if self._prefill is None:
                step = self._decode()
            elif batch.chunk == 0:  # the pass is left to shorter prompts
                step = Step()
            else:
                step = self._read(self._prefill)
            self._answer += step.tokens
            self.rows = step.rows
            if self._answer_end.reason is not None:
                self._end(self._answer_end.reason)
            return step
        except BaseException:  # also Ctrl-C: model and memories are released
            if self._finish is None:
                self._end("cancelled")
            raise
        finally:
            self._stepping.release()

    def _read(self, prefill: Iterator[Step]) -> Step:
        """Reads the next chunk of the prompt; the last one yields the first new token."""
        clock = self.verifier.clock
        with clock.part("host"):  # time outside all other parts, such as that of a memory
            step = next(prefill)
        if step.tokens:
            self._prefill = None
        self._prefill_seconds += sum(clock.lap().values())
        clock.counted()  # forwards on the prompt are not drafts
        return step

    def _prefill_steps(self) -> Iterator[Step]:
        """Recalls a known prefix, then reads chunk by chunk; the last chunk yields the first token."""
        reader = self.reader
        shaping = self._shaping
        cell = None
        if reader is not None:
            cell = reader.cell
            needs_logits = shaping is not None and shaping.reads_prompt  # recalled tokens have none
            if not needs_logits:
                self._reused = reader.recall()
        if self._reused:
            yield Step(read=self._reused, reused=self._reused)
        rest = torch.tensor(self._ids[self._reused :])
        chunks = read_prompt(self.verifier, rest, self._wants, self._chunk, cell=cell, most=lambda: self._batch.chunk)
        for observation in chunks:
            self._observe(observation)
            if reader is not None:
                reader.keep(observation)
            step = Step(read=len(observation.tree))
            if self.verifier.cache.length == len(self._ids):
                step = replace(self._first(observation.next_token), read=len(observation.tree))
            if shaping is not None:
                step = replace(step, prompt_logprobs=shaping.taken_of_prompt())
            yield step

    def _first(self, token: int) -> Step:
        """Begins the answer with its first token, which the prefill drew."""
        self._root = token
        _, text = self._answer_end.cut([token], 0)
        self._tally.first()
        return Step(tokens=(token,), origins=(ROOT,), text=text, logprobs=self._logprobs(1))

    def _decode(self) -> Step:
        """Takes the result of this step's pass, and launches the next one before what the device need not wait for."""
        clock = self.verifier.clock
        regions = self.verifier.regions
        recorded_before = regions.seconds
        before = self._tally.new_tokens
        with clock.part("host"):
            launched = self._launched or self._launch(self._answer_end.limit - before)
            self._launched = None
            verified = launched()
            self._forwards.update(clock.counted())
            path = verified.path.tolist()
            drawn = [*verified.kept[1:].tolist(), verified.next_token]
            left = self._answer_end.limit - before - len(drawn)
            goes_on = self._answer_end.goes_on(drawn, before)
            if goes_on:
                self._go_on(verified, left)
            new, text = self._answer_end.cut(drawn, before)
            if self._answer_end.reason is None and not goes_on:  # only the text could tell
                self._go_on(verified, left)
            self._tally.count(verified.tree, path, len(new))
            origins = [*verified.tree.origin[verified.path[1:]].tolist(), ROOT]
            step = Step(
                tokens=tuple(new),
                origins=tuple(origins[: len(new)]),
                text=text,
                tree=verified.tree,
                path=tuple(path),
                logprobs=self._logprobs(len(new)),
            )
        for part, seconds in clock.lap().items():
            self._decode_seconds[part] = self._decode_seconds.get(part, 0.0) + seconds
        self._recording_seconds += regions.seconds - recorded_before
        return step

    def _go_on(self, verified: Observation, left: int) -> None:
        """Shows the memories what came of a step, and launches the next pass if it can run meanwhile.

        Args:
            verified: What came of the step.
            left: Tokens that may follow it.
        """
        self._observe(verified)
        self._root = verified.next_token
        if self._cancelled or not self.verifier.runs_ahead:
            return
        try:
            self._launched = self._launch(left)
        except Exception as error:  # it ends the next step, if that is ever asked for
            self._launched = partial(_raise, error)

    def _launch(self, left: int) -> Callable[[], Observation]:
        """Proposes a tree and launches the pass that verifies it; returns what waits for its result.

        Nothing of it shows before the result is taken, so a request may end before that.
        """
        self.verifier.regions.begin_step()
        return self.verifier.launch(self._proposed(left), self._wants)

    def _proposed(self, left: int) -> ProposalTree | PaddedTree:
        """Returns the next tree, cut to the depth that can still be emitted, so that no position beyond is used."""
        if left > 1:
            ask = Ask(
                self._root, self._budget, self.verifier.cache.position, self.verifier.rule.guesses, batch=self._batch
            )
            tree = self.proposer.propose(ask)
        else:  # nothing is proposed for the last token, because the pass after it is never run
            tree = ProposalTree.root_only(self._root)
        if self._shaping is not None:
            tree = self._shaping.fitted(on_host(tree), self._budget)
        return tree.shallower(left - 1)

    def _observe(self, observation: Observation) -> None:
        """Shows an observation to every memory."""
        for memory in self.proposer.memories:
            memory.observe(observation)

    def _logprobs(self, tokens: int) -> tuple[TokenLogprob, ...]:
        if self._shaping is None:
            return ()
        return self._shaping.taken(tokens)

    def cancel(self) -> None:
        """Ends the answer before its next step."""
        self._cancelled = True

    def close(self) -> None:
        """Releases model and memories; an unfinished answer is cancelled.

        It waits for a step in another thread.  Within a step of this thread (in a signal handler) it only
        cancels, and the next step closes.
        """
        if self._stepping.locked() and self._stepper is threading.current_thread():
            return self.cancel()
        with self._stepping:
            if self._finish is None:
                self._end("cancelled")

    def supersede(self) -> None:
        """Closes it for a new request; a later `step` raises.

        RuntimeError if another, living thread steps it.
        """
        if self._finish is not None:
            return
        if self._stepper is not threading.current_thread() and self._stepper.is_alive():
            raise RuntimeError(
                "This session is answering a prompt in another thread, and serves one at a "
                "time. Wait for it, or load another session."
            )
        self.close()
        self._superseded = True

    def _end(self, reason: FinishReason) -> None:
        self._finish = reason
        self._prefill = None
        self._launched = None
        self._peak = peak_memory(self.verifier.target.device)
        if self._keep_answer is not None:
            self._keep_answer(self._answer)
        self._give_back()

    def __iter__(self) -> Iterator[Step]:
        return iter(self.step, None)

    def __enter__(self) -> Request:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _raise(error: Exception) -> NoReturn:
    raise error
