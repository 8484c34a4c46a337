"""Other decoders' rows beside a sweep's: a scripted llama.cpp that emits two tokens a pass."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import pytest

from benchmarks.peers import llama_cpp as peer
from longgraft.eval.reports.report import write
from longgraft.eval.runs.config import SweepConfig
from longgraft.eval.runs.rows import ROWS, Failure, Row, read_rows
from longgraft.eval.runs.sweep import sweep

END = 7


class Llama:
    """Emits 1, 2, 3, ... in pairs, and its end after a prompt of the second turn."""

    prompts: ClassVar[list[list[int]]] = []

    def __init__(self, file, n_ctx, n_threads, n_threads_batch, draft_model, logits_all, verbose):
        assert (n_threads, n_threads_batch) == (1, 1) and logits_all == (draft_model is not None)
        self.model, self._size, self._drafts = None, n_ctx, draft_model

    def n_ctx(self):
        return self._size

    def n_vocab(self):
        return 10 ** 9 if self._drafts and self._size > 35 else 10

    def reset(self):
        self.read = True

    def eval(self, batch):
        assert self.read

    def generate(self, ids, temp, repeat_penalty):
        assert (temp, repeat_penalty) == (0.0, 1.0)
        self.prompts.append(ids)
        self.eval(ids)
        yield 1
        for first in range(2, 100, 2):
            self.eval([first])
            yield first
            yield first + 1

    def close(self):
        pass


@pytest.fixture
def scripted(monkeypatch):
    module, speculative = ModuleType("llama_cpp"), ModuleType("llama_cpp.llama_speculative")
    module.__dict__.update(Llama=Llama, llama_model_get_vocab=lambda model: None,
                           llama_vocab_is_eog=lambda vocabulary, token: token == END)
    speculative.LlamaPromptLookupDecoding = SimpleNamespace
    monkeypatch.setitem(sys.modules, "llama_cpp", module)
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_speculative", speculative)
    monkeypatch.setattr(peer, "gguf_of", Path)
    monkeypatch.setattr(peer, "version", lambda package: "0")
    monkeypatch.setattr(Llama, "prompts", [])


def test_llama_cpp_gets_rows_of_its_own_beside_plain_decoding_turn_by_turn(scripted, tmp_path):
    talk = tmp_path / "talk.jsonl"
    talk.write_text(json.dumps({"_id": "t", "turns": ["Name three primes.", "And a fourth one?"]}) + "\n")
    asked = SweepConfig(suites=(str(talk),), lengths=(), methods=(), modes=("greedy", "sampled"), prompts=1, repeats=1,
                        max_new_tokens=9)
    plain = {row.key.prompt_id: row for row in sweep(asked, tmp_path / "run") if row.key.mode == "greedy"}
    peer.peer(tmp_path / "run")
    rows = {(row.key.method, row.key.prompt_id): row for row in read_rows(tmp_path / "run")
            if row.key.method.startswith("llama")}
    assert set(rows) == {(method, turn) for method in peer.METHODS for turn in ("t", "t#2")}
    first, second = rows["llama.cpp", "t"], rows["llama.cpp", "t#2"]
    assert first.token_ids == [1, 2, 3, 4, 5, 6, END] and first.accepted_per_step == [1, 1, 1]
    assert (first.new_tokens, first.tokens_per_step, first.promise, first.turn, second.turn) == (7, 2.0, "lossy", 1, 2)
    assert [row.prompt_tokens for row in (first, second)] == [plain[turn].prompt_tokens for turn in ("t", "t#2")]
    assert isinstance(rows["llama.cpp-lookup", "t"], Row) and isinstance(rows["llama.cpp-lookup", "t#2"], Failure)
    assert "GB of logits" in rows["llama.cpp-lookup", "t#2"].error
    before = (tmp_path / "run" / ROWS).read_text()
    peer.peer(tmp_path / "run")         # nothing is measured twice
    assert (tmp_path / "run" / ROWS).read_text() == before
    write(tmp_path / "run")
    said = (tmp_path / "run" / "summary.md").read_text()
    assert "| llama.cpp (LOSSY) |" in said and "| lossy: not compared |" in said
