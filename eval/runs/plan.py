"""Plans a sweep: reads suites and cuts prompts, for which only the target's tokenizer and configuration are needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longgraft.engine.session import Session
from longgraft.eval.prompts.buckets import plan, whole
from longgraft.eval.prompts.suites import Example, load_suite, suite_name
from longgraft.eval.runs.config import SweepConfig
from longgraft.eval.runs.jobs import Plan
from longgraft.eval.scores import score
from longgraft.models.files import files_of
from longgraft.target_model.model import UNBOUNDED
from longgraft.target_model.positions import most_positions

Suites = Mapping[str, Sequence[Example]]


@dataclass(frozen=True)
class Reader:
    """Cuts prompts for a target."""

    name: str
    tokenizer: Any
    max_positions: int

    @classmethod
    def open(cls, model: str | None) -> Reader:
        """Opens a hub id or folder, None for the embedded model; raises ValueError if it cannot be read or decoded."""
        files = files_of(model)
        config = files.config
        return cls(files.name, files.tokenizer, most_positions(config) or UNBOUNDED)

    @classmethod
    def of(cls, session: Session) -> Reader:
        return cls(session.target.name, session.tokenizer, session.target.max_positions)


def check_plan(config: SweepConfig) -> Suites:
    """Reads all prompts of every suite, before a model is loaded.

    Raises:
        ValueError: a suite is unknown, broken or has nothing to replay.
        ImportError: a package for its scores is missing.
    """
    data = None
    if config.data is not None:
        data = Path(config.data)
    read = {}
    for suite in config.suites:
        examples = load_suite(suite, data, [Path(path) for path in config.recorded])
        if "replay" in config.modes:
            examples = [example for example in examples if example.recording]
            if not examples:
                raise ValueError(
                    f"No row of {suite} has a recorded continuation to replay, the default mode. Give "
                    "--mode greedy for the model's own answers, or --recorded FILE."
                )
        if config.modes != ("replay",):
            score(suite_name(suite), "", ("",))  # raises now if a package is missing
        read[suite] = examples
    return read


def planned(config: SweepConfig, suites: Suites, reader: Reader) -> Plan:
    """Returns suite -> length -> prompts, cut to length or uncut, with room for an answer.

    Raises:
        ValueError: no prompt is long enough, or a length is beyond the target's positions.
    """
    if config.lengths and max(config.lengths) > reader.max_positions:
        raise ValueError(
            f"Prompts of {max(config.lengths):,} tokens were asked for, and {reader.name} has "
            f"{reader.max_positions:,} positions. Give shorter --buckets."
        )
    most = reader.max_positions - config.max_new_tokens
    plans = {}
    for suite, examples in suites.items():
        if config.lengths:
            plans[suite] = plan(examples, reader.tokenizer, config.lengths, config.prompts, most)
        else:
            plans[suite] = whole(examples, reader.tokenizer, config.prompts)
    if not any(prompts for by_length in plans.values() for prompts in by_length.values()):
        raise ValueError(_no_prompt(config, suites))
    return plans


def _no_prompt(config: SweepConfig, suites: Suites) -> str:
    """Returns what to do if no prompt represents one of the lengths."""
    wanted = ", ".join(f"{length:,}" for length in config.lengths)
    fixed = {example.fixed_length for examples in suites.values() for example in examples}
    lengths = sorted(length for length in fixed if length is not None)
    if lengths:
        existing = " and ".join(f"{length:,}" for length in lengths)
        flag = ",".join(f"{length // 1024}k" for length in lengths)
        return (
            f"The prompts of {', '.join(config.suites)} have {existing} tokens, and none fits a bucket of {wanted} "
            f"tokens and the target's positions. Give --buckets {flag}."
        )
    return f"No prompt of {', '.join(config.suites)} is long enough for {wanted} tokens. Give shorter --buckets."
