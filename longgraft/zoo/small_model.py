"""A draft model: a smaller model with the target's tokenizer and its own cache reads committed tokens and drafts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longgraft.acceptance.rules import Greedy
from longgraft.config.settings import Settings
from longgraft.memories.draft_cache import DraftCache
from longgraft.methods.needs import Need, Sources
from longgraft.methods.parts import Parts
from longgraft.models.files import files_of
from longgraft.models.targets import load_target
from longgraft.protocol.observation import Observation, Wants
from longgraft.runtime.clock import Clock
from longgraft.runtime.cuda_graphs import EAGER, Regions
from longgraft.runtime.devices import sent
from longgraft.target_model.model import Target
from longgraft.target_model.passes import Segment
from longgraft.target_model.static_pass import Slot, StaticPass
from longgraft.trees.padded import SIZES, PaddedTree, size_of
from longgraft.trees.tree import ProposalTree

SCRATCH = 64  # scratch rows after the committed ones, unless `room` asks for more


class DraftModelCache(DraftCache):
    """The committed tokens in a smaller model's cache, and a scratch chain after them.

    Waiting tokens are read in the pass of the next `extend`; so is the last token of a draft that was
    accepted whole, which the model has not read.

    Attributes:
        vocab: The target's vocabulary size; the two models may pad theirs differently.
    """

    name = "small model"

    def __init__(self, model: Target, vocab: int, clock: Clock | None = None, regions: Regions = EAGER) -> None:
        super().__init__(model.cache(0), SCRATCH, clock)
        if self.cache.stateful:
            raise ValueError(
                f"{model.name} cannot draft: its layers carry a state from token to token, which cannot go back to "
                "before a rejected draft. Use a model whose layers all attend."
            )
        self.model = model
        self.vocab = vocab
        self.regions = regions
        self.positions = model.max_positions
        self._chain = 0

    @property
    def chain(self) -> int:
        """Number of tokens in the scratch chain."""
        return self._chain

    @property
    def identity(self) -> dict[str, str]:
        return self.model.identity

    @property
    def networks(self) -> tuple[nn.Module, ...]:
        return (self.model.model,)

    def begin(self) -> None:
        """Forgets the scratch chain."""
        self.back(0)

    def back(self, tokens: int) -> None:
        """Forgets the scratch chain except for its first `tokens`."""
        assert 0 <= tokens <= self._chain, f"a chain of {self._chain} has no first {tokens}"
        self.cache.crop(self.cache.length - self._chain + tokens)
        self._chain = tokens

    def extend(self, tokens: Tensor) -> Tensor:
        """Appends tokens [n] int64 to the scratch chain and returns the logits [V] after the last of them.

        The tokens stay in the chain until `begin` or `back`.
        """
        with self.clock.part("draft"):
            if self._waiting:
                assert self._chain == 0, "waiting tokens go before the scratch chain: begin first"
            device = self.model.device
            waiting = (column for (column,) in self._waiting)
            logits = self._run(torch.cat([sent(part, device) for part in (*waiting, tokens)]), last=True)
            self.cache.length += self.waiting + len(tokens)
            self._waiting = ()
            self._chain += len(tokens)
            return self._as_target(logits)

    def _run(self, tokens: Tensor, last: bool) -> Tensor:
        """Reads tokens [n] after all rows of the cache; returns logits [1, V'] after the last, [0, V'] unless
        `last`."""
        n = len(tokens)
        self.clock.ran("draft")
        # Ids that the model lacks: a draft may misread them.
        in_vocabulary = tokens.clamp(max=self.model.vocab_size - 1)
        # A region cannot be recorded on an empty cache, which has no buffers.
        if self.regions.fixed and self.cache.length and n <= SIZES[-1]:
            return self._fixed(in_vocabulary)
        logits: Literal["last", "none"] = "last" if last else "none"
        segment = Segment(ProposalTree.chain(in_vocabulary.cpu()), self.cache, logits)
        return self.model.run([segment], Wants())[0].logits

    @torch.inference_mode()
    def _fixed(self, tokens: Tensor) -> Tensor:
        """Does `_run` for tokens [n] on the device, which the host never reads; returns logits [1, V'] after
        the last."""
        n = len(tokens)
        rows = size_of(len(tokens))
        key = self.cache, self.cache.age, rows
        fixed = self.regions.kept(key, lambda: StaticPass(self.model, self.cache, rows, Wants(), self.regions))
        chain = self.regions.kept(
            (*key, n),
            lambda: PaddedTree.of(ProposalTree.chain(torch.zeros(n, dtype=torch.int64)), rows, self.model.device),
        )
        fixed.load(Slot(replace(chain, tokens=F.pad(tokens, (0, rows - n))), self.cache, Greedy()))
        return fixed.forward()[0].logits[n - 1 : n].clone()

    def _as_target(self, logits: Tensor) -> Tensor:
        """[1, V'] -> [V] float32: ids that the target lacks are dropped, ids that only the target has get -inf."""
        shared = logits[0].float()[: self.vocab]
        return F.pad(shared, (0, self.vocab - len(shared)), value=float("-inf"))

    def _columns(self, seen: Observation) -> tuple[Tensor]:
        return (seen.kept,)

    def _read(self, columns: list[Tensor]) -> None:
        self._run(sent(columns.pop(), self.model.device), last=False)

    def observe(self, seen: Observation) -> None:
        self.begin()
        super().observe(seen)

    def reset(self, capacity: int) -> None:
        super().reset(capacity)
        self._chain = 0

    def mark(self) -> Any:
        return self.cache.length - self._chain, self._waiting

    def rewind(self, mark: Any) -> None:
        super().rewind(mark)
        self._chain = 0

    def release(self) -> None:
        super().release()
        self._chain = 0


def _small(sources: Sources) -> Target:
    """Loads a smaller model in the target's precision, on its device; raises ValueError for another vocabulary."""
    target = sources.target
    name = str(sources.path("small-model", "small"))
    alike: dict[str, Any] = {
        "dtype": target.dtype,
        "device": str(target.device),
        "attention": target.attention,
        "kernels": "auto" if target.kernels else "none",
    }
    loaded = load_target(files_of(name), Settings(**alike))
    small = loaded.target
    if sources.tokenizer is not None:
        _check_vocabulary(sources, loaded.tokenizer, name)
    if sources.tokenizer is None and small.vocab_size != target.vocab_size:
        raise ValueError(
            f"The small model {name} has {small.vocab_size:,} tokens and {target.name} {target.vocab_size:,}, and no "
            "tokenizer says which are the same. Give one of equal size."
        )
    return small


def _check_vocabulary(sources: Sources, small_tokenizer: Any, path: str) -> None:
    """Raises ValueError if an id means another token in the small model's tokenizer; added tokens may differ."""
    ours = sources.tokenizer.get_vocab()
    added = sources.tokenizer.get_added_vocab()
    vocabulary = small_tokenizer.get_vocab()
    differ = sorted(word for word, i in ours.items() if word not in added and vocabulary.get(word) != i)
    if differ:
        raise ValueError(
            f"The small model {path} has another tokenizer than {sources.target.name}: {len(differ):,} of "
            f"{len(ours):,} tokens differ, such as {differ[0]!r}. Give one of the target's family."
        )


SMALL: Need[Target] = Need("small-model", "a smaller model of the same tokenizer", _small)


def small_model(p: Parts) -> DraftModelCache:
    """The small model's cache, one for all methods of a session."""
    model = p.the(SMALL)
    return p.once(("small-model", model), lambda: DraftModelCache(model, p.target.vocab_size, p.clock, p.regions))
