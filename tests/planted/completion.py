"""Errors that `test_completion.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "blanks before the cursor are written twice",
        "_CompletionText._completed",
        "self.raw[common(self.raw, self.held) :]",
        "self.raw",
        "test_completion.py::test_a_block_is_completed_and_nothing_is_decoded_beyond_its_step",
    ),
    Mutation(
        "lines that are no longer there are shown",
        "_is_there",
        'return "\\n".join(lines) + "\\n" == snippet.text',
        "return True",
        "test_completion.py::test_a_prompt_keeps_the_order_of_the_last_one",
    ),
    Mutation(
        "an end token is spelled out",
        "AnswerEnd._with_text",
        "if token not in self._last_tokens:",
        "if True:",
        "test_completion.py::test_an_end_token_is_left_out_of_the_text",
    ),
    Mutation(
        "a completion in a file from Windows has other line ends",
        "Completer.complete",
        'text.text.replace("\\n", cursor.line_end)',
        "text.text",
        "test_completion.py::test_a_completion_ends_at_its_line_block_stop_string_or_limit",
    ),
    Mutation(
        "a streamed completion in a file from Windows has other line ends",
        "Completer.complete",
        'tell(text.replace("\\n", cursor.line_end))',
        "tell(text)",
        "test_completion.py::test_a_completion_ends_at_its_line_block_stop_string_or_limit",
    ),
)
