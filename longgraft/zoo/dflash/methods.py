"""The entries of `dflash`, `dflash-tree` and `graft-dflash`."""

from __future__ import annotations

from dataclasses import dataclass

from longgraft.config.options import Checked, Share, option
from longgraft.config.settings import DraftWindow
from longgraft.methods.building import retriever
from longgraft.methods.method import BUDGET, BUDGETED, Method
from longgraft.methods.needs import Need, Sources
from longgraft.methods.parts import Parts
from longgraft.trees.templates import chain
from longgraft.yarn_drafters.layouts import TargetShape
from longgraft.zoo.dflash.cache import DFlashCache
from longgraft.zoo.dflash.drafter import DFlashDrafter, DFlashTreeDrafter, GraftedDFlashDrafter
from longgraft.zoo.dflash.files import load_blocks
from longgraft.zoo.dflash.network import BLOCK, BlockNetwork

PAPER = "DFlash (arXiv 2602.06036)"


@dataclass(frozen=True)
class DFlashTreeChoices(Checked):
    """Choices of `dflash-tree`."""

    window: DraftWindow = None


@dataclass(frozen=True)
class DFlashChoices(DFlashTreeChoices):
    """Choices of `dflash`."""

    coupled: bool = option(
        False, "draw drafted tokens with the noise of the request's own draws, not as the most probable tokens"
    )


@dataclass(frozen=True)
class GraftedDFlashChoices(DFlashChoices):
    """Choices of `graft-dflash`."""

    threshold: Share = option(0.35, "probability of a drafted token below which the block is cut")
    both: bool = option(
        False, "keep the whole block, with the matrix's chain as a branch where it is unsure: use a budget of 24"
    )


def _load(sources: Sources) -> BlockNetwork:
    target = sources.target
    network = load_blocks(
        sources.path("dflash", "dflash"), TargetShape.of(target.model.config), target.dtype, target.device
    )
    network.share(target.model.get_input_embeddings(), target.head)
    return network


DFLASH: Need[BlockNetwork] = Need("dflash", "a DFlash drafter", _load)


def memory(p: Parts) -> DFlashCache:
    """The drafter's keys and values."""
    network = p.the(DFLASH)
    return p.once(
        ("blocks", network, p.choices.window),
        lambda: DFlashCache(network, p.choices.window, p.clock, p.target.kernels, p.regions),
    )


def drafter(p: Parts) -> DFlashDrafter:
    """The block as a chain."""
    return DFlashDrafter(memory(p), p.choices.coupled, p.clock)


CHAIN = Method(
    "dflash",
    "a block of tokens guessed in one forward, as a chain",
    PAPER,
    drafter,
    (DFLASH,),
    budget=BLOCK,
    choices=DFlashChoices(),
)
TREE = Method(
    "dflash-tree",
    "the block's most probable paths, as a tree",
    PAPER + "; DDTree (arXiv 2604.12989)",
    lambda p: DFlashTreeDrafter(memory(p), p.clock),
    (DFLASH,),
    budget=BUDGET,
    choices=DFlashTreeChoices(),
)
GRAFTED = Method(
    "graft-dflash",
    "the block up to its first unsure token, then a chain from the matrix",
    "Draft Less, Retrieve More (arXiv 2605.20104), App. F",
    lambda p: GraftedDFlashDrafter(drafter(p), retriever(p, chain), p.choices.threshold, p.choices.both),
    (DFLASH,),
    budget=BLOCK,
    takes=BUDGETED | {"warm"},
    choices=GraftedDFlashChoices(),
)
