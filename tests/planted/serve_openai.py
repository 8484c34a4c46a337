"""Errors that `test_serve_openai.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "several answers share one seed",
        "_drawn_apart",
        "sampling.seed + number",
        "sampling.seed",
        "test_serve_openai.py::test_several_answers_of_one_prompt_have_seeds_of_their_own_and_read_it_once",
    ),
    Mutation(
        "each of several answers reads the prompt",
        "ServedRequest._in_turn",
        "await self.leader._prompt_read.wait()",
        "pass",
        "test_serve_openai.py::test_several_answers_of_one_prompt_have_seeds_of_their_own_and_read_it_once",
    ),
    Mutation(
        "a request's own budget is ignored",
        "Engine._request",
        "min(requested.budget, self.budget)",
        "self.budget",
        "test_serve_openai.py::test_a_request_may_ask_for_less_than_the_server_would_propose",
    ),
    Mutation(
        "tokens whose text was held back are not sent",
        "events_of",
        "form.text_chunks(step.text, ids[sent:])",
        "form.text_chunks(step.text, list(step.tokens))",
        "test_serve_openai.py::test_a_stream_sends_every_token_including_those_whose_text_was_held_back",
    ),
    Mutation(
        "requested stop tokens are ignored",
        "AnswerRequest.eos",
        "tuple(self.stop_token_ids or ())",
        "()",
        "test_serve_openai.py::test_a_stop_string_ends_the_text_before_it_and_a_stop_token_with_it",
    ),
    Mutation(
        "a streamed echo has no log-probabilities",
        "events_of",
        "opening = form.opening_chunks()",
        "opening = iter(list(form.opening_chunks()))",
        "test_serve_openai.py::test_a_streamed_echo_comes_first_with_the_log_probabilities_of_the_prompt",
    ),
    Mutation(
        "a stream has no echo beside log-probabilities",
        "OpenAIFormat.opening_chunks",
        "if self.served.context.echo:",
        "if self.served.context.echo and self.served.leader.requested.sampling.prompt_logprobs is None:",
        "test_serve_openai.py::test_a_streamed_echo_comes_first_with_the_log_probabilities_of_the_prompt",
    ),
)
