"""Errors that `test_replicas.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation("an answer that has begun is given again", "Forward._answer", "if reply.begun:", "if False:", "test_replicas.py::test_an_answer_that_had_begun_ends_with_an_error_that_says_so"),
    Mutation("a comment begins an answer", "Reply.take", 'not part.startswith(b":")', "True", "test_replicas.py::test_a_request_that_had_not_begun_goes_to_another_replica"),
    Mutation("a stream's opening is sent while it waits", "events_of", "opening = form.opening_chunks()", 'opening: Any = ()\n    for part in form.opening_chunks():\n        yield events.event(part)', "test_replicas.py::test_only_comments_are_sent_before_the_first_text"),
    Mutation("an unfit replica is asked again", "Forward._answer", "(*call.avoid, error.replica)", "call.avoid", "test_replicas.py::test_a_request_that_had_not_begun_goes_to_another_replica"),
    Mutation("the front lets everyone in", "make_front", "    guard(app, options)\n", "", "test_replicas.py::test_the_front_controls_access"),
    Mutation("metrics do not say whose they are", "FrontCounts.registry", '{**sample.labels, "replica": replica}', "sample.labels", "test_replicas.py::test_metrics_carry_the_replica"),
    Mutation("a request that was cancelled stays work", "PrefixRouter.choose_replicas", "if done.cancelled():", "if False:", "test_replicas.py::test_the_router_follows_requests_and_avoids_replicas_that_were_unfit"),
    Mutation("a stream breaks on an unknown error", "Forward._answer", "return await reply.fail(ApiError.of(error))", "raise", "test_replicas.py::test_a_stream_with_comments_ends_with_an_error_event_whatever_happens[unknown]"),
    Mutation("a refused stream ends twice", "Reply.fail", "        self._ended = True\n", "", "test_replicas.py::test_a_stream_ends_once_if_the_next_replica_refuses"),
    Mutation("no comments are sent while text is held back", "events_of", "                if parts:\n                    sent_at = time.monotonic()\n                    continue", "                sent_at = time.monotonic()\n                continue", "test_replicas.py::test_comments_are_sent_while_text_is_held_back"),
    Mutation("the front refuses HEAD", "make_front", "    app.add_middleware(HeadRequests)\n", "", "test_replicas.py::test_the_front_answers_head_like_get_without_a_body"),
    Mutation("an unfit replica hides lost ones", "Forward._answer", "len(call.avoid) == ATTEMPTS", "call.avoid", "test_replicas.py::test_a_replica_that_was_full_does_not_hide_those_that_ended"),
    Mutation("requests that come together go to one replica", "PrefixRouter.choose_replicas", "            self._routes.send(key, call.blocks, ranked[0], len(candidates))\n", "", "test_replicas.py::test_the_router_follows_requests_and_avoids_replicas_that_were_unfit"),
    Mutation("a server that closes does not say when to ask again", "ApiError.of", "code=\"shutting_down\", headers={\"Retry-After\": \"5\"})", "code=\"shutting_down\")", "test_replicas.py::test_a_front_that_drains_refuses_new_requests_and_one_that_closes_ends_old_ones"),
    Mutation("a replica asks for the GPU's number on another node", "Opened.everywhere", 'settings.device and settings.device.split(":")[0]', "settings.device", "test_replicas.py::test_a_replica_gets_absolute_paths_and_the_one_gpu_that_it_sees"),
    Mutation("a replica's failure is told from the beginning of its traceback", "deployment:reason", "[-1].strip()", "[0].strip()", "test_replicas.py::test_a_replica_that_could_not_start_is_told_by_the_end_of_its_traceback"),
)
