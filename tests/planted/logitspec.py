"""Errors that `test_logitspec.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "an older match gives way to a shorter continuation",
        "longest",
        'np.argsort(pooled, kind="stable")',
        'np.argsort(-pooled, kind="stable")',
        "test_logitspec.py::test_continuations_are_those_of_the_official_pools",
    ),
    Mutation(
        "a prompt's last ranked row stands for its last token",
        "LastTopK.observe",
        " and int(seen.ranked[-1]) == last:",
        ":",
        "test_logitspec.py::test_the_row_is_that_of_the_last_kept_node",
    ),
    Mutation(
        "the pool is as new as the text",
        "Rounds.pooled",
        "sizes[np.maximum(first, last)] - ends",
        "sizes[-1] - ends",
        "test_logitspec.py::test_trees_after_rounds_of_many_accepted_tokens_are_the_official_ones[1]",
    ),
)
