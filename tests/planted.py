"""Small errors, each of which some claim of the suite must notice.  Knows texts; `mutations.py` plants them."""

from __future__ import annotations

from typing import NamedTuple


class Mutation(NamedTuple):
    """An error.  file: in the checkout; old: stands there exactly once; noticed: tests of which one must fail."""

    name: str
    file: str
    old: str
    new: str
    noticed: str


DRAWS = (
    Mutation("the noise ignores the position", "longgraft/acceptance.py",
             " + torch.tensor(position) * _GOLDEN)", ")",
             "test_sampling.py::test_the_noise_is_that_of_plain_integers"),
    Mutation("top-p drops the token that crosses its border", "longgraft/acceptance.py",
             "(share.cumsum(-1) + rest)", "(share.cumsum(-1) - share + rest)",
             "test_sampling.py::test_what_can_be_drawn_is_what_transformers_warpers_leave"),
    Mutation("top-k keeps one more", "longgraft/acceptance.py",
             "scores.topk(self.top_k)", "scores.topk(self.top_k + 1)",
             "test_sampling.py::test_what_can_be_drawn_is_what_transformers_warpers_leave"),
    Mutation("min-p is absolute", "longgraft/acceptance.py",
             "self.min_p * probabilities.amax(-1, keepdim=True)", "self.min_p",
             "test_sampling.py::test_what_can_be_drawn_is_what_transformers_warpers_leave"),
    Mutation("custom_generate drops top-k", "longgraft/loading.py", "c.top_k or 0", "0",
             "test_transformers.py::test_each_setting_of_generate_reaches_our_draws"),
    Mutation("custom_generate drops min-p", "longgraft/loading.py", "c.min_p or 0.0", "0.0",
             "test_transformers.py::test_each_setting_of_generate_reaches_our_draws"),
    Mutation("custom_generate drops top-p", "longgraft/loading.py", "c.top_p if c.top_p is not None else 1.0", "1.0",
             "test_transformers.py::test_each_setting_of_generate_reaches_our_draws"),
    Mutation("the walk stops at five", "longgraft/acceptance.py",
             "draws[path[-1]]))) is not None:", "draws[path[-1]]))) is not None and len(path) < 6:",
             "test_sampling.py::test_a_walk_goes_as_far_as_the_draws_agree"),
    Mutation("the first new token is drawn for the position before", "longgraft/verifier.py",
             "[self.cache.position])", "[self.cache.position - 1])",
             "test_lossless.py::test_every_method_says_exactly_what_the_target_would[llama-ar-sampled]"),
)

ENDS = (
    Mutation("an end token inside a path is missed", "longgraft/request.py",
             "if token in self.goal.eos", "if token in self.goal.eos and i == len(new) - 1",
             "test_lossless.py::test_an_end_token_inside_an_accepted_path_ends_there"),
    Mutation("trees are cut one level too shallow", "longgraft/request.py",
             ".shallower(left - 1)", ".shallower(max(left - 2, 0))",
             "test_lossless.py::test_the_last_step_may_accept_all_but_one_of_what_is_left"),
    Mutation("an end token is no new token", "longgraft/request.py", 'new[:end + 1], "eos"', 'new[:end], "eos"',
             "test_request.py::test_an_answer_says_why_it_ended"),
    Mutation("a stop string's last token is no new token", "longgraft/request.py",
             'new[:n], "stop"', 'new[:n - 1], "stop"', "test_request.py::test_an_answer_says_why_it_ended"),
    Mutation("what an end cuts off is counted as accepted", "longgraft/stats.py", "path[1:1 + emitted]", "path[1:]",
             "test_request.py::test_what_an_end_inside_a_step_cuts_off_is_not_counted"),
    Mutation("what an end cuts off is counted as new", "longgraft/request.py",
             "self.tally.count(tree, path, len(new))", "self.tally.count(tree, path, len(path))",
             "test_request.py::test_what_an_end_inside_a_step_cuts_off_is_not_counted"),
    Mutation("a stop string that the last bytes complete is called a length", "longgraft/request.py",
             "if self.text.stopped:       # a stop", "if False:       # a stop",
             "test_request.py::test_a_stop_string_that_only_the_last_bytes_complete_is_a_stop_and_no_length"),
)

PROMPTS = (
    Mutation("the token after a chunk is the chunk's last", "prefill/chunked.py", "int(prompt[end])",
             "int(prompt[end - 1])",
             "test_memories.py::test_what_a_drafter_knows_of_a_prompt_does_not_depend_on_its_chunks"),
    Mutation("the token after the last chunk but one is drawn", "prefill/chunked.py",
             "if end < len(prompt) else", "if end + 1 < len(prompt) else",
             "test_memories.py::test_what_a_drafter_knows_of_a_prompt_does_not_depend_on_its_chunks"),
    Mutation("chunks overlap by one", "prefill/chunked.py", "prompt[start:end]", "prompt[start:end + 1]",
             "test_memories.py::test_what_a_drafter_knows_of_a_prompt_does_not_depend_on_its_chunks"),
)

TREES = (
    Mutation("a gate compares 1 + log-probability", "longgraft/drafters/policies.py",
             "math.exp(level.scores.max().item())", "1 + level.scores.max().item()",
             "test_graft.py::test_a_gate_is_closed_by_confidences_up_to_its_threshold "
             "test_graft.py::test_a_gate_compares_a_probability_and_is_closed_where_it_is_the_threshold"),
    Mutation("a gate looks at the least probable path", "longgraft/drafters/policies.py",
             "level.scores.max()", "level.scores.min()",
             "test_graft.py::test_a_gate_is_closed_by_confidences_up_to_its_threshold"),
    Mutation("a gate is open at its threshold", "longgraft/drafters/policies.py",
             "confidence > threshold:", "confidence >= threshold:",
             "test_graft.py::test_a_gate_compares_a_probability_and_is_closed_where_it_is_the_threshold"),
    Mutation("a shallow tree has no gate", "longgraft/drafters/policies.py",
             "default=None) if level.last else None", "default=None) if False else None",
             "test_graft.py::test_the_last_level_of_a_shallow_tree_has_the_next_deeper_gate"),
    Mutation("w/o prune keeps 50", "longgraft/parts.py", "split: int = 40", "split: int = 50",
             "test_graft.py::test_what_never_stops_keeps_forty_of_sixty_and_no_prune_what_was_calibrated"),
    Mutation("w/o prune keeps 50 where nothing was calibrated", "longgraft/calibration.py",
             "split: int = 40", "split: int = 50",
             "test_graft.py::test_what_never_stops_keeps_forty_of_sixty_and_no_prune_what_was_calibrated"),
    Mutation("w/o prune ignores the calibrated share", "longgraft/methods.py", "Split(p.split)", "Split()",
             "test_graft.py::test_what_never_stops_keeps_forty_of_sixty_and_no_prune_what_was_calibrated"),
    Mutation("a fixed split keeps 50", "longgraft/drafters/policies.py", "kept_of_60: int = 40", "kept_of_60: int = 50",
             "test_graft.py::test_what_never_stops_keeps_forty_of_sixty_and_no_prune_what_was_calibrated"),
    Mutation("tails hang on the worst leaves", "longgraft/compose.py", "(-scores[node], node)", "(scores[node], node)",
             "test_graft.py::test_chains_of_five_hang_on_the_four_best_leaves"),
    Mutation("tails are chains of three", "longgraft/compose.py", "length: int = 5", "length: int = 3",
             "test_graft.py::test_chains_of_five_hang_on_the_four_best_leaves"),
    Mutation("tails hang on three leaves", "longgraft/compose.py", "leaves: int = 4", "leaves: int = 3",
             "test_graft.py::test_chains_of_five_hang_on_the_four_best_leaves"),
    Mutation("tails go beyond the budget", "longgraft/compose.py",
             "min(self.length, ask.budget - len(tree))", "self.length",
             "test_graft.py::test_of_a_smaller_tree_the_tails_are_shorter"),
    Mutation("rewound thresholds are not those that the gates read", "longgraft/drafters/online.py",
             "self.thresholds.update(thresholds)", "self.thresholds = dict(thresholds)",
             "test_online.py::test_a_rewound_memory_has_its_thresholds_and_its_window_again"),
    Mutation("thresholds move where nothing is gained", "longgraft/drafters/online.py",
             "if rates[best] > HYSTERESIS * rates[0]", "if True",
             "test_online.py::test_a_threshold_that_pays_as_well_as_another_stays"),
    Mutation("levels that were not drafted count as rejected", "longgraft/drafters/online.py",
             "there = levels >= end", "there = levels >= 0",
             "test_online.py::test_what_each_outcome_is_expected_to_yield"),
    Mutation("a stopped step is expected to cost a level less", "longgraft/drafters/online.py",
             "1 + level_cost * (self._last + 1)", "1 + level_cost * self._last",
             "test_online.py::test_what_each_outcome_is_expected_to_yield"),
    Mutation("graft fills one slot less", "longgraft/compose.py",
             "at=0, budget=ask.budget)", "at=0, budget=ask.budget - 1)",
             "test_graft.py::test_graft_asks_for_every_free_slot_and_fills_it"),
    Mutation("graft asks for one slot less", "longgraft/compose.py",
             "ask.budget - len(drafted))", "ask.budget - len(drafted) - 1)",
             "test_graft.py::test_graft_asks_for_every_free_slot_and_fills_it"),
)

DRAFTER = tuple(Mutation(name, file, old, new, "test_official_drafts.py") for name, file, old, new in (
    ("drafted levels stand a position late", "longgraft/drafters/eagle3.py",
     "torch.full((b,), committed + depth)", "torch.full((b,), committed + depth + 1)"),
    ("what a drafter is fed stands a position late", "longgraft/memories/drafted.py",
     "self.cache.length + torch.arange(n), layout)", "self.cache.length + 1 + torch.arange(n), layout)"),
    ("drafted siblings see one another", "longgraft/drafters/eagle3.py",
     "torch.eye(b, dtype=torch.bool, device=self.device)", "True"),
    ("drafted nodes do not see their ancestors", "longgraft/drafters/eagle3.py",
     "mask[:, :beam.ancestors.shape[1]] = beam.ancestors", "mask[:, :beam.ancestors.shape[1]] = False"),
    ("the beam goes by gain", "longgraft/drafters/eagle3.py", "level.flatten().topk(", "gains.flatten().topk("),
    ("the beam goes on from the first states", "longgraft/drafters/eagle3.py",
     "states[:, rows], mask[rows]", "states[:, :len(rows)], mask[rows]"),
    ("the worst candidates make the tree", "longgraft/drafters/eagle3.py",
     "scores.sort(descending=True, stable=True)", "scores.sort(descending=False, stable=True)"),
    ("features in the wrong order", "longgraft/observation.py", "for layer in layers]", "for layer in layers[::-1]]"),
    ("features of a tree's first nodes", "longgraft/observation.py",
     "[rows[path] for rows in joined]", "[rows[:len(path)] for rows in joined]"),
    ("a drafter is fed the token itself for the next", "longgraft/memories/drafted.py",
     "feature_layers), seen.following),)", "feature_layers), seen.kept),)"),
))

MEMORIES = (
    Mutation("a rewound history keeps one token", "longgraft/memories/history.py",
             "self._size = mark", "self._size = mark + 1",
             "test_memories.py::test_a_rewound_history_is_as_long_as_at_its_mark"),
    Mutation("a rewound drafter keeps one row", "longgraft/memories/drafted.py",
             "self.cache.crop(length)", "self.cache.crop(min(length + 1, self.cache.length))",
             "test_memories.py::test_what_waits_is_part_of_a_mark_and_of_a_state"),
    Mutation("a rewound drafter forgets what waited", "longgraft/memories/drafted.py",
             "length, self._newest, self._waiting, self._fed = mark",
             "(length, self._newest, _, self._fed), self._waiting = mark, ()",
             "test_memories.py::test_what_waits_is_part_of_a_mark_and_of_a_state"),
    Mutation("a state leaves out what waits", "longgraft/memories/drafted.py",
             "    def state(self) -> Any:\n        self._feed()\n", "    def state(self) -> Any:\n",
             "test_memories.py::test_what_waits_is_part_of_a_mark_and_of_a_state"),
    Mutation("a drafter forgets what waits when more comes", "longgraft/memories/drafted.py",
             "self._waiting += (", "self._waiting = (",
             "test_memories.py::test_a_drafter_is_fed_when_it_is_asked_and_a_prompt_at_once"),
    Mutation("a union of wants drops the final states", "longgraft/observation.py",
             "self.final or other.final", "self.final",
             "test_memories.py::test_two_proposers_with_different_layers_share_a_pass"),
    Mutation("a union of wants takes the first top-k", "longgraft/observation.py",
             "max(self.topk, other.topk)", "self.topk or other.topk",
             "test_memories.py::test_two_proposers_with_different_layers_share_a_pass"),
    Mutation("a cache that grows forgets its prefix", "longgraft/kv.py",
             "        self._fill(kept)\n", "",
             "test_memories.py::test_a_cache_keeps_its_prefix_when_it_grows_and_stands_behind_what_was_skipped"),
)

RUNS = tuple(Mutation(name, "eval/runs/measure.py", old, new, f"test_measure.py::test_{claim}") for (
        name, old, new, claim) in (
    ("a lasting memory learns from repeats",
     "        for memory in proposer.memories:\n            memory.rewind(",
     "        for memory in (m for m in proposer.memories if not m.lasting):\n            memory.rewind(",
     "a_lasting_memory_learns_over_the_run_as_it_does_in_a_session"),
    ("repeats count as prompts", "self._before[variant.name, run] + 1",
     "self._learned.prompts(variant.name, run) + 1", "a_lasting_memory_has_marks_of_its_own_in_every_run"),
    ("two runs share a lasting memory", "for key, memory in kept.items() if not memory.lasting}",
     "for key, memory in kept.items()}", "a_lasting_memory_has_marks_of_its_own_in_every_run"),
    ("memories of one name share a mark", "{id(memory): memory.mark() for memory in memories}",
     "{id(m): {n.name: n.mark() for n in memories}[m.name] for m in memories}",
     "a_lasting_memory_has_marks_of_its_own_in_every_run"),
    ("what was learnt is not recalled", "            memory.restore(state)", "            pass",
     "a_lasting_memory_learns_over_the_run_as_it_does_in_a_session"),
    ("the first token waits for others' memories", "sum(self._seeing[id(m)] for m in proposer.memories)",
     "sum(self._seeing.values())",
     "what_a_method_s_own_memories_took_is_in_its_time_to_the_first_token_and_others_is_not"),
    ("the first token does not wait for its own memories",
     " + sum(self._seeing[id(m)] for m in proposer.memories)", "",
     "what_a_method_s_own_memories_took_is_in_its_time_to_the_first_token_and_others_is_not"),
))

REQUESTS = (
    Mutation("an ended request gives nothing back", "longgraft/request.py", "        self._give_back()\n", "",
             "test_request.py::test_a_request_that_ended_or_failed_or_was_left_gives_everything_back"),
    Mutation("memories are not released", "longgraft/engine.py", "            memory.release()\n", "            pass\n",
             "test_request.py::test_a_request_that_ended_or_failed_or_was_left_gives_everything_back"),
    Mutation("the target's cache is not released", "longgraft/engine.py", "        self.cache.release()\n", "",
             "test_request.py::test_a_request_that_ended_or_failed_or_was_left_gives_everything_back"),
    Mutation("a request that failed keeps what it holds", "longgraft/request.py",
             '            self._end("cancelled")\n            raise', "            raise",
             "test_request.py::test_a_request_that_ended_or_failed_or_was_left_gives_everything_back"),
    Mutation("a cancelled request takes one more step", "longgraft/request.py",
             """            if self._cancelled and self._finish is None:
                self._end("cancelled")
            return self._advance() if self._finish is None else None
""", """            step = self._advance() if self._finish is None else None
            if self._cancelled and self._finish is None:
                self._end("cancelled")
            return step
""", "test_request.py::test_a_cancelled_request_ends_before_its_next_step_and_gives_everything_back"),
)

FIGURES = (
    Mutation("the rate counts the first token", "longgraft/stats.py",
             "(self.new_tokens - 1) / self.decode_seconds", "self.new_tokens / self.decode_seconds",
             "test_figures.py::test_the_rate_is_of_the_tokens_that_decoding_yielded"),
    Mutation("both is draft", "longgraft/stats.py", 'return "both"', 'return "draft"',
             "test_figures.py::test_an_accepted_token_is_credited_to_all_who_proposed_it"),
    Mutation("intervals of 90 %", "eval/statistics.py", "level: float = 0.95", "level: float = 0.90",
             "test_figures.py::test_the_interval_is_that_of_all_resamples"),
    Mutation("resamples of one value less", "eval/statistics.py",
             "(ROUNDS, len(sample))", "(ROUNDS, len(sample) - 1)",
             "test_figures.py::test_the_interval_is_that_of_all_resamples"),
)

CALIBRATION = tuple(Mutation(name, "eval/checks/calibrate.py", old, new, f"test_calibrate.py::test_{claim}") for (
        name, old, new, claim) in (
    ("a stopped step costs a level less", "else stage + 1\n", "else stage\n",
     "a_step_costs_the_levels_that_it_drafted_and_one_verification"),
    ("the costs of drafting and verifying are swapped", "draft, verify = costs", "verify, draft = costs",
     "a_step_costs_the_levels_that_it_drafted_and_one_verification"),
    ("a level costs what all of them do", "dense / warmup.drafter.levels, verify", "dense, verify",
     "a_level_costs_a_drafted_tree_over_its_levels"),
    ("the replay begins one token early", "text[step.position + 1:]", "text[step.position:]",
     "a_tree_is_replayed_from_the_token_after_its_root"),
    ("the replay begins one token late", "text[step.position + 1:]", "text[step.position + 2:]",
     "the_warm_up_s_replay_counts_what_its_decoding_accepted"),
    ("a gate's tree has a level less", "min(depth + 1, whole.levels)", "max(min(depth, whole.levels), 1)",
     "the_trees_of_the_warm_up_are_those_that_graft_would_have_verified"),
    ("the warm-up leaves a gate open at its threshold", "not step.confidence[depth] > tau",
     "step.confidence[depth] < tau", "a_gate_stops_a_step_whose_confidence_is_at_most_its_threshold"),
))

KERNELS = (
    Mutation("few rows see one column before their window", "longgraft/attention/layout.py",
             "- window + 1).clamp(0, self.prefix)", "- window).clamp(0, self.prefix)",
             "test_kernels.py::test_attention_equals_the_reference"),
    Mutation("all threads get the compiled products", "longgraft/kernels/few_rows.py",
             "if threading.get_ident() == self._thread else", "if self._thread else",
             "test_kernels.py::test_another_thread_gets_torchs_products_meanwhile"),
    Mutation("a module's own forward is taken away", "longgraft/kernels/few_rows.py",
             'for own, _ in self._ours if "forward" not in own]', "for own, _ in self._ours]",
             "test_kernels.py::test_a_module_with_a_forward_of_its_own_keeps_it"),
    Mutation("every norm is the plain one", "longgraft/kernels/few_rows.py",
             "return epsilon if torch.allclose(said, F.rms_norm(x, weight.shape, weight, epsilon), rtol=1e-5, atol=0) "
             "else None", "return epsilon", "test_kernels.py::test_a_norm_that_says_something_else_is_left_alone"),
    Mutation("merged stretches forget the larger score", "longgraft/kernels/few_rows.cpp",
             "total = total * mine + other.total * theirs;", "total = total + other.total;",
             "test_kernels.py::test_attention_equals_the_reference"),
    Mutation("half of the products are summed twice", "longgraft/kernels/few_rows.cpp",
             "= even[t] + odd[t];", "= even[t] + even[t];", "test_kernels.py::test_products_equal_torchs"),
)

SPENDING = (
    Mutation("matches are followed with one token", "longgraft/memories/successors.py",
             "text[at - n - 1] == context[end - n - 1]", "text[at - n - 1] == context[end - 1]",
             "test_ranking.py::test_the_longest_match_foretells_and_of_equal_n_grams_the_newest"),
    Mutation("a root is in the text twice", "longgraft/memories/successors.py",
             "kept[1:] if self.text else kept", "kept",
             "test_ranking.py::test_a_root_is_in_the_text_before_it_is_in_the_cache"),
    Mutation("a rewound text keeps its n-grams", "longgraft/memories/successors.py",
             "                if at >= 0:\n                    ends",
             "                if at > 10 ** 9:\n                    ends",
             "test_memories.py::test_rewinding_forgets_what_was_observed_since_the_mark_as_often_as_one_likes"),
    Mutation("rows have a say where nothing was drafted", "longgraft/ranking.py",
             "drafted.rows.get(place, ())", "next(iter(drafted.rows.values()), ())",
             "test_ranking.py::test_rows_have_a_say_beside_drafted_nodes_only"),
    Mutation("what costs more gains more", "longgraft/controller.py",
             "gained - 1.0 - self.rate * seconds", "gained - 1.0 + self.rate * seconds",
             "test_controller.py::test_the_tree_of_largest_gain_is_found_also_behind_a_jump_in_price"),
    Mutation("a loser is looked at whenever it may tell something", "longgraft/memories/experience.py",
             "<= share * self.learnt.spent", "<= self.learnt.spent",
             "test_controller.py::test_a_drafter_that_loses_is_looked_at_for_a_fiftieth_of_the_time_at_most"),
    Mutation("costs of a file follow", "longgraft/costs.py", "if self.frozen or min(", "if min(",
             "test_costs.py::test_frozen_costs_stay"),
)

MUTATIONS = (KERNELS + DRAWS + ENDS + PROMPTS + TREES + DRAFTER + MEMORIES + SPENDING + RUNS + REQUESTS + FIGURES
             + CALIBRATION)
