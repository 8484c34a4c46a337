"""The verifier: runs one target pass over a prompt chunk or a proposal, draws, walks, keeps the path and reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from longgraft.acceptance.rejection import Rejection
from longgraft.acceptance.rules import AcceptanceRule, DrawThenWalk
from longgraft.protocol.observation import Observation, Wants
from longgraft.runtime.clock import Clock
from longgraft.runtime.cuda_graphs import EAGER, Regions
from longgraft.runtime.devices import sent
from longgraft.runtime.kv_cache import KVCache
from longgraft.target_model.model import Target
from longgraft.target_model.passes import Segment
from longgraft.target_model.recorded_passes import RecordedPasses
from longgraft.target_model.static_pass import Slot
from longgraft.trees.padded import SIZES, Tree, on_host
from longgraft.trees.tree import ROOT, ProposalTree


@dataclass
class Verifier:
    """The owner of the target's cache for one request; it runs the request's passes.

    Attributes:
        target: The target.
        cache: Its cache for the request.
        rule: The acceptance rule.
        clock: What measures the parts of a step.
        regions: If they are fixed, trees of up to 64 nodes are verified in passes of fixed shape, unless
            queries are wanted.
        reads: Called with the logits [n, V] of each prompt chunk, and the prompt's tokens [n or n - 1]
            after each of the chunk's; None: only the last token's logits are computed.
    """

    target: Target
    cache: KVCache
    rule: AcceptanceRule
    clock: Clock
    regions: Regions = EAGER
    reads: Callable[[Tensor, Tensor], None] | None = None

    def read(
        self, chunk: Tensor, wants: Wants, following: int | None = None, ranked: Tensor | None = None
    ) -> Observation:
        """Reads a prompt chunk [n] int64 and commits all of it.

        Args:
            chunk: The tokens.
            wants: What the target reports.
            following: The prompt's next token; None: the prompt ends here, and the rule draws the token.
            ranked: As in `Segment`.
        """
        tree = ProposalTree.chain(chunk, origin=ROOT)
        path = torch.arange(len(chunk))
        wants = replace(wants, queries=max(wants.queries, wants.prompt_queries))
        with self.clock.part("verify"):
            logits: Literal["all", "last", "none"] = "last" if following is None else "none"
            if self.reads is not None:
                logits = "all"
            (report,) = self.target.run([Segment(tree, self.cache, logits, ranked)], wants)
        self.cache.keep(path)
        if self.reads is not None:
            last = [] if following is None else [following]
            self.reads(report.logits, torch.cat([chunk[1:], torch.tensor(last, dtype=torch.int64)]))
        if following is None:
            with self.clock.part("accept"):
                root = ProposalTree.root_only(int(chunk[-1]))
                _, following = self.rule(root, report.logits[-1:], torch.tensor([self.cache.position]))
        queries = {layer: rows[:, -wants.queries :] for layer, rows in report.queries.items()}
        return Observation(
            tree,
            path,
            following,
            report.topk,
            report.hidden,
            report.final,
            prompt=True,
            ranked=ranked,
            cache=self.cache if wants.cache else None,
            queries=queries,
            topk_probabilities=report.topk_probabilities,
        )

    @property
    def runs_ahead(self) -> bool:
        """True if a pass that `launch` launched runs on a GPU while the host does other work."""
        return self.regions.fixed and isinstance(self.rule, DrawThenWalk)

    def verify(self, tree: Tree, wants: Wants) -> Observation:
        """Verifies a tree, commits its accepted path and returns the target's observation."""
        return self.launch(tree, wants)()

    def launch(self, tree: Tree, wants: Wants) -> Callable[[], Observation]:
        """Launches the pass over a tree if its shape is fixed; any other pass runs when its result is asked for.

        Returns:
            The function that waits for the result, commits the accepted path and returns the observation.  A pass
            whose result is never asked for has written only to free rows of the cache.
        """
        drawn = isinstance(tree, ProposalTree) and tree.law is not None
        fits = len(tree) <= SIZES[-1] and not wants.queries and not drawn and not self.target.stateful
        if self.regions.fixed and fits and isinstance(self.rule, DrawThenWalk):
            return self._fixed(tree, wants, self.rule)
        return partial(self._eager, tree, wants)

    def _rule_of(self, tree: ProposalTree) -> AcceptanceRule:
        """Returns the rule for a tree: drafts sampled independently of the target need rejection sampling."""
        if tree.law is not None and isinstance(self.rule, DrawThenWalk) and self.rule.sampled is not None:
            return Rejection(self.rule.sampled)
        return self.rule

    def _eager(self, given: Tree, wants: Wants) -> Observation:
        since = self.clock.now(wait=False)
        tree = on_host(given)
        with self.clock.part("verify"):
            (report,) = self.target.run([Segment(tree, self.cache)], wants)
        with self.clock.part("accept"):
            path, next_token = self._rule_of(tree)(tree, report.logits, self.cache.position + 1 + tree.depths)
            self.cache.keep(path)
            hidden = dict(report.hidden)
            final = report.final
            if len(path) < len(tree) and (hidden or final is not None):
                nodes = sent(path, report.logits.device)
                hidden = {layer: rows[nodes] for layer, rows in hidden.items()}
                final = None if final is None else final[nodes]
            last = sent(path[-wants.queries :], report.logits.device) if wants.queries else None
            queries = {layer: rows[:, last] for layer, rows in report.queries.items()}
        return Observation(
            tree,
            path,
            next_token,
            report.topk,
            hidden,
            final,
            # The walk has synced with the device, so all work launched before it is done.
            seconds=self.clock.now(wait=False) - since,
            cache=self.cache if wants.cache else None,
            queries=queries,
            topk_probabilities=report.topk_probabilities,
        )

    def _fixed(self, tree: Tree, wants: Wants, rule: DrawThenWalk) -> Callable[[], Observation]:
        whole = self.cache.whole
        passes = self.regions.kept((whole, whole.age), lambda: RecordedPasses(self.target, whole, self.regions))
        with self.clock.part("verify"):
            launched = passes.run(Slot(tree, self.cache, rule), wants)

        def finish() -> Observation:
            with self.clock.part("accept"):
                host, path, next_token, report = launched.result()
                self.cache.length += len(path)
            return Observation(
                host,
                path,
                next_token,
                report.topk,
                report.hidden,
                report.final,
                seconds=launched.seconds,
                walked=launched.walked,
                cache=self.cache if wants.cache else None,
                topk_probabilities=report.topk_probabilities,
            )

        return finish
