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
        "targets:_read",
        "nullcontext() if local or hub_answers() else offline()",
        "nullcontext(hub_answers())",
        "test_weights.py::test_a_hub_that_does_not_answer_is_asked_once_and_its_cache_read",
    ),
)
