"""Methods that draft from a part of a long context, or from the target's own cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from longgraft.attention.selection import Attended, Chunks, Nearest, Quest, Recent, Selector
from longgraft.config.options import Checked, like, option
from longgraft.drafters.cascade import Cascade
from longgraft.drafters.longspec import SHAPE, LongSpecCache, LongSpecDrafter
from longgraft.drafters.magicdec import MagicDecDrafter
from longgraft.drafters.pruning import Dense
from longgraft.drafters.specpv import PartialVerifier
from longgraft.drafters.streaming_llm import StreamingDrafter
from longgraft.drafters.token_swift import FrequentNgrams, TokenSwift
from longgraft.memories.draft_model import DraftModelCache
from longgraft.memories.partial_kv import PartialKVCache
from longgraft.methods.method import DRAFTS, Method
from longgraft.methods.needs import HEAD, MEDUSA, SMALL, Need, Sources
from longgraft.methods.parts import Parts
from longgraft.target_model.verifier import Verifier
from longgraft.yarn_drafters.longspec import LongSpecNetwork
from longgraft.yarn_drafters.longspec_files import load_longspec

MAGICDEC = "MagicDec (arXiv 2408.11049)"
SPECPV = "SpecPV (arXiv 2512.02337)"
TRIFORCE = "TriForce (arXiv 2404.11912)"
TOKENSWIFT = "TokenSwift (arXiv 2502.18890)"
LONG = "LongSpec (arXiv 2502.17421)"
BEAM = "the official code's tree_shape"
SINKS = 16      # first rows that are always kept, as in TriForce's and TokenSwift's code


@dataclass(frozen=True)
class MagicDecChoices(Checked):
    """Choices of `magicdec`."""

    rows: int = option(512, "Rows kept of each head's cache", unit="rows", low=40, high=1_000_000,
                       source="the paper has 257 to 4,097")
    drafts: int = option(4, "Drafted tokens a step", unit="tokens", low=1, high=64, source="the paper has 3 to 7")
    keep: str = option("attended", "Kept rows: those that the prompt's end attends to, or sinks and the newest",
                       choices=("attended", "recent"), source="SnapKV, StreamingLLM")

    def select(self) -> Selector:
        """Returns the selector of the kept rows."""
        return Attended(self.rows) if self.keep == "attended" else Recent(self.rows)


@dataclass(frozen=True)
class SpecPVChoices(Checked):
    """Choices of `specpv` and `specpv-exact`."""

    sinks: int = option(2, "First blocks of 16 rows, always kept", unit="blocks", low=0, high=4096, source="its code")
    retrieved: int = option(64, "Blocks that are chosen by the newest queries", unit="blocks", low=1, high=65536,
                            source="its code has 256, for contexts of 60,000 tokens")
    local: int = option(8, "Newest blocks, always kept", unit="blocks", low=1, high=4096, source="its code")
    waiting: int = option(20, "Tokens verified on the part before a full pass", unit="tokens", low=1, high=4096,
                          source="its code has 20")
    score: str = option("corners", "Score of a block: the larger product with its corners, or Quest's bound",
                        choices=("corners", "bound"), source="its code; arXiv 2406.10774")

    def select(self) -> Quest:
        """Returns the selector of the kept rows."""
        return Quest(self.sinks, self.retrieved, self.local, corners=self.score == "corners")


@dataclass(frozen=True)
class TriForceChoices(Checked):
    """Choices of `triforce`."""

    rows: int = option(1024, "Rows kept of the target's cache, in chunks of 8", unit="rows", low=16, high=1_000_000,
                       source="its code has 4,096, for contexts of 120,000 tokens")
    newest: float = option(0.5, "Share of the rows that is the newest, whatever their keys", low=0.0, high=0.5,
                           source="its code has 0; docs/methods.md")
    every: int | None = option(None, "Tokens after which chunks are chosen anew", unit="tokens", low=1,
                               high=1_000_000, none="never", source="its code")
    length: int = option(6, "Tokens decoded on the part before a full pass", unit="tokens", low=1, high=64,
                         source="its code")
    drafts: int = option(1, "Tokens of one draft of the small model", unit="tokens", low=1, high=64, source="its code")
    window: int = option(256, "Tokens that the small model sees, 16 of them the first", unit="tokens", low=32,
                         high=65536, source="its code")


@dataclass(frozen=True)
class TokenSwiftChoices(Checked):
    """Choices of `tokenswift`."""

    rows: int = option(1024, "Rows kept of each head's cache", unit="rows", low=32, high=1_000_000,
                       source="its code has 4,096, for answers of 100,000 tokens")
    newest: float = like(TriForceChoices, "newest")
    every: int | None = option(256, "Tokens after which rows are chosen anew", unit="tokens", low=1, high=1_000_000,
                               none="never", source="its code: when generated rows have taken the place of chosen ones")
    branches: int = option(3, "Guesses of each head", unit="tokens", low=1, high=8, source="its code")
    ngrams: int = option(20, "4-grams at most", low=0, high=256, source="its code")


def partial(p: Parts, select: Selector, every: int | None = None) -> PartialKVCache:
    """Returns one partial cache per selector, for all methods of a session."""
    return p.one(("partial", select, every), lambda: PartialKVCache(p.target, select, every, p.clock))


def magicdec(p: Parts) -> MagicDecDrafter:
    """Rows are selected once, at the prompt's end."""
    return MagicDecDrafter(p.target, partial(p, p.choices.select()), p.choices.drafts, p.clock)


def specpv_exact(p: Parts) -> Cascade:
    """Rows are selected again at each full pass."""
    return Cascade(p.target, p.drafter(Dense()), partial(p, p.choices.select(), every=1), (p.choices.waiting, 60),
                   p.clock)


def triforce(p: Parts) -> Cascade:
    """A small model drafts from a window; the target verifies on chunks of its cache."""
    chosen, model = p.choices, p.the(SMALL)
    small = DraftModelCache(model, p.target.vocab_size, p.clock)
    window = min(chosen.window, model.max_positions - chosen.drafts)
    inner = StreamingDrafter(small, p.history(), (SINKS, window, chosen.drafts), p.clock)
    select = Chunks(chosen.rows, int(chosen.newest * chosen.rows))
    return Cascade(p.target, inner, partial(p, select, chosen.every), (chosen.length, 1 + chosen.drafts), p.clock)


def tokenswift(p: Parts) -> TokenSwift:
    """The rows whose keys are nearest to the newest query are kept."""
    chosen = p.choices
    select = Nearest(chosen.rows, SINKS, int(chosen.newest * chosen.rows))
    memories = partial(p, select, chosen.every), p.one(("frequent",), FrequentNgrams)
    return TokenSwift(p.target, p.the(MEDUSA), memories, (chosen.branches, chosen.ngrams), p.clock)


def partial_verifier(p: Parts) -> Callable[[Verifier], Verifier]:
    """SpecPV's verification; each request has its own partial cache."""
    def made(verifier: Verifier) -> Verifier:
        return PartialVerifier(verifier, PartialKVCache(p.target, p.choices.select(), 1, p.clock), p.choices.waiting)

    return made


@dataclass(frozen=True)
class LongSpecChoices(Checked):
    """The beam's shape: `first` nodes under the root, then `width` nodes at each further level."""

    first: int = option(SHAPE[0], "nodes under the root", low=1, high=256, source=BEAM)
    width: int = option(SHAPE[1], "nodes of each further level", low=1, high=256, source=BEAM)
    levels: int = option(len(SHAPE), "levels, each a draft forward", low=1, high=32, source=BEAM)

    @property
    def shape(self) -> tuple[int, ...]:
        """Nodes of each level."""
        return self.first, *[self.width] * (self.levels - 1)


def _load(sources: Sources) -> LongSpecNetwork:
    return load_longspec(sources.path("longspec", "longspec"), sources.target)


LONGSPEC: Need[LongSpecNetwork] = Need("longspec", "a LongSpec drafter", _load)


def _longspec(p: Parts) -> LongSpecDrafter:
    memory = p.one(("longspec",), lambda: LongSpecCache(p.the(LONGSPEC), p.target))
    return LongSpecDrafter(memory, p.choices.shape, p.clock)


METHODS: tuple[Method, ...] = (
    Method("magicdec", "the target drafts for itself on a part of its cache", MAGICDEC, magicdec, budget=8,
           choices=MagicDecChoices()),
    Method("triforce", "a small model, corrected by the target on a part of its cache, then verified in full", TRIFORCE,
           triforce, (SMALL,), choices=TriForceChoices()),
    Method("tokenswift", "one pass on a part of the cache with heads behind it, and frequent 4-grams", TOKENSWIFT,
           tokenswift, (MEDUSA,), budget=101, choices=TokenSwiftChoices()),
    Method("specpv-exact", "EAGLE-3 trees verified on a part of the cache, what comes of them in full", SPECPV,
           specpv_exact, (HEAD,), takes=DRAFTS, choices=SpecPVChoices(waiting=6)),
    Method("specpv", "EAGLE-3 trees verified on a part of the cache, and in full only now and then", SPECPV,
           lambda p: p.drafter(Dense()), (HEAD,), "lossy", takes=DRAFTS, choices=SpecPVChoices(),
           verifies=partial_verifier),
    Method("longspec", "a beam drafted from 512 tokens and the target's last keys and values", LONG, _longspec,
           (LONGSPEC,), budget=1 + sum(SHAPE), choices=LongSpecChoices()),
)
