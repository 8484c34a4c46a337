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

# The conditions, as above.
OWN = "own"
ROWS = "rows"
TARGET = "target"


@dataclass(frozen=True)
class Depth:
    """Results of the starts of one drafter, suite and length, at one depth."""

    drafter: str
    suite: str
    bucket: int  # prompt tokens
    condition: str  # OWN, ROWS or TARGET
    depth: int  # tokens ahead, from 1
    prompts: int
    starts: int
    agreed: int  # starts whose choice was right
    reached: int  # starts that were right at all depths before
    accepted: int  # starts that are also right at this depth; the acceptance rate alpha is accepted / reached


def summed(of_prompts: Sequence[Right], drafter: str, suite: str, bucket: int) -> Iterator[Depth]:
    """Yields the depths of all prompts of a suite and length together, own before target."""
    if not of_prompts:
        return
    for condition in of_prompts[0]:
        right = torch.cat([of_prompt[condition] for of_prompt in of_prompts])
        so_far = torch.cat([torch.ones_like(right[:, :1]), right.cumprod(1).bool()], dim=1)  # [S, 1 + D]
        for index in range(right.shape[1]):
            yield Depth(
                drafter,
                suite,
                bucket,
                condition,
                index + 1,
                len(of_prompts),
                len(right),
                int(right[:, index].sum()),
                int(so_far[:, index].sum()),
                int(so_far[:, index + 1].sum()),
            )


@torch.inference_mode()
def eagle3_chains(target: Target, network: Eagle3Network, ids: Sequence[int], start: int, depth: int) -> Right:
    """Drafts from each start that has `depth` tokens of `ids` [T] after it; the first start is `start`, 2 or more."""
    memory = Eagle3Cache(network)
    text = torch.tensor(ids)
    memory.reset(len(ids))
    report, _ = _read(target, text, start - 1, memory.wants, memory.observe)
    hidden = torch.cat([report.hidden[layer] for layer in network.config.feature_layers], dim=-1)
    text = text.to(target.device)
    first = start - 1
    end = first + len(hidden)  # slots first .. T - 2
    slots = torch.arange(first, end, device=target.device)
    layout = Layout(first, torch.arange(len(hidden)), None, target.device)
    fused = memory.passes.run(HeadRows(hidden.to(network.fc.weight.dtype)), Part.FUSE)
    states = memory.passes.run(HeadRows(fused, text[start:], slots, memory.cache, layout), Part.FEED)
    target_rows = [(layer.keys[:, :, :end], layer.values[:, :, :end]) for layer in memory.cache.layers]
    starts = torch.arange(start, len(ids) - depth, device=target.device)  # [S]

    def is_right(states: Tensor, at_depth: int) -> Tensor:
        return network.target_ids(network.logits(states).argmax(-1)) == text[starts + at_depth]

    first_states = states[: len(starts)]
    columns = {condition: [is_right(first_states, 1)] for condition in (OWN, ROWS, TARGET)}
    for condition in (OWN, ROWS):
        chain = _Chain(target_rows, starts, memory.window, keeps_rows=condition == OWN)
        state = first_states
        for at_depth in range(2, depth + 1):
            tokens = text[starts + at_depth - 1]
            cos_sin = network.cos_sin(chain.step(at_depth)[None])
            state = network(state[None], tokens[None], cos_sin, chain.attend)[0]
            columns[condition].append(is_right(state, at_depth))
    for at_depth in range(2, depth + 1):
        later_states = states[at_depth - 1 :][: len(starts)]
        columns[TARGET].append(is_right(later_states, at_depth))
    return _stacked(columns)


def _stacked(columns: Mapping[str, Sequence[Tensor]]) -> Right:
    """Joins the [S] columns of the depths, on the host."""
    return {condition: torch.stack(list(by_depth), dim=1).cpu() for condition, by_depth in columns.items()}


class _Chain:
    """The keys and values of S chains, by layer: target-made ones [1, Hkv, C, D], and rows that a chain made itself.

    Attributes:
        target_rows: Keys and values that are made from the target's states, by layer.
        starts: Slot of each chain's root.
        window: Slots that are attended to, with the own one; None: all.
        keeps_rows: True if a chain sees all rows that it made, False if only the one it is at.
        chain_rows: Rows that the chains made, by layer and depth.
        at: Slot of each chain.
    """

    def __init__(
        self, target_rows: Sequence[tuple[Tensor, Tensor]], starts: Tensor, window: int | None, keeps_rows: bool
    ) -> None:
        self.target_rows = target_rows
        self.starts = starts
        self.window = window
        self.keeps_rows = keeps_rows
        self.chain_rows: list[list[tuple[Tensor, Tensor]]] = [[] for _ in target_rows]
        self.at = starts

    def step(self, depth: int) -> Tensor:
        """Returns the slots [S] at which depth `depth`, 2 or more, is fed."""
        self.at = self.starts + depth - 2
        return self.at

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attends for q, k, v [1, .., S, D] of the slots; returns [1, H, S, D]."""
        chain_rows = self.chain_rows[layer]
        if not self.keeps_rows:
            chain_rows.clear()
        chain_rows.append((k, v))
        target_keys, target_values = self.target_rows[layer]
        keys = torch.cat([target_keys, *(made_keys for made_keys, _ in chain_rows)], dim=2)
        values = torch.cat([target_values, *(made_values for _, made_values in chain_rows)], dim=2)
        return _masked(q, keys, values, self._mask(target_keys.shape[2], len(chain_rows), q.device))

    def _mask(self, target_columns: int, made: int, device: torch.device) -> Tensor:
        """Returns the mask [S, C + made x S]: which rows each chain sees."""
        columns = torch.arange(target_columns, device=device)
        ends = self.at
        if self.keeps_rows:
            ends = self.starts
        visible = columns < ends[:, None]
        itself = torch.eye(len(visible), dtype=torch.bool, device=device)
        if self.window is None:
            return torch.cat([visible, *[itself] * made], dim=1)
        visible = visible & (columns > self.at[:, None] - self.window)
        ages = range(made - 1, -1, -1)
        return torch.cat([visible, *(itself & (age < self.window) for age in ages)], dim=1)


@torch.inference_mode()
def longspec_chains(target: Target, network: LongSpecNetwork, ids: Sequence[int], start: int, depth: int) -> Right:
    """Does what `eagle3_chains` does, for a LongSpec drafter."""
    text = torch.tensor(ids)
    config = network.config
    shared = SharedParts(target)
    _, cache = _read(target, text, start - 1, Wants(), lambda observation: None)
    keys, values = (numbers_of(rows[:, :, : len(ids) - 1], target.dtype) for rows in cache.last)
    text = text.to(target.device)
    weight = network.mlp.up_proj.weight
    first = max(0, start - config.window)
    at = torch.arange(start, len(ids) - 1, device=target.device)  # [n]: queries
    behind = torch.arange(first, start, device=target.device)
    near = network.rows(shared.embed(text[behind][None], weight), shared.angles(behind[None], config.head_dim))
    back = at[:, None] - torch.cat([behind, at])
    window = (back >= 0) & (back <= config.window)
    starts = torch.arange(start, len(ids) - depth, device=target.device)

    def attend_own(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _masked(q, torch.cat([near[0], k], dim=2), torch.cat([near[1], v], dim=2), window)

    best = []
    for gap in range(1, depth + 1):
        far = at[:, None] - torch.arange(len(ids) - 1, device=target.device) >= gap
        states = network(
            shared.embed(text[at][None], weight),
            shared.angles(at[None], config.head_dim),
            attend_own,
            lambda q, far=far: _masked(q, keys, values, far),
        )
        best.append(target.logits(states[0]).argmax(-1) == text[at + 1])
    columns: dict[str, list[Tensor]] = {OWN: [], TARGET: []}
    for index in range(depth):
        columns[OWN].append(best[index][index:][: len(starts)])
        columns[TARGET].append(best[0][index:][: len(starts)])
    return _stacked(columns)


def _read(
    target: Target, text: Tensor, end: int, wants: Wants, observe: Callable[[Observation], None]
) -> tuple[Report, KVCache]:
    """Returns what the target reports of tokens end .. T - 2, and its cache; `observe` gets those before."""
    cache = target.cache(len(text))
    verifier = Verifier(target, cache, Greedy(), Clock())
    for observation in read_prompt(verifier, text[:end], wants, following=int(text[end])):
        observe(observation)
    (report,) = target.run([Segment(ProposalTree.chain(text[end:-1], origin=ROOT), cache, logits="none")], wants)
    return report, cache


def _masked(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    """Attends with a mask: q [1, H, n, D], k and v [1, Hkv, C, D], visible [n, C] -> [1, H, n, D]."""
    mask = visible.repeat(q.shape[1] // k.shape[1], 1)
    return scaled_dot_product_attention(packed(q, k.shape[1]), k, v, attn_mask=mask).reshape(q.shape)


CHAINS: Mapping[type, Callable[..., Right]] = {Eagle3Network: eagle3_chains, LongSpecNetwork: longspec_chains}


def chains(target: Target, network: object, ids: Sequence[int], start: int, depth: int) -> Right:
    """Drafts chains of either kind of drafter; raises ValueError if the text is too short."""
    if start < 2 or len(ids) - depth <= start:
        raise ValueError(
            f"A text of {len(ids):,} tokens that begins at token {start:,} has no start with {depth} "
            "tokens behind. Give a longer --max-new-tokens, or a smaller --depth."
        )
    return CHAINS[type(network)](target, network, ids, start, depth)
