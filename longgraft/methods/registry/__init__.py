"""The core methods, each as one expression over proposers.

All other methods register as those from outside do; `longgraft.zoo` by the entry points of this package.  No
code outside the registry refers to a method by name.
"""

from __future__ import annotations

from longgraft.methods.method import Method
from longgraft.methods.registry import eagle3, graft, graft_x, plain, pld, suffix

PARTS = (plain, graft_x, graft, eagle3, suffix, pld)

CORE: dict[str, Method] = {method.name: method for part in PARTS for method in part.METHODS}
