"""Methods with EAGLE-3 trees whose shape follows the drafter's confidence."""

from __future__ import annotations

from dataclasses import dataclass

from longgraft.budget.node_ranking import RankedProposer
from longgraft.config.options import Checked, option
from longgraft.drafters.eagle3 import Eagle3Drafter
from longgraft.drafters.echo import EchoDrafter, EchoPlanner
from longgraft.drafters.pruning import DDDPolicy, EntropyPolicy, Filled, Gates
from longgraft.drafters.talon import DEEPEST, SHARE, TalonDrafter
from longgraft.memories.rollouts import RollOuts
from longgraft.methods.method import BUDGETED, DRAFTS, Method
from longgraft.methods.needs import HEAD
from longgraft.methods.parts import Parts
from longgraft.target_model.planned_together import PlannedTogether

LONGEST = 40        # most tokens of SVIP's chain


@dataclass(frozen=True)
class DDDChoices(Checked):
    """Choices of `ddd`."""

    threshold: float = option(-1.5, "Log-probability that the beam must hold after 5 and after 7 expansions",
                              low=-100, high=0, source="docs/choices.md, dynamic trees")


@dataclass(frozen=True)
class SvipChoices(Checked):
    """Choices of `svip`."""

    threshold: float = option(0.3, "Square root of the entropy above which drafting stops", unit="nats^1/2", low=0,
                              high=10, source="SVIP, tuned over 0.2 to 0.5")
    chain: bool = option(False, f"One chain of up to {LONGEST} tokens, as published, instead of a tree")


@dataclass(frozen=True)
class EchoChoices(Checked):
    """Choices of `echo`."""

    depths: tuple[int, ...] = option((1, 3, 5), "Expansions after which there is a gate", low=0, high=63,
                                     source="docs/choices.md, dynamic trees")
    taus: tuple[float, ...] = option((0.09, 0.07, 0.11), "Probability of the best path up to which each gate is closed",
                                     low=0, high=1, source="docs/choices.md, dynamic trees")
    pass_nodes: int | None = option(None, "Nodes of all requests that share a pass, roots included", unit="nodes",
                                    low=1, high=4096, none="the budget of one request", source="ECHO, K_max")

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.depths) != len(set(self.depths)) or len(self.depths) != len(self.taus):
            raise ValueError(f"echo has gates at {self.depths} and taus {self.taus}: each gate needs one. Give both.")


@dataclass(frozen=True)
class TalonChoices(Checked):
    """Choices of `talon`."""

    share: float = option(SHARE, "Least probability of a path, as a share of its layer's best; use 0.01 for Qwen3",
                          low=1e-9, high=1, source="TALON, mu")
    deepest: int = option(DEEPEST, "Layers at most", unit="layers", low=1, high=64)


@dataclass(frozen=True)
class MtpChoices(Checked):
    """Choices of `mtp`."""

    tau: float = option(0.14, "The chain ends at or below this probability", low=0, high=1, source="Graft, Table 11")
    length: int = option(8, "Drafted tokens at most", unit="tokens", low=1, high=64)
    answers: int = option(16, "Earlier answers to the prompt that are kept", low=1, high=1024,
                          source="groups of 8 to 16 roll-outs")


def mtp(parts: Parts) -> RankedProposer:
    """A drafted chain, with remembered tokens at its root, beside it and after it, in one ranking."""
    chosen = parts.choices
    policy = Filled(Gates(dict.fromkeys(range(chosen.length), chosen.tau)))
    chain = Eagle3Drafter(parts.drafter_cache(), policy, chosen.length, 1, parts.clock)
    answers = parts.one(("roll-outs", chosen.answers), lambda: RollOuts(chosen.answers))
    return RankedProposer(answers, chain, clock=parts.clock, pool=1)


def svip(parts: Parts) -> Eagle3Drafter:
    """The tree, or the published chain."""
    policy = EntropyPolicy(parts.choices.threshold)
    if not parts.choices.chain:
        return parts.drafter(policy)
    return Eagle3Drafter(parts.drafter_cache(), policy, LONGEST, 1, parts.clock)


def echo(parts: Parts) -> EchoDrafter:
    """A gated tree for a request alone, and for the requests of a pass one budget that their gates divide."""
    chosen = parts.choices
    gates = Gates(dict(zip(chosen.depths, chosen.taus, strict=True)))
    together = parts.of_engine(("echo", chosen), lambda: PlannedTogether("echo's plan", EchoPlanner(chosen.pass_nodes)))
    return EchoDrafter(parts.drafter(Filled(gates)), gates, together)


METHODS: tuple[Method, ...] = (
    Method("ddd", "stops after 5 or 7 expansions where the beam carries too little probability",
           "Dynamic Depth Decoding (arXiv 2409.00142)",
           lambda p: p.drafter(DDDPolicy(p.choices.threshold, beam=p.shape.top_k)), (HEAD,), takes=DRAFTS,
           choices=DDDChoices()),
    Method("svip", "stops behind a best path whose last token the drafter was unsure of", "SVIP (arXiv 2411.18462)",
           svip, (HEAD,), takes=DRAFTS, choices=SvipChoices()),
    Method("echo", "gates of its own after 1, 3 and 5 expansions; slots of levels that are not drafted go to width, "
           "and requests that share a pass share one budget", "ECHO (arXiv 2604.09603)", echo, (HEAD,), takes=DRAFTS,
           choices=EchoChoices()),
    Method("talon", "layers as wide as their probable paths, until the budget is spent", "TALON (arXiv 2601.07353)",
           lambda p: TalonDrafter(p.drafter_cache(), p.choices.share, p.choices.deepest, p.shape.top_k, p.clock),
           (HEAD,), takes=BUDGETED | {"top_k", "window"}, choices=TalonChoices()),
    Method("mtp", "a drafted chain while it is probable; its free slots repeat this and earlier answers to the same "
           "prompt", "Draft Less, Retrieve More (arXiv 2605.20104), future work", mtp, (HEAD,),
           takes=BUDGETED | {"window"}, choices=MtpChoices()),
)
