"""Errors that `test_serve_special_tokens.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation("the text of a message ends the message", "SpecialTokens.rendered", "mark.join(self._coder.pieces(text))", "text", "test_serve_special_tokens.py::test_the_text_of_a_message_spells_no_token_unless_that_is_allowed"),
    Mutation("a token within a token stays one", "PartEncoder.pieces", "for piece in self.pieces(part)]", "for piece in [part]]", "test_serve_special_tokens.py::test_tokens_within_tokens_are_cut_too"),
)
