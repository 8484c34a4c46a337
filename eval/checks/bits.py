"""Checks if a node's logits are the same bits in a tree and in plain decoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from longgraft.protocol.observation import Wants
from longgraft.runtime.kv_cache import KVCache
from longgraft.target_model.experts import is_router
from longgraft.target_model.model import Target
from longgraft.target_model.passes import Segment
from longgraft.trees.tree import DRAFT, ROOT, ProposalTree

NODES = 60  # most nodes of a tree


def check_bits(
    target: Target, prompts: Sequence[Sequence[int]], trees: int, chunk: int, seed: int = 0
) -> dict[str, Any]:
    """Compares logits of random trees with those of plain decoding.

    Each tree follows a prompt that was read in chunks.  For plain decoding the prompt is read in two chunks, cut at
    another place, and the path to the tree's last node token by token, with one thread.

    Args:
        trees: Number of trees per prompt, of 2 to NODES random tokens.
        chunk: Prompt tokens per pass.
        seed: Of the random trees.

    Returns:
        For each prompt, how many trees' last logits differ, and by how much at most; and the level that was reached.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for ids in prompts:
        capacity = len(ids) + NODES
        ours = target.cache(capacity)
        plain = target.cache(capacity)
        for part in torch.tensor(ids).split(chunk):
            _read(target, ours, part)
        cut = int(torch.randint(len(ids), (1,), generator=generator))
        with _one_thread():
            for part in torch.tensor(ids).tensor_split([cut]):
                if len(part):
                    _read(target, plain, part)
        plain.mark()
        differ = 0
        worst = 0.0
        for _ in range(trees):
            tree = _random_tree(target.vocab_size, generator)
            (report,) = target.run([Segment(tree, ours)], Wants())
            with _one_thread():
                alone = _along_the_path(target, plain, tree)
            plain.crop(len(ids))
            in_tree = report.logits[-1]
            if not torch.equal(in_tree, alone):
                differ += 1
                worst = max(worst, float((in_tree.float() - alone.float()).abs().max()))
        rows.append({"prompt_tokens": len(ids), "trees": trees, "differ": differ, "largest_difference": worst})
    all_differ = sum(row["differ"] for row in rows)
    level = "bits"
    if all_differ:
        level = f"none ({all_differ} of {trees * len(rows)} trees differ)"
    return {
        "level": level,
        "rows": rows,
        "dtype": str(target.dtype)[6:],
        "weights": target.weights,
        "threads": torch.get_num_threads(),
        "by_torch": _by_torch(target),
    }


def _by_torch(target: Target) -> list[str]:
    """Returns the classes of modules in which torch multiplies, in an order that depends on the other rows of a
    pass."""
    return sorted({type(module).__name__ for module in target.model.modules() if _multiplies_by_torch(target, module)})


def _multiplies_by_torch(target: Target, module: nn.Module) -> bool:
    if isinstance(module, nn.Embedding):
        return False
    if target.kernels is not None and (isinstance(module, nn.Linear) or is_router(module)):
        return False
    return any(parameter.ndim > 1 for parameter in module.parameters(recurse=False))


def lines(report: dict[str, Any]) -> list[str]:
    """Returns the report as lines for people."""
    out = []
    for row in report["rows"]:
        result = "the same bits"
        if row["differ"]:
            result = f"{row['differ']} differ, by {row['largest_difference']:.2g} at most"
        trees = "tree" if row["trees"] == 1 else "trees"
        out.append(f"{row['prompt_tokens']:>8,} prompt tokens, {row['trees']:>5} {trees}: {result}")
    if report["level"] != "bits" and report["by_torch"]:
        out.append(f"torch multiplies in {', '.join(report['by_torch'])}; its sums depend on the other rows of a pass")
    return [
        *out,
        f"level: {report['level']} ({report['dtype']}, {report['weights']} weights, threads: "
        f"{report['threads']} and 1)",
    ]


def _read(target: Target, cache: KVCache, tokens: Tensor) -> Tensor:
    """Commits the tokens and returns the last one's logits [V]."""
    (report,) = target.run([Segment(ProposalTree.chain(tokens), cache, "last")], Wants())
    cache.keep(torch.arange(len(tokens)))
    return report.logits[0].clone()


def _random_tree(vocab_size: int, generator: torch.Generator) -> ProposalTree:
    """Returns a tree in which each node's parent is any node before it, so that most leaves are a few levels deep."""
    nodes = int(torch.randint(2, NODES + 1, (1,), generator=generator))
    parents = [-1, *(int(torch.randint(n, (1,), generator=generator)) for n in range(1, nodes))]
    tokens = torch.randint(vocab_size, (nodes,), generator=generator).tolist()
    return ProposalTree.build(tokens, parents, [0.0] * nodes, [ROOT] + [DRAFT] * (nodes - 1))


def _along_the_path(target: Target, cache: KVCache, tree: ProposalTree) -> Tensor:
    """Returns the logits [V] after the tokens from the root to the last node, read one by one."""
    parents = tree.parents.tolist()
    path = [len(tree) - 1]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    for node in path:
        logits = _read(target, cache, tree.tokens[node : node + 1])
    return logits


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
