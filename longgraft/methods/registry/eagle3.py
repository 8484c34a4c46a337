"""EAGLE-3 (arXiv 2503.01840): a dense drafted tree."""

from __future__ import annotations

from longgraft.config.settings import Drafting
from longgraft.methods.building import drafter
from longgraft.methods.method import Method
from longgraft.methods.needs import HEAD

EAGLE3 = "EAGLE-3 (arXiv 2503.01840)"


METHODS: tuple[Method, ...] = (
    Method(
        "eagle3",
        "a dense drafted tree, never pruned",
        EAGLE3,
        drafter,
        (HEAD,),
        choices=Drafting(),
    ),
)
