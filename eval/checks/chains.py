"""Measures how far ahead a drafter predicts correctly, with its own and with the target's keys, values and features.

The method follows KVShot ("When Hidden States Drift", arXiv 2604.26412), which claims that drafters which feed on their
own states lose with depth what the target's states would keep.  Chains of first choices are drafted from many starting
points of a given text: a row's recorded continuation, or the target's own greedy answer.  A choice is right if it is
the text's next token.  At a start s (token s is the root), depth d predicts token s + d.  The drafter reads the text's
tokens instead of its own choices, so that a chain can be followed beyond its first wrong choice.  The conditions differ
in the states of the d - 1 drafted tokens before:

own:    the drafter's own.  At each depth an EAGLE-3 head reads its state of the depth before as feature, and it made
        the keys and values of drafted positions from such features, as in decoding.
rows:   only keys and values are replaced: at all earlier positions they are made from the target's hidden states, but
        the feature is still the head's own state of the depth before.
target: the feature is the target's too: each depth is a first depth, from a start that lies d - 1 tokens later.

A LongSpec drafter's own keys and values follow from tokens alone, and it has no features.  With `own` it sees the
target's last keys and values of tokens before the root, with `target` also those of the drafted tokens except the last;
it has no `rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from longgraft.acceptance.rules import Greedy
from longgraft.attention.backends import packed
from longgraft.attention.layout import Layout
from longgraft.memories.eagle3_cache import Eagle3Cache
from longgraft.memories.head_passes import HeadRows, Part
from longgraft.prefill.chunked import read_prompt
from longgraft.protocol.observation import Observation, Wants
from longgraft.runtime.byte_rows import numbers_of
from longgraft.runtime.clock import Clock
from longgraft.runtime.kv_cache import KVCache
from longgraft.target_model.model import Target
from longgraft.target_model.passes import Report, Segment
from longgraft.target_model.verifier import Verifier
from longgraft.trees.tree import ROOT, ProposalTree
from longgraft.yarn_drafters.network import Eagle3Network
from longgraft.zoo.longspec.network import LongSpecNetwork, SharedParts

Right = dict[str, Tensor]
"""condition -> [S, D] bool: True if the first choice was right, at each depth of each start"""

OWN, ROWS, TARGET = "own", "rows", "target"


@dataclass(frozen=True)
class Depth:
    """Results of the starts of one drafter, suite and length, at one depth.

    starts:   number of starts
    agreed:   starts whose choice was right
    reached:  starts that were right at all depths before
    accepted: starts that are also right at this depth; the acceptance rate alpha is accepted / reached
    """

    drafter: str
    suite: str
    bucket: int
    condition: str
    depth: int
    prompts: int
    starts: int
    agreed: int
    reached: int
    accepted: int


def summed(found: Sequence[Right], drafter: str, suite: str, bucket: int) -> Iterator[Depth]:
    """Yields the depths of all prompts of a suite and length together, own before target."""
    for condition in found[0] if found else ():
        right = torch.cat([one[condition] for one in found])
        so_far = torch.cat([torch.ones_like(right[:, :1]), right.cumprod(1).bool()], dim=1)     # [S, 1 + D]
        for d in range(right.shape[1]):
            yield Depth(drafter, suite, bucket, condition, d + 1, len(found), len(right), int(right[:, d].sum()),
                        int(so_far[:, d].sum()), int(so_far[:, d + 1].sum()))


@torch.inference_mode()
def eagle3_chains(target: Target, network: Eagle3Network, ids: Sequence[int], start: int, depth: int) -> Right:
    """Drafts from each start that has `depth` tokens of `ids` [T] after it; the first start is `start`, 2 or more."""
    memory, text = Eagle3Cache(network), torch.tensor(ids)
    memory.reset(len(ids))
    report, _ = _read(target, text, start - 1, memory.wants, memory.observe)
    hidden = torch.cat([report.hidden[layer] for layer in network.config.feature_layers], dim=-1)
    text, n, first = text.to(target.device), len(hidden), start - 1             # slots first .. T - 2
    slots = torch.arange(first, first + n, device=target.device)
    layout = Layout(first, torch.arange(n), None, target.device)
    fused = memory.passes.run(HeadRows(hidden.to(network.fc.weight.dtype)), Part.FUSE)
    states = memory.passes.run(HeadRows(fused, text[start:], slots, memory.cache, layout), Part.FEED)
    known = [(layer.keys[:, :, :first + n], layer.values[:, :, :first + n]) for layer in memory.cache.layers]
    starts = torch.arange(start, len(ids) - depth, device=target.device)        # [S]

    def right(states: Tensor, d: int) -> Tensor:
        return network.target_ids(network.logits(states).argmax(-1)) == text[starts + d]

    here = states[:len(starts)]
    found = {condition: [right(here, 1)] for condition in (OWN, ROWS, TARGET)}
    for condition in (OWN, ROWS):
        chain, state = _Chain(known, starts, memory.window, condition == OWN), here
        for d in range(2, depth + 1):
            state = network(state[None], text[starts + d - 1][None], chain.step(d)[None], chain.attend)[0]
            found[condition].append(right(state, d))
    found[TARGET] += [right(states[d - 1:][:len(starts)], d) for d in range(2, depth + 1)]
    return {condition: torch.stack(columns, dim=1).cpu() for condition, columns in found.items()}


class _Chain:
    """The keys and values of S chains, by layer: target-made ones [1, Hkv, C, D], and rows that a chain made itself.

    A chain sees all rows that it made if it keeps its `own`, else only the one it is at.
    """

    def __init__(self, known: Sequence[tuple[Tensor, Tensor]], starts: Tensor, window: int | None, own: bool) -> None:
        self.known, self.starts, self.window, self.own = known, starts, window, own
        self.made: list[list[tuple[Tensor, Tensor]]] = [[] for _ in known]
        self.at = starts

    def step(self, depth: int) -> Tensor:
        """Returns the slots [S] at which depth `depth`, 2 or more, is fed."""
        self.at = self.starts + depth - 2
        return self.at

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attends for q, k, v [1, .., S, D] of the slots; returns [1, H, S, D]."""
        made = self.made[layer] = [*(self.made[layer] if self.own else ()), (k, v)]
        columns = torch.arange(self.known[layer][0].shape[2], device=q.device)
        seen = columns < (self.starts if self.own else self.at)[:, None]
        itself = torch.eye(len(seen), dtype=torch.bool, device=q.device)
        own = [itself] * len(made)
        if self.window is not None:
            seen = seen & (columns > self.at[:, None] - self.window)
            own = [itself & (age < self.window) for age in range(len(made) - 1, -1, -1)]
        keys, values = (torch.cat([rows, *column], dim=2)
                        for rows, column in zip(self.known[layer], zip(*made, strict=True), strict=True))
        return _masked(q, keys, values, torch.cat([seen, *own], dim=1))


@torch.inference_mode()
def longspec_chains(target: Target, network: LongSpecNetwork, ids: Sequence[int], start: int, depth: int) -> Right:
    """Does what `eagle3_chains` does, for a LongSpec drafter."""
    text, config, shared = torch.tensor(ids), network.config, SharedParts(target)
    _, cache = _read(target, text, start - 1, Wants(), lambda seen: None)
    keys, values = (numbers_of(rows[:, :, :len(ids) - 1], target.dtype) for rows in cache.last)
    text = text.to(target.device)
    weight, first = network.mlp.up_proj.weight, max(0, start - config.window)
    at = torch.arange(start, len(ids) - 1, device=target.device)                # [n]: queries
    behind = torch.arange(first, start, device=target.device)
    near = network.rows(shared.embed(text[behind][None], weight), shared.angles(behind[None], config.head_dim))
    back = at[:, None] - torch.cat([behind, at])
    window = (back >= 0) & (back <= config.window)
    starts = torch.arange(start, len(ids) - depth, device=target.device)

    def own(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _masked(q, torch.cat([near[0], k], dim=2), torch.cat([near[1], v], dim=2), window)

    best = []
    for gap in range(1, depth + 1):
        far = at[:, None] - torch.arange(len(ids) - 1, device=target.device) >= gap
        states = network(shared.embed(text[at][None], weight), shared.angles(at[None], config.head_dim), own,
                         lambda q, far=far: _masked(q, keys, values, far))
        best.append(target.logits(states[0]).argmax(-1) == text[at + 1])
    found = {OWN: [best[d][d:][:len(starts)] for d in range(depth)],
             TARGET: [best[0][d:][:len(starts)] for d in range(depth)]}
    return {condition: torch.stack(columns, dim=1).cpu() for condition, columns in found.items()}


def _read(target: Target, text: Tensor, end: int, wants: Wants, observe: Callable[[Observation], None]
          ) -> tuple[Report, KVCache]:
    """Returns what the target reports of tokens end .. T - 2, and its cache; `observe` gets those before."""
    cache = target.cache(len(text))
    for seen in read_prompt(Verifier(target, cache, Greedy(), Clock()), text[:end], wants, following=int(text[end])):
        observe(seen)
    report, = target.run([Segment(ProposalTree.chain(text[end:-1], origin=ROOT), cache, logits="none")], wants)
    return report, cache


def _masked(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """Attends with a mask: q [1, H, n, D], k and v [1, Hkv, C, D], seen [n, C] -> [1, H, n, D]."""
    mask = seen.repeat(q.shape[1] // k.shape[1], 1)
    return scaled_dot_product_attention(packed(q, k.shape[1]), k, v, attn_mask=mask).reshape(q.shape)


CHAINS: Mapping[type, Callable[..., Right]] = {Eagle3Network: eagle3_chains, LongSpecNetwork: longspec_chains}


def chains(target: Target, network: object, ids: Sequence[int], start: int, depth: int) -> Right:
    """Drafts chains of either kind of drafter; raises ValueError if the text is too short."""
    if start < 2 or len(ids) - depth <= start:
        raise ValueError(f"A text of {len(ids):,} tokens that begins at token {start:,} has no start with {depth} "
                         "tokens behind. Give a longer --max-new-tokens, or a smaller --depth.")
    return CHAINS[type(network)](target, network, ids, start, depth)
