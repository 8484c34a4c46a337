"""llama-cpp-python's draft model follows one text after the other."""

from __future__ import annotations

import pytest
from toys.engines import copying, counted_reads, llama_modules, llama_steps, passage, pretend
from toys.levels import stop_without_kernels

from benchmarks.peers import llama_cpp_python
from benchmarks.peers.answers import Setup
from longgraft.kernels.build import NotBuilt
from longgraft.memories.continuations import compiled
from longgraft.plugins.options import BYTES, TextOptions


@pytest.fixture(autouse=True)
def built():
    code = compiled()
    if isinstance(code, NotBuilt):
        stop_without_kernels(code)


reads = pytest.fixture(counted_reads)


@pytest.fixture
def drafts(monkeypatch):
    """Returns a function that makes a draft model."""

    def made(version="0.3.36", **given):
        pretend(monkeypatch, llama_modules(version))
        from longgraft.plugins.llama_cpp import TextDraft

        return TextDraft(**given)

    return made


def test_a_copied_passage_takes_few_passes(drafts, reads):
    draft = drafts()
    one = copying(1)
    assert llama_steps(draft, one) < 16 and list(one.output_ids) == one.answer
    assert draft.trees.accepted > 80 and reads == [401]


def test_a_chat_goes_on_with_its_text_and_another_prompt_does_not(drafts, reads):
    draft = drafts()
    one = copying(1)
    llama_steps(draft, one)
    more = copying(2)
    more.prompt = [*one.prompt, *one.output_ids, *passage(50, 3)]
    more.answer = more.prompt[210:260]
    assert llama_steps(draft, more) < 10 and reads == [401]
    assert llama_steps(draft, copying(2, tokens=700)) < 16 and reads == [401, 701]


def test_an_answer_that_outgrows_the_memory_is_read_again_from_its_end(drafts, reads):
    draft = drafts(options=TextOptions(price=0.15, text_bytes=400 * BYTES))
    one = copying(1, tokens=290, answer=200)
    one.answer = [*one.prompt[50:150], *one.prompt[120:220]]
    llama_steps(draft, one)
    assert list(one.output_ids) == one.answer and reads == [291, 300]


def test_a_proposal_has_the_given_length_and_pays(drafts):
    one = copying(1, answer=40)
    draft = drafts(most=3)
    llama_steps(draft, one)
    assert len(one.drafted) == 3
    assert llama_steps(drafts(options=TextOptions(price=1.0)), copying(1)) == 100


def test_a_proposal_without_tokens_is_refused(drafts):
    with pytest.raises(ValueError, match=r"most is 0\. Give at least 1"):
        drafts(most=0)


def test_an_untried_version_is_named(drafts, caplog):
    drafts("0.4.0")
    (record,) = caplog.records
    assert "tried with llama-cpp-python 0.3.36, and this is 0.4.0" in record.message


def test_the_benchmark_counts_passes_and_proposals(drafts, monkeypatch):
    draft = drafts()
    monkeypatch.setattr(llama_cpp_python, "METHODS", {"plain": lambda: None, "longgraft": lambda: draft})
    prompt = passage(200)
    (_, plain), (_, ours) = llama_cpp_python.methods_of(Setup("m.gguf", new=300, longest=200))
    first, second = plain(prompt), ours(prompt)
    assert first.ids == second.ids and (first.steps, first.drafted, first.accepted) == (299, 0, 0)
    assert second.steps < 30 and second.accepted == 299 - second.steps
    assert second.accepted <= second.drafted <= draft.trees.proposed
    assert ours(prompt).steps == second.steps
