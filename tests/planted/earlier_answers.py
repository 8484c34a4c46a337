"""Errors that `test_earlier_answers.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation("the newest answers go first", "EarlierAnswers.add", "self._answers.popleft()", "self._answers.pop()", "test_earlier_answers.py::test_the_oldest_answers_go_first_where_bytes_are_short"),
    Mutation("remembered answers are not bounded", "EarlierAnswers.add", "while self.bytes > self.most:", "while False:", "test_earlier_answers.py::test_the_oldest_answers_go_first_where_bytes_are_short"),
    Mutation("short answers cost only their tokens", "earlier_answers:_size", "ANSWER + TOKEN * len(tokens)", "TOKEN * len(tokens)", "test_earlier_answers.py::test_many_short_answers_are_bounded_too"),
    Mutation("the beginning of a long answer is kept", "EarlierAnswers.add", "tokens[-((self.most - ANSWER) // TOKEN):]", "tokens[:(self.most - ANSWER) // TOKEN]", "test_earlier_answers.py::test_the_end_of_an_answer_that_is_too_long_is_kept"),
    Mutation("a client is given all answers", "EarlierAnswers.of", " if whose == client", "", "test_earlier_answers.py::test_a_client_is_given_only_its_own_answers"),
    Mutation("answers are kept and never repeated", "Engine._earlier_answers", "return self.earlier.of(requested.client)", "return []", "test_earlier_answers.py::test_a_remembered_answer_is_repeated_exactly_in_fewer_steps"),
    Mutation("answers are remembered unasked", "Loaded._engine", "EarlierAnswers(chosen.remember) if chosen.remember else None", "EarlierAnswers(chosen.remember or 2048)", "test_earlier_answers.py::test_nothing_is_remembered_unless_it_is_asked_for"),
    Mutation("an answer of nobody is remembered", "Engine._request", "self.earlier is not None and requested.client is not None", "self.earlier is not None", "test_earlier_answers.py::test_a_request_of_nobody_neither_repeats_nor_is_remembered"),
    Mutation("earlier answers come after the request's prediction", "Engine.open", "(*self._earlier_answers(lane, requested), *requested.predictions)", "(*requested.predictions, *self._earlier_answers(lane, requested))", "test_earlier_answers.py::test_a_requests_own_prediction_comes_after_earlier_answers"),
    Mutation("a cancelled answer is forgotten", "Request._end", "if self._keep_answer is not None:", "if self._keep_answer is not None and reason != 'cancelled':", "test_earlier_answers.py::test_a_cancelled_answer_is_remembered_as_far_as_it_got"),
    Mutation("a saved prefix leaves an answer", "prefix_files:read", "GenerationRequest(ids, 2, client=None)", "GenerationRequest(ids, 2)", "test_earlier_answers.py::test_saving_a_prefix_remembers_no_answer"),
    Mutation("all keys share their answers", "Clients.__call__", 'client = hashlib.sha256(key.encode()).hexdigest()', 'pass', "test_earlier_answers.py::test_a_server_keeps_the_answers_of_each_key_apart"),
    Mutation("a job belongs to nobody in particular", "ServedRequest.__init__", "replace(requested, client=CLIENT.get())", "requested", "test_earlier_answers.py::test_a_server_keeps_the_answers_of_each_key_apart"),
    Mutation("the answers are kept by the key itself", "Clients.__call__", "hashlib.sha256(key.encode()).hexdigest()", "key", "test_earlier_answers.py::test_a_server_keeps_the_answers_of_each_key_apart"),
    Mutation("a request cannot stay out of the remembered ones", "client_of", 'return None if remember is False else ""', 'return ""', "test_earlier_answers.py::test_a_request_may_stay_out_of_what_is_remembered"),
)
