"""Errors that `test_fixed.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation("a recorded pass writes its rows one late", "StaticPass._forward", "length + self.index", "length + 1 + self.index", "test_fixed.py::test_a_pass_recorded_once_serves_other_lengths_and_trees"),
    Mutation("a recorded pass is one position late", "StaticPass._forward", "positions = position + tree.depths", "positions = position + 1 + tree.depths", "test_fixed.py::test_a_pass_recorded_once_serves_other_lengths_and_trees"),
    Mutation("rows that are not kept move to the root's", "StaticPass._settle", "torch.where(path < 0, self.index, path)", "path.clamp(min=0)", "test_fixed.py::test_rows_of_a_path_can_be_committed_repeatedly_and_a_path_of_one_moves_none"),
    Mutation("accepted rows move in the region that reads them", "StaticPass._settle", "        kept = Report(report.logits", "        self.cache.put(self.inputs[-NUMBERS] + self.index, moved)\n        kept = Report(report.logits", "test_fixed.py::test_rows_of_a_path_can_be_committed_repeatedly_and_a_path_of_one_moves_none"),
    Mutation("every setting of sampling stays recorded", "Regions.latest", "self.recordings.pop((slot, before), None)", "pass", "test_fixed.py::test_only_the_last_sampling_settings_stay_recorded"),
    Mutation("trees of any size are merged on the device", "Graft.propose", " and budget <= SIZES[-1]:", ":", "test_fixed.py::test_budgets_beyond_the_largest_size_give_the_results_of_single_launches"),
    Mutation("caches grow by less than they are rounded to", "Lane._padded_capacity", "max(ROUND, (1 <<", "max(1, (1 <<", "test_fixed.py::test_requests_of_like_lengths_share_their_recordings_and_a_longer_one_makes_new_ones"),
    Mutation("features are those of a recorded tree's first nodes", "StaticPass._settle", "{layer: rows[nodes] for", "{layer: rows for", "test_fixed.py::test_features_are_those_of_the_kept_path"),
    Mutation("features are those of a tree's first nodes", "Verifier._eager", "{layer: rows[nodes] for", "{layer: rows[:len(nodes)] for", "test_fixed.py::test_features_are_those_of_the_kept_path"),
    Mutation("the report of a pass changes with the next pass", "Verifier._fixed", "{layer: rows[:len(path)].clone() for", "{layer: rows[:len(path)] for", "test_fixed.py::test_observed_features_outlive_the_next_pass"),
    Mutation("dead rows write to the matrix", "AdjacencyMemory._update", "torch.where(tree.live, tree.tokens, self._matrix.vocab_size)", "tree.tokens", "test_fixed.py::test_recorded_steps_fill_the_matrix_with_the_same_rows"),
    Mutation("recorded levels keep their first position", "Eagle3Cache.begin", "self.root.fill_(root)\n        self.committed.fill_(self.cache.length)", "self.root.fill_(root)", "test_fixed.py::test_recorded_steps_give_and_accept_the_tokens_of_single_launches"),
    Mutation("a drafted tree's parents are one off on the device", "Eagle3Drafter._on_device", "torch.searchsorted(best, above) + 1", "torch.searchsorted(best, above)", "test_fixed.py::test_recorded_steps_give_and_accept_the_tokens_of_single_launches"),
    Mutation("every seed has recordings of its own", "Sampled.law", "replace(self, seed=0)", "self", "test_fixed.py::test_seeds_share_their_recordings_and_give_different_answers"),
    Mutation("a longer request keeps what was recorded for shorter ones", "Lane._padded_capacity", "        self.regions.forget()\n", "", "test_fixed.py::test_requests_of_like_lengths_share_their_recordings_and_a_longer_one_makes_new_ones"),
    Mutation("a wait of another thread refuses a region", "_syncs_of_this_thread", "elif threading.get_ident() == thread:", "else:", "test_fixed.py::test_a_region_that_waits_is_refused_and_other_threads_may_wait"),
    Mutation("a wait of another thread is an error", "_syncs_of_this_thread", 'set_sync_debug_mode("warn")', 'set_sync_debug_mode("error")', "test_fixed.py::test_a_region_that_waits_is_refused_and_other_threads_may_wait"),
    Mutation("the end of recordings is not said", "Regions.__call__", "            self._say_that_it_is_full()\n", "", "test_fixed.py::test_there_are_never_more_recordings_than_can_be_held"),
    Mutation("caches have no room for padded rows", "Lane._padded_capacity", "        capacity += SIZES[-1]\n", "", "test_fixed.py::test_caches_of_recorded_steps_have_room_for_padded_rows"),
    Mutation("only recordings that are still there count", "Regions", "self.recorded += 1", "self.recorded = len(self.recordings)", "test_fixed.py::test_requests_of_like_lengths_share_their_recordings_and_a_longer_one_makes_new_ones"),
    Mutation("plain decoding is launched one by one to be compared with recordings", "plain_session", "if recorded else EAGER", "if False else EAGER", "test_fixed.py::test_a_comparison_replays_plain_decoding_and_leaves_out_the_time_of_recording"),
    Mutation("the time of recording counts in a comparison", "compare_with_plain", "ours.stats.replayed_tokens_per_second", "ours.stats.decode_tokens_per_second", "test_fixed.py::test_a_comparison_replays_plain_decoding_and_leaves_out_the_time_of_recording"),
    Mutation("plain decoding is not recorded after a refusal", "plain_session", "session.engine.regions.given", "session.engine.regions._recorder", "test_fixed.py::test_plain_decoding_is_recorded_for_times_and_not_for_tokens_even_if_the_method_was_refused"),
    Mutation("tokens are compared with recorded passes", "plain_session", "if recorded else EAGER", "if True else EAGER", "test_fixed.py::test_plain_decoding_is_recorded_for_times_and_not_for_tokens_even_if_the_method_was_refused"),
)
