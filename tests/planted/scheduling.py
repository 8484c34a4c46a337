"""Errors that `test_scheduling.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "the newest request begins first",
        "by_priority",
        "min(waiting,",
        "min(reversed(waiting),",
        "test_scheduling.py::test_no_request_is_lost_overtaken_or_starved_and_each_answer_is_the_one_alone",
    ),
    Mutation(
        "a busy lane is taken",
        "Scheduler.lane",
        "if lane.request is None",
        "if True",
        "test_scheduling.py::test_no_request_is_lost_overtaken_or_starved_and_each_answer_is_the_one_alone",
    ),
    Mutation(
        "each request has a new lane",
        "Scheduler.lane",
        "if lane.request is None",
        "if False",
        "test_scheduling.py::test_many_requests_leave_nothing_behind[150]",
    ),
)
