"""Errors that `test_lookahead.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "the window stays where it was",
        "Trajectories._advance",
        "(below[0][1:], *below[1:])",
        "(below[0][:-1], *below[1:])",
        "test_lookahead.py::test_window_and_n_grams_are_those_of_the_official_loop",
    ),
    Mutation(
        "an n-gram that recurs stays old",
        "Trajectories._learn",
        "        self._pool[first] = (*remaining, rest)[-self.most :]",
        "        self._pool[first] = (*had, *([] if rest in had else [rest]))[-self.most:]",
        "test_lookahead.py::test_window_and_n_grams_are_those_of_the_official_loop",
    ),
)
