"""vLLM's proposer follows each request's text, whatever happens to the rows; its memory is bounded."""

from __future__ import annotations

import logging
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from toys.engines import VllmRunner, copying, counted_reads, passage, start_vllm
from toys.levels import stop_without_kernels

from longgraft.kernels.build import NotBuilt
from longgraft.memories.continuations import compiled
from longgraft.plugins import texts as texts_module
from longgraft.plugins.options import BYTES, TextOptions
from longgraft.plugins.text_trees import TextTrees, best_chain
from longgraft.plugins.texts import Texts
from longgraft.trees.ranked_paths import RankedPaths

LOG = logging.getLogger("test")


@pytest.fixture(autouse=True)
def built():
    code = compiled()
    if isinstance(code, NotBuilt):
        stop_without_kernels(code)


@pytest.fixture
def proposer(monkeypatch):
    """Returns a function from options to a vLLM proposer."""
    return partial(start_vllm, monkeypatch)


reads = pytest.fixture(counted_reads)


def test_copied_passages_take_few_steps(proposer):
    runner = VllmRunner(proposer())
    runner.rows = [copying(1), copying(2)]
    runner.finish()
    assert [list(row.output_ids) for row in runner.rows] == [row.answer for row in runner.rows]
    assert runner.steps < 15
    trees = runner.proposer.trees
    assert trees.accepted > 0.8 * trees.proposed > 0


def test_rows_that_move_leave_and_come_keep_their_texts(proposer, reads):
    runner = VllmRunner(proposer())
    first, second, third = copying(1), copying(2), copying(3)
    runner.rows = [first, second, third]
    runner.step()
    runner.step()
    runner.rows = [third, second]  # vLLM fills the place of a request that has left with the last one
    runner.step()
    runner.rows = [second, third, copying(4)]
    runner.finish()
    assert reads == [401] * 4 and runner.steps < 20


def test_a_request_that_pauses_finds_its_text_again(proposer, reads):
    runner = VllmRunner(proposer())
    first, second = copying(1), copying(2, tokens=300)
    runner.rows = [first, second]
    for _ in range(3):
        runner.step()
    runner.rows = [second]  # the first one is preempted
    runner.step()
    first.chunks = 2  # its prompt and answer are read again, in chunks
    runner.rows = [second, first]
    runner.finish()
    assert sorted(reads) == [301, 401]


def test_equal_prompts_have_a_text_each(proposer, reads):
    runner = VllmRunner(proposer())
    first, second = copying(1), copying(1)
    second.answer = second.prompt[200:300]
    runner.rows = [first, second]
    runner.finish()
    assert len(reads) == 2 and runner.steps < 15


def test_a_prompt_that_is_read_in_chunks_is_read_beside_the_first(proposer, reads):
    runner = VllmRunner(proposer())
    runner.rows = [copying(1, chunks=4)]
    runner.step()
    assert runner.rows[0].drafted == [] and runner.proposer.trees.proposed == 0
    for _ in range(3):
        runner.step()
    assert len(runner.rows[0].output_ids) == 1 and reads == [400]
    runner.step()
    assert runner.rows[0].drafted, "the text follows the answer's tokens"


def test_chains_end_before_the_longest_text(proposer):
    runner = VllmRunner(proposer(longest=440), longest=440)
    runner.rows = [copying(1, answer=40)]
    runner.finish()
    assert len(runner.rows[0].output_ids) == 40


def test_nothing_is_proposed_where_a_row_costs_more_than_it_brings(proposer):
    dear = VllmRunner(proposer(price=0.6))
    dear.rows = [copying(1)]
    for _ in range(4):
        dear.step()
    assert dear.rows[0].drafted
    dear.rows.append(copying(2))  # each row now delays two requests
    for _ in range(3):
        dear.step()
    assert [row.drafted for row in dear.rows] == [[], []]


def test_two_ranks_propose_the_same(proposer):
    drafts = []
    for _ in range(2):
        runner = VllmRunner(proposer(all_bytes=3 * 700 * BYTES))
        runner.rows = [copying(seed) for seed in range(4)]
        for _ in range(6):
            runner.step()
        drafts.append([row.drafted for row in runner.rows])
    assert drafts[0] == drafts[1] and any(drafts[0])


def test_vllms_options_set_the_limits(proposer):
    assert proposer(price=0.2, idle_steps=3).trees.texts.options == TextOptions(price=0.2, idle_steps=3)


@pytest.mark.parametrize(
    "given, message",
    [
        ({"prize": 1.0}, "no option 'prize'. Its options are price, text_bytes, all_bytes, idle_steps"),
        ({"price": 0}, "option price is 0. Give a positive float"),
        ({"price": float("nan")}, "option price is nan. Give a positive float"),
        ({"idle_steps": 2.5}, "option idle_steps is 2.5. Give a positive int"),
        ({"text_bytes": 2 * BYTES - 1}, "option text_bytes is 3,399. Give at least 3,400"),
    ],
)
def test_a_wrong_option_is_refused(given, message, proposer):
    with pytest.raises(ValueError, match=message):
        proposer(**given)
    if "prize" not in given:
        with pytest.raises(ValueError, match=message):
            TextOptions(**given)


def test_the_smallest_memory_holds_a_token_of_the_prompt():
    texts = Texts(TextOptions(text_bytes=2 * BYTES))
    texts.read("a", passage(300))
    text = texts.get("a")
    assert text is not None and text.kept == 1


def test_an_untried_version_is_named_once_with_those_that_were_tried(proposer, caplog):
    proposer("0.33.0")
    assert not caplog.records
    proposer("0.40.1")
    (record,) = caplog.records
    assert "tried with vllm 0.32.0 and 0.33.0, and this is 0.40.1" in record.message
    assert record.name == "vllm.longgraft"


def test_texts_of_requests_that_are_gone_are_forgotten(proposer):
    runner = VllmRunner(proposer(idle_steps=5))
    runner.rows = [copying(1), copying(2)]
    runner.step()
    runner.rows.pop(0)  # aborted
    for _ in range(5):
        runner.step()
    assert len(runner.proposer.trees.texts) == 2
    runner.step()
    assert len(runner.proposer.trees.texts) == 1


def test_a_request_without_room_decodes_plainly_until_there_is_some(proposer, reads):
    runner = VllmRunner(proposer(all_bytes=1200 * BYTES))
    runner.rows = [copying(1), copying(2), copying(3)]
    for _ in range(3):
        runner.step()
    assert [bool(row.drafted) for row in runner.rows] == [True, True, False]
    assert len(reads) == 2, "running requests keep their texts"
    runner.rows.pop(0)
    for _ in range(4):
        runner.step()
    assert runner.rows[1].drafted and runner.proposer.trees.texts.bytes <= 1200 * BYTES


def test_answers_that_outgrow_the_memory_cost_the_least_recently_used_text():
    texts = Texts(TextOptions(all_bytes=1000 * BYTES))
    texts.begin_step()
    for key in "ab":
        texts.read(key, passage(450))
    texts.begin_step()
    grown = texts.get("b")
    assert grown is not None
    grown.extend(passage(200, 1))
    texts.begin_step()
    assert "a" not in texts and "b" in texts


def test_the_end_of_a_long_text_is_read_and_read_again_when_its_answer_is_long(reads):
    texts = Texts(TextOptions(text_bytes=400 * BYTES))
    texts.begin_step()
    prompt = passage(1000)
    texts.read("a", prompt)
    text = texts.get("a")
    assert text is not None and text.kept == 300 and text.length == 1000
    assert text.model.rank([0.0] * 4).tokens[0] == 0 and reads == [300]
    text.extend(prompt[800:900])
    assert text.model.rank([0.0] * 4).tokens[1:].tolist() == prompt[900:903], "the last 300 tokens were read"
    text.extend([1])
    assert texts.get("a") is None


def test_a_text_is_not_changed_by_what_the_engine_writes_later():
    texts = Texts(TextOptions())
    prompt = np.array(passage(300), np.int32)
    texts.read("a", prompt)
    begins = prompt[100:103].tolist()
    follows = prompt[103:106].tolist()
    prompt[:] = 7
    text = texts.get("a")
    assert text is not None
    text.extend(begins)
    assert text.model.rank([0.0] * 4).tokens[1:].tolist() == follows


def test_a_machine_without_compiled_code_says_so(monkeypatch):
    monkeypatch.setattr(texts_module, "compiled", lambda: NotBuilt("no C++ compiler was found"))
    with pytest.raises(RuntimeError, match=r"no C\+\+ compiler was found\. Install a wheel"):
        Texts(TextOptions())


def test_the_best_chain_has_the_most_expected_tokens():
    # The second best first token has two sure ones below it.
    fields = np.array([[0, 5, 6, 7, 8], [-1, 0, 0, 2, 3], [0] * 5, [0] * 5])
    ranked = RankedPaths(fields, np.array([1.0, 0.5, 0.4, 0.4, 0.4]))
    assert best_chain(ranked) == [6, 7, 8]
    assert best_chain(ranked.first(1)) == []


def test_a_chain_is_not_longer_than_asked():
    trees = TextTrees(TextOptions(), LOG)
    trees.texts.read("a", passage(300))
    text = trees.follow("a", passage(300)[100:140])
    assert text is not None
    assert trees.chain(text, 5, 1) == passage(300)[140:145]


def test_the_log_counts_proposed_and_accepted_tokens(proposer, monkeypatch, caplog):
    runner = VllmRunner(proposer())
    monkeypatch.setattr(sys.modules["longgraft.plugins.text_trees"], "REPORT", 5)
    runner.rows = [copying(1)]
    with caplog.at_level(logging.INFO, "vllm"):
        for _ in range(4):
            runner.step()
        trees = runner.proposer.trees
        proposed = trees.proposed
        runner.step()
    assert f"5 steps, {proposed} tokens proposed, {proposed - 16} of them accepted; 1 texts, 0 MB" in caplog.text


def test_the_texts_import_neither_torch_nor_an_engine():
    code = (
        "import sys, longgraft.plugins.text_trees, longgraft.plugins.sglang\n"
        "print([m for m in ('torch', 'transformers', 'sglang', 'vllm') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
