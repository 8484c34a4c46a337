"""Errors that `test_agents.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation("results of tools come after the user's text", "messages_fields:_other", 'rest = [block for block in content if block.type != "tool_result"]\n    for block in content:', 'rest = [block for block in content if block.type != "tool_result"]\n    for block in ():', "test_agents.py::test_calls_and_results_are_the_same_conversation_in_all_apis"),
    Mutation("a message's usage counts cached tokens twice", "messages_answers:usage", "stats.prompt_tokens - stats.reused_tokens", "stats.prompt_tokens", "test_agents.py::test_usage_counts_cached_tokens_and_the_answer_tells_where_a_prompt_differs"),
    Mutation("blocks of a message stay open", "Blocks._events", "yield from self._close()\n", "pass\n", "test_agents.py::test_the_events_of_a_message_build_the_whole_one"),
    Mutation("events of a response have no order", "ResponsesFormat._event", "self._sent += 1", "self._sent = 1", "test_agents.py::test_the_events_of_a_response_build_the_whole_one"),
    Mutation("a cut text of a response is completed", "responses_answers:_status", "    return \"incomplete\" if cut", "    return \"incomplete\" if cut and block.name", "test_agents.py::test_the_events_of_a_response_build_the_whole_one"),
    Mutation("a cut call of a response is completed", "responses_answers:_status", "cut = not block.whole", "cut = False", "test_agents.py::test_arguments_of_a_response_arrive_in_several_events"),
    Mutation("a response with half a call is completed", "ResponsesFormat._ended", "not cut and all(block.whole for block in blocks)", "not cut", "test_agents.py::test_a_response_with_half_a_call_is_incomplete_though_the_model_ended_it"),
    Mutation("a custom tool's input is streamed again and again", "ResponsesFormat._call_events", "tool.text(block.text)[len(before):]", "tool.text(block.text)", "test_agents.py::test_a_custom_tool_is_called_with_one_text"),
    Mutation("a cut custom call has no input", "responses_tools:_begun", 'from_json(arguments, allow_partial="trailing-strings")', "from_json(arguments)", "test_agents.py::test_a_custom_call_that_the_limit_cuts_has_its_beginning"),
    Mutation("a further field is ignored", "as_chat:chat_of", "{**extra, **named}", "named", "test_agents.py::test_fields_of_chats_count_in_the_other_apis"),
    Mutation("a further field that is not supported is ignored", "as_chat:chat_of", "    chat.check_supported()\n", "", "test_agents.py::test_fields_that_would_change_the_answer_are_refused_if_they_cannot_count"),
    Mutation("a field of the API hides a further one", "as_chat:chat_of", "if SAME.get(name, name) in named:", "if False:", "test_agents.py::test_fields_that_would_change_the_answer_are_refused_if_they_cannot_count"),
    Mutation("a message has no schema", "MessagesRequest._format", "return self.output_config.format", "return None", "test_agents.py::test_a_message_follows_a_schema"),
    Mutation("an error names the chat's field", "prepared_chat", "raise error.renamed({", "raise error.renamed({} and {", "test_agents.py::test_fields_that_would_change_the_answer_are_refused_if_they_cannot_count"),
    Mutation("a custom tool's input is JSON", "Offered.text", 'if self.kind == "function":', "if True:", "test_agents.py::test_a_custom_tool_is_called_with_one_text"),
    Mutation("a namespace is forgotten", "Offered.item", 'if self.namespace:', 'if False:', "test_agents.py::test_a_function_of_a_namespace_is_called_by_both_names"),
    Mutation("a hosted tool is ignored without a note", "notes_of", "if _hosted(tool):", "if False:", "test_agents.py::test_tools_of_the_provider_are_ignored_with_a_note"),
    Mutation("a message's hosted tool refuses it", "CountTokensRequest.chat_fields", " if not tool.hosted]", "]", "test_agents.py::test_tools_of_the_provider_are_ignored_with_a_note"),
    Mutation("unknown tools are ignored", "responses_tools:_offered", "elif not _hosted(tool):", "elif False:", "test_agents.py::test_unsupported_content_is_refused_by_the_field"),
    Mutation("a shell's earlier call has its whole action", "responses_fields:_call", "for key in COMMAND[\"properties\"] if action.get(key) is not None}", "for key in action}", "test_agents.py::test_calls_of_all_kinds_are_the_same_conversation_as_functions"),
    Mutation("a message's tool is never strict", "AnthropicTool.for_chat", '"strict": self.strict', '"strict": None', "test_agents.py::test_a_strict_tool_of_a_message_is_refused_if_it_cannot_be_followed"),
    Mutation("a conversation may not begin with a call", "responses_fields:_messages", "not messages or messages[-1]", "messages and messages[-1]", "test_agents.py::test_a_conversation_may_begin_with_a_call_and_shows_refusals"),
    Mutation("a refusal is empty text", "responses_fields:text_of", "part.text or part.refusal or", "part.text or", "test_agents.py::test_a_conversation_may_begin_with_a_call_and_shows_refusals"),
)
