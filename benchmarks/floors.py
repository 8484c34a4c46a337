"""The least work of each part: bytes that it must read and write, and operations of its matrix products."""

from __future__ import annotations

from torch import nn

from benchmarks.machine import Work
from longgraft.target_model.model import Target
from longgraft.yarn_drafters.network import Eagle3Network


def attention(heads: tuple[int, int], size: int, width: int, prefix: int, rows: int) -> Work:
    """Returns the work of one layer.  heads: query and key heads; size: numbers per head; width: bytes of a number"""
    queries, keys = heads
    seen = prefix + rows
    numbers = 2 * keys * seen + 2 * queries * rows
    return Work(width * size * numbers, 4.0 * rows * seen * queries * size)


def target_pass(target: Target, prefix: int, rows: int, logits: bool = True) -> Work:
    """Returns the work of a pass: weights and the prefix's cache are read once, new keys, values and logits written.

    logits: True if all rows have logits
    """
    c = target.config
    width = target.dtype.itemsize
    matrices = _matrices(target.model.get_decoder())
    written = 0
    if logits:
        matrices += _numbers(target.head)
        written = rows * target.vocab_size
    one = attention((c.num_attention_heads, c.num_key_value_heads), c.head_dim, width, prefix, rows)
    layers = c.num_hidden_layers
    return Work(width * (matrices + written) + layers * one.bytes, 2.0 * rows * matrices + layers * one.operations)


def requests(target: Target, prefix: int, count: int) -> Work:
    """Returns the work of a pass of one row for each of several requests: the caches of all of them are read."""
    shared = target_pass(target, prefix, count)
    alone = target_pass(target, prefix, 1)
    empty = target_pass(target, 0, 1)
    return Work(shared.bytes + (count - 1) * (alone.bytes - empty.bytes), shared.operations)


def draft_level(network: Eagle3Network, prefix: int, rows: int) -> Work:
    """Returns the work of a draft level: layers, output head, and the keys and values of the prefix."""
    c = network.config
    width = network.fc.weight.dtype.itemsize
    matrices = _matrices(network.midlayer) + _matrices(network.layers) + _numbers(network.lm_head)
    one = attention((c.heads, c.kv_heads), c.head_dim, width, prefix, rows)
    read = width * (matrices + rows * c.draft_vocab_size) + c.layers * one.bytes
    return Work(read, 2.0 * rows * matrices + c.layers * one.operations)


def draft_feed(network: Eagle3Network, prefix: int, rows: int) -> Work:
    """Returns the work of a feed: like a level, with the product of the features, and the head for one state only."""
    fused = _numbers(network.fc)
    level = draft_level(network, prefix, rows)
    operations = level.operations + 2.0 * rows * fused - 2.0 * (rows - 1) * _numbers(network.lm_head)
    return Work(level.bytes + network.fc.weight.dtype.itemsize * fused, operations)


def prefill(target: Target, tokens: int) -> Work:
    """Returns the work of a prompt read in one pass: a row sees half of the others on average, and one has logits."""
    whole = target_pass(target, 0, tokens, logits=False)
    c = target.config
    half = 2.0 * tokens * tokens * c.num_attention_heads * c.head_dim * c.num_hidden_layers
    return Work(whole.bytes, whole.operations - half)


def seeding(target: Target, rows: int) -> Work:
    """Returns the work of the output embedding's product for these rows; its result need not be written."""
    head = _numbers(target.head)
    return Work(target.dtype.itemsize * head, 2.0 * rows * head)


def reading(rows: int, vocab: int, width: int) -> Work:
    """Returns the work of reading logits once."""
    return Work(float(rows) * vocab * width)


def _numbers(module: nn.Linear) -> int:
    return module.weight.numel()


def _matrices(module: nn.Module) -> int:
    """Returns the number of weights in all products; embeddings do not count, because only single rows are read."""
    return sum(_numbers(each) for each in module.modules() if isinstance(each, nn.Linear))
