"""Errors that `test_encoding.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation("a prediction has the token that begins prompts", "Encoder.bare", ", add_special_tokens=False", "", "test_encoding.py::test_a_prediction_is_encoded_without_the_token_that_begins_a_prompt"),
)
