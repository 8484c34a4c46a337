"""Errors that `test_suites.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a turn is replayed from the recording of the next",
        "suites:_example",
        "enumerate(parts.follow_ups, 2)",
        "enumerate(parts.follow_ups, 3)",
        "test_suites.py::test_each_turn_of_a_conversation_has_its_own_recording",
    ),
)
