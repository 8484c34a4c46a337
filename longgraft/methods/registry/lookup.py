"""Methods that copy what followed the same tokens before."""

from __future__ import annotations

from dataclasses import dataclass

from longgraft.config.options import Checked, like, option
from longgraft.memories.hidden_states import HiddenStates
from longgraft.methods.method import Method
from longgraft.methods.parts import Parts
from longgraft.retrievers.adapld import AdaPld, Branches, Likeness
from longgraft.retrievers.anchors import Anchors
from longgraft.retrievers.logitspec import WIDTH, LastTopK, LogitSpec
from longgraft.retrievers.lookahead import Lookahead, Trajectories
from longgraft.retrievers.pld_plus import PldPlus
from longgraft.retrievers.prompt_lookup import PromptLookup
from longgraft.target_model.model import Target

LOOKUP = "Prompt lookup decoding (Saxena, 2023)"
PLD_PLUS = "PLD+ (arXiv 2412.01447)"
ADAPLD = "AdaPLD (arXiv 2606.05742)"
LOGITSPEC = "LogitSpec (arXiv 2507.01449)"
LOOKAHEAD = "Lookahead decoding (arXiv 2402.02057)"

USUAL, OF_QWEN3 = 9 / 32, 29 / 36       # depth of the layer whose states are compared, as a share: Vicuna-7B, Qwen3-8B


@dataclass(frozen=True)
class PldChoices(Checked):
    """Choices of `pld`."""

    latest: bool = option(False, "Copy what followed the latest match, not the earliest", source="the authors' code")


@dataclass(frozen=True)
class PldPlusChoices(Checked):
    """Choices of `pld+`."""

    length: int = option(10, "Tokens copied at most", low=1, source="prompt lookup's; PLD+ does not say")
    layer: int | None = option(None, "Layer whose hidden states are compared", low=0, none="29/36 of the depth for "
                               "Qwen3, 9/32 for others", source="AdaPLD's tables")


@dataclass(frozen=True)
class AdaPldChoices(Checked):
    """Choices of `adapld`."""

    length: int = option(30, "Tokens copied at most", low=1, source="AdaPLD")
    branches: int = option(4, "Branches: most probable tokens at the anchor", low=0, high=64,
                           source="2 to 8 in AdaPLD")
    successors: bool = option(True, "Follow each branch by one more token", source="AdaPLD")
    likeness: float | None = option(0.55, "Least cosine of embeddings for another token to be an anchor", low=-1,
                                    high=1, none="the token alone", source="docs/methods.md")
    layer: int | None = like(PldPlusChoices, "layer")


@dataclass(frozen=True)
class LookaheadChoices(Checked):
    """Choices of `lookahead`; a full tree has (ngram - 1) (columns + guesses) nodes."""

    ngram: int = option(5, "Tokens of an n-gram, its first one included", low=2, source="the authors' 7B")
    columns: int = option(7, "Columns of the window; 0: n-grams alone", low=0, source="the authors' 7B")
    guesses: int = option(7, "N-grams kept and verified of each first token", low=1, source="the authors' 7B")
    from_prompt: bool = option(False, "Take n-grams also from the prompt and the answer", source="POOL_FROM_PROMPT")


def anchors(p: Parts, never: frozenset[int] = frozenset()) -> Anchors:
    """Anchors by the chosen layer, or the usual one; raises ValueError if the target has no such layer."""
    depth, layer = p.target.config.num_hidden_layers, p.choices.layer
    if layer is None:
        layer = round(depth * (OF_QWEN3 if p.target.config.model_type.startswith("qwen3") else USUAL))
    if layer >= depth:
        raise ValueError(f"layer is {layer}, and {p.target.name} has layers 0 to {depth - 1}. Choose one of them.")
    return Anchors(p.history(), states(p, layer), never)


def states(p: Parts, layer: int | None) -> HiddenStates:
    """A layer's inputs at all positions; None: the final norm's outputs."""
    return p.one(("states", layer), lambda: HiddenStates(layer))


def pld_plus(p: Parts) -> PldPlus:
    """PLD+: only the root's own token is an anchor."""
    return PldPlus(anchors(p), p.choices.length, p.clock)


def adapld(p: Parts) -> AdaPld:
    """AdaPLD, with likeness and branches as chosen."""
    target, chosen = p.target, p.choices
    likeness = Likeness(target.model.get_input_embeddings().weight[:], chosen.likeness) \
        if chosen.likeness is not None else None
    branches = Branches(chosen.branches, states(p, None), target.logits, chosen.successors) if chosen.branches else None
    return AdaPld(anchors(p, special(target)), chosen.length, likeness, branches, p.clock)


def special(target: Target) -> frozenset[int]:
    """Returns the begin, end and padding ids of the configurations."""
    ids: set[int] = set()
    for config in (target.config, getattr(target.model, "generation_config", None)):
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            found = getattr(config, name, None)
            ids |= {found} if isinstance(found, int) else set(found or ())
    return frozenset(ids)


def logitspec(p: Parts) -> LogitSpec:
    """LogitSpec over the history and the last top-k."""
    topk = p.one(("last top-k", WIDTH), lambda: LastTopK(WIDTH))
    return LogitSpec(p.history(), topk, p.target.vocab_size, clock=p.clock)


def lookahead(p: Parts) -> Lookahead:
    """Lookahead decoding with trajectories of the chosen shape."""
    chosen: LookaheadChoices = p.choices
    shape = chosen.ngram, chosen.columns, chosen.guesses, chosen.from_prompt
    return Lookahead(p.one(("trajectories", *shape), lambda: Trajectories(*shape)), p.clock)


METHODS: tuple[Method, ...] = (
    Method("pld", "copies what followed the same n-gram before", LOOKUP,
           lambda p: PromptLookup(p.history(), clock=p.clock, latest=p.choices.latest), budget=11,
           choices=PldChoices()),
    Method("pld+", "copies from where the same token stood in the most similar context", PLD_PLUS, pld_plus,
           budget=11, choices=PldPlusChoices()),
    Method("adapld", "the same at greater length, also after similar tokens, with probable tokens as branches", ADAPLD,
           adapld, budget=39, choices=AdaPldChoices()),
    Method("logitspec", "copies what followed the same n-gram, and guesses what was probable one token ago", LOGITSPEC,
           logitspec, budget=WIDTH),
    Method("lookahead", "n-grams from earlier guesses of the text ahead, and new guesses in the same pass", LOOKAHEAD,
           lookahead, budget=56, choices=LookaheadChoices()),
)
