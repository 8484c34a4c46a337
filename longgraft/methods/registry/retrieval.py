"""Methods that retrieve from matrices, automata, counts and datastores, alone or instead of a draft."""

from __future__ import annotations

from dataclasses import dataclass

from longgraft.config.options import Checked, like, option
from longgraft.corpora import Corpus, open_corpus
from longgraft.drafters.pruning import Dense
from longgraft.memories.past_answers import PastAnswers
from longgraft.memories.token_history import TokenHistory
from longgraft.methods.combinators import Either, expected, matched
from longgraft.methods.method import DRAFTS, Method
from longgraft.methods.needs import HEAD, Missing, Need, Sources
from longgraft.methods.parts import Parts
from longgraft.protocol.proposer import Proposer
from longgraft.retrievers.rest import RestChoices, RestRetriever
from longgraft.retrievers.sam_decoding import SamChain, SuffixAutomaton
from longgraft.retrievers.suffix_decoding import Speculation, SuffixDecoding
from longgraft.retrievers.token_recycling import MatrixRetriever
from longgraft.runtime.fingerprint import vocabulary
from longgraft.trees.templates import token_recycling

RECYCLING = "Token Recycling (arXiv 2408.08696)"
SAM = "SAM-Decoding (arXiv 2411.10666)"
SUFFIX = "SuffixDecoding (arXiv 2411.04975)"


@dataclass(frozen=True)
class SamdChoices(Checked):
    """Choices of `samd`."""

    growth: float = option(4.0, "Drafted tokens per token of the match", low=0, high=64, source="the authors' code")


@dataclass(frozen=True)
class SamdRouteChoices(Checked):
    """Choices of `samd-recycling` and `samd-eagle3`."""

    threshold: int = option(5, "Tokens of a match from which its chain is verified instead of a tree", unit="tokens",
                            low=1, high=4096, source="the authors' code")
    length: int = option(40, "Nodes of the chain, root included", low=2, high=4096, source="the authors' code")


@dataclass(frozen=True)
class SuffixChoices(Checked):
    """Choices of `suffix`."""

    depth: int = like(Speculation, "depth")
    factor: float = like(Speculation, "factor")
    offset: float = like(Speculation, "offset")
    least: float = like(Speculation, "least")
    outputs: int = option(2 ** 18, "Tokens of earlier answers that are remembered; 0: none", unit="tokens", low=0,
                          high=2 ** 26)


@dataclass(frozen=True)
class SuffixRouteChoices(SuffixChoices):
    """Choices of `suffix-eagle3`."""

    threshold: float | None = option(None, "Expected tokens from which no tree is drafted", low=0, high=4096,
                                     none="as many as the drafter has levels")


def _datastore(sources: Sources) -> Corpus:
    if DATASTORE.name not in sources.given:
        raise Missing("none ships with the package.\nMake a corpus of text or code with `longgraft corpus add NAME "
                      "FILES`, then pass --with datastore=NAME.")
    return open_corpus(str(sources.path(DATASTORE.name)), vocabulary(sources.tokenizer), sources.target.vocab_size)


DATASTORE: Need[Corpus] = Need("datastore", "a datastore", _datastore)


def _recycling(p: Parts) -> MatrixRetriever:
    rows = p.rows(warm=False, unseen=0, seeded=False, in_order=True, lasting=True)
    return MatrixRetriever(rows, lambda _: token_recycling(), p.clock)


def _automaton(p: Parts, length: int = 60, growth: float | None = None) -> SamChain:
    return SamChain(p.one(("automaton",), SuffixAutomaton), length, growth, p.clock)


def _routed(p: Parts, other: Proposer) -> Either:
    threshold = p.choices.threshold
    return Either(_automaton(p, p.choices.length), other, matched, lambda _: threshold)


def _suffix(p: Parts) -> SuffixDecoding:
    c = p.choices
    texts: tuple[TokenHistory | PastAnswers, ...] = (p.history(),)
    if c.outputs:
        texts += (p.one(("outputs", c.outputs), lambda: PastAnswers(c.outputs)),)
    return SuffixDecoding(texts, Speculation(c.depth, c.factor, c.offset, c.least), p.clock)


def _suffix_or_drafts(p: Parts) -> Either:
    least = p.shape.levels if p.choices.threshold is None else p.choices.threshold
    return Either(_suffix(p), p.drafter(Dense()), expected, lambda ask: min(least, ask.budget - 1))


METHODS: tuple[Method, ...] = (
    Method("token-recycling", "a static tree of the target's last top-8 per token, learnt over all requests", RECYCLING,
           _recycling, budget=81),
    Method("samd", "what followed the first occurrence of the longest match", SAM,
           lambda p: _automaton(p, growth=p.choices.growth), choices=SamdChoices()),
    Method("samd-recycling", "the same where the match is long, else token-recycling", SAM,
           lambda p: _routed(p, _recycling(p)), budget=81, choices=SamdRouteChoices()),
    Method("samd-eagle3", "the same where the match is long, else eagle3's tree", SAM,
           lambda p: _routed(p, p.drafter(Dense())), (HEAD,), takes=DRAFTS, choices=SamdRouteChoices()),
    Method("suffix", "what most often followed the longest matches, here and in earlier answers", SUFFIX, _suffix,
           budget=17, choices=SuffixChoices()),
    Method("suffix-eagle3", "the same where it expects as much as a draft can bring, else eagle3's tree", SUFFIX,
           _suffix_or_drafts, (HEAD,), takes=DRAFTS, choices=SuffixRouteChoices()),
    Method("rest", "what most often followed the longest match in a datastore", "REST (arXiv 2311.08252)",
           lambda p: RestRetriever(p.history(), p.the(DATASTORE), p.choices, p.clock), (DATASTORE,), budget=65,
           choices=RestChoices()),
)
