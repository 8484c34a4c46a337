"""Errors that `test_sources.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a source's text observes twice",
        "RankedProposer.__init__",
        " if memory not in memories",
        "",
        "test_sources.py::test_graft_x_over_any_method_has_each_memory_once",
    ),
    Mutation(
        "a source and a drafter share estimates",
        "controlled",
        '("source", c.text',
        "(c.text",
        "test_sources.py::test_a_source_and_a_drafter_of_one_cache_have_estimates_of_their_own",
    ),
    Mutation(
        "nodes without a probability are ranked",
        "continuations.cpp",
        "!(tree.scores[node] > -INFINITY && tree.scores[parent] > -INFINITY)",
        "tree.scores[node] == -INFINITY",
        "test_sources.py::test_nodes_without_a_probability_are_left_out_and_others_keep_their_origin",
    ),
)
