"""Errors that `test_request.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation("an end token is no new token", "AnswerEnd.cut", "new[:last + 1]", "new[:last]", "test_request.py::test_an_answer_says_why_it_ended"),
    Mutation("a stop string's last token is no new token", "AnswerEnd._with_text", "new[:count]", "new[:count - 1]", "test_request.py::test_an_answer_says_why_it_ended"),
    Mutation("tokens behind an end are counted as accepted", "Tally.count", "path[1:1 + emitted]", "path[1:]", "test_request.py::test_tokens_behind_an_end_inside_a_step_are_not_counted"),
    Mutation("tokens behind an end are counted as new", "Request._decode", "self._tally.count(verified.tree, path, len(new))", "self._tally.count(verified.tree, path, len(path))", "test_request.py::test_tokens_behind_an_end_inside_a_step_are_not_counted"),
    Mutation("a stop string that the last bytes complete ends as a length", "AnswerEnd._with_text", "if detokenizer.stopped:     # the held-back", "if False:     # the held-back", "test_request.py::test_a_stop_string_that_the_last_bytes_complete_is_the_finish_reason"),
    Mutation("an ended request gives nothing back", "Request._end", "        self._give_back()\n", "", "test_request.py::test_a_request_that_ended_or_failed_or_was_left_gives_everything_back"),
    Mutation("memories are not released", "Lane.release", "            memory.release()\n", "            pass\n", "test_request.py::test_a_request_that_ended_or_failed_or_was_left_gives_everything_back"),
    Mutation("the target's cache is not released", "Lane.release", "        self.cache.release()\n", "", "test_request.py::test_a_request_that_ended_or_failed_or_was_left_gives_everything_back"),
    Mutation("a request that failed keeps what it holds", "Request.step", '                self._end("cancelled")\n            raise', "                pass\n            raise", "test_request.py::test_a_request_that_ended_or_failed_or_was_left_gives_everything_back"),
    Mutation("a cancelled request takes one more step", "Request.step", '            if self._cancelled and self._finish is None:\n                self._end("cancelled")\n            if self._finish', '            if self._finish', "test_request.py::test_a_cancelled_request_ends_before_its_next_step_and_gives_everything_back"),
    Mutation("arguments beside a request are ignored", "Session.open", "elif how or options:", "elif False:", "test_request.py::test_a_request_as_a_value_is_checked_and_takes_no_other_arguments"),
    Mutation("predictions of a request are not checked", "Session.open", "tuple(self.predicted(prompt.predictions))", "prompt.predictions", "test_request.py::test_a_request_as_a_value_is_checked_and_takes_no_other_arguments"),
    Mutation("end tokens are the config's first", "end_tokens", "in places.items()", "in reversed(places.items())", "test_request.py::test_end_tokens_are_the_generation_config_s_before_the_model_s_before_the_tokenizer_s"),
    Mutation("a request that fills the positions is refused", "Engine.check", "prompt_tokens + max_new_tokens > limit", "prompt_tokens + max_new_tokens >= limit", "test_request.py::test_a_request_may_fill_the_positions_and_no_more"),
    Mutation("a special token's text is searched in the text alone", "Session.open", "        stop_tokens |= self._encoder.hidden_tokens(requested.stop)\n", "", "test_request.py::test_a_special_token_s_text_or_id_ends_an_answer"),
    Mutation("stop_token_ids are forgotten", "Session.request", 'self._encoder.end_tokens(stop_token_ids, "list of stop_token_ids")', "()", "test_request.py::test_a_special_token_s_text_or_id_ends_an_answer"),
    Mutation("ordinary tokens are found by their ids", "Encoder.hidden_tokens", " and not self._decoded(token, True)", "", "test_request.py::test_other_special_tokens_and_the_same_text_in_ordinary_tokens_are_as_before"),
    Mutation("a stop token is an end token", "AnswerEnd.cut", '"eos" if new[last] in self._end_tokens else "stop"', '"eos"', "test_request.py::test_a_special_token_s_text_or_id_ends_an_answer"),
    Mutation("generate forgets its stop tokens", "loading:generate", "stop_token_ids=stop_token_ids, ", "", "test_request.py::test_generate_takes_stop_token_ids"),
    Mutation("a negative end token is a token", "end_tokens", "if token >= 0", "if token >= -1", "test_request.py::test_a_negative_end_token_stands_for_none"),
    Mutation("a bar is shown if it is not wanted", "session:_bar", "None if progress is None else not progress", "None if progress is None else progress", "test_request.py::test_the_reading_of_a_prompt_shows_a_bar_if_wanted"),
    Mutation("a stream is longer than an answer", "Session.stream", "max_new_tokens: int = 256", "max_new_tokens: int = 512", "test_request.py::test_an_answer_has_the_same_default_length_however_it_is_asked_for"),
    Mutation("the first token has no source", "Request._first", "origins=(ROOT,), ", "", "test_request.py::test_steps_are_chunks_then_decodings_and_add_up_to_the_answer"),
    Mutation("an ended request belongs to its thread", "Request.supersede", "        if self._finish is not None:\n            return\n", "", "test_request.py::test_an_ended_request_leaves_its_session_to_other_threads"),
    Mutation("every part of a step takes a second more", "Request._decode", "self._decode_seconds.get(part, 0.0)", "self._decode_seconds.get(part, 1.0)", "test_request.py::test_the_seconds_of_an_answer_are_no_more_than_it_took"),
)
