"""Errors that `test_worker.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "the queue is one longer than it may be",
        "Worker.full",
        "backlog - repeated >= self.limit",
        "backlog - repeated >= self.limit + 1",
        "test_worker.py::test_a_full_queue_refuses_jobs_with_a_time_to_retry",
    ),
    Mutation(
        "a job that leaves the queue keeps its place",
        "Scheduler.cancel",
        "self.waiting.remove(entry)",
        "pass",
        "test_worker.py::test_a_job_that_is_cancelled_while_it_waits_is_never_begun",
    ),
    Mutation(
        "a priority does not reach the scheduler",
        "prompts:prepared",
        "priority=body.priority or 0,",
        "",
        "test_worker.py::test_a_job_has_the_priority_of_its_request[/v1/completions-body0]",
    ),
    Mutation(
        "stop strings of earlier jobs end later ones",
        "Session.open",
        "stop=stop_strings(prompt.stop)",
        "stop=self.__dict__.setdefault('stops', stop_strings(prompt.stop)) or prompt.stop",
        "test_worker.py::test_a_job_ends_with_its_own_stop_strings_and_end_tokens_alone",
    ),
)
