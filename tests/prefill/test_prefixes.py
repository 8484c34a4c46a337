"""Prefixes: tokens that a prompt shares with an earlier one are not read again, and nothing else changes."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from itertools import cycle

import pytest
import torch
from toys.models import toy_model
from toys.recorder import recorder
from toys.sessions import CHOOSING, answered, kinds, repeatable, toy_parts, toy_prompt, toy_session

from longgraft.acceptance.sampling import Sampling
from longgraft.memories.partial_matching import PartialMatching
from longgraft.prefill.chunked import last_occurrences
from longgraft.prefill.prefixes import Cell, Prefixes, caches
from longgraft.runtime.cuda_graphs import Regions
from longgraft.runtime.kv_cache import KVCache
from longgraft.target_model.model import Target
from longgraft.trees.padded import on_host

CELL = 16
BEGINS = toy_prompt(90)
# Edits of a file: near its end, far from it, at a cell's border, none; and another file in between.
PROMPTS = (
    BEGINS,
    BEGINS[:70] + toy_prompt(25, seed=3),
    toy_prompt(60, seed=4),
    BEGINS[:32] + toy_prompt(40, seed=5),
    BEGINS,
    BEGINS + toy_prompt(20, seed=6),
)
LONG = BEGINS + toy_prompt(60, seed=6)
READS = (90, 95 - 69, 60, 72 - 31, 90 - 79, 110 - 79)  # all, or from the last equal token of a kept cell on
RANKED = (90, 95 - 63, 60, 72 - 31, 90 - 79, 110 - 79)  # the same if cells have ranks: from a cell's last token on


def reads(session, prompt) -> int:
    """Returns how many tokens of a prompt were read."""
    stats = answered(session, prompt, 2).stats
    assert stats.prompt_tokens == len(prompt)
    return len(prompt) - stats.reused_tokens


def alike(kept, bare, prompts, **more) -> list[int]:
    """Checks that both sessions answer alike by the same proposals; returns the tokens that were reused."""
    reused = []
    for number, prompt in enumerate(prompts):
        sampling = Sampling(temperature=1.0, seed=number) if number % 2 else Sampling()
        mine, theirs = (answered(session, prompt, 8, sampling, **more) for session in (kept, bare))
        assert mine.token_ids == theirs.token_ids
        assert mine.stats.accepted_per_step == theirs.stats.accepted_per_step
        reused.append(mine.stats.reused_tokens)
    return reused


# Each kind of method is tested with one family and one chunk size; which of them does not matter.
@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("method", "family", "chunk"),
    [*zip(kinds(), cycle(("llama", "qwen3", "mistral-window", "qwen3-moe")), cycle((17, None, 32)), strict=False)],
    ids=str,
)
def test_recalled_prompts_give_the_same_answers_as_read_ones(method, family, chunk):
    """Compares the answers and what was proposed for them."""
    kept = toy_session(method, family, chunk=chunk, prefixes=Prefixes(2**30, CELL))
    assert any(alike(kept, toy_session(method, family, chunk=chunk), PROMPTS[:2]))


@pytest.mark.one_in(5)
@pytest.mark.parametrize("method", CHOOSING)
def test_an_adaptive_method_chooses_the_same_after_a_recalled_prompt(method):
    kept = toy_session(method, adaptive=True, prefixes=Prefixes(2**30, CELL))
    assert any(alike(kept, toy_session(method, adaptive=True), (*PROMPTS[:4], LONG, LONG)))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("method", ["graft", "token-recycling", "mtp", "graft-x"])
def test_lasting_memories_are_the_same_after_read_and_recalled_prompts(method):
    kept, bare = (toy_session(method, persist=True, prefixes=prefixes) for prefixes in (Prefixes(2**30, CELL), None))
    assert sum(alike(kept, bare, (*PROMPTS, BEGINS))) > 300


@pytest.mark.one_in(5)
@pytest.mark.parametrize("method", ["graft", "samd", "logitspec", "tokenswift", "rest"])
def test_predictions_work_beside_recalled_prompts(method):
    kept = toy_session(method, prefixes=Prefixes(2**30, CELL))
    predictions = [toy_prompt(30, seed=8), BEGINS[20:60]]
    assert alike(kept, toy_session(method), (BEGINS, *PROMPTS), prediction=predictions)[1] == 79


@pytest.mark.one_in(4)
@pytest.mark.parametrize("method", ["ar", "graft", "sps", "graft-x"])
def test_evicted_prefixes_are_read_again(method):
    whole = Prefixes(2**30, CELL)
    answered(toy_session(method, prefixes=whole), BEGINS, 2)
    kept = toy_session(method, prefixes=Prefixes(whole.bytes // 2, CELL))
    other = toy_prompt(60, seed=4)
    assert alike(kept, toy_session(method), (BEGINS, BEGINS, other, BEGINS, other, BEGINS)) == [0, 31, 0, 0, 0, 0]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("method", "persist"),
    [("ar", False), ("graft", True), ("token-recycling", True), ("graft-x", False), ("sps", True), ("dflash", False)],
)
def test_recorded_steps_use_recalled_rows_and_lasting_memories(method, persist):
    """Recalled rows are written into the recorded buffers; a lasting memory holds rows of all prompts."""
    kept = toy_session(method, "qwen3", regions=Regions(recorder), persist=persist, prefixes=Prefixes(2**30, CELL))
    bare = toy_session(method, "qwen3", persist=persist)
    reused = 63 if method in ("graft", "graft-x", "token-recycling") else 69
    assert alike(kept, bare, (BEGINS, PROMPTS[1], PROMPTS[3])) == [0, reused, 31]


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("method", "chunk"), [("ar", 1), ("pld", 17), ("eagle3", 32), ("graft", None), ("graft", 1)])
def test_only_tokens_that_differ_are_read(method, chunk):
    session = toy_session(method, chunk=chunk, prefixes=Prefixes(2**30, CELL))
    assert tuple(reads(session, prompt) for prompt in PROMPTS) == (RANKED if method == "graft" else READS)


@pytest.mark.parametrize("method", ["eagle3", "sps", "dflash"])
def test_recalled_rows_of_a_drafter_equal_those_made_of_the_prompt(method):
    """A drafter's row may depend on the next token, which differs where two prompts part."""
    kept, bare = (toy_session(method, prefixes=prefixes) for prefixes in (Prefixes(2**30, CELL), None))
    answered(kept, BEGINS, 2)
    rows = []
    for session in (kept, bare):
        parting = BEGINS[:64] + toy_prompt(20, seed=3)
        request = session.open(parting, 2)
        while not request.step().tokens:
            pass
        target, *others = caches(session.engine.cache, session.engine.proposer.memories).values()
        assert target.length == 84 and others
        rows.append([layer for cache in (target, *others) for layer in cache.copied(0, 84).values()])
    assert request.stats.reused_tokens == 0
    for mine, theirs in zip(*rows, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


def test_ranked_positions_follow_the_cells_of_rows():
    """The ranked positions do not depend on where reading begins."""
    ids = torch.tensor(toy_prompt(90))
    whole = last_occurrences(ids, CELL)
    for start in (1, 15, 16, 40, 63):
        border = -(-start // CELL) * CELL
        assert last_occurrences(ids[start:], CELL, start)[border - start :].equal(whole[border:])
    assert int(whole.sum()) > int(last_occurrences(ids).sum())


def test_a_memory_that_needs_the_end_of_a_prompt_sees_it(monkeypatch):
    tail = 40
    monkeypatch.setattr(PartialMatching, "tail", tail)
    session = toy_session("graft-x", adaptive=True, prefixes=Prefixes(2**30, CELL))
    assert all(reads(session, BEGINS) >= tail for _ in range(2))


def test_prefixes_stay_within_their_limit_and_keep_the_beginning_longest():
    whole = Prefixes(2**30, CELL)
    answered(toy_session("graft", prefixes=whole), BEGINS, 2)
    assert len(whole) == 5 and whole.bytes > 0
    small = Prefixes(whole.bytes * 3 // 5, CELL)
    session = toy_session("graft", prefixes=small)
    for _ in range(2):
        answered(session, BEGINS, 2)
        assert len(small) == 3 and small.bytes <= small.most
    assert reads(session, BEGINS) == 90 - 47


def test_a_cell_without_the_one_before_it_is_not_kept():
    """No lookup could reach it."""
    prefixes = Prefixes(2**30, CELL)
    cell = Cell({"target": {"k": torch.zeros(1, 1, CELL, 4)}}, {})
    keys = prefixes.keys(BEGINS)
    assert [prefixes.lacks(keys[:n]) for n in (1, 2, 3)] == [True, False, False]
    for n in (1, 2):
        prefixes.put(keys[:n], cell, BEGINS[(n - 1) * CELL : n * CELL])
    assert [prefixes.lacks(keys[:n]) for n in (1, 2, 3, 4)] == [False, False, True, False]
    prefixes.clear()
    prefixes.pin(BEGINS[:CELL], cell)
    assert [prefixes.lacks(keys[:n]) for n in (1, 2, 3)] == [False, True, False]
    assert not Prefixes(0, CELL).lacks(keys[:1])


def numbered(n: int) -> Cell:
    """Returns rows that tell the place of each token."""
    reports = {"ranks": torch.arange(n), "ranked": torch.ones(n)}
    return Cell({"target": {"k": torch.arange(n).view(1, 1, n, 1)}}, reports)


def test_a_pinned_prefix_takes_no_room_and_is_known_to_its_last_token():
    prefixes, keys, other = Prefixes(2**30, CELL), Prefixes(0, CELL).keys(BEGINS), toy_prompt(CELL, seed=4)
    for seed in (4, 5):
        prefixes.put(prefixes.keys(kept := toy_prompt(CELL, seed=seed)), numbered(CELL), kept)
    room = prefixes.bytes
    prefixes.put(keys[:1], numbered(CELL), BEGINS[:CELL])
    for end in (40, 40, 36, 2 * CELL):
        prefixes.pin(BEGINS[:end], numbered(end))
        assert (prefixes.bytes, len(prefixes)) == (room, 2)
    prefixes.pin(BEGINS[:32] + other[:6], numbered(38))

    def places(ids: list[int], most: int = 90) -> list[int]:
        cells = prefixes.known(prefixes.keys(ids), ids, most)
        assert all(cell.caches["target"]["k"].flatten().equal(cell.reports["ranks"]) for cell in cells)
        return [place for cell in cells for place in cell.reports["ranks"].tolist()]

    for ids, known in (
        (BEGINS, 40),
        (BEGINS[:38] + other, 38),
        (BEGINS[:32] + other, 38),
        (BEGINS[:20] + other, CELL),
        (BEGINS[:37], 37),
        (other[1:], 0),
        (BEGINS[32:], 0),
    ):
        assert places(ids) == [*range(known)]
    assert places(BEGINS, 35) == [*range(35)] and places(BEGINS, CELL - 1) == []
    short = Prefixes(2**30, CELL)
    short.pin(BEGINS[:5], numbered(5))
    assert [cell.tokens for cell in short.known(keys, BEGINS, 90)] == [5]
    prefixes.clear()
    assert prefixes.bytes == 0 and places(BEGINS) == [*range(40)] and places(other) == []


def test_the_most_recently_used_prefix_is_evicted_last():
    whole = Prefixes(2**30, CELL)
    answered(toy_session("ar", prefixes=whole), BEGINS, 2)
    one, two, three = (toy_prompt(40, seed) for seed in (7, 8, 9))  # two cells each
    session = toy_session("ar", prefixes=Prefixes(whole.bytes * 4 // 5, CELL))
    for prompt in (one, two, one, three):
        answered(session, prompt, 2)
    assert [reads(session, prompt) for prompt in (one, three, two)] == [9, 9, 40]


def test_a_cancelled_prompt_keeps_the_rows_that_were_read():
    session = toy_session("graft", chunk=32, prefixes=Prefixes(2**30, CELL))
    with session.open(BEGINS, 2) as request:
        request.step()
    assert reads(session, BEGINS) == 90 - 31


def test_a_request_that_fails_while_recalling_leaves_no_partial_state(monkeypatch):
    session, bare = (toy_session("graft", prefixes=prefixes) for prefixes in (Prefixes(2**30, CELL), None))
    answered(session, BEGINS, 2)
    cells, extend = len(session.engine.prefixes), KVCache.extend

    def full(cache, parts):
        if len(cache.layers) == 1:  # the drafter's cache; the target's has its rows already
            raise MemoryError("no more")
        extend(cache, parts)

    monkeypatch.setattr(KVCache, "extend", full)
    request = session.open(PROMPTS[1], 8)
    with pytest.raises(MemoryError):
        request.step()
    assert request.finish_reason == "cancelled" and len(session.engine.prefixes) == cells
    monkeypatch.undo()
    assert alike(session, bare, PROMPTS[1:4]) == [63, 0, 31]


def test_the_first_difference_is_that_to_the_prompt_that_is_followed_longest():
    prefixes = Prefixes(2**30, CELL)

    def first(ids):
        return prefixes.first_difference(prefixes.keys(ids), ids)

    def put(ids):
        keys = prefixes.keys(ids)
        for n in range(1, len(keys) + 1):
            if prefixes.lacks(keys[:n]):
                prefixes.put(keys[:n], numbered(CELL), ids[(n - 1) * CELL : n * CELL])

    assert first(BEGINS) is None  # nothing is kept
    put(BEGINS)
    assert [first(BEGINS), first(BEGINS[: CELL + 3]), first([*BEGINS, 1, 2])] == [None] * 3
    for place in (0, 5, CELL - 1, CELL, CELL + 7):
        changed = [*BEGINS]
        changed[place] += 1
        assert first(changed) == place
    near = [*BEGINS[:5], BEGINS[5] + 1, *BEGINS[6:]]
    put(near)
    assert first([*near[:9], near[9] + 1, *near[10:]]) == 9
    prefixes.pin(BEGINS[: CELL + 4], numbered(CELL + 4))
    continued = [*BEGINS[: CELL + 4], BEGINS[CELL + 4] + 1, *BEGINS[CELL + 5 :]]
    assert first(continued) is None
    prefixes.clear()
    assert first(near) == 5 and first([BEGINS[0] + 1] * 40) == 0


def test_evicted_cells_differ_from_nothing():
    cell = numbered(CELL)
    prefixes, other = Prefixes(cell.bytes, CELL), [token + 1 for token in BEGINS]
    for ids in (BEGINS, other):
        prefixes.put(prefixes.keys(ids)[:1], cell, ids[:CELL])
    assert prefixes.first_difference(prefixes.keys(other), other) is None
    assert prefixes.first_difference(prefixes.keys(BEGINS), BEGINS) == 0


@torch.no_grad()
def in_place(module):
    module.weight[:, 1:] *= 3  # the first column has the numbers that are compared


def behind_the_counter(module):
    """PEFT merges an adapter in this way."""
    module.weight.data *= 3


def by_other_data(module):
    module.weight.data = module.weight.data * 3


def by_another_parameter(module):
    module.weight = torch.nn.Parameter(module.weight.data * 3)


CHANGES = (in_place, behind_the_counter, by_other_data, by_another_parameter)


def own_parts(**more):
    """Returns toy parts whose target and head belong to the caller."""
    parts = toy_parts(**more)
    target = Target(deepcopy(toy_model()), kernels=more.get("kernels"))
    return replace(parts, target=target, given=deepcopy(parts.given))


@pytest.mark.parametrize("change", CHANGES)
def test_prompts_are_read_again_after_a_change_of_the_weights(change):
    parts = own_parts()
    session = repeatable("pld", parts, Prefixes(2**30, CELL))
    before = answered(session, LONG, 12)
    change(parts.target.layers[0].mlp.down_proj)
    after = answered(session, LONG, 12)
    assert after.token_ids == answered(repeatable("pld", parts), LONG, 12).token_ids != before.token_ids
    assert after.stats.reused_tokens == 0
    assert answered(session, LONG, 12).stats.reused_tokens > 0


def test_prompts_are_read_again_after_an_adapter_is_switched():
    """PEFT's layers change nothing but an attribute."""
    parts = own_parts()
    session = repeatable("pld", parts, Prefixes(2**30, CELL))
    parts.target.layers[0].mlp.down_proj._disable_adapters = False
    reused = []
    for disabled in (False, False, True):
        parts.target.layers[0].mlp.down_proj._disable_adapters = disabled
        reused.append(answered(session, LONG, 2).stats.reused_tokens > 0)
    assert reused == [False, True, False]


def test_a_change_of_the_drafter_s_weights_drops_its_kept_rows():
    parts = own_parts()
    session = repeatable("eagle3", parts, Prefixes(2**30, CELL))
    answered(session, LONG, 2)
    in_place(session.engine.proposer.memories[0].network.fc)
    assert alike(session, repeatable("eagle3", parts), [LONG]) == [0]


def test_rows_read_with_two_states_of_the_weights_are_not_kept():
    parts = own_parts()
    session = repeatable("ar", parts, Prefixes(2**30, CELL), chunk=32)
    projection = parts.target.layers[0].mlp.down_proj
    weights = projection.weight.data
    with session.open(LONG, 2) as request:
        request.step()
        by_other_data(projection)
        list(request)
    projection.weight.data = weights
    assert answered(session, LONG, 2).stats.reused_tokens == 31


def test_weights_that_change_before_the_first_step_count():
    parts = own_parts()
    session = repeatable("ar", parts, Prefixes(2**30, CELL))
    answered(session, LONG, 2)
    request = session.open(LONG, 2)
    in_place(parts.target.layers[0].mlp.down_proj)
    list(request)
    assert request.stats.reused_tokens == 0


def test_a_prefix_file_is_dropped_with_a_warning_after_a_change_of_the_weights(tmp_path):
    parts = own_parts()
    session = repeatable("ar", parts, Prefixes(0, CELL))
    session.save_prefix(BEGINS, tmp_path / "begins")
    session.pin_prefix(tmp_path / "begins")
    in_place(parts.target.layers[0].mlp.down_proj)
    with pytest.warns(UserWarning, match="prefix files are read again"):
        found = answered(session, LONG, 12)
    assert found.token_ids == answered(repeatable("ar", parts), LONG, 12).token_ids
    assert found.stats.reused_tokens == 0


def steps(session) -> list[tuple]:
    """Returns the tokens of an answer, and those that were proposed for it."""
    with session.open(BEGINS, 12) as request:
        return [(step.tokens, [] if step.tree is None else on_host(step.tree).tokens.tolist()) for step in request]


@pytest.mark.one_in(8)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("part", ["target", "head"])
def test_recorded_passes_read_changed_weights(part, change):
    parts = own_parts(regions=Regions(recorder))
    session = repeatable("eagle3", parts)
    before = steps(session)
    assert session.engine.regions.recorded
    change(parts.target.layers[0].mlp.down_proj if part == "target" else parts.given["head"].fc)
    assert steps(session) == steps(repeatable("eagle3", replace(parts, regions=Regions(recorder)))) != before


def test_compiled_products_of_a_drafter_read_weights_that_changed_behind_the_counter(kernels):
    parts = own_parts(kernels=kernels)
    session, fc = repeatable("eagle3", parts), parts.given["head"].fc
    before = steps(session)
    behind_the_counter(fc)
    after = steps(session)
    fc.weight = torch.nn.Parameter(fc.weight.data)
    assert steps(session) == after != before
