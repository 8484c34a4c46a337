"""Errors that `test_training_chats.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "an answer that joins the prompt's blank is lost",
        "chats:_answer",
        "return prompt_ids, continuation(template.tokenizer, shown[len(prompt) :])",
        "raise TypeError",
        "test_training_chats.py::test_an_answer_is_learnt_behind_the_prompt_as_it_is_decoded",
    ),
    Mutation(
        "a thought that a template drops is not learnt",
        "chats:_as_decoded",
        "closing not in content",
        "closing",
        "test_training_chats.py::test_an_answer_is_learnt_behind_the_prompt_as_it_is_decoded",
    ),
    Mutation(
        "an answer without a thought is put into one",
        "chats:_as_decoded",
        "if whole and closing and",
        "if False and",
        "test_training_chats.py::test_an_answer_without_the_thought_that_the_prompt_opens_is_learnt_as_the_template_shows_it",
    ),
    Mutation(
        "a thought is opened twice",
        "chats:_without",
        "if not tag or",
        "if tag or",
        "test_training_chats.py::test_an_answer_is_learnt_behind_the_prompt_as_it_is_decoded",
    ),
    Mutation(
        "a closed thought counts as open",
        "chats:_closing",
        "if closing in opening[tags[-1].end() :]:",
        "if False:",
        "test_training_chats.py::test_an_answer_is_learnt_behind_the_prompt_as_it_is_decoded",
    ),
    Mutation(
        "an answer that was cut off has an end",
        "chats:_as_decoded",
        "    if whole:\n        answer += after\n",
        "    answer += after\n",
        "test_training_chats.py::test_a_thought_that_was_cut_off_is_learnt_behind_its_opening_and_without_an_end",
    ),
    Mutation(
        "the template's reason is not told",
        "ChatEncoder.documents",
        "self.reason or reason",
        '"" and reason',
        "test_training_chats.py::test_the_error_about_chats_that_cannot_be_learnt_says_why",
    ),
    Mutation(
        "a continuation begins with a space",
        "encoder:continuation",
        'ids = _bare_ids(tokenizer, "\\n" + text)',
        "ids = _bare_ids(tokenizer, text)",
        "test_training_chats.py::test_a_tokenizer_that_begins_texts_with_a_space_puts_none_between_a_blank_and_an_answer",
    ),
    Mutation(
        "null content is written into the prompt",
        "chat_messages:_text",
        'return ""',
        'return "None"',
        "test_training_chats.py::test_calls_without_content_and_parts_of_content_are_learnt",
    ),
    Mutation(
        "null fields reach the template",
        "chat_message",
        " if value is not None",
        "",
        "test_training_chats.py::test_the_command_line_and_python_take_calls_without_content_and_parts_of_content",
    ),
    Mutation(
        "arguments of calls stay text",
        "_with_parsed_arguments",
        "not isinstance(arguments, dict)",
        "True",
        "test_training_chats.py::test_arguments_of_a_call_are_parsed_if_they_are_an_object",
    ),
    Mutation(
        "parts of content join in a line",
        "chat_messages:_text",
        '"\\n".join',
        '" ".join',
        "test_training_chats.py::test_a_suite_takes_parts_of_content",
    ),
    Mutation(
        "messages in Python stay as they are",
        "encoder:_chat",
        'chat_message(message, f"Message {number}")',
        "message",
        "test_training_chats.py::test_the_command_line_and_python_take_calls_without_content_and_parts_of_content",
    ),
)
