"""Methods with a role in other packages, by their names in the registry."""

from __future__ import annotations

from collections.abc import Mapping

PLAIN = "ar"                # plain decoding: the baseline of every method
DENSE = "eagle3"            # the dense drafted tree: what costs and thresholds are measured on
DEFAULT = "graft-x"
PAPERS = "graft"            # the paper's method, from which costs of retrieval are taken
HEADLESS = "graft-x-text"   # the default without a drafter
COMPARED = (PLAIN, DENSE, PAPERS, DEFAULT)      # a sweep's default

# What the paper's figures and tables compare; `method+setting=value` is a variant of a method.
GROUPS: Mapping[str, tuple[str, ...]] = {
    # What pruning and retrieval each contribute: Figure 5.
    "components": ("eagle3", "graft+retrieval=none", "graft+retrieval=drafted", "graft+pruning=none", "graft"),
    # What drafts, text and matrix each contribute to one ranking, at one budget.
    "ranking": ("eagle3", "graft",
                *(f"{who}+budget=60" for who in ("graft-x", "graft-x+pruning=none", "graft-x+matrix=false",
                                                 "graft-x+text=false", "graft-x-text"))),
    # What the choice of budgets by costs contributes, and in it the drafter, the text and probing.
    "spending": ("graft-x", "graft-x-text", "graft-x+text=false", "graft-x+probing=false",
                 *(f"graft-x+budget={n}" for n in (8, 16, 60))),
    # Where retrieved tokens go under one budget: Figure 2.
    "placement": ("pld", "token-recycling", "eagle3", "graft+pruning=none+retrieved=20",
                  "graft+pruning=none+retrieval=tail+retrieved=20", "graft"),
    # Depth and width of the retrieved tree: Figure 6.
    "template": ("graft", *(f"graft+depth={n}" for n in (2, 4, 6, 12)), *(f"graft+width={n}" for n in (1, 2, 4, 6))),
    "budget": tuple(f"{who}+budget={n}" for n in (16, 30, 45, 60, 80) for who in ("eagle3", "graft")),
    # Rounds of warm-up that fill the matrix: Table 4.
    "warmup": ("graft+warm=none",),
    # Thresholds of one suite on another: Tables 11 and 12.
    "thresholds": ("eagle3",)}
