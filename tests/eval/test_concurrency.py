"""`--concurrency`: batches of several requests at once, each compared with the request alone."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from toys.sources import own_rows

from longgraft.eval.reports.concurrency import concurrency_table
from longgraft.eval.reports.report import write
from longgraft.eval.runs import concurrency
from longgraft.eval.runs.batches import BATCHES, Batch, BatchKey, read_batches
from longgraft.eval.runs.config import SweepConfig
from longgraft.eval.runs.rows import ROWS
from longgraft.eval.runs.sweep import sweep


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> SweepConfig:
    torch.set_num_threads(1)
    rows = own_rows(tmp_path_factory.mktemp("rows") / "own.jsonl")
    return SweepConfig(
        suites=(str(rows),),
        lengths=(256,),
        methods=("suffix", "graft-x+budget=16"),
        modes=("sampled",),
        prompts=3,
        repeats=1,
        max_new_tokens=12,
        concurrency=(1, 3),
    )


@pytest.mark.slow
def test_requests_at_once_have_their_own_rows_and_the_answers_they_have_alone(config, tmp_path):
    rows = len(sweep(replace(config, concurrency=()), tmp_path))
    assert len(sweep(config, tmp_path, resume=True)) == rows == 9  # nothing is measured alone again
    found = read_batches(tmp_path)
    assert len({one.key for one in found}) == len(found) == 2 * 3
    for one in found:
        assert (one.prompts, one.compared, one.different, one.error) == (3, 3, 0, "")
        assert one.new_tokens == 36 and len(one.first_token_seconds) == len(one.tokens_per_second) == 3
        assert max(one.first_token_seconds) < one.seconds
    write(tmp_path)
    assert (tmp_path / "summary.md").read_text().count(" | 3/3 |") == 6
    before = (tmp_path / "environment.json").read_text()
    (tmp_path / BATCHES).write_bytes((tmp_path / BATCHES).read_bytes()[:-40])  # half a line, as after a kill
    sweep(config, tmp_path, resume=True)
    assert [one.key for one in read_batches(tmp_path)] == [one.key for one in found]
    after = (tmp_path / "environment.json").read_text()
    sweep(config, tmp_path, resume=True)
    assert before != after == (tmp_path / "environment.json").read_text()  # nothing was missing


@pytest.mark.slow
def test_batches_are_repeated_and_a_request_waits_from_its_own_beginning(config, tmp_path):
    sweep(replace(config, methods=("ar", "pld"), concurrency=(1,), repeats=2), tmp_path)
    found = read_batches(tmp_path)
    assert [(one.key.method, one.key.repeat) for one in found] == [("ar", 0), ("pld", 0), ("ar", 1), ("pld", 1)]
    for one in found:  # one after the other, so the waits do not overlap
        assert 0 < sum(one.first_token_seconds) < one.seconds


def test_passes_that_verify_and_their_nodes_are_counted(config, tmp_path):
    sweep(replace(config, methods=("ar", "eagle3+budget=4+levels=2"), concurrency=(1, 3)), tmp_path)
    plain, drafted, plain_together, drafted_together = read_batches(tmp_path)
    # Of 12 tokens the first comes from the prefill; prompts are read in passes of their own here.
    assert (plain.passes, plain.nodes, plain.drafts) == (3 * 11, 3 * 11, 0)
    assert plain_together.nodes == 3 * 11 and 11 <= plain_together.passes < 2 * 11
    assert drafted.passes < drafted.nodes <= 4 * drafted.passes and drafted.drafts > drafted.passes
    assert drafted_together.nodes == drafted.nodes and drafted_together.passes < drafted.passes


def test_answers_that_differ_from_the_request_alone_are_counted(config, tmp_path):
    small = replace(config, methods=("ar",), concurrency=(2,))
    sweep(replace(small, concurrency=()), tmp_path)
    lines = (tmp_path / ROWS).read_text().splitlines()
    first = json.loads(lines[0])
    first["token_ids"][-1] += 1
    (tmp_path / ROWS).write_text("\n".join([json.dumps(first), *lines[1:], ""]))
    sweep(small, tmp_path, resume=True)
    assert [(one.different, one.compared) for one in read_batches(tmp_path)] == [(1, 3)]


def test_a_failed_method_gives_the_reason_and_is_retried_on_request(config, tmp_path, monkeypatch, capsys):
    small = replace(config, methods=("ar",), concurrency=(2,))

    def full(*_):
        raise MemoryError("full")

    with monkeypatch.context() as patched:
        patched.setattr(concurrency, "_answered", full)
        sweep(small, tmp_path)
    write(tmp_path)
    assert "ar, 2 at once, own: MemoryError: full" in (tmp_path / "summary.md").read_text()
    sweep(small, tmp_path, resume=True)
    assert read_batches(tmp_path)[0].error
    sweep(small, tmp_path, resume=True, retry=True)
    assert not read_batches(tmp_path)[0].error


def test_the_table_compares_a_method_with_itself_alone_and_with_plain_decoding():
    def batch(method: str, running: int, seconds: float, repeat: int = 0) -> Batch:
        return Batch(
            BatchKey("own", 0, "greedy", method, running, repeat), 4, 120, seconds, (0.25,) * 4, (7.0,) * 4, 1.5, 0, 4
        )

    found = [
        batch("ar", 1, 12),
        batch("ar", 4, 6),
        batch("pld", 1, 8),
        batch("pld", 4, 3),
        batch("pld", 4, 5, 1),
        batch("pld", 4, 4, 2),
    ]
    lines = concurrency_table(found)[0].splitlines()
    assert lines[-1] == "| own | whole | 4 | pld | 4 | 30.0 | 2.00 | 1.50 | 0.25 | 7.0 | 1.50 | 12/12 |"
    assert concurrency_table([]) == []


@pytest.mark.parametrize(
    ("more", "words"), [({"concurrency": (4,)}, "prompts of as many or more"), ({"concurrency": (0,)}, "concurrency")]
)
def test_an_impossible_concurrency_is_refused(config, more, words):
    with pytest.raises(ValueError, match=words):
        replace(config, **more)


def test_concurrency_with_several_workers_is_refused(config, tmp_path):
    with pytest.raises(ValueError, match="Leave --workers"):
        sweep(config, tmp_path, workers=2)
