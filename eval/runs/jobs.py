"""Jobs: one prompt each, with its later turns, and the rows that are still missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from longgraft.eval.prompts.buckets import Fitted
from longgraft.eval.runs.config import SweepConfig
from longgraft.eval.runs.rows import Done, Failure, Key

Plan = Mapping[str, Mapping[int, list[Fitted]]]  # suite -> length -> prompts


@dataclass
class Job:
    """One prompt of a suite and length, with its later turns."""

    suite: str
    length: int  # the bucket, in tokens; 0 for uncut prompts
    fitted: Fitted
    done: Done = field(default_factory=dict)  # rows that exist already
    attempts: int = 0  # workers that it has killed

    def key(self, fitted: Fitted, mode: str, method: str, repeat: int) -> Key:
        """Returns the key of a row of this job; fitted: its turn."""
        return Key(self.suite, self.length, fitted.example.id, mode, method, repeat)


def jobs_of(config: SweepConfig, plan: Plan, done: Done) -> list[Job]:
    """Returns the jobs that are left.

    Every suite and length gets its first prompt, then its second, and so on, so that a run that is cut short is
    balanced.
    """
    jobs = []
    for index in range(config.prompts):
        for suite, by_length in plan.items():
            for length, prompts in by_length.items():
                if index < len(prompts):
                    job = _job(suite, length, prompts[index], done)
                    if count_missing(config, job):
                        jobs.append(job)
    return jobs


def _job(suite: str, length: int, fitted: Fitted, done: Done) -> Job:
    turn_ids = fitted.example.turn_ids
    job = Job(suite, length, fitted)
    for key, ids in done.items():
        if (key.suite, key.bucket) == (suite, length) and key.prompt_id in turn_ids:
            job.done[key] = ids
    return job


def turns_of(config: SweepConfig, fitted: Fitted) -> list[Fitted]:
    """Returns a prompt and, if prompts are uncut, its later turns, whose earlier answers are not known yet."""
    if config.lengths:
        return [fitted]
    return [replace(fitted, example=turn) for turn in fitted.example.turns()]


def missing(config: SweepConfig, job: Job, fitted: Fitted) -> set[Key]:
    """Returns the rows of a job, in this turn, that do not exist yet."""
    wanted = set()
    for mode in config.modes:
        if mode == "replay" and not fitted.example.continuations:
            continue
        for variant in config.variants:
            if mode == "sampled" and not variant.ours:  # transformers draws other random numbers
                continue
            for repeat in range(config.repeats):
                wanted.add(job.key(fitted, mode, variant.name, repeat))
    return wanted - job.done.keys()


def count_missing(config: SweepConfig, job: Job) -> int:
    """Returns the number of rows of a job, over all turns, that do not exist yet."""
    return sum(len(missing(config, job, turn)) for turn in turns_of(config, job.fitted))


def failures(config: SweepConfig, job: Job, why: str) -> Iterator[Failure]:
    """Yields a row without numbers for everything of a job that is missing, in all its turns."""
    for turn in turns_of(config, job.fitted):
        yield from failed_turn(config, job, turn, why)


def failed_turn(config: SweepConfig, job: Job, fitted: Fitted, why: str) -> Iterator[Failure]:
    """Yields the same for one turn."""
    promises = {variant.name: variant.promise for variant in config.variants}
    for key in sorted(missing(config, job, fitted)):
        yield failure(key, why, fitted, promises[key.method])


def failure(key: Key, why: str, fitted: Fitted, promise: str) -> Failure:
    """Returns the row of a decoding that failed; promise: its method's."""
    example = fitted.example
    return Failure(key, why, example.turn, fitted.cut_tokens, promise, example.fingerprint(key.mode))
