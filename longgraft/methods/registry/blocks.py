"""Methods that draft a block of tokens in one forward.  Names and constructors only."""

from __future__ import annotations

from dataclasses import dataclass

from longgraft.config.options import check, option
from longgraft.drafters.dflash import BlockDrafter, BlockTree, GraftedBlock
from longgraft.memories.dflash_cache import BlockMemory
from longgraft.methods.method import BUDGET, BUDGETED, Method
from longgraft.methods.needs import Need, Sources
from longgraft.methods.parts import Parts
from longgraft.trees.templates import chain
from longgraft.yarn_drafters.dflash import BLOCK, BlockNetwork
from longgraft.yarn_drafters.dflash_files import load_blocks
from longgraft.yarn_drafters.layouts import TargetShape

PAPER = "DFlash (arXiv 2602.06036)"
GRAFT = "Draft Less, Retrieve More (arXiv 2605.20104), App. F"
BOTH = 24       # nodes of a block and of a branch behind its sure part
TAKES = BUDGETED | {"window"}


@dataclass(frozen=True)
class BlockChoices:
    """What can be chosen of a drafted chain."""

    coupled: bool = option(False, "draw the drafted tokens with the noise of the request's own draws, instead of the "
                                  "most probable ones")

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class GraftedChoices(BlockChoices):
    """What can be chosen of a chain with a retrieved tail."""

    threshold: float = option(0.35, "probability of a drafted token below which the block is cut", low=0.0, high=1.0)


def _load(sources: Sources) -> BlockNetwork:
    target = sources.target
    network = load_blocks(sources.path("dflash", "dflash"), TargetShape.of(target.model.config), target.dtype,
                          target.device)
    network.share(target.model.get_input_embeddings(), target.head)
    return network


DFLASH: Need[BlockNetwork] = Need("dflash", "a DFlash drafter", _load)


def memory(p: Parts) -> BlockMemory:
    """The drafter's keys and values."""
    network = p.the(DFLASH)
    return p.one(("blocks", id(network), p.window), lambda: BlockMemory(
        network, p.window, p.clock, p.target.kernels, p.regions))


def drafter(p: Parts) -> BlockDrafter:
    """The chain."""
    return BlockDrafter(memory(p), p.choices.coupled, p.clock)


def grafted(p: Parts, both: bool = False) -> GraftedBlock:
    """The chain, and what the matrix knows to follow its sure part."""
    return GraftedBlock(drafter(p), p.retriever(chain), p.choices.threshold, both)


METHODS: tuple[Method, ...] = (
    Method("dflash", "a block of tokens guessed in one forward, as a chain", PAPER, drafter, (DFLASH,), budget=BLOCK,
           takes=TAKES, choices=BlockChoices()),
    Method("dflash-tree", "the block's most probable paths, as a tree", PAPER + "; DDTree (arXiv 2604.12989)",
           lambda p: BlockTree(memory(p), p.clock), (DFLASH,), budget=BUDGET, takes=TAKES),
    Method("graft-dflash", "the block up to its first unsure token, then a chain from the matrix", GRAFT, grafted,
           (DFLASH,), budget=BLOCK, takes=TAKES | {"warm"}, choices=GraftedChoices()),
    Method("graft-dflash-both", "the whole block, and the chain from the matrix as a branch where it is unsure", GRAFT,
           lambda p: grafted(p, both=True), (DFLASH,), budget=BOTH, takes=TAKES | {"warm"}, choices=GraftedChoices()),
)
