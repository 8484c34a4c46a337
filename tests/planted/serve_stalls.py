"""Errors that `test_serve_stalls.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation("constraints hold up other requests", "EncodingPool.run", "threads = self._constrained", "pass", "test_serve_stalls.py::test_constraints_that_are_compiled_do_not_hold_up_other_requests"),
    Mutation("the parts of a list of tokens are not separated", "tokenize:_json_parts", '"," * (start > 0)', '""', "test_serve_stalls.py::test_tokens_of_a_long_text_are_written_in_parts"),
    Mutation("two lengths of a body are accepted", "Guard._check_length", 'if length and "transfer-encoding" in headers:', "if False:", "test_serve_stalls.py::test_two_lengths_of_a_body_are_refused_and_the_connection_is_closed"),
    Mutation("half-sent bodies have no common limit", "Guard._limited", "if counted and", "if False and", "test_serve_stalls.py::test_half_sent_bodies_have_a_common_limit"),
    Mutation("one bad item of a list makes an error for each", "ChatRequest", "fail_fast=True", "fail_fast=False", "test_serve_stalls.py::test_a_list_is_refused_by_its_first_bad_item"),
    Mutation("the body of a client that has gone is encoded", "BodyRequest.run", "return_when=asyncio.FIRST_COMPLETED", "return_when=asyncio.ALL_COMPLETED", "test_serve_stalls.py::test_the_body_of_a_client_that_has_gone_is_never_encoded"),
    Mutation("a small body waits for large ones", "EncodingPool.run", "threads = self._large", "pass", "test_serve_stalls.py::test_a_large_body_does_not_hold_up_a_small_one"),
    Mutation("any number of bodies is encoded at once", "EncodingPool.run", "if self.active >= self.limit:", "if False:", "test_serve_stalls.py::test_others_are_answered_while_bodies_are_parsed_and_the_queue_limits_waiting_bodies"),
    Mutation("data that trickles in moves the deadline", "Connection._set_deadline", "        if state is self._client_state:\n            return\n", "", "test_serve_stalls.py::test_a_request_that_does_not_arrive_in_time_is_answered_and_its_connection_closed"),
    Mutation("all pieces of other files are encoded", "infill:_within", "if total > characters:", "if False:", "test_serve_stalls.py::test_the_work_of_other_files_is_bounded_by_the_prompt_and_not_by_what_is_sent"),
    Mutation("a body that could not be read is read again", "BodyRoute.get_route_handler.handle", "trim_later(body_request.size)", "trim_later(len(await body_request.body()))", "test_serve_stalls.py::test_a_body_that_is_too_large_is_refused_while_its_sender_waits"),
    Mutation("an idle connection is a slow request", "Connection.on_response_complete", "            self._cancel_deadline()\n", "            pass\n", "test_serve_stalls.py::test_an_idle_connection_stays_open_for_the_time_that_its_header_names"),
    Mutation("a second request may take any time", "Connection.on_response_complete", "            self._client_state = None\n", "", "test_serve_stalls.py::test_a_second_request_must_arrive_as_fast_as_the_first"),
    Mutation("a pipelined request may take any time", "Connection.on_response_complete", " and not self.conn.trailing_data[0]", "", "test_serve_stalls.py::test_a_second_request_must_arrive_as_fast_as_the_first"),
    Mutation("idle connections close after uvicorn's five seconds", "Server.__init__", "timeout_keep_alive=options.keep_alive,", "", "test_serve_stalls.py::test_an_idle_connection_stays_open_for_the_time_that_its_header_names"),
    Mutation("the answer does not say how long a connection stays open", "Server.__init__", '("Keep-Alive", f"timeout={options.keep_alive}")', "", "test_serve_stalls.py::test_an_idle_connection_stays_open_for_the_time_that_its_header_names"),
    Mutation("HEAD is refused", "make_app", "    app.add_middleware(HeadRequests)\n", "", "test_serve_stalls.py::test_every_path_that_takes_get_answers_head_without_a_body"),
    Mutation("a format of /v1/responses is compiled among small bodies", "responses:router", ", constrained=body.constrained", "", "test_serve_stalls.py::test_constraints_that_are_compiled_do_not_hold_up_other_requests"),
    Mutation("a grammar of llama.cpp's is compiled among small bodies", "llamacpp:router", ", constrained=body.constrained", "", "test_serve_stalls.py::test_constraints_that_are_compiled_do_not_hold_up_other_requests"),
)
