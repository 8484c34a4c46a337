"""Errors that `test_prefix_routes.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "known blocks are not preferred",
        "PrefixRoutes.ranked",
        "self._work.get(replica, 0.0) - recalled.get(replica, 0)",
        "self._work.get(replica, 0.0)",
        "test_prefix_routes.py::test_a_prompt_goes_where_most_of_it_went",
    ),
    Mutation(
        "a replica with too many requests is preferred",
        "PrefixRoutes.ranked",
        "return busy, work, ",
        "return False, work, ",
        "test_prefix_routes.py::test_a_replica_with_too_many_requests_comes_last_whatever_it_has",
    ),
    Mutation(
        "the beginning of a prompt is forgotten first",
        "PrefixRoutes.send",
        "reversed(blocks)",
        "blocks",
        "test_prefix_routes.py::test_least_recently_used_blocks_are_forgotten_the_end_of_a_prompt_first",
    ),
    Mutation(
        "a request that moves is work twice",
        "PrefixRoutes.send",
        "        self.end(key)\n",
        "",
        "test_prefix_routes.py::test_a_request_that_moves_or_ends_is_no_work_any_more",
    ),
)
