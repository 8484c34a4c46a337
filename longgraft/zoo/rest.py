"""REST (arXiv 2311.08252): a tree of the most frequent continuations of the text's end in a datastore or a
prediction."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from longgraft.config.options import Checked, option
from longgraft.corpora import SORTED, Corpus, open_corpus
from longgraft.memories.token_history import TokenHistory
from longgraft.methods.building import history
from longgraft.methods.method import Method
from longgraft.methods.needs import Missing, Need, Sources
from longgraft.protocol.proposer import Ask
from longgraft.runtime.clock import Clock
from longgraft.runtime.fingerprint import vocabulary
from longgraft.trees.tree import RETRIEVED, ROOT, ProposalTree

ENDED = -1  # not a token: it follows the end of a text


@dataclass(frozen=True)
class RestChoices(Checked):
    """Settings of a datastore lookup."""

    longest: Annotated[int, Ge(1), Le(SORTED // 2)] = option(
        16, "Tokens of a match at most", unit="tokens", source="REST"
    )
    shortest: Annotated[int, Ge(1), Le(SORTED // 2)] = option(
        2, "Tokens of a match at least", unit="tokens", source="REST"
    )
    hits: Annotated[int, Ge(1), Le(10**6)] = option(
        5000, "Occurrences that are read at most, evenly spaced where there are more", source="REST"
    )
    length: Annotated[int, Ge(1), Le(SORTED // 2)] = option(10, "Tokens read after each", unit="tokens", source="REST")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shortest > self.longest:
            raise ValueError(
                f"shortest is {self.shortest} and longest is {self.longest}, so that no match "
                "fits. Lower shortest or raise longest."
            )


class RestRetriever:
    """A proposer of the most frequent prefixes of what followed the longest match; a score is its share of
    the occurrences.

    A prediction is searched as a datastore of its own; if matches are equally long, the prediction's is used.
    """

    def __init__(
        self, history: TokenHistory, store: Corpus, lookup: RestChoices | None = None, clock: Clock | None = None
    ) -> None:
        self.memories = (history,)
        self._history = history
        self.store = store
        self.lookup = lookup or RestChoices()
        self.clock = clock or Clock()
        self._predicted: Corpus | None = None

    def propose(self, ask: Ask) -> ProposalTree:
        with self.clock.part("retrieve"):
            context = self._history.up_to(ask.root)[-self.lookup.longest :].tolist()
            store, match, part = max(
                (
                    (store, *store.longest(context, self.lookup.longest, self.lookup.shortest))
                    for store in self._stores()
                ),
                key=lambda store_match: store_match[1],
            )
            if not match or ask.budget < 2:
                return ProposalTree.root_only(ask.root)
            return self._tree(ask, match, self._continuations(store, match, part))

    def _stores(self) -> list[Corpus]:
        predicted = self._history.before()
        if not len(predicted):
            self._predicted = None
            return [self.store]
        if self._predicted is None or not np.array_equal(self._predicted.tokens, predicted):
            self._predicted = Corpus.build(predicted)
        return [self._predicted, self.store]

    def _continuations(self, store: Corpus, match: int, part: slice) -> np.ndarray:
        """Returns continuations [h, length] int32 in the order of the datastore, ENDED after the end of a text."""
        count = part.stop - part.start
        chosen = part.start + np.arange(min(count, self.lookup.hits)) * count // min(count, self.lookup.hits)
        at = store.order[chosen][:, None].astype(np.int64) + match + np.arange(self.lookup.length)
        tokens = store.tokens[np.minimum(at, len(store.tokens) - 1)]
        inside = np.logical_and.accumulate((at < len(store.tokens)) & (tokens >= 0), axis=1)
        return np.where(inside, tokens, ENDED)

    def _tree(self, ask: Ask, match: int, rows: np.ndarray) -> ProposalTree:
        """Builds the tree; rows are sorted, so that a prefix is a run of them."""
        changes = np.ones(rows.shape, dtype=bool)
        changes[1:] = np.logical_or.accumulate(rows[1:] != rows[:-1], axis=1)
        depths, starts = np.nonzero(changes.T)
        ends = np.append(starts[1:], len(rows))
        ends[ends == 0] = len(rows)  # the next run is the first one of a greater depth
        counts = np.where(rows[starts, depths] == ENDED, 0, ends - starts)
        tokens = [ask.root]
        parents = [-1]
        scores = [0.0]
        # The deepest node of each row so far, because depths ascend.
        nodes = np.zeros(len(rows), dtype=np.int64)
        for n in _most_frequent(counts, ask.budget - 1).tolist():
            depth = int(depths[n])
            start = int(starts[n])
            parents.append(int(nodes[start]))
            nodes[start : ends[n]] = len(tokens)
            tokens.append(int(rows[start, depth]))
            scores.append(math.log(counts[n] / len(rows)))
        node = len(tokens) - 1
        return ProposalTree.build(tokens, parents, scores, [ROOT] + [RETRIEVED] * node, match=[0] + [match] * node)


def _most_frequent(counts: np.ndarray, most: int) -> np.ndarray:
    """Returns the indices of the `most` largest counts above 0, ascending.

    Of ties the first are taken.  This keeps parents, because indices ascend with depth.
    """
    if len(counts) > most:
        least = np.partition(counts, -most)[-most]
        above = np.flatnonzero(counts > least)
        level = np.flatnonzero(counts == least)
        chosen = np.sort(np.concatenate([above, level[: most - len(above)]]))
    else:
        chosen = np.arange(len(counts))
    return chosen[counts[chosen] > 0]


def _datastore(sources: Sources) -> Corpus:
    if DATASTORE.name not in sources.given:
        raise Missing(
            "none ships with the package.\nMake a corpus of text or code with `longgraft corpus "
            "add NAME FILES`, then pass --with datastore=NAME."
        )
    target = sources.target
    return open_corpus(str(sources.path(DATASTORE.name)), vocabulary(sources.tokenizer), target.vocab_size, target.name)


DATASTORE: Need[Corpus] = Need("datastore", "a datastore", _datastore)


METHOD = Method(
    "rest",
    "what most often followed the longest match in a datastore",
    "REST (arXiv 2311.08252)",
    lambda p: RestRetriever(history(p), p.the(DATASTORE), p.choices, p.clock),
    (DATASTORE,),
    budget=65,
    choices=RestChoices(),
    looks_up=True,
)
