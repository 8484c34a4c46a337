"""Errors that `test_measure.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a marked cache keeps the states of what was decoded",
        "KVCache.crop",
        "dict(states) if length else {}",
        "self.states",
        "test_measure.py::test_states_go_back_to_the_prompts_end_and_compiled_kernels_leave_other_modules_alone",
    ),
    Mutation(
        "a gated norm is compiled as a norm",
        "CompiledModules._norm",
        "if not more and not named and x.dtype",
        "if x.dtype",
        "test_measure.py::test_states_go_back_to_the_prompts_end_and_compiled_kernels_leave_other_modules_alone",
    ),
    Mutation(
        "a lasting memory learns from repeats",
        "Snapshot.restore",
        "for memory in memories:",
        "for memory in (m for m in memories if not m.lasting):",
        "test_measure.py::test_a_lasting_memory_learns_over_the_run_as_it_does_in_a_session",
    ),
    Mutation(
        "repeats count as prompts",
        "PromptMeasurement.decode",
        "self._before[key] + 1",
        "made.prompts[key] + 1",
        "test_measure.py::test_a_lasting_memory_has_marks_of_its_own_in_every_run",
    ),
    Mutation(
        "two runs share a lasting memory",
        "VariantEngines._learning",
        "parts.kept.items() if not memory.lasting}",
        "parts.kept.items()}",
        "test_measure.py::test_a_lasting_memory_has_marks_of_its_own_in_every_run",
    ),
    Mutation(
        "memories of one name share a mark",
        "Fork.__init__",
        "{id(memory): memory.mark() for memory in self.memories}",
        "{id(m): {n.name: n.mark() for n in self.memories}[m.name] for m in self.memories}",
        "test_measure.py::test_a_lasting_memory_has_marks_of_its_own_in_every_run",
    ),
    Mutation(
        "learnt memories are not recalled",
        "VariantEngines._learning",
        "memories.update(self._lasting.get(learner, {}))",
        "pass",
        "test_measure.py::test_a_lasting_memory_learns_over_the_run_as_it_does_in_a_session",
    ),
    Mutation(
        "the first token waits for others' memories",
        "PromptMeasurement._answer",
        "self._fork.prefill_seconds(engine.proposer.memories)",
        "self.prefill_seconds",
        "test_measure.py::test_time_to_the_first_token_includes_only_the_method_s_own_memories",
    ),
    Mutation(
        "the first token does not wait for its own memories",
        "PromptMeasurement._answer",
        "self._fork.prefill_seconds(engine.proposer.memories)",
        "self._fork.target_seconds",
        "test_measure.py::test_time_to_the_first_token_includes_only_the_method_s_own_memories",
    ),
    Mutation(
        "prompts of a sweep share a matrix",
        "VariantEngines.of",
        ", shared=shared)",
        ")",
        "test_measure.py::test_a_matrix_that_requests_share_begins_empty_with_each_prompt",
    ),
    Mutation(
        "a row's answer at one length is known at the next",
        "VariantEngines.of",
        "(variant.name, run, pool)",
        "(variant.name, run, )",
        "test_measure.py::test_a_lasting_memory_learns_over_the_run_as_it_does_in_a_session",
    ),
)
