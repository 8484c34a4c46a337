"""Errors that `test_lossless.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "the first new token is drawn for the position before",
        "Verifier.read",
        "torch.tensor([self.cache.position]))",
        "torch.tensor([self.cache.position - 1]))",
        "test_lossless.py::test_the_first_token_is_drawn_at_the_prompts_end",
    ),
    Mutation(
        "an end token inside a path is missed",
        "AnswerEnd.cut",
        "if token in self._last_tokens",
        "if token in self._last_tokens and place == len(new) - 1",
        "test_lossless.py::test_an_answer_ends_at_an_end_token_inside_an_accepted_path",
    ),
    Mutation(
        "trees are cut one level too shallow",
        "Request._proposed",
        ".shallower(left - 1)",
        ".shallower(max(left - 2, 0))",
        "test_lossless.py::test_the_last_step_may_accept_all_but_one_of_the_tokens_left",
    ),
    Mutation(
        "a fallback is checked instead of the named method",
        "assert_lossless",
        "if loaded.method.name != named.name:",
        "if False:",
        "test_lossless.py::test_a_fallback_is_not_checked_in_place_of_the_named_method",
    ),
)
