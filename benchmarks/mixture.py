"""A synthetic mixture of experts in the blocks of a GGUF file: real shapes, random weights.

    python -m benchmarks.mixture write mixture.gguf --like FILE.gguf
    python -m benchmarks.mixture measure mixture.gguf

`write` makes a Qwen3-MoE of 3 billion parameters, of which 0.6 billion work on a token, in Q4_K (1.8 GB), with the
tokenizer of another file, such as SmolLM2's.  `measure` prints what loading takes, the time of passes and the experts
that they wake, and the speed of the default beside plain decoding.  The text that both replay repeats the prompt with
changes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Annotated, Any

import numpy as np
import torch
import typer

import longgraft
from benchmarks.machine import race
from benchmarks.report import Report, Row
from benchmarks.texts import sources
from longgraft.acceptance.sampling import Sampling
from longgraft.budget.cost_measurement import Extent
from longgraft.budget.cost_measurement import measure as measure_costs
from longgraft.budget.sample_text import SAMPLE
from longgraft.engine.session import Session, answer
from longgraft.protocol.observation import Wants
from longgraft.runtime.device_memory import peak_memory, reset_peak_memory, resident
from longgraft.target_model.experts import BlockExperts
from longgraft.target_model.model import Target
from longgraft.target_model.passes import Segment
from longgraft.trees.tree import ProposalTree

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD = 20, 1536, 16, 4, 128
EXPERTS, CHOSEN, INNER = 64, 8, 512
ROWS = (1, 4, 8, 16)
SCALES = np.array([1.3e-4, 1e-3], np.float16).view(np.uint8)  # with them, random blocks of Q4_K have weights of 0.02
CHARACTERS = 10  # most characters of a token, on average
CPU = torch.device("cpu")


@app.command()
def write(
    out: Path,
    like: Annotated[Path, typer.Option(help="A GGUF file with a byte-level tokenizer.")],
    layers: Annotated[int, typer.Option(help="Fewer make a small file, to try the commands.")] = LAYERS,
) -> None:
    """Write the mixture, with the tokenizer of another file."""
    import gguf

    reader, writer = gguf.GGUFReader(like), gguf.GGUFWriter(out, "qwen3moe", use_temp_file=True)
    for key, field in reader.fields.items():
        if key.startswith("tokenizer."):
            kind, sub = field.types[0], field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), kind, sub_type=sub)
    add: Any
    for add, value in (
        (writer.add_context_length, 32768),
        (writer.add_embedding_length, HIDDEN),
        (writer.add_block_count, layers),
        (writer.add_feed_forward_length, INNER),
        (writer.add_head_count, HEADS),
        (writer.add_head_count_kv, KV_HEADS),
        (writer.add_key_length, HEAD),
        (writer.add_value_length, HEAD),
        (writer.add_layer_norm_rms_eps, 1e-6),
        (writer.add_rope_freq_base, 1e6),
        (writer.add_expert_count, EXPERTS),
        (writer.add_expert_used_count, CHOSEN),
        (writer.add_expert_feed_forward_length, INNER),
    ):
        add(value)
    generator = np.random.default_rng(0)
    for name, shape in _shapes(len(reader.fields["tokenizer.ggml.tokens"].data), layers):
        if name.endswith("norm.weight"):
            writer.add_tensor(name, np.ones(shape, np.float32))
        elif "gate_inp" in name:
            writer.add_tensor(name, generator.standard_normal(shape, np.float32) / 4)
        else:
            raw = generator.integers(0, 256, (*shape[:-1], shape[-1] // 256, 144), dtype=np.uint8)
            raw[..., :4] = SCALES
            writer.add_tensor(name, raw.reshape(*shape[:-1], -1), raw_dtype=gguf.GGMLQuantizationType.Q4_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{out}: {out.stat().st_size / 1e9:.2f} GB")


def _shapes(vocabulary: int, layers: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields the tensors' names and shapes."""
    yield from (("token_embd.weight", (vocabulary, HIDDEN)), ("output_norm.weight", (HIDDEN,)))
    layer = {
        "attn_norm": (HIDDEN,),
        "attn_q": (HEADS * HEAD, HIDDEN),
        "attn_k": (KV_HEADS * HEAD, HIDDEN),
        "attn_v": (KV_HEADS * HEAD, HIDDEN),
        "attn_output": (HIDDEN, HEADS * HEAD),
        "attn_q_norm": (HEAD,),
        "attn_k_norm": (HEAD,),
        "ffn_norm": (HIDDEN,),
        "ffn_gate_inp": (EXPERTS, HIDDEN),
        "ffn_gate_exps": (EXPERTS, INNER, HIDDEN),
        "ffn_up_exps": (EXPERTS, INNER, HIDDEN),
        "ffn_down_exps": (EXPERTS, HIDDEN, INNER),
    }
    for number in range(layers):
        yield from ((f"blk.{number}.{name}.weight", shape) for name, shape in layer.items())


@app.command()
def measure(
    file: Path,
    prompt: int = 2048,
    new: int = 256,
    repeats: int = 3,
    out: Path = Path("results"),
    patience: float = 5.0,
    minutes: float = 30.0,
) -> None:
    """Measure loading, passes, and the default beside plain decoding on a replayed text."""
    report = Report("mixture", out, minutes, CPU, model=file.name, prompt=prompt, new=new)
    reset_peak_memory(CPU)
    before, began = resident(), time.perf_counter()
    plain = longgraft.load(file, None, method="ar", tell=False)
    seconds = time.perf_counter() - began
    report.add(
        Row(
            "loading",
            "the first",
            seconds,
            figures={"resident": resident() - before},
            note=(
                f"file {file.stat().st_size / 1e9:.2f} GB; resident {(resident() - before) / 1e9:.2f} GB more, "
                f"peak {peak_memory(CPU) / 1e9:.2f} GB"
            ),
        )
    )
    ids = plain.encode(sources()[: CHARACTERS * (prompt + new)])[: prompt + new]
    _passes(plain.target, ids[:prompt], plain.encode(SAMPLE), patience, report)
    # The answer repeats what stands in the prompt, as an edit does, with a change after every 40 tokens.
    said = [ids[n] if n % 40 else ids[-n % len(ids)] for n in range(new)]
    for name in ("ar", "default"):
        session = plain if name == "ar" else longgraft.load(file, None, tell=False)
        report.add(_decoded(name, session, ids[:prompt], said, repeats))
    raise typer.Exit(report.finish())


def _passes(target: Target, ids: list[int], text: list[int], patience: float, report: Report) -> None:
    """Adds the times of passes after the prompt, and the experts of a layer that they and priced passes wake.

    text: tokens with which passes are priced
    """
    with _woken_experts(target) as priced:
        measure_costs(target, None, Extent([len(ids)]), text=text)
    cache = target.cache(len(ids) + max(ROWS))
    for part in torch.tensor(ids).split(256):
        target.run([Segment(ProposalTree.chain(part), cache)], Wants())
        cache.keep(torch.arange(len(part)))

    def verify(tree: ProposalTree) -> None:
        cache.length = len(ids)
        target.run([Segment(tree, cache)], Wants())

    trees = {n: ProposalTree.chain(torch.tensor(ids[-n:])) for n in ROWS}
    with _woken_experts(target) as woken:
        for tree in trees.values():
            verify(tree)
    spent = race({str(n): partial(verify, tree) for n, tree in trees.items()}, CPU, patience)
    for n in ROWS:
        experts, prices = mean(woken[n]), f", {mean(priced[n]):.1f} where it was priced" if n in priced else ""
        report.add(
            Row(
                "pass",
                f"{n} rows",
                spent[str(n)],
                figures={"rows": n, "experts": experts},
                note=(
                    f"{experts:.1f} of {EXPERTS} experts a layer{prices}; {spent[str(n)] / spent['1']:.2f} plain passes"
                ),
            )
        )


@contextmanager
def _woken_experts(target: Target) -> Iterator[dict[int, list[int]]]:
    """Yields the numbers of experts that layers wake inside the block, by the rows of the pass."""
    woken: dict[int, list[int]] = {}

    def count(module: Any, given: tuple) -> None:
        chosen = given[1]
        woken.setdefault(len(chosen), []).append(len(chosen.unique()))

    hooks = [
        module.register_forward_pre_hook(count) for module in target.model.modules() if isinstance(module, BlockExperts)
    ]
    try:
        yield woken
    finally:
        for hook in hooks:
            hook.remove()


def _decoded(name: str, session: Session, prompt: list[int], said: list[int], repeats: int) -> Row:
    """Returns the median speed of decoding the replayed text."""
    found = [answer(session.open(prompt, len(said), Sampling(replay=said), eos=()), False) for _ in range(repeats)]
    assert all(one.token_ids == said for one in found)
    speeds = [one.stats.decode_tokens_per_second for one in found]
    return Row(
        "decoding",
        name,
        len(said) / median(speeds),
        figures={"tokens_per_second": speeds},
        note=(f"{median(speeds):.1f} tokens/s, {found[0].stats.tokens_per_step:.2f} tokens per step"),
    )


if __name__ == "__main__":
    app()
