"""Errors that `test_weights.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a quantised weight is asked for one sum",
        "parts",
        'not hasattr(tensor, "__tensor_flatten__")',
        "True",
        "test_weights.py::test_quantised_weights_decode_and_are_checked_by_their_parts",
    ),
    Mutation(
        "the hub's own client is left to retry",
        "Files._reachable",
        "offline() if self._is_cut_off else nullcontext()",
        "nullcontext(self._is_cut_off)",
        "test_weights.py::test_a_hub_that_does_not_answer_is_asked_once_and_its_cache_read",
    ),
)
