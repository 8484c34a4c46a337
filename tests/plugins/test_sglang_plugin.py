"""SGLang's worker follows each request's text, with overlap and without; its options fit NGRAM's."""

from __future__ import annotations

import logging
import tomllib
from functools import partial

import numpy as np
import pytest
import torch
from toys.engines import (
    copying,
    counted_reads,
    parent,
    pretend,
    server_args,
    sglang_modules,
    start_sglang,
)
from toys.levels import stop_without_kernels
from toys.sources import ROOT

from longgraft.kernels.build import NotBuilt
from longgraft.memories.continuations import compiled
from longgraft.plugins.options import TextOptions
from longgraft.plugins.text_trees import TextTrees

LOG = logging.getLogger("test")


@pytest.fixture(autouse=True)
def built():
    code = compiled()
    if isinstance(code, NotBuilt):
        stop_without_kernels(code)


reads = pytest.fixture(counted_reads)


@pytest.fixture
def started(monkeypatch):
    """Returns a function that starts SGLang's worker: (overlap, options) -> scheduler."""
    return partial(start_sglang, monkeypatch)


@pytest.mark.parametrize("overlap", [True, False])
def test_trees_follow_requests_that_join_and_leave(overlap, started, reads):
    scheduler = started(overlap)
    first, second, third = (copying(seed) for seed in range(3))
    scheduler.prefill(first, second)
    scheduler.step()
    scheduler.step()
    scheduler.prefill(third)
    scheduler.running.remove(second)  # aborted
    scheduler.finish()
    assert [list(one.output_ids) for one in (first, third)] == [first.answer, third.answer]
    assert reads == [400] * 3 and scheduler.steps < 20
    trees = scheduler.worker.trees
    assert trees.accepted > 150


def test_a_retracted_request_keeps_its_text(started, reads):
    scheduler = started()
    one = copying(1)
    scheduler.prefill(one)
    for _ in range(4):
        scheduler.step()
    scheduler.settle()
    scheduler.running.remove(one)
    scheduler.prefill(one)  # its prompt and answer are read again
    scheduler.finish()
    assert list(one.output_ids) == one.answer and reads == [400]


def test_a_grammar_that_ends_the_overlap_repeats_no_token(started):
    scheduler = started()
    one = copying(1)
    scheduler.prefill(one)
    for _ in range(3):
        scheduler.step()
    scheduler.settle()
    scheduler.has_grammar = True
    for _ in range(3):
        scheduler.step()
    text = scheduler.worker.trees.texts.get("r1")
    assert text.length <= 400 + len(one.output_ids)
    scheduler.finish()
    assert list(one.output_ids) == one.answer and scheduler.steps < 20


def test_a_name_that_comes_again_with_another_prompt_is_read_again(started, reads):
    scheduler = started()
    for prompt in (300, 450):
        one = copying(1, tokens=prompt)
        scheduler.prefill(one)
        scheduler.finish()
    assert reads == [300, 450]


def test_a_flush_forgets_all_texts(started):
    scheduler = started()
    scheduler.prefill(copying(1))
    scheduler.worker.clear_cache_pool()
    assert len(scheduler.worker.trees.texts) == 0 and scheduler.worker.is_cleared


def test_a_tree_is_filled_below_its_last_node():
    trees = TextTrees(TextOptions(), LOG)
    tokens, ancestors = trees.tree(None, 9, 4)
    assert tokens.tolist() == [9, 0, 0, 0] and ancestors.tolist() == np.tri(4, dtype=bool).tolist()
    text = [1, 2, 3, 1, 2, 4, 1, 2]
    trees.texts.read("a", text)
    tokens, ancestors = trees.tree(trees.follow("a", ()), 2, 8)
    parents = [parent(torch.from_numpy(ancestors), node) for node in range(1, 8)]
    assert {int(tokens[n + 1]) for n in range(7) if parents[n] == 0} >= {3, 4}
    for node in range(1, 8):
        expected = ancestors[parents[node - 1]].copy()
        expected[node] = True
        assert ancestors[node].tolist() == expected.tolist()
        siblings = [int(tokens[n + 1]) for n in range(7) if parents[n] == parents[node - 1]]
        assert len(set(siblings)) == len(siblings)


def algorithm(monkeypatch):
    pretend(monkeypatch, sglang_modules())
    from longgraft.plugins.sglang_algorithm import TextAlgorithm

    return TextAlgorithm("LONGGRAFT", None)


def test_sglangs_options_are_completed(monkeypatch, caplog):
    args = server_args(device="cpu", enable_mixed_chunk=True)
    chosen = algorithm(monkeypatch)
    chosen.handle_server_args(args)
    assert args.speculative_num_draft_tokens == 12 and args.max_running_requests == 48
    assert args.speculative_eagle_topk > 1, "a breadth of 1 means a chain"
    assert args.speculative_eagle_topk * args.speculative_num_steps <= 12, "SGLang reserves this many tokens of cache"
    assert args.speculative_ngram_capacity < 1000, "SGLang's own trie allocates all of its nodes"
    assert args.disable_overlap_schedule and not args.enable_mixed_chunk
    assert len(caplog.records) == 3
    chosen.handle_server_args(args)  # a second run takes what the first one set
    assert chosen.is_ngram() and not chosen.has_draft_kv()


@pytest.mark.parametrize(
    "given, message",
    [
        ({"speculative_ngram_max_trie_depth": 30}, "--speculative-ngram-max-trie-depth is 30.*Leave it out"),
        ({"speculative_ngram_external_corpus_path": "a.jsonl"}, "corpus-path is 'a.jsonl'"),
        ({"speculative_eagle_topk": 4}, "--speculative-eagle-topk is 4"),
        ({"speculative_num_draft_tokens": 1}, "--speculative-num-draft-tokens is 1. Give 2 or more"),
        ({"device": "npu"}, "runs on cuda, cpu and xpu"),
        ({"enable_dp_attention": True}, "--enable-dp-attention is on"),
        ({"page_size": 64, "attention_backend": "fa3"}, "--page-size is 64 with --attention-backend fa3"),
    ],
)
def test_sglangs_options_that_do_not_fit_are_refused(given, message, monkeypatch):
    with pytest.raises(ValueError, match=message):
        algorithm(monkeypatch).handle_server_args(server_args(**given))


def test_pages_are_allowed_with_flashinfer(monkeypatch):
    algorithm(monkeypatch).handle_server_args(server_args(page_size=64, attention_backend="flashinfer"))


def test_an_engine_without_the_registry_gets_one_sentence(monkeypatch, caplog):
    modules = sglang_modules("0.4.0")
    del modules["sglang.srt.speculative.spec_registry"]
    pretend(monkeypatch, modules)
    from longgraft.plugins import sglang

    monkeypatch.setattr(sglang, "version", lambda name: "0.4.0")
    sglang.register()
    (record,) = caplog.records
    assert "tried with sglang 0.5.23, and this is 0.4.0" in record.message and "not registered" in record.message


def test_entry_points_name_the_plug_in():
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert points["sglang.srt.plugins"] == {"longgraft": "longgraft.plugins.sglang:register"}
