"""llama.cpp on the prompts of a sweep: the same GGUF file and one core, plain and with its n-gram speculation.

    CMAKE_BUILD_PARALLEL_LEVEL=1 pip install llama-cpp-python==0.3.36
    python -m benchmarks.peers.llama_cpp RUN --data ROWS && longgraft plot RUN

The package is a source distribution of llama.cpp and its Python binding.  It brings CMake but needs a C++ compiler, and
one core builds it in about half an hour.  Install it in longgraft's environment; longgraft itself does not need it.

The run gets greedy rows of the methods llama.cpp and llama.cpp-lookup (`LlamaPromptLookupDecoding`: n-grams of at most
two tokens, ten proposed tokens), for each prompt and repeat that plain decoding has.  They are marked lossy: llama.cpp
multiplies 4-bit weights by 8-bit activations, and its answers are not the dequantised model's.  Decoding is timed like
ours, from the first new token on, and includes the binding's Python code around each pass.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from longgraft.config.data_files import read_table
from longgraft.config.method_roles import PLAIN
from longgraft.engine.repetition import loops
from longgraft.engine.stats import Stats
from longgraft.eval.prompts.buckets import Fitted, as_it_is
from longgraft.eval.reports.cells import LOSSY
from longgraft.eval.runs.jobs import jobs_of
from longgraft.eval.runs.plan import Reader, check_plan, planned
from longgraft.eval.runs.resume import check_prompts, resume_config
from longgraft.eval.runs.rows import Failure, Key, Result, Row, RowLog, sole_sweep
from longgraft.models.catalogue import CATALOGUE
from longgraft.models.fetch import get
from longgraft.models.gguf_files import gguf_of

PACKAGE = "llama-cpp-python"
METHODS = {"llama.cpp": 0, "llama.cpp-lookup": 10}      # method -> most proposed tokens
MOST = 8e9      # most bytes of logits: a speculating binding keeps those of every prompt token


def peer(run: Annotated[Path, typer.Argument(help="Folder of a sweep of a GGUF model, with greedy rows.")],
         data: Annotated[Optional[str], typer.Option(help="Folder; default: the sweep's --data.")] = None   # noqa: UP045
         ) -> None:
    """Add llama.cpp's rows to those of a sweep."""
    try:
        about = {PACKAGE: version(PACKAGE)}
    except PackageNotFoundError:
        raise SystemExit(f"{PACKAGE} is not installed. Run: pip install {PACKAGE}==0.3.36") from None
    config = resume_config(run)
    config = config if data is None else replace(config, data=data)
    entry = CATALOGUE.get(config.model or "")
    file = get(entry) if entry else gguf_of(config.model or "")
    if file is None:
        raise ValueError(f"The sweep in {run} is of {config.model or 'the embedded model'}, and llama.cpp reads GGUF "
                         "files. Give a sweep of one.")
    reader = Reader.open(config.model)
    suites = check_plan(config)
    check_prompts(run, suites)
    plan = planned(config, suites, reader)
    with sole_sweep(run):
        environment = read_table(run / "environment.json") | {"peers": about}
        (run / "environment.json").write_text(json.dumps(environment, indent=1) + "\n", encoding="utf-8")
        log = RowLog(run)
        plain = {row.key: row for row in log.rows if isinstance(row, Row) and row.key.method == PLAIN
                 and row.key.mode == "greedy"}
        there, made = {row.key for row in log.rows}, []
        for job in jobs_of(config, plan, {}):
            for fitted in turns(job.fitted, plain, (job.suite, job.length), reader.tokenizer):
                for method in METHODS:
                    keys = [key._replace(method=method) for key in plain
                            if key[:3] == (job.suite, job.length, fitted.example.id)]
                    for row in measure(file, fitted, {key: plain[key._replace(method=PLAIN)] for key in keys
                                                      if key not in there}):
                        log.append(row)
                        made.append(row)
        log.close()
    print("\n".join(lines(made)))


def turns(fitted: Fitted, plain: dict[Key, Row], about: tuple[str, int], tokenizer: Any) -> Iterator[Fitted]:
    """Yields a prompt and its later turns, which follow plain decoding's answers as in a sweep."""
    while True:
        yield fitted
        answer = plain.get(Key(*about, fitted.example.id, "greedy", PLAIN, 0))
        if not fitted.example.follow_ups or answer is None:
            return
        ended = answer.limit is None or len(answer.token_ids) < answer.limit
        ids = answer.token_ids[:-1] if ended else answer.token_ids      # without the end token
        fitted = as_it_is(fitted.example.next_turn(tokenizer.decode(ids, skip_special_tokens=True)), tokenizer)


def measure(file: Path, fitted: Fitted, wanted: dict[Key, Row]) -> Iterator[Result]:
    """Yields the rows of one method on one prompt.  wanted: by key, plain decoding's row for that prompt and repeat"""
    import llama_cpp
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    if not wanted:
        return
    most = max(row.limit or len(row.token_ids) for row in wanted.values())
    drafts = METHODS[next(iter(wanted)).method]
    model: Any = None
    for key, theirs in wanted.items():
        about: dict[str, Any] = {"turn": fitted.example.turn, "cut_tokens": fitted.cut_tokens, "promise": LOSSY,
                                 "fingerprint": fitted.example.fingerprint(key.mode)}
        if model is None:
            size = len(fitted.ids) + most + drafts + 1
            lookup = LlamaPromptLookupDecoding(num_pred_tokens=drafts) if drafts else None
            # Without logits_all the binding has no room for the logits of a prompt longer than a batch.
            model = llama_cpp.Llama(str(file), n_ctx=size, n_threads=1, n_threads_batch=1, draft_model=lookup,
                                    logits_all=lookup is not None, verbose=False)
        if drafts and (needed := 4 * model.n_ctx() * model.n_vocab()) > MOST:
            yield Failure(key, f"llama.cpp's binding would keep {needed / 1e9:.0f} GB of logits to speculate", **about)
            continue
        tokens, stats = decode(model, fitted.ids, theirs.limit or most)
        yield Row(key, **stats.as_dict(), token_ids=tokens, loop=loops(tokens), limit=theirs.limit, **about)
    model.close()


def decode(model: Any, ids: Sequence[int], limit: int) -> tuple[list[int], Stats]:
    """Reads a prompt from its beginning and decodes greedily; returns (new tokens, their statistics)."""
    import llama_cpp

    vocabulary, tokens, sizes = llama_cpp.llama_model_get_vocab(model.model), [], []
    forward = model.eval

    def counted(batch: Sequence[int]) -> None:
        forward(batch)
        sizes.append(0)

    model.reset()
    model.eval, began, first = counted, time.perf_counter(), 0.0
    for token in model.generate(list(ids), temp=0.0, repeat_penalty=1.0):
        first = first or time.perf_counter()
        tokens.append(token)
        sizes[-1] += 1
        if len(tokens) == limit or llama_cpp.llama_vocab_is_eog(vocabulary, token):
            break
    ended, model.eval = time.perf_counter(), forward
    # The pass over the prompt yields the first token, and does not count as a step.
    return tokens, Stats(prompt_tokens=len(ids), new_tokens=len(tokens), prefill_seconds=first - began,
                         accepted_per_step=tuple(size - 1 for size in sizes[1:]), decode_seconds=ended - first)


def lines(rows: Sequence[Result]) -> list[str]:
    """Returns lines for people: tokens per second by method and length, medians over all rows."""
    out = []
    good = [row for row in rows if isinstance(row, Row) and row.steps]
    for method, length in dict.fromkeys((row.key.method, row.key.bucket) for row in good):
        mine = [row for row in good if (row.key.method, row.key.bucket) == (method, length)]
        new = statistics.median(row.decode_tokens_per_second for row in mine)
        read = statistics.median(row.prompt_tokens / row.prefill_seconds for row in mine)
        out.append(f"{method}, {length or 'whole'}: {new:.1f} new tokens a second, {read:.0f} of the prompt; "
                   f"{len(mine)} answers")
    return out


if __name__ == "__main__":
    typer.run(peer)
