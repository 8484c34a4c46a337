"""Measurements from a shared prefill equal those of a separate session, for every method, in any order."""

from __future__ import annotations

import pytest
import torch
from toys.models import HYBRID, VOCAB
from toys.oracle import plain
from toys.recorder import recorder
from toys.sessions import ABLATIONS, METHODS, answered, toy_parts, toy_prompt, toy_session

from longgraft.acceptance.sampling import Sampling
from longgraft.config.method_roles import PLAIN
from longgraft.drafters.pruning import DEFAULT_THRESHOLDS
from longgraft.engine.stats import Stats
from longgraft.eval.checks.losslessness import margin
from longgraft.eval.runs.measure import PromptMeasurement
from longgraft.eval.runs.variant_engines import VariantEngines
from longgraft.eval.runs.variants import TRANSFORMERS, Variant
from longgraft.memories.eagle3_cache import Eagle3Cache
from longgraft.methods.assembly import Loaded
from longgraft.methods.calibration import Calibration
from longgraft.methods.find import find
from longgraft.methods.parts import Parts
from longgraft.runtime.clock import Clock
from longgraft.runtime.cuda_graphs import Regions

PROMPT, NEW = toy_prompt(90), 24
REPLAY = torch.randint(1, VOCAB, (NEW,), generator=torch.Generator().manual_seed(5)).tolist()
SAMPLINGS = {"greedy": Sampling(), "sampled": Sampling(temperature=1.0, seed=3), "replay": Sampling(replay=REPLAY)}

NAMES = [*METHODS, *ABLATIONS]


def engines(parts: Parts, calibrations=None, runs=(), **heads) -> VariantEngines:
    """Returns the maker of engines on toy parts; heads: the parts of further heads."""
    loaded = Loaded(parts.target, None, find(PLAIN), parts)
    return VariantEngines(loaded, {"": parts} | heads, calibrations or {}, runs=runs)


def prefilled(names, calibrations=None, own=None, **more) -> PromptMeasurement:
    made = engines(toy_parts(**(own or {})), calibrations, **more)
    return PromptMeasurement(made, [Variant.parse(name) for name in names], PROMPT, NEW + 90)


def alone(name: str, sampling: Sampling, new: int = NEW, **parts) -> tuple[list[int], Stats]:
    """Returns the tokens and statistics of a session that prefills for itself."""
    variant = Variant.parse(name)
    ours = toy_session(variant.method, budget=variant.budget(None), adaptive=variant.adaptive(None), **parts)
    found = answered(ours, PROMPT, new, sampling)
    return found.token_ids, found.stats


def untimed(found: tuple[list[int], Stats]) -> tuple:
    """Returns everything of an answer except its times."""
    tokens, stats = found
    return tokens, stats.accepted_per_step, stats.stages, stats.accepted_by_origin, stats.forwards


@pytest.mark.slow
@pytest.mark.parametrize("mode", SAMPLINGS)
def test_every_method_decodes_as_it_does_alone(mode):
    """Compares each method with a separate session in one mode, and with its own second run in the other modes."""
    state, sampling, first = prefilled(NAMES), SAMPLINGS[mode], {}
    for n, name in enumerate(NAMES):
        found = untimed(state.decode(Variant.parse(name), sampling, 9))
        if n % len(SAMPLINGS) == list(SAMPLINGS).index(mode):
            assert found == untimed(alone(name, sampling, 9)), name
        else:
            first[name] = found
    for name in reversed(first):  # a decoding must not affect later ones
        assert untimed(state.decode(Variant.parse(name), sampling, 9)) == first[name], name


@pytest.mark.parametrize("family", HYBRID)
def test_states_go_back_to_the_prompts_end_and_compiled_kernels_leave_other_modules_alone(family, kernels):
    names, greedy = ["ar", "graft-x-text", "transformers", "pld"], Sampling()
    state = prefilled(names, own={"family": family, "kernels": kernels})
    found = [state.decode(Variant.parse(name), greedy, 9)[0] for name in names * 2]
    assert all(tokens == plain(family, len(PROMPT), 9, greedy) for tokens in found)


def test_a_margin_after_a_shared_prefill_is_that_of_the_whole_text():
    state, target = prefilled(["ar"]), toy_parts().target
    for tokens in ([], REPLAY[:7]):
        whole = margin(target, target.cache(len(PROMPT) + 7), PROMPT + tokens)
        assert state.margin(tokens) == pytest.approx(whole, rel=1e-4) and whole[0] > 0


def test_heads_do_not_share_their_caches():
    other = toy_parts(seed=7)
    state = prefilled(["eagle3", "eagle3@other"], other=other)
    lone = PromptMeasurement(engines(other), [Variant.parse("eagle3")], PROMPT, NEW + 90)
    found = [
        s.decode(Variant.parse(name), SAMPLINGS["replay"], NEW)[1].accepted_per_step
        for s, name in ((state, "eagle3"), (state, "eagle3@other"), (lone, "eagle3"))
    ]
    assert found[0] != found[1] == found[2]


def test_a_lasting_memory_learns_over_the_run_as_it_does_in_a_session():
    """Token Recycling keeps its matrix between prompts; a repeat starts from where the prompt started."""
    made = engines(toy_parts(), runs=("replay", "x"))
    session, variant = toy_session("token-recycling"), Variant.parse("token-recycling")
    for n, ids in enumerate([PROMPT, toy_prompt(70, seed=4), PROMPT]):
        expected = answered(session, ids, NEW, SAMPLINGS["replay"]).stats
        state = PromptMeasurement(made, [variant], ids, NEW)
        assert state.learned_from(variant, "replay") == n and state.learned_from(Variant.plain(), "replay") is None
        for _ in range(2):
            _, stats = state.decode(variant, SAMPLINGS["replay"], NEW, run="replay")
            assert stats.accepted_per_step == expected.accepted_per_step
        state.decode(variant, SAMPLINGS["sampled"], NEW)  # a check beside the run teaches it nothing
        if n == 2:
            cold = state.decode(variant, SAMPLINGS["replay"], NEW, run="x")[1]
            assert sum(cold.accepted_per_step) < sum(stats.accepted_per_step)
    # The same row, cut to another length, has the same answer.
    longer = PromptMeasurement(made, [variant], PROMPT, NEW, pool="the same row at 4096")
    assert longer.learned_from(variant, "replay") == 0
    found = longer.decode(variant, SAMPLINGS["replay"], NEW, run="replay")[1]
    assert found.accepted_per_step == cold.accepted_per_step


@pytest.mark.slow
def test_a_lasting_memory_has_marks_of_its_own_in_every_run():
    """Two runs learn apart from one another, though they share a prefill; a repeat teaches nothing."""
    made, variant = engines(toy_parts(), runs=("replay", "x")), Variant.parse("token-recycling")
    alone = engines(toy_parts(), runs=("replay",))
    for n, ids in enumerate([PROMPT, toy_prompt(70, seed=4), PROMPT]):
        state = PromptMeasurement(made, [variant], ids, NEW)
        only = PromptMeasurement(alone, [variant], ids, NEW)
        for run in ("replay", "x", "replay", "x"):
            sampling = SAMPLINGS["replay" if run == "replay" else "sampled"]
            ours = state.decode(variant, sampling, NEW, run=run)[1].accepted_per_step
            if run == "replay":
                assert ours == only.decode(variant, sampling, NEW, run=run)[1].accepted_per_step
        assert made.prompts[variant.name, "x", ""] == made.prompts[variant.name, "replay", ""] == n + 1
        assert state.learned_from(variant, "x") == n


def test_time_to_the_first_token_includes_only_the_method_s_own_memories(monkeypatch):
    """Uses a clock on which a drafter takes 100 seconds for each observation."""
    real, late = Eagle3Cache.observe, [0.0]

    def slowly(self, seen):
        with self.clock.part("draft"):
            late[0] += 100.0
            real(self, seen)

    monkeypatch.setattr(Eagle3Cache, "observe", slowly)
    monkeypatch.setattr(Clock, "now", lambda self, wait=True: late[0])
    state = prefilled([PLAIN, "pld", "eagle3"])
    seconds = {
        name: state.decode(Variant.parse(name), Sampling(), 4)[1].prefill_seconds for name in (PLAIN, "pld", "eagle3")
    }
    assert seconds == {PLAIN: 0.0, "pld": 0.0, "eagle3": 200.0}  # a chunk, and the last token
    assert state.prefill_seconds == 100.0


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_the_other_baselines_decode_as_plain_decoding_does_and_end_where_it_ends(name):
    """Starts from a cache of the prompt without its last token; the first pass reads only that token."""
    state, plain, other = prefilled([PLAIN, name]), Variant.parse(PLAIN), Variant.parse(name)
    ours, stats = state.decode(plain, Sampling(), NEW)
    seen: list[int] = []
    embedding = state.target.model.get_input_embeddings()
    hook = embedding.register_forward_pre_hook(lambda _, ids: seen.append(ids[0].shape[1]))
    theirs, their_stats = state.decode(other, Sampling(), NEW)
    hook.remove()
    assert ours == theirs and their_stats.decode_tokens_per_second > 0 and stats.mat == 0
    assert sum(their_stats.accepted_per_step) + their_stats.steps == len(theirs) and max(seen) <= 11
    assert "prepare_inputs_for_generation" not in vars(state.target.model)
    end = ours[NEW // 2]
    assert state.decode(other, Sampling(), NEW, [end])[0] == state.decode(plain, Sampling(), NEW, [end])[0]
    assert state.decode(plain, Sampling(), NEW)[0] == ours  # its cache was a copy


@pytest.mark.slow
def test_settings_of_a_variant_reach_its_trees():
    """Compares each variant with a session that has the same parts."""
    warm = Calibration({0: 0.9, 1: 0.0, 5: 0.0}, 24, torch.randint(VOCAB, (VOCAB + 1, 8), dtype=torch.int32))
    settings = {
        "graft+budget=20": {},
        "graft+depth=2": {},
        "graft+width=1": {},
        "eagle3+levels=2+top_k=3": {},
        "graft+warm=w": {"snapshot": warm.snapshot},
        "graft+thresholds=w": {"thresholds": warm.thresholds, "split": 24},
        "graft+thresholds=none": {"thresholds": DEFAULT_THRESHOLDS, "split": 40},
    }
    state = prefilled(["graft", *settings], {"w": warm}, own={"thresholds": {0: 0.5}, "split": 50})
    for name, changes in settings.items():
        tokens, stats = state.decode(Variant.parse(name), Sampling(), NEW)
        expected, theirs = alone(name, Sampling(), **({"thresholds": {0: 0.5}, "split": 50} | changes))
        assert tokens == expected
        assert (stats.accepted_per_step, stats.stages, stats.accepted_by_origin) == (
            theirs.accepted_per_step,
            theirs.stages,
            theirs.accepted_by_origin,
        ), name
    assert Variant.parse("graft+budget=20").budget(60) == 20


def test_a_calibration_or_a_head_that_was_not_given_is_named():
    with pytest.raises(ValueError, match="'five', which was not given"):
        prefilled(["graft+warm=five"])
    with pytest.raises(ValueError, match="'long', which was not given"):
        prefilled(["eagle3@long"])


def test_recording_is_in_no_method_s_time(monkeypatch):
    """Uses a clock on which only recording takes time."""
    late = [0.0]

    def slowly(region):
        late[0] += 100.0
        return recorder(region)

    monkeypatch.setattr(Clock, "now", lambda self, wait=True: late[0])

    parts = toy_parts(regions=Regions(slowly))
    variants = [Variant.parse("ar"), Variant.parse("eagle3")]
    state = PromptMeasurement(engines(parts), variants, PROMPT, NEW + 90)
    for name in ("ar", "eagle3"):
        tokens, stats = state.decode(Variant.parse(name), Sampling(), 6)
        assert tokens == alone(name, Sampling())[0][:6] and stats.decode_seconds == 0.0
    assert late[0] > 0


def test_a_matrix_that_requests_share_begins_empty_with_each_prompt():
    variant, made = Variant.parse("graft-hb"), engines(toy_parts())
    PromptMeasurement(made, [variant], toy_prompt(90, seed=7), NEW).decode(variant, Sampling(), NEW)
    after, fresh = (
        untimed(PromptMeasurement(one, [variant], PROMPT[:20], NEW).decode(variant, Sampling(), NEW))
        for one in (made, engines(toy_parts()))
    )
    assert after == fresh
