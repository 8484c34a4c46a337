"""EAGLE-3's training-time test: the drafter is trained on its own states, as in decoding.

Knows the drafter network and tensors; knows no corpus, no optimizer and no target model.
Source: EAGLE-3 (arXiv 2503.01840) section 3.

Letters: B batch, S slots, H heads, d head size, K steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from longgraft.yarn_drafters.network import Eagle3Network

BLOCK = 1024        # slots whose [block, D] logits exist at once
QUERIES = 1024      # slots whose attention weights exist at once
DECAY = 0.8         # weight of step k is 0.8^k (EAGLE-3's training code)


@dataclass
class _Memory:
    """Keys and values of the steps so far, per layer: a slot sees step 0 causally, and only itself in later ones."""

    scale: float
    keys: dict[int, list[Tensor]] = field(default_factory=dict)
    values: dict[int, list[Tensor]] = field(default_factory=dict)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        group = q.shape[1] // k.shape[1]
        keys, values = self.keys.setdefault(layer, []), self.values.setdefault(layer, [])
        keys.append(k.repeat_interleave(group, 1))
        values.append(v.repeat_interleave(group, 1))
        if len(keys) == 1:
            return F.scaled_dot_product_attention(q, keys[0], values[0], is_causal=True, scale=self.scale)
        own_keys, own_values = torch.stack(keys[1:]), torch.stack(values[1:])
        function = _joint_flash if q.device.type == "cpu" else joint_attention
        return function(q, keys[0], values[0], own_keys, own_values, self.scale)


def joint_attention(q: Tensor, k: Tensor, v: Tensor, own_k: Tensor, own_v: Tensor, scale: float) -> Tensor:
    """One softmax over the causal keys of step 0 and the own slot's keys of the later steps: the reference.

    q, k, v [B, H, S, d]; own_k, own_v [m, B, H, S, d] -> [B, H, S, d].  Runs on any device in QUERIES x S memory: the
    backward pass recomputes the weights of a block of queries.
    """
    blocks = []
    for start in range(0, q.shape[2], QUERIES):
        rows, end = slice(start, start + QUERIES), min(start + QUERIES, q.shape[2])
        block = (q[:, :, rows], k[:, :, :end], v[:, :, :end], own_k[:, :, :, rows], own_v[:, :, :, rows], scale)
        blocks.append(_joint_block(*block) if end == q.shape[2] and start == 0 else
                      checkpoint(_joint_block, *block, use_reentrant=False, preserve_rng_state=False))
    return torch.cat(blocks, dim=2)


def _joint_block(q: Tensor, k: Tensor, v: Tensor, own_k: Tensor, own_v: Tensor, scale: float) -> Tensor:
    """`joint_attention` of the last n slots: q and own_* of these, k and v of all slots up to them."""
    n, seen = q.shape[2], k.shape[2]
    hidden = torch.ones(n, seen, dtype=torch.bool, device=q.device).triu(1 + seen - n)
    far = (q @ k.mT * scale).masked_fill(hidden, float("-inf"))
    own = (q[None] * own_k).sum(-1).movedim(0, -1) * scale              # [B, H, n, m]
    weights = torch.cat([far, own], dim=-1).float().softmax(-1).to(q.dtype)
    near = weights[..., seen:].movedim(-1, 0)[..., None] * own_v
    return weights[..., :seen] @ v + near.sum(0)


class _JointFlash(torch.autograd.Function):
    """`joint_attention` on a CPU, without S x S memory.

    The causal part and the own slots are merged by log-sum-exps.  Flash attention's backward, given the merged
    output and log-sum-exp, recomputes exactly the joint softmax's weights of the causal keys.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, own_k: Tensor, own_v: Tensor, scale: float) -> Tensor:
        far, far_lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True, scale=scale)
        own = (q[None].float() * own_k.float()).sum(-1) * scale         # [m, B, H, S]
        lse = torch.cat([far_lse[None].float(), own]).logsumexp(0)
        out = far.float() * (far_lse - lse).exp()[..., None]
        out = (out + ((own - lse).exp()[..., None] * own_v.float()).sum(0)).to(q.dtype)
        ctx.save_for_backward(q, k, v, own_k, own_v, out, lse, own)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, own_k, own_v, out, lse, own = ctx.saved_tensors
        grad = grads[0].contiguous()
        dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, q, k, v, out, lse, 0.0, True, scale=ctx.scale)
        wide = grad.float()
        weights = (own - lse).exp()                                     # [m, B, H, S]
        delta = (wide * out.float()).sum(-1)
        dscore = weights * ((wide[None] * own_v.float()).sum(-1) - delta) * ctx.scale
        dq = dq + (dscore[..., None] * own_k.float()).sum(0).to(q.dtype)
        return (dq, dk, dv, (dscore[..., None] * q[None].float()).to(q.dtype),
                (weights[..., None] * wide[None]).to(q.dtype), None)


def _joint_flash(*args: Any) -> Tensor:
    return _JointFlash.apply(*args)


@dataclass(frozen=True)
class StepFigures:
    """Per training-time-test step: mean loss in nats, and how often drafter and target agree on the first choice."""

    losses: list[float]
    agreements: list[float]


def training_time_test(network: Eagle3Network, features: Tensor, tokens: Tensor, positions: Tensor, hidden: Tensor,
                       target_head: Callable[[Tensor], Tensor], steps: int,
                       learnt: Tensor | None = None) -> tuple[Tensor, StepFigures]:
    """(the weighted loss, figures).

    features: [B, S, A * Ht], the target's; tokens, positions: [B, S]; hidden: [B, S, Ht], from which `target_head`
    computes logits [.., V]; learnt: [B, S] bool, whether the token after each slot is learnt (a chat's answers), None
    for all.  At step k slot t is fed token t + 1 + k and its own last state, is at position t + k, and predicts token
    t + 2 + k, of which the target gives the distribution at t + 1 + k.
    """
    length = tokens.shape[1]
    memory = _Memory(network.config.head_dim ** -0.5)
    wanted = _Wanted.read(network, hidden, target_head, learnt)
    state = network.fuse(features)
    total, losses, agreements = torch.zeros((), device=tokens.device), [], []
    for k in range(steps):
        shifted = F.pad(tokens[:, 1 + k:], (0, 1 + k))
        state = network(state, shifted, positions + k, memory.attend)
        loss, agreement = _loss(network, state[:, :length - 1 - k], wanted, 1 + k)
        total = total + DECAY ** k * loss
        losses.append(loss.item())
        agreements.append(agreement)
    return total, StepFigures(losses, agreements)


@dataclass(frozen=True)
class _Wanted:
    """The target's distributions at each slot, computed once for all steps.

    shares: [B, S, D], probabilities on the draft vocabulary; choice: [B, S], the most probable token; learnt: [B, S],
    whether the slot counts; inside: whether it counts and the draft vocabulary has its most probable token.
    """

    shares: Tensor
    choice: Tensor
    learnt: Tensor
    inside: Tensor

    @classmethod
    @torch.no_grad()
    def read(cls, network: Eagle3Network, hidden: Tensor, target_head: Callable[[Tensor], Tensor],
             learnt: Tensor | None) -> _Wanted:
        kept, shares, choices = network.t2d.nonzero().flatten(), [], []
        for block in hidden.flatten(0, 1).split(BLOCK):
            logits = target_head(block)
            choices.append(logits.argmax(-1))
            shares.append(logits[:, kept].float().softmax(-1))
        choice = torch.cat(choices).view(hidden.shape[:2])
        learnt = torch.ones_like(choice, dtype=torch.bool) if learnt is None else learnt
        return cls(torch.cat(shares).view(*hidden.shape[:2], -1), choice, learnt, learnt & network.t2d[choice])


def _loss(network: Eagle3Network, states: Tensor, wanted: _Wanted, shift: int) -> tuple[Tensor, float]:
    """Soft cross-entropy on the draft vocabulary, over the slots with the target's choice in it, block by block.

    Deviates from EAGLE's code: divided by the number of these slots, taken at the predicted token.
    """
    total, hits = torch.zeros((), device=states.device), 0
    parts = (t[:, shift:].flatten(0, 1).split(BLOCK)
             for t in (wanted.shares, wanted.choice, wanted.learnt, wanted.inside))
    for ours, share, choice, learnt, inside in zip(states.flatten(0, 1).split(BLOCK), *parts, strict=True):
        # The backward pass recomputes the block's logits, since all of them would be K times [S, D].
        nats, guess = checkpoint(_nats, network, ours, share, use_reentrant=False, preserve_rng_state=False)
        total = total + nats[inside].sum()
        hits += int(((network.target_ids(guess) == choice) & learnt).sum())
    count = int(wanted.inside[:, shift:].sum())
    return total / max(1, count), hits / max(1, int(wanted.learnt[:, shift:].sum()))


def _nats(network: Eagle3Network, states: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """(cross-entropy against `shares` [block], the drafter's most probable token [block])."""
    logits = network.logits(states).float()
    return -(shares * logits.log_softmax(-1)).sum(-1), logits.argmax(-1)
