"""Errors that `test_fork.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a fork's cache keeps what was decoded",
        "Snapshot.restore",
        "self.cache.crop(self.recall())",
        "self.cache.crop(min(self.cache.length, len(self.ids)))",
        "test_fork.py::test_each_method_answers_from_a_fork_as_it_does_alone",
    ),
    Mutation(
        "a fork's memories keep what was decoded",
        "Snapshot.restore",
        "            memory.rewind(self.marks[id(memory)])",
        "            pass",
        "test_fork.py::test_each_method_answers_from_a_fork_as_it_does_alone",
    ),
    Mutation(
        "a fork's memories do not see the prompt",
        "Fork._read",
        "memory.observe(observation)",
        "pass",
        "test_fork.py::test_each_method_answers_from_a_fork_as_it_does_alone",
    ),
    Mutation(
        "an answer frees the fork",
        "Lane.release",
        "if self.snapshot is not None:",
        "if False:",
        "test_fork.py::test_each_method_answers_from_a_fork_as_it_does_alone",
    ),
    Mutation(
        "a request of a fork reads the prompt again",
        "Snapshot.recall",
        "len(self.ids) - 1",
        "0",
        "test_fork.py::test_a_request_of_a_fork_reads_only_the_last_token",
    ),
    Mutation(
        "a closed fork keeps its lanes",
        "Fork.close",
        "lane.continue_from(None)",
        "pass",
        "test_fork.py::test_a_closed_fork_leaves_the_engines_as_they_were",
    ),
    Mutation(
        "a request outlives its fork",
        "Lane.continue_from",
        "            self._supersede()",
        "            pass",
        "test_fork.py::test_a_closed_fork_leaves_the_engines_as_they_were",
    ),
    Mutation(
        "a fork answers another prompt",
        "Snapshot.check",
        "if tuple(ids) != self.ids",
        "if False",
        "test_fork.py::test_a_request_that_cannot_continue_is_refused_and_says_why",
    ),
    Mutation(
        "a fork's room is not checked",
        "Snapshot.check",
        "if rows > self.cache.capacity",
        "if False",
        "test_fork.py::test_a_request_that_cannot_continue_is_refused_and_says_why",
    ),
    Mutation(
        "a fork ignores predictions",
        "Engine.open",
        "bool(predictions or corpora or needs_prompt)",
        "False",
        "test_fork.py::test_a_request_that_cannot_continue_is_refused_and_says_why",
    ),
    Mutation(
        "verification reads every prompt twice",
        "losslessness:_compared",
        "if session.engine.prefixes is None and",
        "if False and",
        "test_fork.py::test_a_method_is_verified_from_one_reading_of_the_prompt",
    ),
    Mutation(
        "a memory takes a second before it reads",
        "Fork.__init__",
        "map(id, self.memories), 0.0)",
        "map(id, self.memories), 1.0)",
        "test_fork.py::test_the_time_of_a_prompt_is_the_targets_and_that_of_the_memories_that_a_method_has",
    ),
    Mutation(
        "a fork ends the running request after it has read the prompt",
        "Fork.__init__",
        "            lane.continue_from(None)\n        for memory",
        "            pass\n        for memory",
        "test_fork.py::test_a_fork_cancels_the_request_that_runs_and_loses_nothing_with_it",
    ),
    Mutation(
        "a fork reads no prediction",
        "Fork.__init__",
        "if prediction:",
        "if False:",
        "test_fork.py::test_answers_from_a_fork_repeat_its_prediction_as_they_do_alone",
    ),
)
