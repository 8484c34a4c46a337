"""Whether a method says what plain decoding says, and how near the tie was where it does not.

Knows sessions; knows no method.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from longgraft.compose import Plain
from longgraft.eval.levels import EPSILON, Check, first_divergence, level
from longgraft.observation import Wants
from longgraft.session import Generation, Sampling, Session, Stats
from longgraft.tree import ProposalTree


def plain_session(session: Session) -> Session:
    """Plain decoding of the same target, in the same loop, on the same kernels."""
    from longgraft.observation import Clock

    plain = Session(session.target, session.tokenizer, Plain(), Clock(), budget=1, chunk=session.chunk)
    plain.cache = session.cache     # one after the other: two caches of a long prompt may not fit
    return plain


def compare_with_plain(session: Session, ids: Sequence[int], answer: Generation, sampling: Sampling,
                       max_new_tokens: int, stopped: bool = False) -> dict[str, Any]:
    """Plain decoding of the same prompt: speedup of decoding alone, and whether the ids are identical.

    stopped: the answer may have ended at a stop string, which plain decoding does not look for.
    """
    plain, stats = plain_session(session), Stats()
    tokens = [t for new in plain.tokens(ids, stats, max_new_tokens, sampling) for t in new]
    tokens = tokens[:len(answer.token_ids)] if stopped else tokens
    at = first_divergence(answer.token_ids, tokens)
    rate = answer.stats.decode_tokens_per_second
    return {"identical": at is None, "first_divergence": at,
            "plain_tokens_per_second": stats.decode_tokens_per_second,
            "speedup": rate / stats.decode_tokens_per_second if stats.decode_tokens_per_second else 0.0}


def check(session: Session, prompts: Sequence[Sequence[int]], sampling: Sampling,
          max_new_tokens: int) -> dict[str, Any]:
    """Per prompt: first divergence from plain decoding and the plain logits' margin there; and the level reached."""
    rows = []
    plain = plain_session(session)
    for ids in prompts:
        ours = [t for new in session.tokens(ids, Stats(), max_new_tokens, sampling) for t in new]
        theirs = [t for new in plain.tokens(ids, Stats(), max_new_tokens, sampling) for t in new]
        at = first_divergence(ours, theirs)
        rows.append({"prompt_tokens": len(ids), "new_tokens": len(theirs), "first_divergence": at,
                     "margin": None if at is None else margin(session, [*ids, *theirs[:at]])})
    return {"level": _level(rows, session, sampling), "dtype": str(session.target.dtype)[6:], "rows": rows,
            "epsilon": EPSILON, "temperature": sampling.temperature}


def margin(session: Session, ids: Sequence[int]) -> float:
    """Difference of the two largest logits after `ids`, in the model's own precision."""
    target = session.target
    seen = target.run(ProposalTree.chain(torch.tensor(ids)), target.cache(len(ids)), Wants(), rows="last")
    best = seen.logits[0].float().topk(2).values
    return float(best[0] - best[1])


def lines(report: dict[str, Any]) -> list[str]:
    """For people."""
    out = []
    for row in report["rows"]:
        at = row["first_divergence"]
        what = "identical" if at is None else f"differs from token {at}, top-2 margin there {row['margin']:.4f}"
        out.append(f"{row['prompt_tokens']:>8,} prompt tokens, {row['new_tokens']:>5} new: {what}")
    return [*out, f"level: {report['level']} ({report['dtype']}, temperature {report['temperature']:g})"]


def _level(rows: Sequence[dict[str, Any]], session: Session, sampling: Sampling) -> str:
    parted = sum(row["first_divergence"] is not None for row in rows)
    greedy = sampling.temperature == 0      # of draws, a margin says nothing
    reached = level([Check(row["new_tokens"], row["first_divergence"], row["margin"] if greedy else None)
                     for row in rows], str(session.target.dtype)[6:])
    if not parted:
        return reached if reached == "exact" else f"{reached} (no divergence)"
    near = "" if reached == "none" else f", all below a margin of {EPSILON}"
    return f"{reached} ({parted} of {len(rows)} diverge{near})"
