"""Errors that `test_figures.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "the rate counts the first token",
        "Stats.decode_tokens_per_second",
        "_ratio(self.new_tokens - 1, self.decode_seconds)",
        "_ratio(self.new_tokens, self.decode_seconds)",
        "test_figures.py::test_the_decoding_rate_excludes_the_prefills_token",
    ),
    Mutation(
        "the origin both is reported as draft",
        "_origin",
        'return "both"',
        'return "draft"',
        "test_figures.py::test_an_accepted_token_is_credited_to_all_its_origins",
    ),
    Mutation(
        "intervals cover 90 %",
        "bootstrap",
        "level: float = 0.95",
        "level: float = 0.90",
        "test_figures.py::test_the_bootstrap_interval_is_that_of_all_resamples",
    ),
    Mutation(
        "matches are counted a bin too low",
        "Tally._bin_estimates",
        "bisect_left(MATCH_ENDS, match[node])",
        "bisect_left(MATCH_ENDS, match[node] - 1)",
        "test_figures.py::test_nodes_are_counted_by_the_length_of_their_match_and_by_their_probability",
    ),
    Mutation(
        "reused tokens have another name in JSON",
        "Stats.as_dict",
        '"reused_tokens":',
        '"cached_tokens":',
        "test_figures.py::test_the_json_of_statistics_has_each_under_its_own_name",
    ),
    Mutation(
        "a mean without steps is an error",
        "stats:_ratio",
        " if of_total else 0.0",
        "",
        "test_figures.py::test_figures_without_a_step_are_zero",
    ),
    Mutation(
        "a token that no source proposed was retrieved",
        "stats:_origin",
        'return "forced"',
        'return "retrieved"',
        "test_figures.py::test_a_token_that_no_source_proposed_was_forced",
    ),
    Mutation(
        "a drafted tree is one of a memory",
        "Tally.count",
        " or any(bits & DRAFT for bits in origins)",
        "",
        "test_figures.py::test_steps_are_counted_by_what_was_proposed_and_nodes_by_their_depth",
    ),
    Mutation(
        "the root counts as a proposed node",
        "Tally.stats",
        "range(1, len(self._proposed) + 1)",
        "range(len(self._proposed))",
        "test_figures.py::test_steps_are_counted_by_what_was_proposed_and_nodes_by_their_depth",
    ),
    Mutation(
        "stages are not counted",
        "Tally.count",
        '            self._stages[f"d{tree.stage}"] += 1\n',
        "            pass\n",
        "test_figures.py::test_stages_are_counted_by_the_expansions_that_were_made",
    ),
    Mutation(
        "an unused request has read a token",
        "Stats",
        "prompt_tokens: int = 0",
        "prompt_tokens: int = 1",
        "test_figures.py::test_figures_without_a_step_are_zero",
    ),
)
