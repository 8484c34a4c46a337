"""Acceptance of several methods on real rows, from one shared prefill: the tables of docs/results.

Knows sessions, methods and rows.  A first measurement; timing here is one run each on whatever else the machine does.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from longgraft.acceptance import Greedy
from longgraft.adjacency import AdjacencyMatrix
from longgraft.drafters.eagle3 import Eagle3Drafter
from longgraft.eval.loops import loops
from longgraft.eval.rows import Row, read_suite
from longgraft.eval.statistics import bootstrap
from longgraft.loading import load
from longgraft.methods import METHODS, Parts, build
from longgraft.observation import Clock, Proposer, PruningPolicy
from longgraft.prefill.chunked import prefill
from longgraft.session import Sampling, Session, Stats, decode
from longgraft.verifier import Verifier
from longgraft.yarn_drafters.checkpoint import load_head
from longgraft.yarn_drafters.layouts import HeadOverrides, TargetShape

METHODS_SHOWN = ("ar", "eagle3", "graft", "graft-root", "graft-tail", "graft-no-retrieval", "graft-no-prune")


@dataclass(frozen=True)
class Variant:
    """A method with one of the heads, written `method` or `method@head`."""

    name: str
    method: str
    head: str

    @classmethod
    def parse(cls, name: str) -> Variant:
        method, _, head = name.partition("@")
        return cls(name, method, head)


@dataclass
class _Prefilled(Parts):
    """Parts that have seen the prompt already: each method starts from the same drafter caches and the same rows.

    seen: drafters by their window; rows: of the matrix.
    """

    seen: dict[int | None, Eagle3Drafter] = field(default_factory=dict)
    rows: torch.Tensor | None = None

    def drafter(self, policy: PruningPolicy, window: int | None = None) -> Eagle3Drafter:
        made = super().drafter(policy, window)
        if made.window in self.seen:
            made.cache = self.seen[made.window].cache
        else:
            self.seen[made.window] = made       # asked for before the prompt: it is about to see it
        return made

    def matrix(self) -> AdjacencyMatrix:
        made = super().matrix()
        made.restore(self.rows)
        return made


def measure(session: Session, heads: dict[str, Parts], ids: Sequence[int], variants: Sequence[Variant],
            modes: dict[str, Sampling], new: int) -> Iterator[dict[str, Any]]:
    """One prompt: prefilled once, then decoded by every method in every mode from that state."""
    target, clock = session.target, Clock()
    capacity = len(ids) + new + max(METHODS[v.method].budget for v in variants)
    prefilled = {name: _Prefilled(**vars(parts)) for name, parts in heads.items()}
    for variant in variants:
        build(variant.method, prefilled[variant.head])      # registers the drafters that will be needed
    retriever = next(iter(prefilled.values())).retriever()
    drafters = [drafter for parts in prefilled.values() for drafter in parts.seen.values()]
    observers: list[Proposer] = [*drafters, retriever]
    for observer in observers:
        observer.reset(capacity)
    cache = target.cache(capacity)
    prefill(target, cache, torch.tensor(ids), observers, Greedy(), clock)
    rows = retriever.matrix.snapshot()
    for mode, sampling in modes.items():
        rule = sampling.rule(len(ids))
        limit = min(new, len(sampling.replay)) if sampling.replay is not None else new
        for variant in variants:
            # The last prompt token is fed again: the pair that a drafter holds for it depends on the drawn root.
            cache.crop(len(ids) - 1)
            for drafter in drafters:
                drafter.cache.crop(len(ids) - 1)
            parts = prefilled[variant.head]
            parts.clock, parts.rows = Clock(), rows
            made = build(variant.method, parts)
            root = prefill(target, cache, torch.tensor(ids[-1:]), [made], rule, parts.clock)
            parts.clock.seconds.clear()
            stats = Stats(prompt_tokens=len(ids))
            verifier = Verifier(target, cache, rule, parts.clock)
            steps = decode(verifier, made, root, limit, METHODS[variant.method].budget, stats)
            with parts.clock.part("host"):
                tokens = [t for step in steps for t in step]
            seconds = parts.clock.seconds
            stats.decode_seconds, stats.seconds_by_part = sum(seconds.values()), dict(seconds)
            yield {"mode": mode, "method": variant.name, "loop": loops(tokens), "token_ids": tokens, **stats.as_dict()}


def sweep(session: Session, heads: dict[str, Parts], suites: dict[str, list[Row]], lengths: Sequence[int],
          options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All rows: suites x prompts x lengths x modes x methods; a prompt that is too short for one length is left out
    of all, so that every length has the same prompts."""
    from tqdm import tqdm

    variants = [Variant.parse(name) for name in options.methods.split(",")]
    for suite, rows in suites.items():
        taken = 0
        for row in tqdm(rows, desc=suite, unit="row", disable=not sys.stderr.isatty()):
            if not row.continuation or taken == options.prompts or row.fit(session.encode, max(lengths)) is None:
                continue
            taken += 1
            recording = session.tokenizer(row.continuation, add_special_tokens=False)["input_ids"]
            modes = {"replay": Sampling(replay=tuple(recording[:options.max_new_tokens])),
                     "sampled": Sampling(temperature=1.0, seed=taken), "greedy": Sampling()}
            modes = {mode: modes[mode] for mode in options.modes.split(",")}
            for length in lengths:
                ids = row.fit(session.encode, length)
                assert ids is not None
                for figures in measure(session, heads, ids, variants, modes, options.max_new_tokens):
                    yield {"suite": suite, "length": length, "prompt_id": row.id, **figures}


def curves(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown: per mode, MAT by length of every method, mean over all suites' prompts and its 95 % interval."""
    out = []
    lengths = sorted({row["length"] for row in rows})
    for mode in dict.fromkeys(row["mode"] for row in rows):
        names = " | ".join(f"{n // 1024}K" for n in lengths)
        out += [f"\n### MAT by prompt length, {mode}\n", f"| suite | method | {names} |",
                "|---|---|" + "---|" * len(lengths)]
        here = [row for row in rows if row["mode"] == mode]
        for suite in (*dict.fromkeys(row["suite"] for row in here), "all"):
            for method in dict.fromkeys(row["method"] for row in here):
                cells = []
                for length in lengths:
                    mats = [row["mat"] for row in here if row["method"] == method and row["length"] == length
                            and suite in (row["suite"], "all")]
                    cells.append("{:.2f} ({:.2f}-{:.2f})".format(*bootstrap(mats)) if mats else "-")
                out.append(f"| {suite} | {method} | " + " | ".join(cells) + " |")
    return "\n".join(out) + "\n"


def tables(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown: per mode a table of suite x length x method."""
    out = []
    for mode in dict.fromkeys(row["mode"] for row in rows):
        out += [f"\n### {mode}\n",
                "| suite | prompt | method | prompts (loops) | MAT | tokens per step | accepted: draft / retrieved / "
                "both | stages | ms per step: draft, retrieve + merge + update, verify, rest |",
                "|---|---|---|---|---|---|---|---|---|"]
        here = [row for row in rows if row["mode"] == mode]
        for key in dict.fromkeys((row["suite"], row["length"], row["method"]) for row in here):
            out.append(_line(key, [row for row in here if (row["suite"], row["length"], row["method"]) == key]))
    return "\n".join(out) + "\n"


def _line(key: tuple[str, int, str], rows: Sequence[dict[str, Any]]) -> str:
    steps = sum(row["steps"] for row in rows)
    mat = sum(sum(row["accepted_per_step"]) for row in rows) / max(1, steps)
    origin, stages, parts = Counter[str](), Counter[str](), Counter[str]()
    for row in rows:
        origin.update(row["accepted_by_origin"])
        stages.update(row["stages"])
        parts.update(row["seconds_by_part"])
    ms = {name: 1e3 * seconds / max(1, steps) for name, seconds in parts.items()}
    cheap = sum(ms.get(name, 0.0) for name in ("retrieve", "merge", "update"))
    rest = sum(ms.values()) - cheap - ms.get("draft", 0.0) - ms.get("verify", 0.0)
    shares = ", ".join(f"{name} {100 * n / sum(stages.values()):.0f} %" for name, n in sorted(stages.items()))
    looping = sum(row["loop"] for row in rows)
    return (f"| {key[0]} | {key[1] // 1024}K | {key[2]} | {len(rows)} ({looping}) | {mat:.2f} | {mat + 1:.2f} | "
            f"{origin['draft']} / {origin['retrieved']} / {origin['both']} | {shares} | "
            f"{ms.get('draft', 0.0):.1f}, {cheap:.1f}, {ms.get('verify', 0.0):.1f}, {rest:.1f} |")


def provenance(session: Session) -> dict[str, str]:
    """What a result needs to be believed."""
    import transformers

    try:
        sha = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        sha = "unknown"
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU ({platform.machine()})"
    return {"git": sha, "torch": torch.__version__, "transformers": transformers.__version__, "device": device,
            "threads": str(torch.get_num_threads()), "target": session.target.name,
            "dtype": str(session.target.dtype)[6:], "attention": session.target.attention}


def main(argv: Sequence[str] | None = None) -> None:
    """`python -m longgraft.eval.acceptance --data DIR --out DIR`"""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of LongBench-schema rows")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--suites", default="repobench-p,lcc,qmsum")
    parser.add_argument("--lengths", default="4096,16384", help="prompt tokens")
    parser.add_argument("--methods", default=",".join(METHODS_SHOWN))
    parser.add_argument("--modes", default="replay,sampled,greedy")
    parser.add_argument("--prompts", type=int, default=3, help="per suite and length")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--model")
    parser.add_argument("--drafter", default="auto", help="of methods without @head")
    parser.add_argument("--head", action="append", default=[], metavar="NAME=PATH", help="for methods written m@NAME")
    parser.add_argument("--calibration", default="auto")
    options = parser.parse_args(argv)
    calibration = None if options.calibration == "none" else options.calibration
    session = load(options.model, options.drafter, calibration=calibration)
    heads = {"": session.parts}
    for name, path in (head.split("=", 1) for head in options.head):
        # Longer prompts than a head was made for are the question here, not a mistake.
        shape = TargetShape.of(session.target.model.config)
        network = load_head(path, shape, HeadOverrides(max_positions=session.target.max_positions))
        network.share_embedding(session.target.model.get_input_embeddings())
        heads[name] = replace(session.parts, network=network)
    rows = []
    options.out.mkdir(parents=True, exist_ok=True)
    with open(options.out / "per_prompt.jsonl", "w", encoding="utf-8") as raw:
        suites = {suite: read_suite(options.data, suite) for suite in options.suites.split(",")}
        for row in sweep(session, heads, suites, [int(n) for n in options.lengths.split(",")], options):
            raw.write(json.dumps(row) + "\n")
            raw.flush()
            rows.append(row)
    about = provenance(session) | {"argv": " ".join(sys.argv[1:] if argv is None else argv)}
    (options.out / "environment.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    (options.out / "summary.md").write_text(curves(rows) + tables(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
