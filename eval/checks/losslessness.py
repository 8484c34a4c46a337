"""Checks if a method decodes the tokens of plain decoding, and measures the margin of the logits where it does not."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from longgraft.acceptance.sampling import Sampling
from longgraft.comparison.levels import EPSILON, Check, first_divergence, level, may_differ
from longgraft.comparison.with_plain import plain_session
from longgraft.config.settings import Settings
from longgraft.engine.fork import Fork
from longgraft.engine.session import Session, answer
from longgraft.loading import assemble
from longgraft.methods.chosen import chosen_method
from longgraft.methods.find import Method
from longgraft.methods.needs import AUTO
from longgraft.protocol.observation import Wants
from longgraft.protocol.proposer import Proposer
from longgraft.runtime.kv_cache import KVCache
from longgraft.target_model.model import Target
from longgraft.target_model.passes import Segment
from longgraft.trees.tree import ProposalTree

# What `assert_lossless` uses; its prompt of 75 tokens is read in three chunks.
BUDGETS = (1, 2, 8, 60)
CHUNK = 32
DRAWS = {"greedy": Sampling(), "sampled": Sampling(temperature=1.0, seed=5)}


def check(
    session: Session, prompts: Sequence[Sequence[int]], sampling: Sampling, max_new_tokens: int
) -> dict[str, Any]:
    """Compares answers with plain decoding's.

    Returns for each prompt the first divergence and, for greedy answers, the margin of plain decoding's logits there;
    and the level that was reached, which is the promise if the method may have other tokens.
    """
    sampled = sampling.temperature > 0
    plain = plain_session(session)
    rows = [_compared(session, plain, list(ids), sampling, max_new_tokens) for ids in prompts]
    dtype = str(session.target.dtype)[6:]
    why = may_differ(session.promise, sampled)
    if why:
        diverge = sum(row["first_divergence"] is not None for row in rows)
        reached = f"{session.promise} ({why}; {diverge} of {len(rows)} diverge)"
    else:
        reached = _level(rows, dtype)
    return {
        "level": reached,
        "promise": session.promise,
        "dtype": dtype,
        "rows": rows,
        "epsilon": EPSILON,
        "weights": session.target.weights,
        "temperature": sampling.temperature,
    }


def _compared(session: Session, plain: Session, ids: list[int], sampling: Sampling, limit: int) -> dict[str, Any]:
    """Compares the answers to one prompt, which is read once if the session reads it as a whole."""
    with ExitStack() as stack:
        if session.engine.prefixes is None and session.default_corpus is None:
            session.engine.check(len(ids), limit)
            stack.enter_context(Fork([session.engine, plain.engine], ids, limit))
        tokens = answer(session.open(ids, limit, sampling)).token_ids
        plain_tokens = answer(plain.open(ids, limit, sampling)).token_ids
    divergence = first_divergence(tokens, plain_tokens)
    row: dict[str, Any] = {
        "prompt_tokens": len(ids),
        "new_tokens": len(plain_tokens),
        "first_divergence": divergence,
        "margin": None,
        "at": None,
    }
    if divergence is not None and sampling.temperature == 0:  # of draws a margin says nothing
        text = [*ids, *plain_tokens[:divergence]]
        row["margin"], row["at"] = margin(session.target, session.target.cache(len(text)), text)
    return row


def assert_lossless(
    method: str | Method | Proposer, model: Any = None, drafter: str | Path | None = AUTO, new_tokens: int = 24
) -> int:
    """Raises AssertionError unless the method decodes plain decoding's tokens in float32; returns the accepted guesses.

    It reads two prompts, one of a single token and one that repeats itself, so that lookups find something, in chunks;
    with budgets of 1, 2, 8 and 60 nodes; greedy, and sampled if the method is exact, because a method that only
    promises the distribution may draw other tokens then.

    Args:
        method: A name, a `Method` or a proposer, as in `find`.
        model: As in `load`.
        drafter: As in `load`.
        new_tokens: Tokens of each answer.

    Raises:
        AssertionError: the tokens differ.
        ValueError: the method is lossy, or something that it needs is missing.
    """
    settings = Settings(method=method, dtype="float32", calibration=None)
    named, _ = chosen_method(settings)
    loaded = assemble(model, drafter, settings)
    if loaded.method.name != named.name:
        raise ValueError(f"{named.name} cannot be checked: {loaded.notes[0]}. Give what it needs.")
    promise = loaded.method.promise
    if promise == "lossy":
        raise ValueError(
            f"Method {loaded.method.name!r} is lossy: its tokens need not be plain decoding's. Check a "
            "method that promises exact tokens or their distribution."
        )
    generator = torch.Generator().manual_seed(0)
    repeated = torch.randint(loaded.target.vocab_size, (25,), generator=generator).repeat(3).tolist()
    sessions = [loaded.session(Settings(budget=budget, chunk=CHUNK)) for budget in BUDGETS]
    accepted = 0
    for ids in (repeated, repeated[:1]):
        for name, sampling in DRAWS.items():
            plain = answer(plain_session(sessions[0]).open(ids, new_tokens, sampling)).token_ids
            for budget, session in zip(BUDGETS, sessions, strict=True):
                ours = answer(session.open(ids, new_tokens, sampling))
                at = first_divergence(ours.token_ids, plain)
                if at is not None and (promise == "exact" or sampling.temperature == 0):
                    raise AssertionError(
                        f"{loaded.method.name}, budget {budget}, {name}, prompt of {len(ids)} tokens: "
                        f"it decodes {ours.token_ids[at : at + 1]} where plain decoding has "
                        f"{plain[at : at + 1]}, at new token {at}."
                    )
                accepted += sum(ours.stats.accepted_per_step)
    return accepted


def margin(target: Target, cache: KVCache, ids: Sequence[int]) -> tuple[float, float]:
    """Returns (difference of the two largest logits, the larger) after the cache's tokens and `ids`.

    The logits are computed in the model's own precision.
    """
    (report,) = target.run([Segment(ProposalTree.chain(torch.tensor(ids)), cache, "last")], Wants())
    best = report.logits[0].float().topk(2).values
    return float(best[0] - best[1]), float(best[0])


def lines(report: dict[str, Any]) -> list[str]:
    """Returns the report as lines for people."""
    out = []
    for row in report["rows"]:
        what = "identical"
        if row["first_divergence"] is not None:
            what = f"differs from token {row['first_divergence']}"
        if row["margin"] is not None:
            what += f", top-2 margin there {row['margin']:.4f}"
        out.append(f"{row['prompt_tokens']:>8,} prompt tokens, {row['new_tokens']:>5} new: {what}")
    numbers = report["dtype"]
    if report["weights"] != "float":
        numbers += f", {report['weights']} weights"
    return [*out, f"level: {report['level']} ({numbers}, temperature {report['temperature']:g})"]


def _level(rows: Sequence[dict[str, Any]], dtype: str) -> str:
    checks = [Check(row["new_tokens"], row["first_divergence"], row["margin"], row["at"]) for row in rows]
    reached = level(checks, dtype)
    diverge = sum(check.first_divergence is not None for check in checks)
    if diverge:
        near = "" if reached == "none" else ", all at near ties"
        return f"{reached} ({diverge} of {len(rows)} diverge{near})"
    if reached == "exact":
        return reached
    return f"{reached} (no divergence)"
