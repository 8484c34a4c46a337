"""Errors that `test_loops.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a short text without repeats is a loop",
        "repetition:_covered",
        "len(places) > 1",
        "len(places) > 0",
        "test_loops.py::test_a_short_text_without_repeats_is_no_loop",
    ),
    Mutation(
        "the longest period is not looked for",
        "repetition:_periodic",
        "len(tokens) // 2 + 1",
        "len(tokens) // 2",
        "test_loops.py::test_a_long_period_is_a_loop_from_its_third_turn_on",
    ),
    Mutation(
        "repeated stretches of eight tokens are too short",
        "repetition:_periodic",
        "lengths >= gram",
        "lengths > gram",
        "test_loops.py::test_repeated_stretches_of_eight_tokens_count_and_shorter_ones_do_not",
    ),
    Mutation(
        "repeated stretches of any length count",
        "repetition:_periodic",
        "lengths[lengths >= gram]",
        "lengths",
        "test_loops.py::test_a_frequent_token_makes_no_loop",
    ),
    Mutation(
        "a phrase at the very end is not seen",
        "repetition:_covered",
        "len(tokens) - gram + 1",
        "len(tokens) - gram",
        "test_loops.py::test_a_phrase_counts_up_to_the_very_end",
    ),
    Mutation(
        "tokens are covered twice where a phrase overlaps itself",
        "repetition:_covered",
        "min(gram, after - before)",
        "gram",
        "test_loops.py::test_the_phrase_that_covers_most_counts_and_not_the_most_frequent_one",
    ),
    Mutation(
        "exactly half of an answer is a loop",
        "repetition:loops",
        "> len(tokens)",
        ">= len(tokens)",
        "test_loops.py::test_a_loop_covers_over_half_of_the_answer",
    ),
)
