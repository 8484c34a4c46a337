"""Errors that `test_serve_errors.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation("a wrong schema is found in the decoding thread", "prompts:sampling_of", "        state.session.constraint(sampling, state.session.eos)\n", "", "test_serve_errors.py::test_a_bad_completion_is_refused_by_the_field_that_is_wrong"),
    Mutation("the beginning of a key is a key", "Guard._check_key", 'if not hmac.compare_digest(sent.encode("latin-1"), key.encode()):', "if not key.startswith(sent):", "test_serve_errors.py::test_requests_without_the_api_key_are_refused"),
    Mutation("a page of another port is the server's own", "Guard._check_origin", 'page_host == host', '_split(origin, "Origin").hostname == _split(f\'//{host}\', \'Host\').hostname', "test_serve_errors.py::test_a_page_of_another_origin_is_refused_unless_it_was_allowed"),
    Mutation("only a body that says its length is measured", "Guard._limited.limited", "            if arrived > self.options.max_body * MIB:", "            if False:", "test_serve_errors.py::test_a_body_beyond_the_limit_is_not_read"),
    Mutation("true is 1", "request_fields:_same", "value == neutral and isinstance(value, bool) == isinstance(neutral, bool)", "value == neutral", "test_serve_errors.py::test_a_bad_completion_is_refused_by_the_field_that_is_wrong"),
    Mutation("a missing field is blamed on the outer one", "request_body:_path", "    if missing:", "    if False:", "test_serve_errors.py::test_a_bad_chat_is_refused_by_the_field_that_is_wrong"),
    Mutation("a stop token is of any vocabulary", "State.check_ids", "if ids and max(ids) >= size:", "if ids and max(ids) >= 10 ** 9:", "test_serve_errors.py::test_a_bad_completion_is_refused_by_the_field_that_is_wrong"),
    Mutation("the metrics need no key", "PUBLIC_PATHS", '"/live")', '"/live", "/metrics")', "test_serve_errors.py::test_every_path_but_the_public_ones_needs_the_api_key"),
    Mutation("half a character is not looked for", "request_body:parse", "if UNSENDABLE.search(body):", "if False:", "test_serve_errors.py::test_half_a_character_is_refused_by_its_text_wherever_it_is"),
    Mutation("half a character in a key breaks the answer", "ApiError.body", '"param": param', '"param": self.param', "test_serve_errors.py::test_half_a_character_is_refused_by_its_text_wherever_it_is"),
    Mutation("a number may be infinite", "_check_sendable", "and not isfinite(value)", "and False", "test_serve_errors.py::test_a_body_that_cannot_be_read_is_refused"),
    Mutation("long numbers are not looked at", "request_body.py", "|\\d{300}", "", "test_serve_errors.py::test_a_body_that_cannot_be_read_is_refused"),
    Mutation("a key may have half a character", "_check_sendable", "[(inner, item), (inner, key)]", "[(inner, item)]", "test_serve_errors.py::test_half_a_character_is_refused_by_its_text_wherever_it_is"),
    Mutation("a limit of -1 gets no hint", "invalid", "if deepest[-1] in LIMITS", "if False", "test_serve_errors.py::test_a_bad_completion_is_refused_by_the_field_that_is_wrong"),
    Mutation("a body of exactly the limit is too large", "Guard._check_length", "int(length[:20]) > self", "int(length[:20]) >= self", "test_serve_errors.py::test_a_body_of_exactly_the_limit_is_read"),
    Mutation("parts of exactly the limit are too large", "Guard._limited", "if arrived > self", "if arrived >= self", "test_serve_errors.py::test_a_body_of_exactly_the_limit_is_read"),
    Mutation("a refusal does not say how a key is sent", "Guard._check_key", ', headers={"WWW-Authenticate": "Bearer"}', "", "test_serve_errors.py::test_refusals_say_how_a_key_is_sent_and_when_to_try_again"),
    Mutation("a refusal of a large body does not say when to try again", "Guard._limited", 'headers={"Retry-After": "5"})', ")", "test_serve_errors.py::test_refusals_say_how_a_key_is_sent_and_when_to_try_again"),
)
