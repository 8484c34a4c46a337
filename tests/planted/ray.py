"""Errors that `test_ray.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "the end of a job's rows is the death of its actor",
        "Actors._news",
        'return "end", None',
        'return "dead", None',
        "test_ray.py::test_an_actor_opens_the_target_gives_the_rows_of_a_job_and_is_lost",
    ),
)
