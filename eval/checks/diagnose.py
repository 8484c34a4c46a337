"""Diagnoses the drafters of a target over suites and prompt lengths; `chains` explains what is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from longgraft.config.method_roles import PLAIN
from longgraft.config.settings import Pair, Settings
from longgraft.engine.session import Session
from longgraft.eval.checks.chains import Depth, chains, summed
from longgraft.eval.prompts.buckets import Fitted, plan
from longgraft.eval.prompts.example import Example
from longgraft.eval.prompts.suites import load_suite
from longgraft.eval.runs.config import Diagnosis
from longgraft.loading import assemble
from longgraft.methods.assembly import Loaded
from longgraft.methods.needs import HEAD, Need, Sources
from longgraft.zoo.longspec.methods import LONGSPEC

KINDS: tuple[Need, ...] = (HEAD, LONGSPEC)  # kinds of drafters that `chains` can follow


def diagnose(pair: Pair, options: Diagnosis) -> tuple[Session, list[Depth]]:
    """Returns the target's session, and the depths by drafter, suite, length and condition.

    Raises:
        ValueError: a suite is unknown or has nothing to follow, or no prompt is long enough.
    """
    suites = {suite: _examples(suite, options) for suite in options.suites}  # errors come before a load
    settings = Settings(method=PLAIN, device=options.device, dtype=options.dtype)
    loaded = assemble(pair.model, None, settings)
    session = loaded.session()
    drafters = _drafters(loaded, pair, options)
    depths = list[Depth]()
    for suite, examples in suites.items():
        for length, prompts in plan(examples, loaded.tokenizer, options.lengths, options.prompts).items():
            texts = []
            for fitted in prompts:
                text = _text_ids(session, fitted, options)
                if len(text) > options.depth:
                    texts.append((len(fitted.ids), [*fitted.ids, *text]))
            for name, network in drafters.items():
                right = [chains(loaded.target, network, ids, start, options.depth) for start, ids in texts]
                depths += summed(right, name, suite, length)
    if not depths:
        raise ValueError(
            f"No prompt of {', '.join(options.suites)} is long enough for the shortest length, with more "
            f"than {options.depth} tokens to follow. Give shorter --buckets, or a smaller --depth."
        )
    return session, depths


def _examples(suite: str, options: Diagnosis) -> Sequence[Example]:
    data = None
    if options.data is not None:
        data = Path(options.data)
    examples = load_suite(suite, data, [Path(path) for path in options.recorded])
    if options.text == "greedy":
        return examples
    recorded = [example for example in examples if example.recording]
    if not recorded:
        raise ValueError(f"No row of {suite} has a recorded continuation. Give --recorded FILE, or --text greedy.")
    return recorded


def _text_ids(session: Session, fitted: Fitted, options: Diagnosis) -> Sequence[int]:
    """Returns the ids that follow a prompt."""
    if options.text == "greedy":
        return session.generate(list(fitted.ids), options.max_new_tokens, progress=False).token_ids
    recorded = session.tokenizer(fitted.example.recording, add_special_tokens=False)["input_ids"]
    return recorded[: options.max_new_tokens]


def _drafters(loaded: Loaded, pair: Pair, options: Diagnosis) -> Mapping[str, object]:
    """Returns the networks by name: the pair's head, further heads, and other drafters that were given."""
    sources = Sources(loaded.target, pair.drafter, given=options.given)
    drafters: dict[str, object] = {}
    if pair.drafter is not None:
        drafters["drafter"] = HEAD.load(sources)
    for need in KINDS:
        if need.name in options.given:
            drafters[need.name] = need.load(sources)
    for name, path in options.heads.items():
        drafters[name] = HEAD.load(replace(sources, drafter=path))
    if not drafters:
        raise ValueError(f"No drafter was given. Give --drafter, --head NAME=PATH or --with {LONGSPEC.name}=PATH.")
    return drafters
