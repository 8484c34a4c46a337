"""Errors that `test_infill.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "an answer's time is up in the middle of a line",
        "InfillStop.detector.complete",
        'if "\\n" in step.text and',
        "if",
        "test_infill.py::test_an_answer_ends_with_a_line_when_its_time_is_up",
    ),
    Mutation(
        "a line that is too short to judge is sent",
        "InfillStop.certain",
        "return start",
        "return len(text)",
        "test_infill.py::test_new_lines_are_indented_enough_or_the_answer_ends_before_them",
    ),
    Mutation(
        "an infill prompt forgets the pieces of the last one",
        "Prompts._laid_out",
        "        self._used = laid.used\n",
        "",
        "test_infill.py::test_the_pieces_of_the_last_prompt_keep_their_places",
    ),
    Mutation(
        "a request's indentation is ignored",
        "infill:answered",
        "InfillStop(body.n_indent or 0,",
        "InfillStop(0,",
        "test_infill.py::test_an_answer_ends_before_a_line_with_too_little_indentation",
    ),
    Mutation(
        "the beginning of the next line is sent when the time is up",
        "InfillStop.trimmed",
        "decoded[: self.over[0]] if self.over else decoded",
        "decoded",
        "test_infill.py::test_an_answer_whose_time_is_up_has_nothing_of_the_next_line",
    ),
    Mutation(
        "the end of an answer is decided after its step was sent",
        "Worker._deliver",
        "if step is not None and request.finish_reason is None:\n            reason = self._cut(served, step)  # before the client has the step, whose text this may end\n        if step is not None:\n            step = served.shown_step(step)\n            served.send(step)",
        "if step is not None:\n            served.send(step)\n            time.sleep(0.05)\n            reason = self._cut(served, step) if request.finish_reason is None else None",
        "test_infill.py::test_an_answer_ends_with_a_line_when_its_time_is_up",
    ),
)
