"""Tokens a second of longgraft and of the engines beside it, on one GGUF file and one text, by prompt length.

    python -m benchmarks.engines longgraft FILE.gguf TEXT --out rows.jsonl
    pip install llama-cpp-python==0.3.36        # in an environment of its own, which needs nothing of longgraft
    python benchmarks/engines.py llama.cpp FILE.gguf TEXT --out rows.jsonl

Engines: longgraft (plain and the default method), llama.cpp (with and without flash attention, and with its n-gram
speculation), ik_llama.cpp (`ik-llama-cpp-python==0.1.5`) and transformers (plain and prompt
lookup, on the dequantised weights).  All continue the first tokens of TEXT greedily.  Rows are appended to one file of
JSON lines; run one engine at a time on a machine that does nothing else.  Engines are imported where they are used,
because each has an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

LENGTHS = 100, 1024, 4096, 8192
NEW = 64            # tokens of an answer
DRAFTED = 10        # tokens that prompt lookup proposes
ROOM = 8e9          # bytes of logits: speculating, llama.cpp's binding keeps those of every prompt token

Timed = tuple[float, float, list[int]]      # seconds of reading, seconds of decoding, new tokens
Engine = Iterator[tuple[str, Callable[[int], tuple[int, Timed]]]]       # method, prompt tokens -> (tokens, its times)


def with_longgraft(file: str, text: str, threads: int) -> Engine:
    """Yields plain decoding and the default method."""
    import torch

    import longgraft
    from longgraft.engine.session import answer

    torch.set_num_threads(threads)
    for method in ("ar", "graft-x-text"):
        session = longgraft.load(file, method=method, tell=False)
        ids = session.encode(text)

        def run(length: int, session: Any = session, ids: Sequence[int] = ids) -> tuple[int, Timed]:
            found = answer(session.open(list(ids[:length]), NEW, eos=()), False)
            return len(ids[:length]), (found.stats.prefill_seconds, found.stats.decode_seconds, found.token_ids)

        yield method, run


def with_llama_cpp(file: str, text: str, threads: int) -> Engine:
    """Yields llama.cpp with and without flash attention, then with n-gram speculation and the faster of the two."""
    import llama_cpp
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    for name, flash, drafts in (("llama.cpp", False, 0), ("llama.cpp, flash attention", True, 0),
                                ("llama.cpp, n-grams", False, DRAFTED)):
        def run(length: int, flash: bool = flash, drafts: int = drafts) -> tuple[int, Timed]:
            size = length + NEW + drafts + 1
            model = llama_cpp.Llama(file, n_ctx=size, n_threads=threads, n_threads_batch=threads, verbose=False,
                                    flash_attn=flash, logits_all=bool(drafts),
                                    draft_model=LlamaPromptLookupDecoding(num_pred_tokens=drafts) if drafts else None)
            if drafts and 4.0 * model.n_ctx() * model.n_vocab() > ROOM:
                raise MemoryError(f"the binding would keep the logits of {length} tokens to speculate")
            ids = model.tokenize(text.encode(), add_bos=False, special=False)[:length]
            began, first, new = time.perf_counter(), 0.0, list[int]()
            for token in model.generate(ids, temp=0.0, repeat_penalty=1.0):
                first = first or time.perf_counter()
                new.append(token)
                if len(new) == NEW:
                    break
            ended = time.perf_counter()
            model.close()
            return len(ids), (first - began, ended - first, new)

        yield name, run


def with_ik_llama_cpp(file: str, text: str, threads: int) -> Engine:
    """Yields ik_llama.cpp, whose binding switches flash attention off on processors without AVX-VNNI."""
    import numpy as np
    from ik_llama_cpp import IkLlama
    from ik_llama_cpp._ctypes_api import llama_batch_free, llama_get_logits_ith
    from ik_llama_cpp._internals import make_batch_single

    def run(length: int) -> tuple[int, Timed]:
        model = IkLlama(file, n_ctx=length + NEW + 1, n_threads=threads, verbose=False)
        ids = model.tokenize(text, add_bos=False)[:length]
        began, new = time.perf_counter(), list[int]()
        # The binding's `generate` gives whole answers, and its `sample` copies all logits in a Python loop.
        model.generate(ids, max_tokens=0)
        read, began = time.perf_counter() - began, time.perf_counter()
        while True:
            logits = llama_get_logits_ith(model._context._ctx, -1)
            new.append(int(np.ctypeslib.as_array(logits, shape=(model._model.n_vocab,)).argmax()))
            if len(new) == NEW:
                break
            batch = make_batch_single(new[-1], len(ids) + len(new) - 1)
            model._context.decode(batch)
            llama_batch_free(batch)
        decoding = time.perf_counter() - began
        model.close()
        return len(ids), (read, decoding, new)

    yield "ik_llama.cpp", run


def with_transformers(file: str, text: str, threads: int) -> Engine:
    """Yields transformers' generate, plain and by prompt lookup; its first token tells when the prompt was read."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from longgraft.models.places import place_of

    torch.set_num_threads(threads)
    path = Path(file)
    tokenizer = AutoTokenizer.from_pretrained(place_of(path).path)      # transformers ignores most split rules
    model: Any = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]

    class FirstToken:
        """A streamer that notes when the first new token came."""

        def __init__(self) -> None:
            self.calls, self.at = 0, 0.0

        def put(self, value: Any) -> None:
            self.calls += 1
            if self.calls == 2:     # the first call brings the prompt
                self.at = time.perf_counter()

        def end(self) -> None:
            """Does nothing: no token is held back."""

    for name, how in (("transformers", {}), ("transformers, prompt lookup", {"prompt_lookup_num_tokens": DRAFTED})):
        def run(length: int, how: dict[str, int] = how) -> tuple[int, Timed]:
            prompt, streamer = torch.tensor([ids[:length]]), FirstToken()
            began = time.perf_counter()
            out = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=NEW,
                                 min_new_tokens=NEW, streamer=streamer, **how)
            ended = time.perf_counter()
            return prompt.shape[1], (streamer.at - began, ended - streamer.at, out[0, prompt.shape[1]:].tolist())

        yield name, run


ENGINES = {"longgraft": with_longgraft, "llama.cpp": with_llama_cpp, "ik_llama.cpp": with_ik_llama_cpp,
           "transformers": with_transformers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("file", help="GGUF file")
    parser.add_argument("text", type=Path, help="text file; its first tokens are the prompts")
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)), help="prompt tokens")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("engines.jsonl"))
    given = parser.parse_args()
    lengths = [int(length) for length in given.lengths.split(",")]
    text = given.text.read_text(encoding="utf-8")
    for method, run in ENGINES[given.engine](given.file, text, given.threads):
        for length in lengths:
            row: dict[str, Any] = {"engine": given.engine, "method": method, "threads": given.threads}
            try:
                tokens, (reading, decoding, new) = run(length)
                row |= {"prompt_tokens": tokens, "read_seconds": reading, "decode_seconds": decoding,
                        "new_tokens": len(new), "ids": new, "read": tokens / reading,
                        "decode": (len(new) - 1) / decoding}
            except (MemoryError, ValueError, RuntimeError) as error:
                row |= {"prompt_tokens": length, "error": str(error)}
            with open(given.out, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print({key: round(value, 1) if isinstance(value, float) else value for key, value in row.items()
                   if key != "ids"}, flush=True)


if __name__ == "__main__":
    main()
