"""Errors that `test_token_bytes.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "every part of a stream has the first log-probabilities",
        "LogprobSeries.part",
        "answer[self._taken : self._taken + tokens]",
        "answer[:tokens]",
        "test_token_bytes.py::test_parts_of_a_series_are_the_whole_series",
    ),
    Mutation(
        "a part of a character is a character",
        "logprobs:characters",
        "byte & 0xC0 != 0x80",
        "byte >= 0",
        "test_token_bytes.py::test_parts_of_a_series_are_the_whole_series",
    ),
    Mutation(
        "of two tokens with the same text the last counts",
        "labelled",
        'text = f"token_id:{token}"',
        "pass",
        "test_token_bytes.py::test_two_tokens_with_the_same_text_are_two_entries",
    ),
    Mutation(
        "bytes of a token are those of its letters",
        "TokenBytes._spelt",
        "return bytes(map(self._alphabet.__getitem__, spelt))",
        "return spelt.encode()",
        "test_token_bytes.py::test_the_bytes_of_a_texts_tokens_are_the_texts",
    ),
    Mutation(
        "every token of a vocabulary of bytes is spelled in its alphabet",
        "TokenBytes._spelt",
        "if self._alphabet is not None and set(spelt) <= self._alphabet.keys():",
        "if self._alphabet is not None:",
        "test_token_bytes.py::test_a_token_that_is_not_spelled_in_the_alphabet_of_bytes_is_its_text",
    ),
)
