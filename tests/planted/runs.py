"""Errors that `test_runs.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a run goes on with prompts of other texts",
        "sweep:sweep",
        "    check_prompts(out, suites)\n",
        "",
        "test_runs.py::test_a_run_whose_prompts_have_other_texts_now_is_not_resumed",
    ),
    Mutation(
        "a fingerprint does not know the text",
        "Example.fingerprint",
        "questions.append(self.prompt())",
        "questions.append(self.id)",
        "test_runs.py::test_a_run_whose_prompts_have_other_texts_now_is_not_resumed",
    ),
    Mutation(
        "a fingerprint does not know the questions before",
        "Example.fingerprint",
        "[question for question, _ in self.history]",
        "[]",
        "test_runs.py::test_later_turns_are_recognised_by_the_questions_before_them",
    ),
    Mutation(
        "a replay does not know its recording",
        "Example.fingerprint",
        'if mode == "replay":',
        "if False:",
        "test_runs.py::test_a_replay_of_other_recordings_is_not_resumed",
    ),
    Mutation(
        "a greedy answer depends on recordings",
        "Example.fingerprint",
        'if mode == "replay":',
        "if True:",
        "test_runs.py::test_a_run_whose_prompts_have_other_texts_now_is_not_resumed",
    ),
    Mutation(
        "rows without a fingerprint are refused",
        "check_prompts",
        '("", turn.fingerprint(row.key.mode))',
        "(turn.fingerprint(row.key.mode),)",
        "test_runs.py::test_a_run_of_a_version_without_fingerprints_is_resumed",
    ),
    Mutation(
        "heads of another version are compared with nothing",
        "resume:_lost",
        "isinstance(before, Mapping) and isinstance(now, Mapping)",
        "isinstance(before, Mapping)",
        "test_runs.py::test_same_run_names_changed_settings_and_not_added_ones",
    ),
)
