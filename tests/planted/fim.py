"""Errors that `test_fim.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a fill-in-the-middle prompt ends with blanks",
        "PromptLayout.lay_out",
        "        if cursor.path:\n",
        "        if cursor.path and not self.fim.ids:\n",
        "test_fim.py::test_a_prompt_has_its_familys_tokens_in_order",
    ),
    Mutation(
        "text that belongs to no file loses its last blanks",
        "PromptLayout.lay_out",
        "        if cursor.path:\n",
        "        if True:\n",
        "test_fim.py::test_text_that_belongs_to_no_file_keeps_its_last_blanks",
    ),
    Mutation(
        "text that spells a token becomes one",
        "PartEncoder.encode",
        "self.pieces(text)",
        "[text]",
        "test_fim.py::test_text_that_spells_a_token_is_encoded_as_text",
    ),
    Mutation(
        "a prompt is cut within lines",
        "encoding:blocks",
        "list(StringIO(text))",
        "text.splitlines(keepends=True)",
        "test_fim.py::test_blocks_begin_at_the_same_lines_whatever_follows",
    ),
)
