"""Measures how well a target model predicts real text, and whether longer prompts help it."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from longgraft.acceptance.rules import Greedy
from longgraft.config.json_lines import read_json_lines
from longgraft.config.method_roles import HEADLESS
from longgraft.engine.repetition import loops
from longgraft.engine.session import Session
from longgraft.eval.prompts.buckets import fit
from longgraft.eval.prompts.suites import Example, load_suite
from longgraft.eval.statistics import Mean
from longgraft.loading import load
from longgraft.prefill.chunked import read_prompt
from longgraft.protocol.observation import Wants
from longgraft.runtime.clock import Clock
from longgraft.target_model.model import Target
from longgraft.target_model.passes import Segment
from longgraft.target_model.verifier import Verifier
from longgraft.trees.tree import ROOT, ProposalTree


def continuation_logits(target: Target, prompt: Sequence[int], continuation: Sequence[int]) -> torch.Tensor:
    """Returns [m, V], the target's logits at each token of a recorded continuation, given all tokens before it."""
    cache, ids = target.cache(len(prompt) + len(continuation)), torch.tensor([*prompt, *continuation])
    end = len(prompt) - 1
    verifier = Verifier(target, cache, Greedy(), Clock())
    for _ in read_prompt(verifier, ids[:end], Wants(), following=int(ids[end])):
        pass
    report, = target.run([Segment(ProposalTree.chain(ids[end:-1], origin=ROOT), cache)], Wants())
    return report.logits.float()


def accuracies(session: Session, example: Example, lengths: Sequence[int], most: int) -> dict[int, dict[str, float]]:
    """Measures top-1 and top-10 accuracy and nats per token of one row's recording after prompts of these lengths.

    The result is empty if the row is shorter than the longest length.
    """
    found = {}
    answer = session.tokenizer(example.recording, add_special_tokens=False)["input_ids"][:most]
    for length in sorted(lengths, reverse=True):
        fitted = fit(example, session.tokenizer, length)
        if fitted is None or not answer:
            return {}
        logits, wanted = continuation_logits(session.target, fitted.ids, answer), torch.tensor(answer)
        best = logits.topk(10).indices.cpu()
        nats = torch.nn.functional.cross_entropy(logits.cpu(), wanted)
        found[length] = {"top1": (best[:, 0] == wanted).float().mean().item(),
                         "top10": (best == wanted[:, None]).any(1).float().mean().item(), "nats": nats.item()}
    return found


def bits_per_byte(session: Session, texts: Sequence[str], length: int = 2048) -> float:
    """Returns the bits per byte of unseen texts, each cut to `length` tokens; a text's first token is not predicted."""
    nats, size = 0.0, 0
    for text in texts:
        ids = session.tokenizer(text, add_special_tokens=False)["input_ids"][:length]
        if len(ids) > 1:
            logits = continuation_logits(session.target, ids[:1], ids[1:])
            nats += torch.nn.functional.cross_entropy(logits.cpu(), torch.tensor(ids[1:]), reduction="sum").item()
            size += len(session.tokenizer.decode(ids[1:]).encode())
    return nats / math.log(2) / size


def greedy_answers(session: Session, examples: Sequence[Example], length: int, new: int) -> Iterator[dict[str, Any]]:
    """Yields greedy continuations of real prompts, and if they loop."""
    for example in examples:
        fitted = fit(example, session.tokenizer, length)
        if fitted is not None:
            answer = session.generate(fitted.ids, new)
            yield {"suite": example.suite, "id": example.id, "loop": loops(answer.token_ids),
                   "prompt_end": session.tokenizer.decode(fitted.ids[-60:]), "text": answer.text}


def main(argv: Sequence[str] | None = None) -> None:
    """`python -m longgraft.eval.checks.quality --data DIR --held-out F.jsonl --out DIR`"""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of LongBench-schema rows")
    parser.add_argument("--held-out", type=Path, required=True, help="JSONL of {text, type}")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--suites", default="repobench-p,lcc,qmsum,gov_report")
    parser.add_argument("--lengths", default="2048,8192,32768")
    parser.add_argument("--prompts", type=int, default=5, help="per suite")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--model")
    options = parser.parse_args(argv)
    session = load(options.model, None, method=HEADLESS, tell=False)
    lengths = [int(n) for n in options.lengths.split(",")]
    report: dict[str, Any] = {"bits_per_byte": {}, "accuracy": {}, "greedy": []}
    texts: dict[str, list[str]] = {}
    for _, _, row in read_json_lines(options.held_out):
        texts.setdefault(row["type"], []).append(row["text"])
    report["bits_per_byte"] = {kind: round(bits_per_byte(session, some[:20]), 3) for kind, some in texts.items()}
    for suite in options.suites.split(","):
        examples = load_suite(suite, options.data)
        measured: list[dict[int, dict[str, float]]] = []
        for example in examples:
            if len(measured) < options.prompts:
                measured += filter(None, [accuracies(session, example, lengths, options.max_new_tokens)])
        report["accuracy"][suite] = {
            length: {name: f"{Mean.of([m[length][name] for m in measured]):.3f}"
                     for name in ("top1", "top10", "nats")} for length in lengths if measured}
        report["greedy"] += greedy_answers(session, examples[:options.prompts], lengths[0], options.max_new_tokens)
    report["loops"] = sum(g["loop"] for g in report["greedy"]) / max(1, len(report["greedy"]))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "quality.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({name: report[name] for name in ("bits_per_byte", "accuracy", "loops")}, indent=1))


if __name__ == "__main__":
    main()
