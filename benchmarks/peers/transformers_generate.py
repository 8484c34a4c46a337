"""transformers' generate on the dequantised weights of a GGUF file, plain and by prompt lookup."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.peers.answers import Answer, Decode, Setup, answer_of_pieces, chosen

# Ten proposed tokens are the value in transformers' documentation of prompt lookup.
METHODS: dict[str, dict[str, int]] = {"plain": {}, "prompt lookup": {"prompt_lookup_num_tokens": 10}}


class Pieces:
    """A streamer that notes when the new tokens of each pass came."""

    def __init__(self) -> None:
        self.all: list[tuple[float, list[int]]] = []
        self._prompt_came = False

    def put(self, value: Any) -> None:
        if self._prompt_came:
            self.all.append((time.perf_counter(), value.flatten().tolist()))
        self._prompt_came = True  # the first call brings the prompt

    def end(self) -> None:
        """Does nothing: no token is held back."""


def methods_of(setup: Setup) -> Iterator[tuple[str, Decode]]:
    """Yields plain decoding and prompt lookup of one loaded model."""
    import torch
    from transformers import AutoModelForCausalLM

    names = chosen(setup.methods, METHODS)
    torch.set_num_threads(setup.threads)
    path = Path(setup.file)
    model: Any = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    model.generation_config.eos_token_id = None  # answers go on behind an end token
    for name in names:
        decode(model, METHODS[name], 4, range(100, 116))
        yield name, partial(decode, model, METHODS[name], setup.new)


def decode(model: Any, how: dict[str, int], new: int, ids: Sequence[int]) -> Answer:
    """Continues a prompt greedily.  how: arguments of generate"""
    import torch

    prompt = torch.tensor([list(ids)])
    pieces = Pieces()
    began = time.perf_counter()
    model.generate(
        prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=new, streamer=pieces, **how
    )
    return answer_of_pieces(pieces.all, began)
