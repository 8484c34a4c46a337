"""Trains LongSpec drafters on the keys and values of a frozen target's last layer, computed during training.

In decoding, a drafted token sees the target's rows up to the root, and none of the tokens drafted before it.
Therefore each training row has a gap of 1 to `levels` tokens: token t sees the target's rows of tokens 0 .. t
- gap ("flash noisy training"; the official code draws gaps of 1 to 4).  Attention stays causal, so no mask is
needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
from annotated_types import Ge, Le
from torch import Tensor
from transformers.cache_utils import DynamicCache

from longgraft.config.options import Count
from longgraft.protocol.proposer import Proposer
from longgraft.target_model.model import Target
from longgraft.yarn_drafters.training.corpus import EncodedCorpus
from longgraft.yarn_drafters.training.fresh import take_norm
from longgraft.yarn_drafters.training.frozen import DistillingTrainer
from longgraft.yarn_drafters.training.loop import Figures
from longgraft.yarn_drafters.training.recipe import DistilledRecipe, Rate, Size, Stage
from longgraft.zoo.longspec.drafter import LongSpecCache, LongSpecDrafter
from longgraft.zoo.longspec.files import load_longspec, save_longspec
from longgraft.zoo.longspec.network import LongSpecConfig, LongSpecNetwork, SharedParts, head_dim, kv_heads

LOGIT_TOKENS = 1024  # tokens whose [tokens, V] logits exist at once
DEPTH = 5  # largest trained gap: the number of levels of the official tree


@dataclass(frozen=True)
class LongSpecRecipe(DistilledRecipe):
    """Settings of a LongSpec drafter's training.  None: the target's own shape."""

    window: Count = 512
    heads: Size | None = None
    kv_heads: Size | None = None
    intermediate: Size | None = None
    levels: Annotated[int, Ge(1), Le(64)] = DEPTH

    stages: tuple[Stage, ...] = (Stage(2048, skip=0.5),)
    muon_lr: Rate = 5e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        self.need_longer("levels", self.levels)


class LongSpecTrainer(DistillingTrainer):
    """A trainer of a LongSpec drafter that predicts the frozen target's distributions."""

    recipes = LongSpecRecipe
    folder = "longspec"

    def __init__(self, recipe: LongSpecRecipe, target: Target, network: LongSpecNetwork, *more: Any) -> None:
        self.shared = SharedParts(target)
        super().__init__(
            replace(recipe, max_positions=min(recipe.max_positions, target.max_positions)), target, network, *more
        )

    @staticmethod
    def fresh(recipe: LongSpecRecipe, target: Target, corpus: EncodedCorpus) -> LongSpecNetwork:
        """Returns an untrained drafter; the norm before the output layer starts as the target's own."""
        torch.manual_seed(recipe.seed)
        network = LongSpecNetwork(longspec_shape(recipe, target))
        for parameter in network.parameters():
            if parameter.ndim == 2:
                torch.nn.init.normal_(parameter, std=0.02)
        take_norm(network.norm, getattr(target.model.get_decoder(), "norm", None))
        return network

    def proposer(self, network: LongSpecNetwork) -> tuple[Proposer, int]:
        drafter = LongSpecDrafter(LongSpecCache(network, self.target))
        return drafter, drafter.nodes

    def write(self, folder: Path) -> None:
        save_longspec(self.network.to(torch.bfloat16), folder)
        load_longspec(folder, self.target)

    def objective(self, rows: Tensor, positions: Tensor) -> tuple[Tensor, Figures]:
        # Gaps cycle over rows and steps: they depend on the step's number alone, so that runs resume.
        gaps = [1 + (self.state.step + row) % self.recipe.levels for row in range(len(rows))]
        loss, agreement = self._losses(rows, positions, [gaps])[0]
        return loss, {"loss": loss.item(), "agreement": agreement}

    def _losses(self, rows: Tensor, positions: Tensor, gaps: Sequence[Sequence[int]]) -> list[tuple[Tensor, float]]:
        """Returns for each assignment of gaps to rows (loss, agreement).

        loss: mean cross-entropy against the target's distributions; agreement: share of equal first choices
        """
        # ~id is negative: context only.  The token after slot t is rows[t + 1].
        tokens = torch.where(rows < 0, ~rows, rows)[:, :-1]
        learnt = rows[:, 1:] >= 0
        config = self.network.config
        losses = []
        with self.recipe.autocast(self.device):
            keys, values, wanted = self._observe(tokens, positions)
            like = self.network.self_attn.q_proj.weight
            if not self.recipe.in_bf16(self.device):
                keys = keys.to(like.dtype)
                values = values.to(like.dtype)
            embedded = self.shared.embed(tokens, like)
            angles = self.shared.angles(positions, config.head_dim)
            for chosen in gaps:
                states = self.network(
                    embedded,
                    angles,
                    lambda q, k, v: attend_in_window(q, k, v, config.window),
                    lambda q, chosen=chosen: attend_with_gaps(q, keys, values, chosen),
                )
                losses.append(self._nats(states[learnt], wanted[learnt]))
        return losses

    @torch.no_grad()
    def _observe(self, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns keys and values [B, nkv, S, d] of the target's last layer, and final hidden states [B, S, H]."""
        # Without a mask transformers reads jumps of positions as packed sequences; a mask of ones is ignored.
        cache = DynamicCache()
        hidden = self.target.model.get_decoder()(
            tokens,
            position_ids=positions,
            use_cache=True,
            attention_mask=torch.ones_like(tokens),
            **{self.target.cache_name: cache},
        ).last_hidden_state
        last: Any = cache.layers[-1]
        return last.keys, last.values, hidden

    def _nats(self, states: Tensor, wanted: Tensor) -> tuple[Tensor, float]:
        """Returns (mean cross-entropy against the target's distributions, agreement) of states, wanted [n, H].

        Each block's gradient (softmax minus the target's probabilities, through the frozen output layer) is
        computed with its loss, so that no [n, V] is kept or computed twice.
        """
        total = 0.0
        hits = 0
        slopes = []
        for block, targets in zip(states.split(LOGIT_TOKENS), wanted.split(LOGIT_TOKENS), strict=True):
            with torch.no_grad():
                shares = self.target.logits(targets).float().softmax(-1)  # [block, V]
            with torch.enable_grad():
                block = block.detach().requires_grad_()
                logits = self.target.logits(block.to(self.target.dtype))
            gains = logits.detach().float().log_softmax(-1)
            total -= float(torch.dot(shares.flatten(), gains.flatten()))
            hits += int((shares.max(-1).indices == gains.max(-1).indices).sum())
            slopes.append(torch.autograd.grad(logits, block, (gains.exp_() - shares).to(logits.dtype))[0])
        n = max(1, len(states))
        slope = torch.cat(slopes) if slopes else torch.zeros_like(states)
        # The added term is zero and has the gradient.
        return (total + ((states - states.detach()) * slope).sum()) / n, hits / n

    def figures_of(self, coded: np.ndarray) -> Figures:
        """Returns the mean losses and agreements, one of each per gap."""
        rows = torch.from_numpy(coded).to(self.device)
        positions = torch.arange(rows.shape[1] - 1, device=self.device)[None]
        gaps = [[gap] for gap in range(1, self.recipe.levels + 1)]
        by_row = []
        for row in rows:
            by_row.append([(loss.item(), agreed) for loss, agreed in self._losses(row[None], positions, gaps)])
        figures = np.array(by_row).mean(0)  # [levels, 2]
        return dict(zip(("losses", "agreements"), figures.T.tolist(), strict=True))


def attend_in_window(q: Tensor, k: Tensor, v: Tensor, before: int) -> Tensor:
    """Causal attention to the token itself and the `before` tokens before it, in memory S x 2 `before`.

    q [B, nh, S, d], k, v [B, nkv, S, d] -> [B, nh, S, d]
    """
    batch, _, length, _ = q.shape
    group = q.shape[1] // k.shape[1]
    q = q.to(v.dtype)
    k = k.to(v.dtype).repeat_interleave(group, 1)
    v = v.repeat_interleave(group, 1)
    if length <= before + 1:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    count = -(-length // before)
    q, k, v = (F.pad(x, (0, 0, 0, count * before - length)).unflatten(2, (count, before)) for x in (q, k, v))
    # A chunk of queries has the columns of its own chunk and the one before; row r sees columns r .. r + `before`.
    k, v = (torch.cat([F.pad(x, (0, 0, 0, 0, 1, 0))[:, :, :-1], x], dim=3) for x in (k, v))
    row = torch.arange(before, device=q.device)[:, None]
    column = torch.arange(2 * before, device=q.device)
    visible = (column >= row) & (column <= row + before)
    # [count, before, 2 before].
    visible = torch.stack([visible & (column >= before), *[visible] * (count - 1)])
    # [batch count, nh, .., d].
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=visible.repeat(batch, 1, 1)[:, None])
    return out.unflatten(0, (batch, count)).transpose(1, 2).flatten(2, 3)[:, :, :length]


def attend_with_gaps(q: Tensor, keys: Tensor, values: Tensor, gaps: Sequence[int]) -> Tensor:
    """Attention of token t of row b to tokens 0 .. t - gaps[b]; the result is zero for tokens that see none.

    q [B, nh, S, d]; keys, values [B, nkv, S, d] -> [B, nh, S, d]
    """
    group = q.shape[1] // keys.shape[1]
    rows = []
    for ask, key, value, gap in zip(q, keys, values, gaps, strict=True):
        key, value = (x[:, :-gap].repeat_interleave(group, 0)[None] for x in (key, value))
        out = F.scaled_dot_product_attention(
            ask[None, :, gap:].to(value.dtype), key.to(value.dtype), value, is_causal=True
        )
        rows.append(F.pad(out, (0, 0, gap, 0)))
    return torch.cat(rows)


def longspec_shape(recipe: LongSpecRecipe, target: Target) -> LongSpecConfig:
    """Returns the recipe's sizes, and the target's for those not set; raises ValueError if they do not fit
    the target."""
    c = target.config
    config = LongSpecConfig(
        hidden_size=c.hidden_size,
        intermediate_size=recipe.intermediate or c.intermediate_size,
        heads=recipe.heads or c.num_attention_heads,
        kv_heads=recipe.kv_heads or kv_heads(target),
        head_dim=head_dim(target),
        rms_eps=getattr(c, "rms_norm_eps", 1e-6),
        window=recipe.window,
        qk_norm=hasattr(target.layers[-1].self_attn, "q_norm"),
        final_norm=True,
    )
    if config.heads % config.kv_heads or config.heads % kv_heads(target):
        raise ValueError(
            f"The drafter's heads is {config.heads} and kv_heads {config.kv_heads}; {target.name} has "
            f"{kv_heads(target)} key-value heads. Set heads to a multiple of both."
        )
    return config
