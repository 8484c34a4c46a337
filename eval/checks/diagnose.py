"""Diagnoses the drafters of a target over suites and prompt lengths; `chains` explains what is measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from longgraft.config.method_roles import PLAIN
from longgraft.config.settings import Pair, Settings
from longgraft.engine.session import Session
from longgraft.eval.checks.chains import Depth, chains, summed
from longgraft.eval.prompts.buckets import Fitted, plan
from longgraft.eval.prompts.suites import Example, load_suite
from longgraft.eval.runs.config import Diagnosis
from longgraft.loading import assemble
from longgraft.methods.assembly import Loaded
from longgraft.methods.needs import HEAD, Need, Sources
from longgraft.zoo.longspec.methods import LONGSPEC

KINDS: tuple[Need, ...] = (HEAD, LONGSPEC)      # kinds of drafters that `chains` can follow


def diagnose(pair: Pair, asked: Diagnosis) -> tuple[Session, list[Depth]]:
    """Returns the target's session, and the depths by drafter, suite, length and condition.

    Raises:
        ValueError: a suite is unknown or has nothing to follow, or no prompt is long enough.
    """
    suites = {suite: _examples(suite, asked) for suite in asked.suites}     # errors come before a load
    loaded = assemble(pair.model, None, Settings(method=PLAIN, device=asked.device, dtype=asked.dtype))
    session, drafters = loaded.session(), _drafters(loaded, pair, asked)
    found = list[Depth]()
    for suite, examples in suites.items():
        for length, prompts in plan(examples, loaded.tokenizer, asked.lengths, asked.prompts).items():
            texts = [(fitted.ids, _text_ids(session, fitted, asked)) for fitted in prompts]
            texts = [(ids, text) for ids, text in texts if len(text) > asked.depth]
            for name, network in drafters.items():
                right = [chains(loaded.target, network, [*ids, *text], len(ids), asked.depth) for ids, text in texts]
                found += summed(right, name, suite, length)
    if not found:
        raise ValueError(f"No prompt of {', '.join(asked.suites)} is long enough for the shortest length, with more "
                         f"than {asked.depth} tokens to follow. Give shorter --buckets, or a smaller --depth.")
    return session, found


def _examples(suite: str, asked: Diagnosis) -> Sequence[Example]:
    data = None if asked.data is None else Path(asked.data)
    examples = load_suite(suite, data, [Path(path) for path in asked.recorded])
    if asked.text == "recorded" and not (examples := [example for example in examples if example.recording]):
        raise ValueError(f"No row of {suite} has a recorded continuation. Give --recorded FILE, or --text greedy.")
    return examples


def _text_ids(session: Session, fitted: Fitted, asked: Diagnosis) -> Sequence[int]:
    """Returns the ids that follow a prompt."""
    if asked.text == "greedy":
        return session.generate(list(fitted.ids), asked.max_new_tokens, progress=False).token_ids
    recorded = session.tokenizer(fitted.example.recording, add_special_tokens=False)["input_ids"]
    return recorded[:asked.max_new_tokens]


def _drafters(loaded: Loaded, pair: Pair, asked: Diagnosis) -> Mapping[str, object]:
    """Returns the networks by name: the pair's head, further heads, and other drafters that were given."""
    sources = Sources(loaded.target, pair.drafter, given=asked.given)
    found: dict[str, object] = dict(_given(sources))
    for name, path in asked.heads.items():
        found[name] = HEAD.load(replace(sources, drafter=path))
    if not found:
        raise ValueError(f"No drafter was given. Give --drafter, --head NAME=PATH or --with {LONGSPEC.name}=PATH.")
    return found


def _given(sources: Sources) -> Iterator[tuple[str, object]]:
    if sources.drafter is not None:
        yield "drafter", HEAD.load(sources)
    for need in KINDS:
        if need.name in sources.given:
            yield need.name, need.load(sources)
