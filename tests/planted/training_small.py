"""Errors that `test_training_small.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "heads learn one token too far on",
        "MedusaTrainer.objective",
        "shift = i + 1 ",
        "shift = i + 2 ",
        "test_training_small.py::test_heads_learn_only_the_answers_of_a_chat",
    ),
)
