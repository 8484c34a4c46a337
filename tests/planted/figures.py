"""Errors that `test_figures.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation("the rate counts the first token", "Stats.decode_tokens_per_second", "(self.new_tokens - 1) / self.decode_seconds", "self.new_tokens / self.decode_seconds", "test_figures.py::test_the_decoding_rate_excludes_the_prefills_token"),
    Mutation("the origin both is reported as draft", "_origin", 'return "both"', 'return "draft"', "test_figures.py::test_an_accepted_token_is_credited_to_all_its_origins"),
    Mutation("intervals cover 90 %", "bootstrap", "level: float = 0.95", "level: float = 0.90", "test_figures.py::test_the_bootstrap_interval_is_that_of_all_resamples"),
    Mutation("matches are counted a bin too low", "Tally._bin_estimates", "bisect_left(MATCH_ENDS, match[node])", "bisect_left(MATCH_ENDS, match[node] - 1)", "test_figures.py::test_nodes_are_counted_by_the_length_of_their_match_and_by_their_probability"),
)
