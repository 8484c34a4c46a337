"""The trainer of EAGLE-3 drafters: a frozen target's features, computed as it goes, and training-time test.

Knows targets, corpora and the objective; knows no decoding.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longgraft.target import Target
from longgraft.yarn_drafters.network import Eagle3Network, HeadConfig
from longgraft.yarn_drafters.rope import Rope
from longgraft.yarn_drafters.training.corpus import (
    EncodedCorpus,
    TokenStream,
    encode_corpus,
    grouped_documents,
    mixed_documents,
    token_bytes,
)
from longgraft.yarn_drafters.training.objective import StepFigures, training_time_test
from longgraft.yarn_drafters.training.schedule import warmup_stable_decay
from longgraft.yarn_drafters.training.target import HeldOut, Stage, _sole_trainer, skipped_positions


@dataclass(frozen=True)
class DrafterRecipe:
    """Every choice of a drafter's training.  Defaults: the embedded pair's, about 20 minutes on 4 cores.

    The head is trained with YaRN from the start: frequencies for 64K, short rows first, long rows last, and
    skipped positions so that far distances are seen (PoSE).
    """

    feature_layers: tuple[int, ...] = (2, 5, 7)     # of 8: low, middle, and the last layer's input
    intermediate: int = 768
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    draft_vocab: int = 3072                         # 97 % of the corpus's tokens
    rope: Rope = Rope(kind="yarn", factor=32.0, original=2048)
    max_positions: int = 65536
    ttt_steps: int = 4                              # SpecPV's; EAGLE's 7 costs twice as much

    stages: tuple[Stage, ...] = (Stage(2048, 0.7, skip=0.5), Stage(8192, 0.3, skip=0.5, grouped=True))
    total_tokens: int = 6_000_000
    tokens_per_step: int = 8192
    budget_minutes: float | None = None
    prose_share: float = 0.22
    warmup: float = 0.03
    decay: float = 0.4
    feature_pass: float = 0.06                      # of the last feature, through the fresh fc
    muon_lr: float = 5e-3
    adam_lr: float = 1e-3
    grad_clip: float = 0.5                          # EAGLE's
    seed: int = 0
    threads: int | None = None
    bf16: bool = True
    log_steps: int = 10
    valid_rows: int = 12                            # of 2048 tokens, for code; half as many for prose
    checkpoint_minutes: float = 3.0

    @classmethod
    def load(cls, path: Path) -> DrafterRecipe:
        """A recipe from a JSON file; what the file leaves out keeps its default."""
        given = json.loads(Path(path).read_text(encoding="utf-8"))
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(given) - known):
            raise ValueError(f"{path} sets {', '.join(unknown)}, which no drafter recipe has.\n"
                             f"Known: {', '.join(sorted(known))}.")
        if "stages" in given:
            given["stages"] = tuple(Stage(**stage) for stage in given["stages"])
        if "rope" in given:
            given["rope"] = Rope(**given["rope"])
        if "feature_layers" in given:
            given["feature_layers"] = tuple(given["feature_layers"])
        return cls(**given)

    def stage_at(self, progress: float) -> int:
        """The index of the curriculum's stage at this progress."""
        ends = np.cumsum([stage.share for stage in self.stages])
        return min(int(np.searchsorted(ends, progress, side="right")), len(self.stages) - 1)


def draft_vocabulary(corpus: EncodedCorpus, vocab: int, size: int, always: Sequence[int]) -> tuple[Tensor, Tensor]:
    """(d2t [D] int64 offsets, t2d [V] bool): the most frequent tokens and `always`, by ascending id."""
    counts = np.bincount(corpus.tokens, minlength=vocab).astype(np.int64)
    counts[list(always)] = counts.max() + 1
    ids = torch.from_numpy(np.sort(np.argsort(-counts, kind="stable")[:size]))
    t2d = torch.zeros(vocab, dtype=torch.bool)
    t2d[ids] = True
    return ids - torch.arange(size), t2d


def build_network(recipe: DrafterRecipe, target: Target, corpus: EncodedCorpus, eos: Sequence[int]) -> Eagle3Network:
    """A fresh head: the output layer starts as the target's kept rows, the embedding is the target's own."""
    hidden = target.config.hidden_size
    config = HeadConfig(
        hidden_size=hidden, target_hidden_size=hidden, intermediate_size=recipe.intermediate, heads=recipe.heads,
        kv_heads=recipe.kv_heads, head_dim=recipe.head_dim, vocab_size=target.vocab_size,
        draft_vocab_size=min(recipe.draft_vocab, target.vocab_size), feature_layers=recipe.feature_layers,
        max_positions=recipe.max_positions, rope=recipe.rope, rms_eps=target.config.rms_norm_eps)
    torch.manual_seed(recipe.seed)
    network = Eagle3Network(config)
    for parameter in network.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.02)
    d2t, t2d = draft_vocabulary(corpus, target.vocab_size, config.draft_vocab_size, eos)
    network.d2t.copy_(d2t)
    network.t2d.copy_(t2d)
    with torch.no_grad():
        # The last feature is nearly what the target's own output layer reads: let it through from the start, but
        # quietly: a target's features are large (here 10 to 20), and a loud residual drowns what the layer adds.
        network.fc.weight.mul_(0.2)
        network.fc.weight[:, -hidden:] += recipe.feature_pass * torch.eye(hidden)
        network.lm_head.weight.copy_(target.head.weight[t2d])
        network.norm.weight.copy_(target.model.base_model.norm.weight)
    network.share_embedding(target.model.get_input_embeddings())
    return network


@dataclass
class _State:
    step: int = 0
    tokens: int = 0
    elapsed: float = 0.0
    cursors: dict[str, int] = field(default_factory=lambda: {"mixed": 0, "grouped": 0})


class DrafterTrainer:
    """One run in one folder: owns network, optimizers, streams and state; the target is only read."""

    def __init__(self, recipe: DrafterRecipe, target: Target, eos: Sequence[int], corpus: EncodedCorpus,
                 out: Path) -> None:
        self.recipe, self.target, self.out, self.state = recipe, target, Path(out), _State()
        self.network = build_network(recipe, target, corpus, eos)
        matrices = [p for n, p in self.network.named_parameters() if p.ndim == 2 and not n.startswith("lm_head")]
        others = [p for n, p in self.network.named_parameters() if p.ndim == 1 or n.startswith("lm_head")]
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, lr=recipe.muon_lr, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=recipe.adam_lr, betas=(0.9, 0.95), weight_decay=0.0)]
        for group in (g for optimizer in self.optimizers for g in optimizer.param_groups):
            group["peak"] = group["lr"]
        share = recipe.prose_share
        self.streams = {
            "mixed": TokenStream(corpus, recipe.seed, shuffled=True,
                                 order=partial(mixed_documents, prose_share=share)),
            "grouped": TokenStream(corpus, recipe.seed + 1, order=partial(grouped_documents, prose_share=share))}

    def progress(self) -> float:
        """Share of the run that is done: by tokens or by the clock, whichever is further."""
        by_clock = self.state.elapsed / (60 * self.recipe.budget_minutes) if self.recipe.budget_minutes else 0.0
        return min(1.0, max(self.state.tokens / self.recipe.total_tokens, by_clock))

    def step(self) -> StepFigures:
        """One optimizer step."""
        recipe, state, progress = self.recipe, self.state, self.progress()
        stage = recipe.stages[recipe.stage_at(progress)]
        count, name = max(1, recipe.tokens_per_step // stage.length), "grouped" if stage.grouped else "mixed"
        stream = self.streams[name]
        if state.cursors[name] % stage.length:      # the rows' length has changed
            state.cursors[name] = stream.aligned(state.cursors[name])
        rows = torch.from_numpy(stream.rows(state.cursors[name], count, stage.length))[:, :-1]
        rng = np.random.default_rng([recipe.seed, 3, state.step])
        positions = skipped_positions(count, stage.length, stage, recipe.max_positions - recipe.ttt_steps, rng)
        loss, figures = self._test(rows, positions)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.network.parameters(), recipe.grad_clip)
        if not torch.isfinite(norm):
            raise FloatingPointError(f"The gradient's norm is {norm.item()} at step {state.step}. "
                                     "Lower the learning rates and resume from the last checkpoint.")
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * warmup_stable_decay(progress, recipe.warmup, recipe.decay)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        state.step += 1
        state.tokens += count * stage.length
        state.cursors[name] += count * stage.length
        return figures

    @torch.no_grad()
    def measure(self, held_out: HeldOut) -> dict[str, Any]:
        """Losses and agreements on unseen text, by its kind."""
        found: dict[str, Any] = {}
        for kind, rows in held_out.rows.items():
            figures = [self._test(row[None, :-1], torch.arange(len(row) - 1)[None])[1] for row in rows]
            for name in ("losses", "agreements"):
                found[f"{kind}_{name}"] = np.mean([getattr(f, name) for f in figures], axis=0).round(4).tolist()
        return found

    def _test(self, rows: Tensor, positions: Tensor) -> tuple[Tensor, StepFigures]:
        """The objective on rows [B, S] at positions [B, S]."""
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.recipe.bf16):
            features, hidden = self._observe(rows, positions)
            return training_time_test(self.network, features, rows, positions, hidden, self.target.head,
                                      self.recipe.ttt_steps)

    @torch.no_grad()
    def _observe(self, rows: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The target's features [B, S, A * Ht] and final hidden states [B, S, Ht]."""
        taken: dict[int, Tensor] = {}
        hooks = [self.target.layers[index].register_forward_pre_hook(
            lambda _, args, kwargs, index=index: taken.update(
                {index: args[0] if args else kwargs["hidden_states"]}), with_kwargs=True)
            for index in self.recipe.feature_layers]
        try:
            # Jumped positions without a mask would be taken for packed sequences; one of ones is dropped unread.
            hidden = self.target.model.base_model(rows, position_ids=positions, use_cache=False,
                                                  attention_mask=torch.ones_like(rows)).last_hidden_state
        finally:
            for hook in hooks:
                hook.remove()
        return torch.cat([taken[index] for index in self.recipe.feature_layers], dim=-1), hidden

    def save(self) -> None:
        """Write checkpoint.pt, whole or not at all."""
        part = self.out / "checkpoint.partial"
        torch.save({"network": self.network.state_dict(), "state": asdict(self.state),
                    "optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}, part)
        part.replace(self.out / "checkpoint.pt")

    def resume(self) -> bool:
        """Continue from the folder's checkpoint, if there is one."""
        path = self.out / "checkpoint.pt"
        if not path.exists():
            return False
        saved = torch.load(path, weights_only=True)
        self.network.load_state_dict(saved["network"])
        for optimizer, moments in zip(self.optimizers, saved["optimizers"], strict=True):
            peaks = [group["peak"] for group in optimizer.param_groups]
            optimizer.load_state_dict(moments)
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["peak"] = peak        # the recipe's, not the checkpoint's
        self.state = _State(**saved["state"])
        return True


def train_drafter(recipe: DrafterRecipe, target: Path, train: Sequence[Path], valid: Sequence[Path],
                  out: Path) -> Path:
    """Train in folder `out`, or go on where it stopped; returns the head's folder (official EAGLE-3 layout).

    valid: files of unseen text, on which the finished head is measured; may be empty.
    """
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    with _sole_trainer(out):
        return _train(recipe, target, (train, valid), out)


def _train(recipe: DrafterRecipe, target: Path, files: tuple[Sequence[Path], Sequence[Path]], out: Path) -> Path:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from longgraft.yarn_drafters.checkpoint import save_head

    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    tokenizer: Any = AutoTokenizer.from_pretrained(target)
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval().requires_grad_(False)
    corpus = encode_corpus(files[0], tokenizer, out / "corpus.npz")
    trainer = DrafterTrainer(recipe, Target(model, str(target)), _ends(model), corpus, out)
    (out / "recipe.json").write_text(json.dumps(asdict(recipe), indent=1) + "\n", encoding="utf-8")
    _log(out, {"event": "resumed" if trainer.resume() else "started", "target": str(Path(target).resolve()),
               "parameters": sum(p.numel() for p in trainer.network.parameters())})
    _run(trainer)
    trainer.save()
    figures = {}
    if files[1]:
        unseen = encode_corpus(files[1], tokenizer, out / "valid.npz")
        figures = trainer.measure(HeldOut.sample(unseen, token_bytes(tokenizer), recipe.valid_rows))
    save_head(trainer.network.to(torch.bfloat16), out / "head")
    _log(out, {"event": "finished", **asdict(trainer.state), **figures})
    return out / "head"


def _ends(model: Any) -> list[int]:
    """Ids that end a text: a head that cannot draft them never sees an answer's end coming."""
    ends = model.generation_config.eos_token_id
    ends = model.config.eos_token_id if ends is None else ends
    return [] if ends is None else [ends] if isinstance(ends, int) else list(ends)


def _run(trainer: DrafterTrainer) -> None:
    from tqdm import tqdm

    recipe, state, figures = trainer.recipe, trainer.state, []
    saved, mark = time.monotonic(), (time.monotonic(), state.tokens)
    with tqdm(total=recipe.total_tokens, initial=state.tokens, unit="tok", unit_scale=True,
              disable=not sys.stderr.isatty()) as bar:
        while (progress := trainer.progress()) < 1.0:
            began, before = time.monotonic(), state.tokens
            figures.append(trainer.step())
            bar.update(state.tokens - before)
            if state.step % recipe.log_steps == 0:
                _log(trainer.out, {
                    "step": state.step, "tokens": state.tokens, "progress": round(progress, 4),
                    "losses": np.mean([f.losses for f in figures], axis=0).round(3).tolist(),
                    "agreements": np.mean([f.agreements for f in figures], axis=0).round(3).tolist(),
                    "length": recipe.stages[recipe.stage_at(progress)].length,
                    "tokens_per_second": round((state.tokens - mark[1]) / (time.monotonic() - mark[0]))})
                figures, mark = [], (time.monotonic(), state.tokens)
            state.elapsed += time.monotonic() - began
            if time.monotonic() - saved > 60 * recipe.checkpoint_minutes:
                saved = time.monotonic()
                trainer.save()


def _log(out: Path, line: dict[str, Any]) -> None:
    with open(out / "log.jsonl", "a", encoding="utf-8") as log:
        log.write(json.dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%S"), **line}) + "\n")
    print(json.dumps(line), flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """`python -m longgraft.yarn_drafters.training.drafter --target folder --train a.jsonl.gz --out folder`"""
    parser = argparse.ArgumentParser(description="Train an EAGLE-3 drafter; run again to resume.")
    parser.add_argument("--target", type=Path, required=True, help="folder of the target")
    parser.add_argument("--train", type=Path, nargs="+", required=True, help="JSONL(.gz) training files")
    parser.add_argument("--valid", type=Path, nargs="*", default=[], help="unseen files to measure the head on")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--recipe", type=Path, help="JSON file; default: the built-in recipe")
    options = parser.parse_args(argv)
    recipe = DrafterRecipe.load(options.recipe) if options.recipe else DrafterRecipe()
    print(train_drafter(recipe, options.target, options.train, options.valid, options.out))


if __name__ == "__main__":
    main()
