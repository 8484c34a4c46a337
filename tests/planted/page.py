"""Errors that `test_page.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "text that only began like a stop string is lost",
        "Spans.push",
        "still_open.append((place, origin, length - len(shown)))",
        "pass",
        "test_page.py::test_texts_of_tokens_join_to_those_of_steps_and_each_letter_belongs_to_its_last_byte",
    ),
    Mutation(
        "a tree's picture goes on behind the answer's end",
        "Pictures.of",
        "path = step.path[: 1 + len(step.tokens)]",
        "path = step.path",
        "test_page.py::test_a_picture_ends_where_the_answer_does",
    ),
)
