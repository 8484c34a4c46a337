"""Errors that `test_commands.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "standard input is read twice",
        "PromptOptions.__post_init__",
        "if sources.count(STDIN) > 1:",
        "if sources.count(STDIN) > 9:",
        "test_commands.py::test_wrong_arguments_get_one_sentence_before_a_model_is_loaded",
    ),
)
