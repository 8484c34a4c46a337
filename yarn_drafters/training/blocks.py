"""The trainer of block drafters: blocks of masks at random anchors of a text, all of a row in one forward.

Knows targets, the loop and the network; decodes only to measure.
Source: DFlash (arXiv 2602.06036): random anchors, larger weights of earlier slots, the target's embedding and output
layer.

Letters: B batch, S tokens of a row, M anchors of a row, K slots of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from longgraft.config.options import Count, Option, Positive, Share
from longgraft.drafters.dflash import DFlashDrafter
from longgraft.memories.dflash_cache import DFlashCache
from longgraft.target_model.model import Target
from longgraft.yarn_drafters.dflash import BLOCK, BlockConfig, BlockNetwork, usual_layers
from longgraft.yarn_drafters.dflash_files import dflash_config, load_blocks, save_blocks
from longgraft.yarn_drafters.layouts import Layers, TargetShape
from longgraft.yarn_drafters.rope import Rope
from longgraft.yarn_drafters.training.block_objective import block_states, compared
from longgraft.yarn_drafters.training.corpus import EncodedCorpus
from longgraft.yarn_drafters.training.distributed import ALONE, World
from longgraft.yarn_drafters.training.frozen import Frozen, as_decoded, check_logits, observed, replayed
from longgraft.yarn_drafters.training.loop import Figures, Trainer, mean, muon_and_adam
from longgraft.yarn_drafters.training.recipe import AtOnce, Rate, Recipe, Schedule, Size, Tokens, Whole
from longgraft.yarn_drafters.training.streams import held_out_rows

LOGGED = (1, 2, 3, 5, 8, 15)    # slots whose agreement is logged


@dataclass(frozen=True)
class BlockRecipe(Recipe):
    """Every setting of a block drafter's training.  None: the target's own shape, DFlash's feature layers, the rarest
    token of the corpus as mask."""

    layers: Annotated[int, Option(low=1, high=1000)] = 5          # DFlash's; so is the block
    block: Annotated[int, Option(low=2, high=1024)] = BLOCK
    feature_layers: Layers | None = None                # indices into transformers' hidden_states: layer inputs
    intermediate: Size | None = None
    mask_token: Whole | None = None
    rope: Rope = Rope(1e6)
    stride: Count = 8                                   # tokens of a row per block
    falloff: Positive = 7.0                             # slot k has weight exp(-(k - 1) / falloff)

    total_tokens: Tokens = 100_000_000
    tokens_per_step: AtOnce = 16384
    micro_tokens: AtOnce | None = 4096
    max_positions: Count = 2048
    schedule: Schedule = "cosine"
    warmup: Share = 0.04                                # SpecForge's
    muon_lr: Rate = 5e-3
    adam_lr: Rate = 6e-4                                # SpecForge's
    mat_prompts: Whole = 4                              # unseen rows of each kind that are also decoded in replay
    mat_tokens: Count = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        if (shortest := min(self.valid_length, *(stage.length for stage in self.stages))) <= self.block:
            raise ValueError(f"Rows of {shortest:,} tokens leave no room for blocks of {self.block}. Lower block, or "
                             "lengthen the stages and valid_length.")


class BlockTrainer(Trainer):
    """Blocks at random anchors learn the frozen target's distributions."""

    recipe: BlockRecipe
    first_learnt = 2        # an anchor has a token before it

    def __init__(self, recipe: BlockRecipe, target: Target, network: BlockNetwork, corpus: EncodedCorpus, out: Path,
                 unseen: EncodedCorpus | None = None, world: World = ALONE) -> None:
        self.target, self.network = target, network.to(target.device)
        network.share(target.model.get_input_embeddings(), target.head)
        matrices = [p for p in network.parameters() if p.ndim == 2]
        norms = [p for p in network.parameters() if p.ndim == 1]
        super().__init__(recipe, network, muon_and_adam(matrices, [{"params": norms, "lr": recipe.adam_lr}], recipe),
                         corpus, out, {"target": target.name} | asdict(network.config), world)
        self.unseen = {} if unseen is None else held_out_rows(unseen, recipe.valid_rows, recipe.valid_length)
        check_logits(target)

    def objective(self, rows: Tensor, positions: Tensor) -> tuple[Tensor, Figures]:
        rng = np.random.default_rng([self.recipe.seed, 3, self.state.step])     # keyed by step: resumes
        last = rows.shape[1] - self.recipe.block
        count = max(1, last // self.recipe.stride)
        found = [rng.choice(last, count, replace=False) + 1 for _ in rows]
        return self._loss(rows, positions, torch.from_numpy(np.sort(found)).to(rows.device))

    @torch.no_grad()
    def measure(self) -> dict[str, Any]:
        """Loss, agreements and replayed MAT of the block as a chain, per kind of unseen text."""
        found: dict[str, Any] = {}
        for kind, coded in self.unseen.items():
            rows = torch.from_numpy(coded).to(self.device)
            positions = torch.arange(rows.shape[1] - 1, device=self.device)[None]
            anchors = torch.arange(1, 1 + rows.shape[1] - self.recipe.block, self.recipe.stride, device=self.device)
            figures = mean([self._loss(row[None], positions, anchors[None])[1] for row in rows])
            found |= {f"{kind}_{name}": value for name, value in figures.items()}
            if self.recipe.mat_prompts:
                drafter = DFlashDrafter(DFlashCache(as_decoded(self.network, self.target)))
                found[f"{kind}_mat"] = replayed(self.target, drafter, rows[:self.recipe.mat_prompts],
                                                self.recipe.mat_tokens)
        return found

    def _loss(self, rows: Tensor, positions: Tensor, anchors: Tensor) -> tuple[Tensor, Figures]:
        """anchors: [B, M] int64, indices into the rows [B, S + 1]."""
        tokens, block = torch.where(rows < 0, ~rows, rows), self.recipe.block
        with self.recipe.autocast(self.device):
            features, hidden = observed(self.target, self.network.config.feature_layers, tokens[:, :-1], positions)
            states = block_states(self.network, features, tokens, positions, anchors)       # [B, M, K, H]
            places = anchors[..., None] + torch.arange(1, block, device=self.device)        # [B, M, K - 1]
            row = torch.arange(len(rows), device=self.device)[:, None, None]
            # The target's distribution of a token comes from the hidden state of the token before it.
            nats, agreed = compared(states[:, :, 1:], hidden[row, places - 1], self.network, self.target)
        learnt = rows[row, places] >= 0
        weights = torch.exp(-torch.arange(block - 1, device=self.device) / self.recipe.falloff) * learnt
        right, count = agreed & learnt, learnt.sum((0, 1)).clamp(min=1)
        shares = (right.sum((0, 1)) / count).tolist()
        chain = (right.cumprod(-1).sum() / (anchors.numel() or 1)).item()
        loss = (nats * weights).sum() / weights.sum().clamp(min=1e-9)
        return loss, {"loss": loss.item(), "chain": chain, "agreements": [shares[k - 1] for k in LOGGED if k < block]}


def fresh_network(recipe: BlockRecipe, target: Target, corpus: EncodedCorpus) -> BlockNetwork:
    """A float32 drafter of the target's width whose last norm is the target's."""
    c, n = target.config, target.config.num_hidden_layers
    layers = recipe.feature_layers or usual_layers(n, recipe.layers)
    if len(set(layers)) < len(layers) or not all(0 <= layer < n for layer in layers):
        raise ValueError(f"Features of layers {layers} were asked of {target.name}, which has {n}. Set feature_layers "
                         f"in the recipe to different numbers below {n}.")
    counts = np.bincount(corpus.tokens[corpus.tokens >= 0], minlength=target.vocab_size)
    mask = int(counts.argmin()) if recipe.mask_token is None else recipe.mask_token
    if mask >= target.vocab_size:
        raise ValueError(f"mask_token is {mask:,} and {target.name} has {target.vocab_size:,} tokens. Set one of them.")
    heads = c.num_attention_heads
    torch.manual_seed(recipe.seed)
    network = BlockNetwork(BlockConfig(
        hidden_size=c.hidden_size, intermediate_size=recipe.intermediate or c.intermediate_size, heads=heads,
        kv_heads=getattr(c, "num_key_value_heads", None) or heads,
        head_dim=getattr(c, "head_dim", None) or c.hidden_size // heads, layers=recipe.layers,
        vocab_size=target.vocab_size, feature_layers=tuple(layers), mask_token=mask,
        max_positions=recipe.max_positions, block=recipe.block, rope=recipe.rope))
    for parameter in network.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.02)
    with torch.no_grad():
        if (norm := getattr(target.model.get_decoder(), "norm", None)) is not None:
            # The norm of ones is its scale, of which some families store scale - 1.  A LayerNorm gives zeros.
            scale = norm(torch.ones(1, c.hidden_size, device=target.device, dtype=target.dtype))[0]
            network.norm.weight.copy_(scale if scale.min() > 0 else torch.ones(c.hidden_size))
    return network


def train_blocks(recipe: BlockRecipe, model: str | Path, data: Sequence[Path], valid: Sequence[Path], out: Path,
                 dtype: torch.dtype = torch.float32) -> Path:
    """Train in folder `out`, or resume there; returns the drafter's folder (DFlash's layout).

    model: hub id or folder; data, valid: see `read_documents`; dtype: the frozen target's.
    """
    out, name = Path(out), str(model)
    with Frozen.prepared(recipe, name, data, valid, out, dtype) as given:
        shape = TargetShape.of(given.model.config)
        network = fresh_network(recipe, given.target, given.corpus)
        dflash_config(network, shape)   # raises before training if the result cannot be written
        trainer = BlockTrainer(recipe, given.target, network, given.corpus, out, given.unseen, given.world)
        trainer.run(target=name, corpus_tokens=len(given.corpus.tokens),
                    parameters=sum(p.numel() for p in network.parameters()))
        if given.world.first:
            save_blocks(network.to(torch.bfloat16), out / "dflash", shape)
            load_blocks(out / "dflash", shape)      # raises if the strict loader refuses the result
    return out / "dflash"
