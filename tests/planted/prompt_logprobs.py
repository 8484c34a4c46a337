"""Errors that `test_prompt_logprobs.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a known prompt is not read for its log-probabilities",
        "Request._prefill_steps",
        "if not needs_logits:",
        "if True:",
        "test_prompt_logprobs.py::test_a_known_beginning_is_read_again_and_still_kept",
    ),
    Mutation(
        "the last token of a chunk follows nothing",
        "Verifier.read",
        "[] if following is None else [following]",
        "[]",
        "test_prompt_logprobs.py::test_chunks_end_anywhere",
    ),
    Mutation(
        "a partial verifier gives no log-probabilities of the prompt",
        "PartialVerifier.__init__",
        ", full.reads)",
        ")",
        "test_prompt_logprobs.py::test_every_method_gives_the_log_probabilities_of_the_prompt",
    ),
    Mutation(
        "prompts with log-probabilities are read in the longest chunks",
        "Engine._request",
        "min(self.chunk or TOPK_ROWS, TOPK_ROWS)",
        "TOPK_ROWS",
        "test_prompt_logprobs.py::test_chunks_are_as_long_as_the_session_s_and_all_their_logits_fit",
    ),
)
