"""TokenSwift (arXiv 2502.18890): one pass of the target on a part of its cache, heads for later tokens, and n-grams.

It is implemented without the paper's repetition penalty, which would change the target's distribution.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor

from longgraft.config.options import Checked, option
from longgraft.methods.method import Method
from longgraft.methods.parts import Parts
from longgraft.protocol.memory import Memory
from longgraft.protocol.observation import Observation, Wants
from longgraft.protocol.proposer import Ask
from longgraft.runtime.clock import Clock
from longgraft.target_model.model import Target
from longgraft.target_model.passes import Segment
from longgraft.trees.tree import DRAFT, RETRIEVED, ROOT, ProposalTree
from longgraft.zoo.medusa.heads import MedusaHeads
from longgraft.zoo.medusa.methods import MEDUSA
from longgraft.zoo.partial_kv import SINKS, PartialKVCache, partial
from longgraft.zoo.selection import Nearest
from longgraft.zoo.triforce import NewestShare

ORDER = 4  # tokens of an n-gram, as in the authors' code


class FrequentNgrams(Memory):
    """Counts of n-grams in the answer and in predictions, by first token; the prompt's n-grams are not counted."""

    name = "n-grams"

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._predictions: tuple[tuple[int, ...], ...] = ()
        self._counts: defaultdict[int, Counter[tuple[int, ...]]] = defaultdict(Counter)

    def after(self, token: int, most: int) -> list[tuple[int, ...]]:
        """Returns up to `most` continuations of ORDER - 1 tokens, the most frequent first."""
        counts = self._counts[token] if token in self._counts else Counter()
        return sorted(counts, key=lambda gram: (-counts[gram], gram))[:most]

    def reset(self, capacity: int) -> None:
        self._tokens.clear()
        self._counts.clear()
        self._predictions = ()

    def observe_prediction(self, tokens: Tensor) -> None:
        text = tuple(tokens.tolist())
        self._predictions += (text,)
        for end in range(ORDER, len(text) + 1):
            self._counts[text[end - ORDER]][text[end - ORDER + 1 : end]] += 1

    def observe(self, seen: Observation) -> None:
        if not seen.prompt:
            self._add(seen.kept.tolist())

    def _add(self, tokens: list[int]) -> None:
        for token in tokens:
            self._tokens.append(token)
            if len(self._tokens) >= ORDER:
                first, *rest = self._tokens[-ORDER:]
                self._counts[first][tuple(rest)] += 1

    def mark(self) -> int:
        return len(self._tokens)

    def rewind(self, mark: int) -> None:
        while len(self._tokens) > mark:
            if len(self._tokens) >= ORDER:
                first, *rest = self._tokens[-ORDER:]
                self._counts[first][tuple(rest)] -= 1
                if not self._counts[first][tuple(rest)]:
                    del self._counts[first][tuple(rest)]
            self._tokens.pop()


class TokenSwift:
    """A proposer of the target's own next token, and below it the guesses of up to three heads and n-grams.

    Each head gives `branches` guesses; the n-grams are those that begin with the next token.
    """

    def __init__(
        self,
        target: Target,
        heads: MedusaHeads,
        memories: tuple[PartialKVCache, FrequentNgrams],
        sizes: tuple[int, int],
        clock: Clock | None = None,
    ) -> None:
        """sizes: (branches, most n-grams)."""
        self.memories = memories
        self.target = target
        self.heads = heads
        self.clock = clock or Clock()
        self.partial, self.frequent = memories
        self.branches, self.most = sizes

    @torch.inference_mode()
    def propose(self, ask: Ask) -> ProposalTree:
        if ask.budget < 2:
            return ProposalTree.root_only(ask.root)
        with self.clock.part("draft"):
            token, gain, guesses = self._guessed(ask)
            drafted = self._tree(ask.root, (token, gain), guesses)
        with self.clock.part("retrieve"):
            grams = self.frequent.after(token, self.most)
            # If not all fit, n-grams get up to half of the nodes after the first token.
            tree = drafted.top(ask.budget - min(sum(map(len, grams)), (ask.budget - 2) // 2))
            for gram in grams:
                chain = ProposalTree.chain(torch.tensor([token, *gram]), RETRIEVED)
                tree = tree.merge(chain, at=1, budget=ask.budget)
        return tree.merge(drafted, at=0, budget=ask.budget)

    def _guessed(self, ask: Ask) -> tuple[int, float, list[tuple[list[int], list[float]]]]:
        """Returns (the next token, its log-probability, each head's best tokens and their log-probabilities)."""
        cache = self.partial.fresh()
        self.clock.ran("own")
        (report,) = self.target.run([Segment(ProposalTree.root_only(ask.root), cache)], Wants(final=True))
        assert report.final is not None
        at = torch.tensor([ask.position + 1], device=report.logits.device)
        drawn = ask.draws.draw(report.logits, at)
        gain = report.logits.float().log_softmax(-1).gather(1, drawn[:, None])
        # [3, V].
        ahead = self.heads.logits(report.final, self.target.logits)[0, :3].float().log_softmax(-1)
        gains, ids = ahead.topk(min(self.branches, ahead.shape[1]))
        guesses = _on_host(drawn, gain, ids, gains)
        width = ids.shape[1]
        rows = [(list(map(int, row[:width])), row[width:]) for row in guesses[1:]]
        return int(guesses[0][0]), guesses[0][1], rows

    @staticmethod
    def _tree(root: int, first: tuple[int, float], guesses: list[tuple[list[int], list[float]]]) -> ProposalTree:
        tokens = [root, first[0]]
        parents = [-1, 0]
        scores = [0.0, first[1]]
        level = [1]
        for ids, gains in guesses:
            below = [(node, token, gain) for node in level for token, gain in zip(ids, gains, strict=True)]
            level = [*range(len(tokens), len(tokens) + len(below))]
            for node, token, gain in below:
                tokens.append(token)
                parents.append(node)
                scores.append(scores[node] + gain)
        return ProposalTree.build(tokens, parents, scores, [ROOT] + [DRAFT] * (len(tokens) - 1))


def _on_host(drawn: Tensor, gain: Tensor, ids: Tensor, gains: Tensor) -> list[list[float]]:
    """Returns [[the drawn token, its gain], each head's ids and gains] in one sync; float64 holds both exactly."""
    ahead = torch.cat([ids.double(), gains.double()], 1).flatten()
    flat = torch.cat([drawn.double(), gain[0].double(), ahead]).tolist()
    width = 2 * ids.shape[1]
    return [flat[:2], *(flat[i : i + width] for i in range(2, len(flat), width))]


@dataclass(frozen=True)
class TokenSwiftChoices(Checked):
    """Choices of `tokenswift`."""

    rows: Annotated[int, Ge(32), Le(1_000_000)] = option(
        1024, "Rows kept of each head's cache", unit="rows", source="its code has 4,096, for answers of 100,000 tokens"
    )
    newest: NewestShare = 0.5
    every: Annotated[int, Ge(1), Le(1_000_000)] | None = option(
        256,
        "Tokens after which rows are chosen anew",
        unit="tokens",
        none="never",
        source="its code: when generated rows have taken the place of chosen ones",
    )
    branches: Annotated[int, Ge(1), Le(8)] = option(3, "Guesses of each head", unit="tokens", source="its code")
    ngrams: Annotated[int, Ge(0), Le(256)] = option(20, "4-grams at most", source="its code")


def tokenswift(p: Parts) -> TokenSwift:
    """The rows whose keys are nearest to the newest query are kept."""
    chosen = p.choices
    select = Nearest(chosen.rows, SINKS, int(chosen.newest * chosen.rows))
    memories = partial(p, select, chosen.every), p.once("frequent", FrequentNgrams)
    return TokenSwift(p.target, p.the(MEDUSA), memories, (chosen.branches, chosen.ngrams), p.clock)


METHOD = Method(
    "tokenswift",
    "one pass on a part of the cache with heads behind it, and frequent 4-grams",
    "TokenSwift (arXiv 2502.18890)",
    tokenswift,
    (MEDUSA,),
    budget=101,
    choices=TokenSwiftChoices(),
)
