"""Records answers, the target's predictions around them and a drafter's proposals, which `longgraft estimate` replays.

    python -m benchmarks recorded answers answers.jsonl --data ROWS --rows RUN/per_prompt.jsonl.gz
    python -m benchmarks recorded rows smollm2 answers.jsonl --data ROWS --drafter auto

`answers` takes answers that other models gave, and those of a sweep; it needs a model's tokenizer and no weights.

`rows` decodes greedily.  At each token of an answer the target reads a tree of what text and earlier predictions make
probable, and reports its next tokens at every node, also at those that the answer does not follow.  So a replay knows
most of the rejected nodes of most methods, whichever steps they make.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Optional

import torch
import typer
from torch import Tensor

import longgraft
from benchmarks.lists import listed, numbers
from benchmarks.options import Data
from longgraft.acceptance.sampling import Sampling
from longgraft.budget.node_ranking import POOL
from longgraft.engine.session import Session
from longgraft.engine.session import answer as replayed
from longgraft.eval.prompts.buckets import WHOLE, as_it_is, fit, plan
from longgraft.eval.prompts.suites import Example, load_suite
from longgraft.eval.replay.recorded_answer import RecordedAnswer
from longgraft.eval.replay.recorded_drafts import RecordedDrafts
from longgraft.eval.replay.recorded_rows import RecordedRows, Row, places
from longgraft.files.json_lines import read_json_lines
from longgraft.memories.partial_matching import PartialMatching
from longgraft.prefill.chunked import last_occurrences
from longgraft.protocol.observation import Observation
from longgraft.protocol.proposer import Ask, Proposer
from longgraft.target_model.passes import Segment
from longgraft.trees.padded import on_host
from longgraft.trees.tree import ProposalTree

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
LONG_SUITES = ("lcc", "repobench-p", "gov_report", "multi_news", "qmsum")
QUESTIONS = "questions"  # the group of prompts that are not cut
MOST = 200  # tokens of another model's answer that are kept; a benchmark asks for 64 to 512
LONGEST = 16384  # tokens of a prompt
CHUNK = 512  # tokens of a prompt that are read at once
DRAFTED = POOL * 59 + 1  # nodes of a recorded draft: as many as a tree of 60 nodes ranks


@app.command()
def answers(
    out: Path,
    data: Data,
    rows: Annotated[
        Optional[list[Path]],  # noqa: UP045
        typer.Option(help="Rows of sweeps of this model; repeatable."),
    ] = None,
    model: Annotated[str, typer.Option(help="The model whose tokenizer is used.")] = "qwen2.5-coder-0.5b",
    lengths: str = "4096,16384",
    prompts: int = 16,
) -> None:
    """Write recorded answers in the tokens of a model."""
    from transformers import AutoTokenizer

    from longgraft.models.files import files_of

    tokenizer = AutoTokenizer.from_pretrained(files_of(model).path)
    found = list(of_other_models(data, tokenizer, numbers(lengths), prompts))
    for path in rows or []:
        found += of_result_rows(path, data, tokenizer, model)
    distinct = list({(one.suite, one.id): one for one in found}.values())
    RecordedAnswer.save(distinct, out)
    print(f"{out}: {len(distinct)} answers of {len({one.suite for one in distinct})} suites")


def of_other_models(data: Path, tokenizer: Any, lengths: Sequence[int], prompts: int) -> Iterator[RecordedAnswer]:
    """Yields the recorded continuations of long rows."""
    for suite in LONG_SUITES:
        examples = [example for example in load_suite(suite, data) if example.recording]
        for length, fitted in plan(examples, tokenizer, lengths, prompts).items():
            for one in fitted:
                ids = tokenizer(one.example.recording, add_special_tokens=False)["input_ids"]
                yield RecordedAnswer(f"{suite}, {length // 1024}K", one.example.id, one.ids, tuple(ids[:MOST]))


def of_result_rows(rows: Path, data: Path, tokenizer: Any, name: str) -> Iterator[RecordedAnswer]:
    """Yields the answers of plain greedy decoding in a sweep's rows; name: the model's, for the suites' names."""
    suites: dict[str, dict[str, Example]] = {}
    for line in read_json_lines(rows):
        row = line.value
        plain = (row["method"], row["mode"], row["repeat"]) == ("ar", "greedy", 0)
        bucket = row["bucket"]
        if not plain or bucket > LONGEST:
            continue
        suite = row["suite"]
        if suite not in suites:
            suites[suite] = {example.id: example for example in load_suite(suite, data)}
        example = suites[suite].get(row["prompt_id"])
        if example is None:  # a later turn, whose prompt contains earlier answers
            continue
        fitted = as_it_is(example, tokenizer) if bucket == WHOLE else fit(example, tokenizer, bucket)
        if fitted is not None and len(fitted.ids) == row["prompt_tokens"]:
            # Lengths are apart: the same row has about the same answer at each.
            group = QUESTIONS if bucket == WHOLE else f"{suite}, {bucket // 1024}K"
            identity = f"{suite} {example.id} {bucket}"
            yield RecordedAnswer(f"{group} ({name})", identity, fitted.ids, tuple(row["token_ids"]))


@app.command()
def rows(
    model: str,
    out: Path,
    data: Data,
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
    made = []
    for suite in listed(suites):
        fitted = [fit(example, session.tokenizer, length) for example in load_suite(suite, data)]
        for one in [one for one in fitted if one][:prompts]:
            answer, predicted = recorded_rows(session, one.ids, new, nodes)
            own = RecordedAnswer(f"{suite} ({model})", one.example.id, one.ids, tuple(answer))
            _save(predicted, own.beside(out, "rows"))
            if drafting is not None:
                _save(recorded_drafts(drafting, one.ids, answer), own.beside(out, "drafts"))
            made.append(own)
            print(f"{own.suite} {own.id}: {len(answer)} tokens, {len(predicted.rows)} rows")
            RecordedAnswer.save(made, out)


def _save(found: RecordedRows | RecordedDrafts, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    found.save(path)


@torch.inference_mode()
def recorded_rows(session: Session, prompt: Sequence[int], new: int, nodes: int) -> tuple[list[int], RecordedRows]:
    """Returns the target's greedy answer and what it predicted in a tree of `nodes` nodes below each of its tokens."""
    reader = _Reader(session, prompt, new + nodes)
    reader.read_prompt()
    while len(reader.answer) < new and reader.answer[-1] not in session.eos:
        reader.decode(nodes)
    return reader.answer, RecordedRows({key: row for key, row in reader.rows.items() if not reader.goes_on(key)})


class _Reader:
    """Decodes greedily, one token a pass, and keeps what the target predicts at each node of the pass's tree.

    Attributes:
        answer: The tokens so far.
        rows: Position and path of a node -> the target's next tokens there, and their probabilities.
    """

    def __init__(self, session: Session, prompt: Sequence[int], room: int) -> None:
        self.target = session.target
        self.prompt = prompt
        self.memory = PartialMatching(rows=True)
        self.cache = self.target.cache(len(prompt) + room)
        self.answer: list[int] = []
        self.rows: dict[tuple[int, tuple[int, ...]], Row] = {}

    def read_prompt(self) -> None:
        """Reads the prompt in chunks, and draws the first token."""
        last = last_occurrences(torch.tensor(self.prompt))
        last[-1] = True
        for begin in range(0, len(self.prompt), CHUNK):
            chunk = torch.tensor(self.prompt[begin : begin + CHUNK])
            ranked = last[begin : begin + CHUNK].nonzero().flatten()
            self._run(ProposalTree.chain(chunk), torch.arange(len(chunk)), ranked)

    def decode(self, nodes: int) -> None:
        """Draws one more token in a pass over a tree of this many nodes."""
        tree = ProposalTree.ranked(self.answer[-1], self.memory.known().rank([0.0] * nodes))
        self._run(tree, torch.zeros(1, dtype=torch.int64), None)

    def _run(self, tree: ProposalTree, path: Tensor, ranked: Tensor | None) -> None:
        """Runs a pass, keeps its path and its rows, and adds the next token to the answer if the prompt is read."""
        begin = self.cache.length
        (report,) = self.target.run([Segment(tree, self.cache, "all", ranked)], self.memory.wants)
        self.cache.keep(path)
        assert report.topk is not None and report.topk_probabilities is not None
        prompting = ranked is not None
        keys = places(tree, begin, tree.tokens[1:].tolist() if prompting else ())
        nodes = range(len(tree)) if ranked is None else ranked.tolist()
        found = zip(report.topk.numpy(), report.topk_probabilities.half().numpy(), strict=True)
        for node, row in zip(nodes, found, strict=True):
            self.rows[keys[node]] = row
        if self.cache.length < len(self.prompt):
            following = self.prompt[self.cache.length]
        else:
            last_kept = -1 if prompting else 0
            following = int(report.topk[last_kept, 0])
            self.answer.append(following)
        self.memory.observe(
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

    def goes_on(self, key: tuple[int, tuple[int, ...]]) -> bool:
        """True for a node whose path goes on as the answer does: the next token's own tree has it."""
        position, path = key
        following = position - len(self.prompt) + 1
        return bool(path) and self.answer[following : following + 1] == [path[0]]


class _Recorder:
    """Records a drafter's trees and proposes nothing, so that each step decodes one token."""

    def __init__(self, drafter: Proposer) -> None:
        self.drafter = drafter
        self.memories = drafter.memories
        self.found = RecordedDrafts()

    def propose(self, ask: Ask) -> ProposalTree:
        self.found.drafts[ask.position] = on_host(self.drafter.propose(replace(ask, budget=DRAFTED)))
        return ProposalTree.root_only(ask.root)


def recorded_drafts(session: Session, prompt: Sequence[int], answer: Sequence[int]) -> RecordedDrafts:
    """Returns what the session's drafter proposes after each token of an answer but the last."""
    (lane,) = session.engine.lanes
    recorder = _Recorder(lane.proposer)
    lane.proposer = recorder
    try:
        replayed(session.open(list(prompt), len(answer), Sampling(replay=tuple(answer)), eos=()), progress=False)
    finally:
        lane.proposer = recorder.drafter
    return recorder.found
