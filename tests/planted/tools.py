"""Errors that `test_tools.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation("a required call may be text", "_with_calls", "not body.must_call, body.many_calls", "True, body.many_calls", "test_tools.py::test_a_required_call_is_answered_as_openai_answers_it"),
    Mutation("text may look like a call", "grammar:grammar", 'rules.append(f"TEXT: {anything} & ~/{tag}/")', 'rules.append(f"TEXT: {anything}")', "test_tools.py::test_a_grammar_allows_text_and_calls_that_follow_their_schemas"),
    Mutation("an answer calls without end", "grammar:grammar", "{{0,{MOST_CALLS - 1}}}", "*", "test_tools.py::test_a_grammar_allows_text_and_calls_that_follow_their_schemas"),
    Mutation("an unknown tool is called", "CallReader._call", "if head is None or name not in self.names:", "if head is None:", "test_tools.py::test_an_answer_is_read_as_text_and_calls_wherever_it_is_split"),
    Mutation("the beginning of a tag is shown", "CallReader._find_tag", "text[:len(text) - held].rstrip()", "text.rstrip()", "test_tools.py::test_an_answer_is_read_as_text_and_calls_wherever_it_is_split"),
    Mutation("a brace in a string ends the arguments", "_Object.take", "self._in_string = True", "pass", "test_tools.py::test_an_answer_is_read_as_text_and_calls_wherever_it_is_split"),
    Mutation("a chat with calls stops like any other", "openai_answers:reason", 'return "tool_calls" if called and found == "stop" else found', "return found", "test_tools.py::test_a_required_call_is_answered_as_openai_answers_it"),
    Mutation("the fixed parts of a call are not proposed", "Shaping.fitted", "while waiting and len(tree) < budget", "while False and len(tree) < budget", "test_tools.py::test_a_required_call_is_answered_as_openai_answers_it"),
    Mutation("half a call is a call", "CallReader.finish", "self._half[opened.place] = self._before + opened.text", "pass", "test_tools.py::test_half_a_call_is_text_in_a_whole_answer_and_stays_a_call_in_a_stream"),
    Mutation("a call with malformed arguments is whole", "CallReader._call", "opened.called = opened.inner_end is not None and parsed(opened.text[opened.begin:end]) is not None", "opened.called = opened.inner_end is not None", "test_tools.py::test_half_a_call_is_text_in_a_whole_answer_and_stays_a_call_in_a_stream"),
    Mutation("malformed arguments disappear", "CallReader._read_object", "self._half[opened.place] = text", "pass", "test_tools.py::test_half_a_call_is_text_in_a_whole_answer_and_stays_a_call_in_a_stream"),
    Mutation("arguments may have half a character", "reader:parsed", "from_json(text, allow_inf_nan=False)", "json.loads(text)", "test_tools.py::test_half_a_call_is_text_in_a_whole_answer_and_stays_a_call_in_a_stream"),
    Mutation("an answer that ends within a call has called", "CallReader.called", "self._calls > 0 and not self._half", "self._calls > 0", "test_tools.py::test_an_answer_that_ends_within_a_second_call_has_only_the_first"),
    Mutation("arguments are passed on when they are whole", "CallReader._call", "if end > opened.shown:", "if opened.inner_end and end > opened.shown:", "test_tools.py::test_arguments_are_passed_on_as_they_arrive"),
    Mutation("half a call of a whole answer is a call", "CallReader.read", "if piece.text or piece.call not in self._half:", "if True:", "test_tools.py::test_a_call_that_the_limit_cuts_is_text_in_the_whole_answer_and_stays_a_call_in_a_stream"),
    Mutation("stop strings never count beside tools", "_with_calls", '"" if body.must_call else reader.begin', '""', "test_tools.py::test_stop_strings_end_text_before_a_call"),
    Mutation("a required call may be stopped", "_with_calls", '"" if body.must_call else reader.begin', "reader.begin", "test_tools.py::test_stop_strings_do_not_end_a_call"),
    Mutation("malformed arguments of the past are dropped", "ToolCall.for_template", "given if arguments is None else arguments", "arguments or {}", "test_tools.py::test_malformed_arguments_of_an_earlier_call_are_passed_on_as_text"),
    Mutation("one tool's schema refuses the request", "Tool.schema", "if self.strict and (found := problems(given)):", "if found := problems(given):", "test_tools.py::test_a_tool_whose_schema_cannot_be_followed_refuses_only_required_calls"),
    Mutation("a strict tool's schema is followed in part", "Tool.schema", "if self.strict and (found := problems(given)):", "if (found := problems(given)) and False:", "test_tools.py::test_a_tool_whose_schema_cannot_be_followed_refuses_only_required_calls"),
    Mutation("a tool that takes too much work ends its answer", "_followable", "if _followed(state, family, tools):", "if True:", "test_tools.py::test_a_tool_that_takes_too_much_work_takes_any_arguments"),
    Mutation("tools need a grammar", "_with_calls", "if not _followed(state, family, tools):", "if False:", "test_tools.py::test_a_model_without_end_tokens_is_offered_tools_without_a_grammar"),
    Mutation("a format is refused although it is not strict", "NamedSchema.followed", "self.json_schema if self.strict else", "self.json_schema or", "test_tools.py::test_a_response_format_is_followed_as_far_as_possible_unless_it_is_strict"),
    Mutation("a strict format is followed in part", "NamedSchema.followed", "self.json_schema if self.strict else ", "", "test_tools.py::test_a_response_format_is_followed_as_far_as_possible_unless_it_is_strict"),
    Mutation("arguments with half a character reach the template", "tool_fields:_object", "        json.dumps(found, ensure_ascii=False).encode()\n", "", "test_tools.py::test_malformed_arguments_of_an_earlier_call_are_passed_on_as_text"),
)
