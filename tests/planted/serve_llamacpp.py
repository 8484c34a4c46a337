"""Errors that `test_serve_llamacpp.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "text is searched for special tokens against the request",
        "tokenize:router.ids_of",
        "body.parse_special is False",
        "body.parse_special is None",
        "test_serve_llamacpp.py::test_text_is_encoded_with_or_without_special_tokens",
    ),
    Mutation(
        "a missing token is null in the properties",
        "llamacpp:",
        'getattr(state.tokenizer, name, None) or ""',
        "getattr(state.tokenizer, name, None)",
        "test_serve_llamacpp.py::test_the_properties_describe_the_model_and_its_places",
    ),
)
