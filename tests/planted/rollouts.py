"""Errors that `test_rollouts.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "answers to another prompt are kept",
        "RollOuts._join",
        "            self._answers = ()\n",
        "",
        "test_rollouts.py::test_another_prompt_forgets_all_answers",
    ),
    Mutation(
        "an answer's end is followed by the next prompt",
        "RollOuts._join",
        "*answer, BETWEEN)",
        "*answer)",
        "test_rollouts.py::test_an_answer_is_proposed_to_the_next_one_with_the_same_prompt",
    ),
)
