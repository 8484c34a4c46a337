"""Errors that `test_text.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "special tokens take the space of the token after them",
        "Detokenizer._next",
        "if shown:",
        "if True:",
        "test_text.py::test_special_tokens_take_no_space_from_the_token_after_them",
    ),
    Mutation(
        "special tokens are decoded again and again",
        "Detokenizer._next",
        "*recent[-LONGEST:]",
        "*recent",
        "test_text.py::test_every_token_costs_the_same_whatever_the_text_is",
    ),
    Mutation(
        "the prompt's last special tokens hide its text",
        "Detokenizer._context",
        "and not self._decode(prompt[-size:])",
        "and False",
        "test_text.py::test_special_tokens_take_no_space_from_the_token_after_them",
    ),
    Mutation(
        "a prompt is cut within the character before its answer",
        "Detokenizer._context",
        "size + LONGEST",
        "size + 1",
        "test_text.py::test_a_prompt_that_ends_in_bytes_does_not_break_those_of_the_answer",
    ),
    Mutation(
        "text that ends in U+FFFD is held back to the end",
        "Detokenizer._next",
        "self._unfinished < LONGEST",
        "True",
        "test_text.py::test_every_token_costs_the_same_whatever_the_text_is",
    ),
    Mutation(
        "the beginning of an emoji is given out after other bytes",
        "Detokenizer._within_bytes",
        "min(new, ",
        "min(0, ",
        "test_text.py::test_tokens_may_end_and_begin_within_characters_and_hold_bytes_that_are_none",
    ),
    Mutation(
        "characters that were given out are held back again",
        "Detokenizer._within_bytes",
        "min(new, ",
        "min(",
        "test_text.py::test_tokens_may_end_and_begin_within_characters_and_hold_bytes_that_are_none",
    ),
    Mutation(
        "stop strings end calls",
        "Detokenizer._append",
        "self._until.search(self.text, max(0, begin - LOOKBACK))",
        "None",
        "test_text.py::test_stop_strings_count_until_a_match test_tools.py::test_stop_strings_do_not_end_a_call",
    ),
    Mutation(
        "stop strings count again later",
        "Detokenizer._append",
        "self.stop = []",
        "pass",
        "test_text.py::test_stop_strings_never_count_again_after_a_match",
    ),
    Mutation(
        "the last stop string in a token ends the text",
        "StopString.place",
        "piece.find(string[0], end)",
        "piece.rfind(string[0], end)",
        "test_text.py::test_a_text_ends_at_the_first_of_several_stop_strings_in_a_token",
    ),
    Mutation(
        "the later of two stop strings ends the text",
        "Detokenizer._append",
        "= min(found, ",
        "= max(found, ",
        "test_text.py::test_a_text_ends_at_the_first_of_several_stop_strings_in_a_token",
    ),
    Mutation(
        "a stop string counts where the match begins",
        "Detokenizer._append",
        "until.start() <= end",
        "until.start() < end",
        "test_text.py::test_a_stop_string_does_not_count_where_the_match_begins",
    ),
)
