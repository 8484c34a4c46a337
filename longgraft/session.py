"""One model, one method, ready to answer.  The whole loop: propose, verify, observe, emit.

Knows target, proposer and text; knows no method by name and no model family.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from longgraft.kv import KVCache
from longgraft.observation import Clock, Proposer
from longgraft.prefill.chunked import prefill
from longgraft.sampling import Sampling
from longgraft.target.model import Target
from longgraft.text import Detokenizer
from longgraft.tree import DRAFT, RETRIEVED, ProposalTree
from longgraft.verifier import Verifier

Prompt = str | Sequence[int] | Sequence[dict[str, str]] | torch.Tensor


@dataclass
class Stats:
    """What a generation cost and what its proposals were worth.  mat: without the bonus token."""

    prompt_tokens: int = 0
    new_tokens: int = 0
    accepted_per_step: list[int] = field(default_factory=list)
    accepted_by_origin: Counter[str] = field(default_factory=lambda: Counter(draft=0, retrieved=0, both=0))
    stages: Counter[str] = field(default_factory=Counter)
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    seconds_by_part: dict[str, float] = field(default_factory=dict)
    peak_memory_bytes: int = 0

    @property
    def steps(self) -> int:
        """Verification passes; the prefill, which yields the first token, is none."""
        return len(self.accepted_per_step)

    @property
    def mat(self) -> float:
        """Mean accepted tokens per step, bonus excluded."""
        return sum(self.accepted_per_step) / self.steps if self.steps else 0.0

    @property
    def tokens_per_step(self) -> float:
        """mat + 1: with the bonus; 1 for plain decoding."""
        return self.mat + 1.0 if self.steps else 0.0

    @property
    def decode_tokens_per_second(self) -> float:
        """Tokens after the first, over decoding time alone."""
        return (self.new_tokens - 1) / self.decode_seconds if self.decode_seconds else 0.0

    def count(self, tree: ProposalTree, path: Sequence[int], emitted: int) -> None:
        """Credit one step: its path below the root, as far as it was emitted."""
        accepted = path[1:1 + emitted]
        self.accepted_per_step.append(len(accepted))
        for bits in tree.origin[torch.tensor(accepted, dtype=torch.int64)].tolist():
            both = bits & DRAFT and bits & RETRIEVED
            self.accepted_by_origin["both" if both else "draft" if bits & DRAFT else "retrieved"] += 1
        if tree.stage is not None:
            self.stages[tree.stage] += 1

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "prompt_tokens": self.prompt_tokens, "new_tokens": self.new_tokens, "steps": self.steps,
            "accepted_per_step": self.accepted_per_step, "mat": self.mat,
            "tokens_per_step": self.tokens_per_step, "prefill_seconds": self.prefill_seconds,
            "decode_seconds": self.decode_seconds, "decode_tokens_per_second": self.decode_tokens_per_second,
            "accepted_by_origin": dict(self.accepted_by_origin), "stages": dict(self.stages),
            "seconds_by_part": self.seconds_by_part, "peak_memory_bytes": self.peak_memory_bytes}


@dataclass(frozen=True)
class Generation:
    """An answer.  text ends before a stop string; token_ids end with the token that completed it, or with EOS."""

    text: str
    token_ids: list[int]
    stats: Stats


def decode(verifier: Verifier, proposer: Proposer, root: int, limit: int, budget: int,
           stats: Stats, eos: Sequence[int] = ()) -> Iterator[list[int]]:
    """After a prefill that drew `root`: new tokens step by step, the root first, exactly `limit` or up to EOS.

    A tree is cut to the depth that can still be emitted, so that no position beyond the last is ever used.
    """
    stats.new_tokens = 1
    yield [root]
    ended = root in eos
    while not ended and stats.new_tokens < limit:
        left = limit - stats.new_tokens
        tree = proposer.propose(root, budget).shallower(left - 1)
        seen = verifier.verify(tree, proposer.wants)
        path = seen.path.tolist()
        new = [*tree.tokens[seen.path[1:]].tolist(), seen.next_token]
        stop = next((i for i, token in enumerate(new) if token in eos), None)
        if stop is not None:
            new, ended = new[:stop + 1], True
        stats.count(tree, path, len(new))
        stats.new_tokens += len(new)
        if not ended and stats.new_tokens < limit:
            proposer.observe(seen)
        root = seen.next_token
        yield new


class Session:
    """A target with one method.  Serves one request at a time; nothing of a request is left on the model."""

    def __init__(self, target: Target, tokenizer: Any, proposer: Proposer, clock: Clock,
                 budget: int = 60, limits: dict[str, int] | None = None, chunk: int | None = None,
                 parts: Any = None) -> None:
        self.target, self.tokenizer, self.proposer, self.clock = target, tokenizer, proposer, clock
        self.budget, self.chunk, self.parts = budget, chunk, parts      # parts: `methods.Parts`, to report on
        self._request = 0               # of several streams only the newest may go on
        self.about: list[str] = []      # what was chosen, for people
        self.limits = {target.name: target.max_positions} | (limits or {})     # name -> positions it allows
        self.eos = end_tokens(target.model, tokenizer)
        self.cache: KVCache = target.cache(0)
        if target.device.type == "cuda":
            clock.wait = partial(torch.cuda.synchronize, target.device)

    def encode(self, prompt: Prompt) -> list[int]:
        """Text, chat messages or token ids -> token ids."""
        if isinstance(prompt, torch.Tensor):
            prompt = prompt.flatten().tolist()
        if isinstance(prompt, str):
            ids = self._tokenizer("text")(prompt)["input_ids"]
        elif prompt and isinstance(prompt[0], dict):
            ids = self._tokenizer("chat messages").apply_chat_template(
                list(prompt), add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"]
        else:
            ids = [int(token) for token in prompt]     # type: ignore[arg-type]
        if not ids:
            raise ValueError("The prompt is empty. Give at least one token.")
        self._known(ids, "prompt")
        return ids

    def _known(self, ids: Sequence[int], what: str) -> None:
        """ValueError for ids outside the vocabulary: on a GPU they would end the process."""
        if not 0 <= min(ids) <= max(ids) < self.target.vocab_size:
            raise ValueError(f"The {what} has token ids from {min(ids)} to {max(ids)}, and {self.target.name} knows "
                             f"0 to {self.target.vocab_size - 1}. Encode it with this model's tokenizer.")

    def _tokenizer(self, what: str) -> Any:
        if self.tokenizer is None:
            raise ValueError(f"{self.target.name} came without a tokenizer, so the prompt cannot be {what}. "
                             "Give token ids.")
        return self.tokenizer

    def check(self, prompt_tokens: int, max_new_tokens: int) -> None:
        """ValueError where the request does not fit the target's or the drafter's positions."""
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is {max_new_tokens}; it must be 1 or more.")
        for name, limit in self.limits.items():
            if prompt_tokens + max_new_tokens > limit:
                raise ValueError(
                    f"The prompt has {prompt_tokens:,} tokens and {max_new_tokens:,} are to follow, but {name} "
                    f"allows {limit:,} positions. Shorten the prompt"
                    f"{'' if name == self.target.name else ', give the drafter a window (draft_window) or use pld'}.")

    def tokens(self, ids: Sequence[int], stats: Stats, max_new_tokens: int = 256,
               sampling: Sampling | None = None, eos: Sequence[int] | None = None,
               progress: bool | None = None) -> Iterator[list[int]]:
        """New tokens, step by step.  `stats` is filled as they come."""
        sampling = sampling or Sampling()
        if sampling.replay is not None:
            max_new_tokens = min(max_new_tokens, len(sampling.replay))
            eos = ()        # a recording ends where it ends
            self._known(sampling.replay, "recorded continuation")
        self.check(len(ids), max_new_tokens)
        self._request += 1
        mine = self._request
        capacity = len(ids) + max_new_tokens + self.budget
        self.cache.reserve(capacity)
        self.proposer.reset(capacity)
        self.clock.seconds.clear()
        if self.target.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        rule = sampling.rule(len(ids))
        verifier = Verifier(self.target, self.cache, rule, self.clock)
        stats.prompt_tokens = len(ids)
        root = prefill(self.target, self.cache, torch.tensor(ids), [self.proposer], rule, self.clock,
                       self.chunk, progress)
        stats.prefill_seconds = sum(self.clock.seconds.values())
        self.clock.seconds.clear()
        steps = decode(verifier, self.proposer, root, max_new_tokens, self.budget, stats,
                       self.eos if eos is None else eos)
        while True:
            if mine != self._request:
                raise RuntimeError("Another request was started on this session; it serves one at a time. "
                                   "Finish a stream before the next request, or load another session.")
            with self.clock.part("host"):       # what no part claims: the loop itself
                new = next(steps, None)
            stats.decode_seconds = sum(self.clock.seconds.values())
            stats.seconds_by_part = dict(self.clock.seconds)
            stats.peak_memory_bytes = peak_memory(self.target.device)
            if new is None:
                return
            yield new

    def stream(self, prompt: Prompt, max_new_tokens: int = 256, stop: str | Sequence[str] = (),
               progress: bool | None = None, **sampling: Any) -> Iterator[str]:
        """Pieces of text as they are certain; together they are `generate`'s text.  sampling: as there."""
        draw = Sampling(**sampling)
        for piece, _ in self._pieces(self.encode(prompt), Stats(), max_new_tokens, draw, stop, progress):
            if piece:
                yield piece

    def generate(self, prompt: Prompt, max_new_tokens: int = 256, stop: str | Sequence[str] = (),
                 progress: bool | None = None, **sampling: Any) -> Generation:
        """The whole answer: exactly what plain decoding of the target would say (in float32, token for token).

        sampling: the fields of `Sampling`: temperature, top_p, top_k, min_p, seed, replay.
        """
        stats, text, ids, draw = Stats(), "", [], Sampling(**sampling)
        for piece, new in self._pieces(self.encode(prompt), stats, max_new_tokens, draw, stop, progress):
            text += piece
            ids += new
        return Generation(text, ids, stats)

    def _pieces(self, ids: Sequence[int], stats: Stats, max_new_tokens: int, sampling: Sampling,
                stop: str | Sequence[str], progress: bool | None) -> Iterator[tuple[str, list[int]]]:
        """(text, tokens) per step; tokens end where a stop string is complete."""
        stop = (stop,) if isinstance(stop, str) else tuple(stop)
        if stop:
            self._tokenizer("checked for stop strings")
        detokenizer = Detokenizer(self.tokenizer, stop) if self.tokenizer is not None else None
        for new in self.tokens(ids, stats, max_new_tokens, sampling, progress=progress):
            if detokenizer is None:
                yield "", new
                continue
            kept, piece = 0, ""
            for token in new:
                piece += detokenizer.push([token])
                kept += 1
                if detokenizer.stopped:
                    break
            stats.new_tokens -= len(new) - kept
            yield piece, new[:kept]
            if detokenizer.stopped:
                break
        if detokenizer is not None:
            yield detokenizer.finish(), []


def end_tokens(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Ids that end an answer: the generation config's, else the model's, else the tokenizer's."""
    places = (getattr(model, "generation_config", None), model.config, tokenizer)
    found = next((value for place in places if (value := getattr(place, "eos_token_id", None)) is not None), ())
    return (found,) if isinstance(found, int) else tuple(found)


def peak_memory(device: torch.device) -> int:
    """Bytes: the allocator's peak on a GPU during this request; on a CPU the process's, which never falls."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
