"""llama-cpp-python: plain, with its own prompt lookup, and with longgraft's draft model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from benchmarks.peers.answers import Answer, Decode, Setup, chosen

SPARE = 64  # places behind the longest answer, for proposals


def prompt_lookup() -> Any:
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    return LlamaPromptLookupDecoding()


def text_draft() -> Any:
    from longgraft.plugins.llama_cpp import TextDraft

    return TextDraft()


METHODS: dict[str, Callable[[], Any]] = {"plain": lambda: None, "prompt lookup": prompt_lookup, "longgraft": text_draft}


class Counted:
    """A draft model whose proposals are counted.  It is called once after each pass."""

    def __init__(self, draft: Any) -> None:
        self.draft = draft
        self.lengths: list[int] = []

    def __call__(self, input_ids: Any, /, **kwargs: Any) -> Any:
        proposed = self.draft(input_ids, **kwargs)
        self.lengths.append(len(proposed))
        return proposed


def methods_of(setup: Setup) -> Iterator[tuple[str, Decode]]:
    """Yields the methods; the file is loaded for each, because a draft model makes it keep all logits."""
    from llama_cpp import Llama

    for name in chosen(setup.methods, METHODS):
        made = METHODS[name]()
        draft = None if made is None else Counted(made)
        llama: Any = Llama(
            setup.file,
            n_ctx=setup.longest + setup.new + SPARE,
            n_threads=setup.threads,
            n_threads_batch=setup.threads,
            draft_model=draft,  # type: ignore[arg-type]
            logits_all=draft is not None,  # without it prompts beyond one batch fail
            verbose=False,
        )
        decode(llama, draft, 4, range(100, 116))
        yield name, partial(decode, llama, draft, setup.new)
        llama.close()


def decode(llama: Any, draft: Counted | None, new: int, ids: Sequence[int]) -> Answer:
    """Continues a prompt greedily."""
    llama.reset()
    lengths = [] if draft is None else draft.lengths
    lengths.clear()
    found: list[int] = []
    began = time.perf_counter()
    for token in llama.generate(list(ids), temp=0.0, reset=False):
        found.append(token)
        if len(found) == 1:
            first = time.perf_counter()
        if len(found) == new:
            break
    steps = len(lengths) if draft else new - 1
    return Answer(
        first - began,
        time.perf_counter() - first,
        found,
        new,
        steps=steps,
        drafted=sum(lengths),
        accepted=new - 1 - steps,
    )
