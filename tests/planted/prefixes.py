"""Errors that `test_prefixes.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation("the first difference is that of any kept prompt", "Prefixes.first_difference", "return start + equal", "return start", "test_prefixes.py::test_the_first_difference_is_that_to_the_prompt_that_is_followed_longest"),
    Mutation("evicted cells are compared with", "Prefixes.put", "self._tokens.remove(key)", "pass", "test_prefixes.py::test_evicted_cells_differ_from_nothing"),
    Mutation("the last row that two prompts share is reused", "PrefixReader.recall", "until = sum(part.tokens for part in prefix) - 1", "until = sum(part.tokens for part in prefix)", "test_prefixes.py::test_recalled_rows_of_a_drafter_equal_those_made_of_the_prompt[eagle3]"),
    Mutation("cells are counted from where reading begins", "last_occurrences", "((position + np.arange(len(ids))) // cell)", "(np.arange(len(ids)) // cell)", "test_prefixes.py::test_ranked_positions_follow_the_cells_of_rows"),
    Mutation("a leaf is newer than what leads to it", "Prefixes.use", "for key in reversed(keys):", "for key in keys:", "test_prefixes.py::test_prefixes_stay_within_their_limit_and_keep_the_beginning_longest"),
    Mutation("a memory that must see a prompt's end sees less", "PrefixReader.recall", "max(0, last + 1))", "len(self.ids))", "test_prefixes.py::test_a_memory_that_needs_the_end_of_a_prompt_sees_it"),
    Mutation("unreachable cells are kept", "Prefixes.lacks", " and all(map(self._has, before[-1:]))", "", "test_prefixes.py::test_a_cell_without_the_one_before_it_is_not_kept"),
    Mutation("a pinned cell is counted", "Prefixes.pin", "self.bytes -= cell.bytes", "pass", "test_prefixes.py::test_a_pinned_prefix_takes_no_room_and_is_known_to_its_last_token"),
    Mutation("a pinned cell holds the first one's rows", "Prefixes.pin", "rows.part(start, start + self.cell)", "rows.part(0, self.cell)", "test_prefixes.py::test_a_pinned_prefix_takes_no_room_and_is_known_to_its_last_token"),
    Mutation("the shortest of several ends is taken", "Prefixes.known", "max(lengths, default=0)", "min(lengths, default=0)", "test_prefixes.py::test_a_pinned_prefix_takes_no_room_and_is_known_to_its_last_token"),
    Mutation("cleared cells still take room", "Prefixes.clear", "self.bytes = 0", "pass", "test_prefixes.py::test_a_pinned_prefix_takes_no_room_and_is_known_to_its_last_token"),
    Mutation("reports of a part are the whole's", "Cell.part", "rows[start:end] for name", "rows for name", "test_prefixes.py::test_a_pinned_prefix_takes_no_room_and_is_known_to_its_last_token"),
    Mutation("pinning forgets what other cells take", "Prefixes.pin", "self.bytes -= cell.bytes", "self.bytes = cell.bytes", "test_prefixes.py::test_a_pinned_prefix_takes_no_room_and_is_known_to_its_last_token"),
    Mutation("a second end of a pinned prefix is not kept", "Prefixes.pin", "tokens != last", "tokens == last", "test_prefixes.py::test_a_pinned_prefix_takes_no_room_and_is_known_to_its_last_token"),
    Mutation("kept rows survive a change of the weights", "Prefixes.belong_to", "            self.clear()\n", "", "test_prefixes.py::test_prompts_are_read_again_after_a_change_of_the_weights"),
    Mutation("the numbers of the weights are not looked at", "weight_state", "view(torch.uint8)", "view(torch.uint8)[:0]", "test_prefixes.py::test_prompts_are_read_again_after_a_change_of_the_weights[behind_the_counter]"),
    Mutation("the counters of the weights are not looked at", "address_and_version", "weight._version", "0", "test_prefixes.py::test_prompts_are_read_again_after_a_change_of_the_weights[in_place]"),
    Mutation("adapters are not looked at", "weight_state:_adapters", "name in module.__dict__]", "name in ()]", "test_prefixes.py::test_prompts_are_read_again_after_an_adapter_is_switched"),
    Mutation("a drafter's weights are not looked at", "Eagle3Cache.networks", "return self.network,", "return ()", "test_prefixes.py::test_a_change_of_the_drafter_s_weights_drops_its_kept_rows"),
    Mutation("rows of two states of the weights are kept", "PrefixReader.keep", " or self._weights_changed()", "", "test_prefixes.py::test_rows_read_with_two_states_of_the_weights_are_not_kept"),
    Mutation("rows of the state at the opening are recalled", "PrefixReader.recall", "if not self._weights_changed():", "if True:", "test_prefixes.py::test_weights_that_change_before_the_first_step_count"),
    Mutation("pinned rows survive a change of the weights", "Prefixes.belong_to", "            self._pinned.clear()\n", "", "test_prefixes.py::test_a_prefix_file_is_dropped_with_a_warning_after_a_change_of_the_weights"),
    Mutation("pinned rows belong to the weights of the first request", "prefix_files:pin", "    engine.prefixes.belong_to(engine.lanes[0].weight_state())\n", "", "test_prefixes.py::test_a_prefix_file_is_dropped_with_a_warning_after_a_change_of_the_weights"),
    Mutation("recordings read weights where they were", "Lane._forget_changed", "                self.regions.forget()", "                pass", "test_prefixes.py::test_recorded_passes_read_changed_weights"),
    Mutation("packed copies of a drafter survive its weights", "Lane._forget_changed", "if self.target.kernels is not None:", "if False:", "test_prefixes.py::test_compiled_products_of_a_drafter_read_weights_that_changed_behind_the_counter"),
    Mutation("a cell's ranks are used for a part of it", "Prefixes.known", "if RANKED not in cell.reports:", "if True:", "test_prefixes.py::test_only_tokens_that_differ_are_read"),
    Mutation("only whole cells are known", "Prefixes.known", "if RANKED not in cell.reports:", "if False:", "test_prefixes.py::test_only_tokens_that_differ_are_read test_next_edit.py::test_a_keystroke_reads_at_most_its_change_and_the_windows_anew"),
)
