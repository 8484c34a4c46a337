"""Computes EAGLE-3's training-time test: the head is trained on its own states, as in decoding.

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

LOGIT_SLOTS = 512  # slots whose [slots, D] logits exist at once on a CPU: they stay in its caches
GPU_LOGIT_SLOTS = 8192  # the same on a GPU, where launches for few slots take longer than their products
QUERY_SLOTS = 1024  # slots whose attention weights exist at once
aten = torch.ops.aten
DECAY = 0.8  # weight of step k is 0.8^k (EAGLE-3's training code)


def logit_slots(device: torch.device) -> int:
    """Returns the number of slots whose logits are computed at once on this device."""
    if device.type == "cpu":
        return LOGIT_SLOTS
    return GPU_LOGIT_SLOTS


@dataclass
class _StepRows:
    """Keys and values of the steps so far, per layer: a slot sees step 0 causally, and only itself in later steps."""

    scale: float
    keys: dict[int, list[Tensor]] = field(default_factory=dict)
    values: dict[int, list[Tensor]] = field(default_factory=dict)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        group = q.shape[1] // k.shape[1]
        keys = self.keys.setdefault(layer, [])
        values = self.values.setdefault(layer, [])
        keys.append(k.repeat_interleave(group, 1))
        values.append(v.repeat_interleave(group, 1))
        if len(keys) == 1:
            return F.scaled_dot_product_attention(q, keys[0], values[0], is_causal=True, scale=self.scale)
        own_keys = torch.stack(keys[1:])
        own_values = torch.stack(values[1:])
        function = _joint_flash if _has_flash(q) else joint_attention
        return function(q, keys[0], values[0], own_keys, own_values, self.scale)


def _has_flash(q: Tensor) -> bool:
    """Returns True if torch has a flash kernel for these queries; on a GPU, for half precision and some heads."""
    if q.device.type != "cuda":
        return q.device.type == "cpu"
    size = q.shape[-1]
    fits = q.dtype in (torch.bfloat16, torch.float16) and size % 8 == 0 and size <= 256
    return fits and torch.cuda.get_device_capability(q.device) >= (8, 0)


def joint_attention(q: Tensor, k: Tensor, v: Tensor, own_k: Tensor, own_v: Tensor, scale: float) -> Tensor:
    """Reference implementation: one softmax over the causal keys of step 0 and the own slot's keys of later steps.

    q, k, v [B, H, S, d]; own_k, own_v [m, B, H, S, d] -> [B, H, S, d].  Runs on any device in QUERY_SLOTS x S
    memory:
    the backward pass recomputes the weights of a block of queries.
    """
    blocks = []
    for start in range(0, q.shape[2], QUERY_SLOTS):
        rows = slice(start, start + QUERY_SLOTS)
        end = min(start + QUERY_SLOTS, q.shape[2])
        block = (q[:, :, rows], k[:, :, :end], v[:, :, :end], own_k[:, :, :, rows], own_v[:, :, :, rows], scale)
        blocks.append(
            _joint_block(*block)
            if end == q.shape[2] and start == 0
            else checkpoint(_joint_block, *block, use_reentrant=False, preserve_rng_state=False)
        )
    return torch.cat(blocks, dim=2)


def _joint_block(q: Tensor, k: Tensor, v: Tensor, own_k: Tensor, own_v: Tensor, scale: float) -> Tensor:
    """`joint_attention` for the last n slots: q and own_* hold these, k and v all slots up to the last."""
    n = q.shape[2]
    columns = k.shape[2]
    hidden = torch.ones(n, columns, dtype=torch.bool, device=q.device).triu(1 + columns - n)
    far = (q @ k.mT * scale).masked_fill(hidden, float("-inf"))
    own_scores = (q[None] * own_k).sum(-1).movedim(0, -1) * scale  # [B, H, n, m]
    weights = torch.cat([far, own_scores], dim=-1).float().softmax(-1).to(q.dtype)
    near = weights[..., columns:].movedim(-1, 0)[..., None] * own_v
    return weights[..., :columns] @ v + near.sum(0)


class _JointFlash(torch.autograd.Function):
    """`joint_attention` by torch's flash kernels, without S x S memory.

    The causal part and the own slots are merged by log-sum-exps.  Flash attention's backward, given the
    merged output and log-sum-exp, recomputes exactly the joint softmax's weights of the causal keys.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, own_k: Tensor, own_v: Tensor, scale: float) -> Tensor:
        far, far_lse, ctx.state = _flash(q, k, v, scale)
        own_scores = (q[None].float() * own_k.float()).sum(-1) * scale  # [m, B, H, S]
        lse = torch.cat([far_lse[None].float(), own_scores]).logsumexp(0)
        out = far.float() * (far_lse - lse).exp()[..., None]
        out = (out + ((own_scores - lse).exp()[..., None] * own_v.float()).sum(0)).to(q.dtype)
        ctx.save_for_backward(q, k, v, own_k, own_v, out, lse, own_scores)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, own_k, own_v, out, lse, own_scores = ctx.saved_tensors
        grad = grads[0].contiguous()
        if q.device.type == "cpu":
            dq, dk, dv = aten._scaled_dot_product_flash_attention_for_cpu_backward(
                grad, q, k, v, out, lse, 0.0, True, scale=ctx.scale
            )
        else:
            starts = ctx.state[:2]
            lengths = ctx.state[2:4]
            randomness = ctx.state[4:]
            dq, dk, dv = aten._scaled_dot_product_flash_attention_backward(
                grad, q, k, v, out, lse, *starts, *lengths, 0.0, True, *randomness, scale=ctx.scale
            )
        wide = grad.float()
        weights = (own_scores - lse).exp()  # [m, B, H, S]
        delta = (wide * out.float()).sum(-1)
        dscore = weights * ((wide[None] * own_v.float()).sum(-1) - delta) * ctx.scale
        dq = dq + (dscore[..., None] * own_k.float()).sum(0).to(q.dtype)
        return (
            dq,
            dk,
            dv,
            (dscore[..., None] * q[None].float()).to(q.dtype),
            (weights[..., None] * wide[None]).to(q.dtype),
            None,
        )


def _joint_flash(*args: Any) -> Tensor:
    return _JointFlash.apply(*args)


def _flash(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor, tuple[Any, ...]]:
    """Returns (causal attention [B, H, S, d], its log-sum-exps [B, H, S], what the backward pass takes besides)."""
    if q.device.type == "cpu":
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True, scale=scale)
        return out, lse, ()
    out, lse, *state = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True, scale=scale)
    return out, lse, tuple(state[:6])


@dataclass(frozen=True)
class StepFigures:
    """Figures per step of the training-time test: mean loss in nats, and share of first choices that agree."""

    losses: list[float]
    agreements: list[float]


@dataclass(frozen=True)
class TargetOutputs:
    """The target model's outputs for rows of tokens.

    Attributes:
        features: [B, S, A * Ht].
        hidden: [B, S, Ht], final states.
        choice: [B, S] int64, the most probable next tokens.
    """

    features: Tensor
    hidden: Tensor
    choice: Tensor


def training_time_test(
    network: Eagle3Network,
    seen: TargetOutputs,
    tokens: Tensor,
    positions: Tensor,
    target_logits: Callable[[Tensor, Tensor], Tensor],
    steps: int,
    learnt: Tensor | None = None,
    loss: str = "kl",
) -> tuple[Tensor, StepFigures]:
    """Returns (weighted loss, figures) of the training-time test.

    At step k slot t reads token t + 1 + k and its own last state, is at position t + k, and predicts token t
    + 2 + k, whose distribution the target gives at t + 1 + k.  A slot counts if its token is learnt and the
    draft vocabulary has the target's first choice.  Unlike in EAGLE's code, the loss is divided by the number
    of these slots, taken at the predicted token.

    Args:
        network: The head.
        seen: The target's outputs for the rows.
        tokens, positions: [B, S] int64.
        target_logits: (final states [n, Ht], ids [D]) -> the target's logits [n, D] of these ids.
        steps: Number of steps K.
        learnt: [B, S] bool, True if the token after the slot is learnt (a chat's answers); None: all are.
        loss: "kl" or "lk", as in `distilled`.
    """
    memory = _StepRows(network.config.head_dim**-0.5)
    if learnt is None:
        learnt = torch.ones_like(tokens, dtype=torch.bool)
    # Last slots come first, so that the slots which a step predicts are a prefix and need no copy.
    slots, rows = (learnt & network.t2d[seen.choice]).T.nonzero().flip(0).unbind(1)
    draft_ids = network.t2d.nonzero().flatten()
    with torch.no_grad():
        shares = torch.cat(
            [
                target_logits(block, draft_ids).float().softmax(-1)
                for block in seen.hidden[rows, slots].split(logit_slots(tokens.device))
            ]
        )
    choice = torch.searchsorted(draft_ids, seen.choice[rows, slots])
    state = network.fuse(seen.features.to(network.fc.weight.dtype))
    total = torch.zeros((), device=tokens.device)
    figures = []
    after = torch.arange(steps, device=slots.device)
    counts = (slots[:, None] > after).sum(0).tolist()  # slots that each step predicts
    for k in range(steps):
        shifted = F.pad(tokens[:, 1 + k :], (0, 1 + k))
        state = network(state, shifted, network.cos_sin(positions + k), memory.attend)
        count = counts[k]
        states = network.normed(state[rows[:count], slots[:count] - 1 - k])
        step_loss, hits = distilled(states, network.lm_head.weight, shares[:count], choice[:count], loss)
        step_loss = step_loss / max(1, count)
        total = total + DECAY**k * step_loss
        figures.append(torch.stack([step_loss.detach(), hits / learnt[:, 1 + k :].sum().clamp(min=1)]))
    losses, agreements = torch.stack(figures, dim=1).tolist()  # one read, for which the host waits
    return total, StepFigures(losses, agreements)


def distilled(states: Tensor, weight: Tensor, shares: Tensor, choice: Tensor, loss: str) -> tuple[Tensor, Tensor]:
    """Returns (summed loss of an output layer against the target's distributions, number of equal first choices).

    Args:
        states: [n, H].
        weight: [D, H].
        shares: [n, D], the target's probabilities.
        choice: [n], the target's first choices.
        loss: kl, the cross-entropy, or lk, -log of the probability that a sampled draft is accepted (arXiv
            2602.23881).
    """
    return _Distilled.apply(states, weight, shares, choice, loss)


class _Distilled(torch.autograd.Function):
    """`distilled`.  The forward pass computes the gradients too, block by block, so no [n, D] is kept or
    computed twice.
    """

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, shares: Tensor, choice: Tensor, loss: str
    ) -> tuple[Tensor, Tensor]:
        wanted = any(ctx.needs_input_grad)
        kind = states.device.type
        dtype = states.dtype
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
        inputs = states.to(dtype)
        matrix = weight.to(dtype)
        for_states = torch.empty_like(inputs)
        for_weight = torch.zeros_like(weight)
        total = torch.zeros((), device=states.device)
        hits = torch.zeros((), device=states.device, dtype=torch.int64)
        block_size = logit_slots(states.device)
        for start in range(0, len(states), block_size):
            rows = slice(start, start + block_size)
            scores = (inputs[rows] @ matrix.T).float()
            share = shares[rows]
            most = scores.amax(-1, keepdim=True)
            hits += (scores.gather(1, choice[rows, None]) >= most).sum()
            ours = (scores - most).exp_()
            summed = ours.sum(-1, keepdim=True)
            if loss == "kl":
                total += (summed.log() + most).sum() - (share * scores).sum()
                gradient = ours.div_(summed).sub_(share)
            else:
                ours.div_(summed)
                accepted = torch.minimum(ours, share).sum(-1, keepdim=True)
                total -= accepted.log().sum()
                below = ours * (ours < share)
                gradient = ours.mul_(below.sum(-1, keepdim=True)).sub_(below).div_(accepted)
            if wanted:
                gradient = gradient.to(dtype)
                for_states[rows] = gradient @ matrix
                for_weight += gradient.T @ inputs[rows]
        ctx.save_for_backward(for_states, for_weight)
        ctx.mark_non_differentiable(hits)
        return total, hits

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        for_states, for_weight = ctx.saved_tensors
        return grads[0] * for_states, grads[0] * for_weight, None, None, None
