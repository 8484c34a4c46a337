"""What each part must read, write and multiply at least.  Knows shapes; measures nothing."""

from __future__ import annotations

from torch import nn

from benchmarks.machine import Work
from longgraft.target_model.model import Target
from longgraft.yarn_drafters.network import Eagle3Network


def attention(heads: tuple[int, int], size: int, width: int, prefix: int, rows: int) -> Work:
    """One layer's.  heads: of queries and keys; size: of a head; width: bytes of a number."""
    queries, keys = heads
    return Work(width * size * (2 * keys * (prefix + rows) + 2 * queries * rows),
                4.0 * rows * (prefix + rows) * queries * size)


def target_pass(target: Target, prefix: int, rows: int, logits: bool = True) -> Work:
    """Weights once, the prefix's keys and values once, the new ones and the logits written.  logits: of all rows."""
    c, width = target.config, target.dtype.itemsize
    matrices = _matrices(target.model.get_decoder()) + (_numbers(target.head) if logits else 0)
    one = attention((c.num_attention_heads, c.num_key_value_heads), c.head_dim, width, prefix, rows)
    logit_numbers = rows * target.vocab_size if logits else 0
    return Work(width * (matrices + logit_numbers) + c.num_hidden_layers * one.bytes,
                2.0 * rows * matrices + c.num_hidden_layers * one.operations)


def draft_level(network: Eagle3Network, prefix: int, rows: int) -> Work:
    """Layers, head, keys and values of the prefix."""
    c, width = network.config, network.fc.weight.dtype.itemsize
    matrices = sum(_matrices(part) for part in (network.midlayer, network.layers)) + _numbers(network.lm_head)
    one = attention((c.heads, c.kv_heads), c.head_dim, width, prefix, rows)
    return Work(width * (matrices + rows * c.draft_vocab_size) + c.layers * one.bytes,
                2.0 * rows * matrices + c.layers * one.operations)


def draft_feed(network: Eagle3Network, prefix: int, rows: int) -> Work:
    """As a level, with the features' product, and the head for the newest state alone."""
    width, fused = network.fc.weight.dtype.itemsize, _numbers(network.fc)
    level = draft_level(network, prefix, rows)
    return Work(level.bytes + width * fused,
                level.operations + 2.0 * rows * fused - 2.0 * (rows - 1) * _numbers(network.lm_head))


def prefill(target: Target, tokens: int) -> Work:
    """A prompt read in one go: every row sees half of the others, and one of them the output embedding."""
    whole = target_pass(target, 0, tokens, logits=False)
    c = target.config
    half = 2.0 * tokens * tokens * c.num_attention_heads * c.head_dim * c.num_hidden_layers
    return Work(whole.bytes, whole.operations - half)


def seeding(target: Target, rows: int) -> Work:
    """The output embedding's product of so many rows; what is sorted of it need not be written."""
    head = _numbers(target.head)
    return Work(target.dtype.itemsize * head, 2.0 * rows * head)


def reading(rows: int, vocab: int, width: int) -> Work:
    """Logits read once."""
    return Work(float(rows) * vocab * width)


def _numbers(module: nn.Linear) -> int:
    return module.weight.numel()


def _matrices(module: nn.Module) -> int:
    """Weights of all products; an embedding is read in single rows."""
    return sum(_numbers(each) for each in module.modules() if isinstance(each, nn.Linear))
