"""Records the predictions of a target around a greedy answer, which `longgraft estimate` replays.

    python -m benchmarks.recorded_rows smollm2 answers.jsonl --data ROWS [--drafter auto]

At each token of an answer the target reads a tree of what text and earlier predictions make probable, and reports its
next tokens at every node, also at those that the answer does not follow.  So a replay knows most of the rejected nodes
of most methods, whichever steps they make.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer

import longgraft
from benchmarks.recorded_answers import LONG_SUITES
from benchmarks.recorded_drafts import recorded_drafts
from longgraft.engine.session import Session
from longgraft.eval.prompts.buckets import fit
from longgraft.eval.prompts.suites import load_suite
from longgraft.eval.replay.recorded_answer import RecordedAnswer
from longgraft.eval.replay.recorded_drafts import RecordedDrafts
from longgraft.eval.replay.recorded_rows import RecordedRows, Row, places
from longgraft.memories.partial_matching import PartialMatching
from longgraft.prefill.chunked import last_occurrences
from longgraft.protocol.observation import Observation
from longgraft.target_model.passes import Segment
from longgraft.trees.tree import ProposalTree

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
CHUNK = 512  # tokens of a prompt that are read at once


@torch.inference_mode()
def recorded(session: Session, prompt: Sequence[int], new: int, nodes: int) -> tuple[list[int], RecordedRows]:
    """Returns the target's greedy answer and what it predicted in a tree of `nodes` nodes below each of its tokens."""
    target = session.target
    memory = PartialMatching(rows=True)
    cache = target.cache(len(prompt) + new + nodes)
    rows: dict[tuple[int, tuple[int, ...]], Row] = {}
    last = last_occurrences(torch.tensor(prompt))
    last[-1] = True
    answer: list[int] = []

    def read(tree: ProposalTree, path: torch.Tensor, ranked: torch.Tensor | None) -> None:
        """Runs a pass, keeps its path and its rows, and adds the next token to the answer if the prompt is read."""
        begin = cache.length
        (report,) = target.run([Segment(tree, cache, "all", ranked)], memory.wants)
        cache.keep(path)
        assert report.topk is not None and report.topk_probabilities is not None
        prompting = ranked is not None
        keys = places(tree, begin, tree.tokens[1:].tolist() if prompting else ())
        for place, ids, probabilities in zip(
            range(len(tree)) if ranked is None else ranked.tolist(),
            report.topk.numpy(),
            report.topk_probabilities.half().numpy(),
            strict=True,
        ):
            rows[keys[place]] = ids, probabilities
        if cache.length < len(prompt):
            following = prompt[cache.length]
        else:
            last_kept = -1 if prompting else 0
            following = int(report.topk[last_kept, 0])
            answer.append(following)
        memory.observe(
            Observation(
                tree,
                path,
                following,
                report.topk,
                prompt=prompting,
                ranked=ranked,
                topk_probabilities=report.topk_probabilities,
            )
        )

    for begin in range(0, len(prompt), CHUNK):
        chunk = torch.tensor(prompt[begin : begin + CHUNK])
        read(ProposalTree.chain(chunk), torch.arange(len(chunk)), last[begin : begin + CHUNK].nonzero().flatten())
    while len(answer) < new and answer[-1] not in session.eos:
        tree = ProposalTree.ranked(answer[-1], memory.known().rank([0.0] * nodes))
        read(tree, torch.zeros(1, dtype=torch.int64), None)
    return answer, RecordedRows({key: row for key, row in rows.items() if not _goes_on(key, len(prompt), answer)})


def _goes_on(key: tuple[int, tuple[int, ...]], prompt: int, answer: Sequence[int]) -> bool:
    """True for a node whose path goes on as the answer does: the next token's own tree has it."""
    position, path = key
    return bool(path) and answer[position - prompt + 1 : position - prompt + 2] == [path[0]]


@app.command()
def main(
    model: str,
    out: Path,
    data: Annotated[Path, typer.Option(help="Folder of the suites' rows.")],
    suites: str = ",".join(LONG_SUITES),
    length: int = 2048,
    prompts: int = 4,
    new: int = 96,
    nodes: Annotated[int, typer.Option(help="Nodes of the tree below each token.")] = 84,
    drafter: Annotated[str, typer.Option(help="EAGLE-3 head whose drafts are recorded; auto: the model's.")] = "",
) -> None:
    """Record greedy answers, and beside OUT folders of what the target predicted around them, and of drafts."""
    session = longgraft.load(model, None, method="ar", tell=False)
    drafting = longgraft.load(model, drafter, method="eagle3", tell=False) if drafter else None
    answers = []
    for suite in suites.split(","):
        fitted = [one for one in (fit(e, session.tokenizer, length) for e in load_suite(suite, data)) if one]
        for one in fitted[:prompts]:
            answer, rows = recorded(session, one.ids, new, nodes)
            own = RecordedAnswer(f"{suite} ({model})", one.example.id, one.ids, tuple(answer))
            kept: dict[str, RecordedRows | RecordedDrafts] = {"rows": rows}
            if drafting is not None:
                kept["drafts"] = recorded_drafts(drafting, one.ids, answer)
            for kind, found in kept.items():
                own.beside(out, kind).parent.mkdir(exist_ok=True)
                found.save(own.beside(out, kind))
            answers.append(own)
            print(f"{own.suite} {own.id}: {len(answer)} tokens, {len(rows.rows)} rows")
            RecordedAnswer.save(answers, out)


if __name__ == "__main__":
    app()
