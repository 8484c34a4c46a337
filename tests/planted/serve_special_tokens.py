"""Errors that `test_serve_special_tokens.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "the text of a message ends the message",
        "SpecialTokens.rendered",
        "mark.join(self._coder.pieces(text))",
        "text",
        "test_serve_special_tokens.py::test_the_text_of_a_message_spells_no_token_unless_that_is_allowed",
    ),
    Mutation(
        "a token within a token stays one",
        "PartEncoder.pieces",
        "for piece in self.pieces(part)]",
        "for piece in [part]]",
        "test_serve_special_tokens.py::test_tokens_within_tokens_are_cut_too",
    ),
    Mutation(
        "a prompt has no special tokens unless it asks for them",
        "prompts:_completion",
        'or "allow"',
        'or "escape"',
        "test_serve_special_tokens.py::test_a_prompt_may_have_special_tokens_unless_the_request_objects",
    ),
    Mutation(
        "a prompt of llama.cpp has special tokens against the request",
        "llamacpp:router.prepare",
        'body.special_tokens_in_content or "allow"',
        '"allow"',
        "test_serve_special_tokens.py::test_a_prompt_may_have_special_tokens_unless_the_request_objects",
    ),
    Mutation(
        "a prompt of llama.cpp has no special tokens unless it asks for them",
        "llamacpp:router.prepare",
        'or "allow"',
        'or "escape"',
        "test_serve_special_tokens.py::test_a_prompt_may_have_special_tokens_unless_the_request_objects",
    ),
)
