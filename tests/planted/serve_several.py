"""Errors that `test_serve_several.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a prompt that is only read has an answer",
        "ServedRequest.shown_step",
        "if self.context.only_reads:",
        "if False:",
        "test_serve_several.py::test_without_new_tokens_a_prompt_is_only_read",
    ),
    Mutation(
        "a request with many prompts is refused by its own jobs",
        "ServedRequest._in_turn",
        "if self._worker.full:",
        "if False:",
        "test_serve_several.py::test_a_turn_waits_while_the_queue_is_full",
    ),
    Mutation(
        "all answers of a prompt read it",
        "ServedRequest._in_turn",
        "await self.leader._prompt_read.wait()",
        "pass",
        "test_serve_several.py::test_streamed_answers_are_mixed_and_their_prompt_is_read_once",
    ),
    Mutation(
        "a prompt counts with each of its answers",
        "Usage.add",
        "if served.leader is served:",
        "if True:",
        "test_serve_several.py::test_every_prompt_of_a_list_has_its_answers_in_order",
    ),
)
