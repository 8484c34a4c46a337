"""Names of the registered methods that have a role in other packages."""

from __future__ import annotations

from collections.abc import Mapping

PLAIN = "ar"  # plain decoding: the baseline of every method
DENSE = "eagle3"  # dense drafted tree: costs and thresholds are measured on it
DEFAULT = "graft-x"
PAPERS = "graft"  # the paper's method, from which costs of retrieval are taken
HEADLESS = "graft-x-text"  # the default method without a drafter
COMPARED = (PLAIN, DENSE, PAPERS, DEFAULT)  # methods that a sweep compares by default

# Groups of methods that the paper's figures and tables compare; `method+setting=value` is a variant of a method.
GROUPS: Mapping[str, tuple[str, ...]] = {
    # Contributions of pruning and of retrieval: Figure 5.
    "components": ("eagle3", "graft+retrieval=none", "graft+retrieval=drafted", "graft+pruning=none", "graft"),
    # Contributions of drafts, text and matrix to one ranking, at one budget.
    "ranking": (
        "eagle3",
        "graft",
        *(
            f"{who}+budget=60"
            for who in ("graft-x", "graft-x+pruning=none", "graft-x+rows=false", "graft-x+text=false", "graft-x-text")
        ),
    ),
    # Contribution of choosing budgets by cost, and within it of the drafter, the text and probing.
    "spending": (
        "graft-x",
        "graft-x-text",
        "graft-x+text=false",
        "graft-x+probing=false",
        *(f"graft-x+budget={n}" for n in (8, 16, 60)),
    ),
    # Placement of retrieved tokens under one budget: Figure 2.
    "placement": (
        "pld",
        "token-recycling",
        "eagle3",
        "graft+pruning=none+retrieved=20",
        "graft+pruning=none+retrieval=tail+retrieved=20",
        "graft",
    ),
    # Depth and width of the retrieved tree: Figure 6.
    "template": ("graft", *(f"graft+depth={n}" for n in (2, 4, 6, 12)), *(f"graft+width={n}" for n in (1, 2, 4, 6))),
    "budget": tuple(f"{who}+budget={n}" for n in (16, 30, 45, 60, 80) for who in ("eagle3", "graft")),
    # Warm-up rounds that fill the matrix: Table 4.
    "warmup": ("graft+warm=none",),
    # Thresholds of one suite used on another: Tables 11 and 12.
    "thresholds": ("eagle3",),
}
ESTIMATED = (HEADLESS, "suffix", "pld")  # methods that `longgraft estimate` compares: they need no model
