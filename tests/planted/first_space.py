"""Errors that `test_first_space.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "the first space of an answer is lost",
        "Session.open",
        "requested.stop, requested.ids, ",
        "requested.stop, (), ",
        "test_first_space.py::test_a_session_gives_the_first_space",
    ),
    Mutation(
        "the first space of an answer is lost on the page",
        "Spans.__init__",
        "Detokenizer(tokenizer, prompt=prompt)",
        "Detokenizer(tokenizer)",
        "test_first_space.py::test_the_page_gives_each_token_its_space",
    ),
)
