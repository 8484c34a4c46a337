"""What is here, and whether a target and a head fit together: read from configs and files, before a long job."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator
from typing import Any

import torch

from longgraft.attention.backends import available
from longgraft.engine import limits
from longgraft.loading import assemble
from longgraft.roles import DEFAULT, RETRIEVAL
from longgraft.settings import Settings

PACKAGES = ("longgraft", "torch", "transformers", "datasets", "numpy", "flash-attn")


def report(model: str | None, drafter: str | None, context: int, device: str | None,
           dtype: str | None) -> Iterator[str]:
    """Lines for people; a pair that does not fit ends with the loader's error."""
    versions = ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    yield f"python {platform.python_version()}, {versions}"
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        yield f"device: {torch.cuda.get_device_name()}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
    else:
        yield f"device: CPU, {torch.get_num_threads()} threads; no CUDA device"
    for name, reason in available().items():
        yield f"attention {name}: {reason or 'available'}"
    loaded = assemble(model, drafter, Settings(method=DEFAULT if drafter is not None else RETRIEVAL, device=device,
                                              dtype=dtype))
    target, network = loaded.target, loaded.parts.head
    yield (f"target {target.name}: {target.config.model_type}, {target.config.num_hidden_layers} layers, hidden "
           f"{target.config.hidden_size:,}, vocabulary {target.vocab_size:,}, {target.max_positions:,} positions, "
           f"{str(target.dtype)[6:]} on {target.device}")
    if network is None:
        yield "drafter: none, or none known for this target; decoding by retrieval alone"
    else:
        c = network.config
        yield (f"drafter: layout {c.layout}, hidden {c.hidden_size:,}, draft vocabulary {c.draft_vocab_size:,} of "
               f"{c.vocab_size:,}, features from the inputs of layers {c.feature_layers}, rope {c.rope.kind} "
               f"(base {c.rope.base:,.0f}, factor {c.rope.factor:g}), {c.max_positions:,} positions: fits")
    allowed = min(limits(target, loaded.method.build(loaded.parts).memories).values())
    if context > allowed:
        yield f"context {context:,}: too long, {allowed:,} positions are allowed"
    yield from memory(target, network, context)


def memory(target: Any, network: Any, context: int) -> list[str]:
    """Arithmetic of what a prompt of `context` tokens keeps: weights, both caches, matrix."""
    parts = {}
    parts["target weights"] = _bytes(target.model)
    parts["target cache"] = context * target.cache_bytes_per_token()
    parts["matrix"] = (target.vocab_size + 1) * 8 * 4 + target.vocab_size * 8
    if network is not None:
        c = network.config
        parts["drafter weights"] = _bytes(network)
        parts["drafter cache"] = context * 2 * c.layers * c.kv_heads * c.head_dim * network.fc.weight.itemsize
    total = sum(parts.values())
    shown = ", ".join(f"{name} {size / 2**20:,.1f}" for name, size in parts.items())
    return [f"memory for {context:,} tokens: {total / 2**20:,.1f} MiB ({shown}), and the activations of one chunk"]


def _bytes(module: torch.nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in {id(p): p for p in module.parameters()}.values())


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
