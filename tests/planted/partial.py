"""Errors that `test_partial.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a partial cache takes its length for its position",
        "KVCache.take",
        "self.skipped = source.skipped + until - m",
        "self.skipped = 0",
        "test_partial.py::test_rows_of_a_partial_cache_equal_the_chosen_rows_of_the_whole_one",
    ),
    Mutation(
        "heads of a layer share the first one's rows",
        "_selected",
        "rows[None, ..., None].expand(",
        "rows[None, :1, :, None].expand(1, states.shape[1], ",
        "test_partial.py::test_rows_of_a_partial_cache_equal_the_chosen_rows_of_the_whole_one",
    ),
    Mutation(
        "rewound rows keep another continuation",
        "PartialKVCache.rewind",
        "self._upto = min(upto, self._length)",
        "self._upto = upto",
        "test_partial.py::test_a_partial_cache_is_rewound_completely",
    ),
    Mutation(
        "a cascade's memories keep drafted tokens",
        "Cascade._decoded",
        "memory.rewind(mark)",
        "pass",
        "test_partial.py::test_a_cascade_forgets_what_it_observes_while_drafting",
    ),
    Mutation(
        "queries are those of the last nodes, kept or not",
        "Verifier._eager",
        "sent(path[-wants.queries :]",
        "sent(torch.arange(len(tree))[-len(path) :]",
        "test_partial.py::test_queries_are_those_of_the_kept_nodes",
    ),
    Mutation(
        "tokens that waited stay out of the full pass",
        "PartialVerifier._in_full",
        "_hung(tree, self._waiting), wants",
        "_hung(tree, []), wants",
        "test_partial.py::test_tokens_that_waited_have_their_true_rows_after_a_full_pass",
    ),
)
