"""Errors that `test_costs.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a pass may take no time",
        "Costs.load",
        "seconds == 0.0 for row",
        "seconds < 0.0 for row",
        "test_costs.py::test_impossible_costs_are_named_with_their_place",
    ),
    Mutation(
        "rows that were not measured are free",
        "_extended",
        "if rows > most)",
        "if rows < 0)",
        "test_costs.py::test_rows_not_measured_at_one_prefix_cost_as_much_more_as_at_another",
    ),
    Mutation(
        "frozen costs change",
        "LiveCosts._moved",
        "if self.frozen or min(",
        "if min(",
        "test_costs.py::test_frozen_costs_do_not_change",
    ),
    Mutation(
        "a timed pass moves only the rows below",
        "LiveCosts.timed",
        "own[right] += OWN * moved * share",
        "pass",
        "test_costs.py::test_costs_follow_timed_passes_and_others_change_a_little",
    ),
    Mutation(
        "nothing is learnt for all rows together",
        "LiveCosts.timed",
        "self._machine += SHARED * moved",
        "pass",
        "test_costs.py::test_live_costs_are_measured_anew_at_a_prefix_far_beyond_the_measured_ones",
    ),
    Mutation(
        "every size is recorded to measure costs",
        "_Rig.__init__",
        "            self.rows = RECORDED_ROWS\n",
        "",
        "test_costs.py::test_few_sizes_are_recorded_to_measure_costs",
    ),
    Mutation(
        "measured passes have the vocabulary's first tokens",
        "cost_measurement:_tokens",
        "apart = max(1, vocabulary // most)",
        "apart = 1",
        "test_costs.py::test_measured_passes_have_tokens_of_the_whole_vocabulary_without_a_text",
    ),
    Mutation(
        "a fast pass is taken for chance",
        "LiveCosts._moved",
        "min(math.log(seconds / expected), OUTLIER)",
        "min(max(math.log(seconds / expected), -OUTLIER / 4), OUTLIER)",
        "test_costs.py::test_an_overpriced_pass_is_soon_as_cheap_as_it_is",
    ),
    Mutation(
        "all rows of a measured pass have one token",
        "cost_measurement:_tokens",
        "[apart * n for n in range(most)]",
        "[apart] * most",
        "test_costs.py::test_measured_rows_wake_as_many_experts_as_rows_of_a_text",
    ),
    Mutation(
        "passes are measured after a context of zeros",
        "cost_measurement:_repeat",
        "rows[:, :, :more]",
        "0",
        "test_costs.py::test_measured_rows_wake_as_many_experts_as_rows_of_a_text",
    ),
    Mutation(
        "a text's tokens are not the rows of measured passes",
        "cost_measurement:_tokens",
        "if len(text) >= CONTEXT + most and",
        "if False and",
        "test_costs.py::test_rows_of_measured_passes_are_tokens_of_a_text",
    ),
    Mutation(
        "passes are timed without a text at loading",
        "Loaded._costs",
        "sample_tokens(self.tokenizer)",
        "()",
        "test_costs.py::test_rows_of_measured_passes_are_tokens_of_a_text",
    ),
)
