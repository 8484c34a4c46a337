"""The objective of block drafters: many blocks of a row in one forward, compared with the target's distributions.

Letters: B batch, S tokens of a row, M anchors of a row, K slots of a block, G query heads of a key head, d head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longgraft.target_model.model import Target
from longgraft.zoo.dflash.network import BlockNetwork

LOGIT_SLOTS = 1024  # slots whose [slots, V] logits exist at once


def block_states(network: BlockNetwork, features: Tensor, tokens: Tensor, positions: Tensor, anchors: Tensor) -> Tensor:
    """Returns [B, M, K, H]: states of the block at each anchor, which sees the features before the anchor and itself.

    Args:
        features: [B, S, A * H].
        tokens: [B, S or more].
        positions: [B, S].
        anchors: [B, M] int64, indices into the row.
    """
    blocks = network.blocks(tokens.gather(1, anchors))  # [B, M, K]
    slots = torch.arange(blocks.shape[2], device=anchors.device)
    at = positions.gather(1, anchors)[..., None] + slots
    before = torch.arange(features.shape[1], device=anchors.device) < anchors[..., None]  # [B, M, S]
    injected = list(network.injected(network.fuse(features.to(network.fc.weight.dtype)), positions))
    scale = network.config.head_dim**-0.5

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        function = block_attention
        if q.device.type == "cpu":
            function = _BlockFlash.apply
        # The norms of q and k return float32 under autocast.
        q, k, far_k = (x.to(v.dtype) for x in (q, k, injected[layer][0]))
        return function(q, k, v, far_k, injected[layer][1], before, scale)

    return network(blocks.flatten(1), at.flatten(1), attend).unflatten(1, blocks.shape[1:])


def block_attention(
    q: Tensor, k: Tensor, v: Tensor, far_k: Tensor, far_v: Tensor, before: Tensor, scale: float
) -> Tensor:
    """One softmax over the tokens before a block's anchor and over the block itself, which is not causal.

    q [B, H, M * K, d], k and v [B, Hkv, M * K, d] of blocks; far_k, far_v [B, Hkv, S, d]; before [B, M, S] bool.
    """
    heads = k.shape[1]
    batch, anchors, columns = before.shape
    # [B, Hkv, G, M, K, d].
    q = q.view(batch, heads, -1, anchors, q.shape[2] // anchors, q.shape[3])
    # [B, Hkv, 1, M, K, d].
    k, v = (x.unflatten(2, (anchors, -1))[:, :, None] for x in (k, v))
    far = (q.flatten(2, 4) @ far_k.mT * scale).view(*q.shape[:5], columns)
    far = far.masked_fill(~before[:, None, None, :, None], float("-inf"))
    weights = torch.cat([far, q @ k.mT * scale], dim=-1).float().softmax(-1).to(q.dtype)
    near = (weights[..., columns:] @ v).flatten(2, 4)
    # [B, Hkv, G * M * K, d].
    out = weights[..., :columns].flatten(2, 4) @ far_v + near
    return out.view(batch, -1, anchors * q.shape[4], q.shape[5])


class _BlockFlash(torch.autograd.Function):
    """`block_attention` on a CPU, without its weights in memory.

    Flash attention over the tokens before the anchor is merged with the block's own part by log-sum-exps. Given the
    merged output and log-sum-exp, flash attention's backward recomputes exactly the joint softmax's weights.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, far_k: Tensor, far_v: Tensor, before: Tensor, scale: float
    ) -> Tensor:
        group = q.shape[1] // k.shape[1]
        anchors = before.shape[1]
        far_k, far_v = (x.repeat_interleave(group, 1) for x in (far_k, far_v))
        hidden = torch.zeros(before.shape, dtype=q.dtype).masked_fill_(~before, float("-inf"))
        bias = hidden.repeat_interleave(q.shape[2] // anchors, 1)[:, None]  # [B, 1, M * K, S]
        far, far_lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, far_k, far_v, 0.0, False, attn_mask=bias, scale=scale
        )
        blocks = (_blocks(q, 1, anchors), _blocks(k, group, anchors), _blocks(v, group, anchors))
        # [B, H, M, K, K].
        near_scores = (blocks[0] @ blocks[1].mT).float() * scale
        # [B, H, M * K].
        lse = torch.logaddexp(far_lse.float(), near_scores.logsumexp(-1).flatten(2))
        near = (near_scores - lse.unflatten(2, (anchors, -1))[..., None]).exp_()
        from_far = far.float() * (far_lse - lse).exp()[..., None]
        from_near = (near.to(q.dtype) @ blocks[2]).flatten(2, 3).float()
        out = (from_far + from_near).to(q.dtype)
        ctx.save_for_backward(q, k, v, far_k, far_v, bias, out, lse, near)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, far_k, far_v, bias, out, lse, near = ctx.saved_tensors
        group = q.shape[1] // k.shape[1]
        anchors = near.shape[2]
        grad = grads[0].contiguous()
        dq, dfar_k, dfar_v = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, q, far_k, far_v, out, lse, 0.0, False, attn_mask=bias, scale=ctx.scale
        )
        blocks = [_blocks(x, group, anchors) for x in (k, v)]
        rows = _blocks(grad, 1, anchors)
        delta = (rows.float() * _blocks(out, 1, anchors).float()).sum(-1, keepdim=True)
        dscore = (near * ((rows @ blocks[1].mT).float() - delta) * ctx.scale).to(q.dtype)
        dq = dq + (dscore @ blocks[0]).flatten(2, 3)
        dk = dscore.mT @ _blocks(q, 1, anchors)
        dv = near.to(q.dtype).mT @ rows
        summed = [x.unflatten(1, (-1, group)).sum(2) for x in (dk.flatten(2, 3), dv.flatten(2, 3), dfar_k, dfar_v)]
        return dq, *summed, None, None


def _blocks(x: Tensor, group: int, anchors: int) -> Tensor:
    """Splits rows into blocks and repeats heads: [B, h, M * K, d] -> [B, h * G, M, K, d]."""
    return x.unflatten(2, (anchors, -1)).repeat_interleave(group, 1)


def compared(states: Tensor, hidden: Tensor, network: BlockNetwork, target: Target) -> tuple[Tensor, Tensor]:
    """Returns ([...] cross-entropies in nats against the target's distributions, [...] bool: the first choices agree).

    Args:
        states: [..., H], the drafter's.
        hidden: [..., H], the target's for the same tokens.
    """
    pairs = zip(*(x.flatten(0, -2).split(LOGIT_SLOTS) for x in (states, hidden)), strict=True)
    nats, agreed = zip(*(_Comparison.apply(*pair, network, target) for pair in pairs), strict=True)
    return torch.cat(nats).view(states.shape[:-1]), torch.cat(agreed).view(states.shape[:-1])


class _Comparison(torch.autograd.Function):
    """`compared` for states and hidden [n, H].

    The output layer is frozen, so the forward pass computes the gradient as well, and no [n, V] is kept for
    the backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, hidden: Tensor, network: BlockNetwork, target: Target
    ) -> tuple[Tensor, Tensor]:
        shares = target.logits(hidden).float().softmax(-1)
        ours = network.logits(states.to(target.dtype)).float().log_softmax(-1)
        agreed = ours.argmax(-1) == shares.argmax(-1)
        nats = -(shares[:, None] @ ours[..., None]).flatten().float()
        ctx.save_for_backward(ours.exp_().sub_(shares) @ target.head.weight[:].to(ours.dtype))
        ctx.mark_non_differentiable(agreed)
        return nats, agreed

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return grads[0][:, None] * gradient, None, None, None
