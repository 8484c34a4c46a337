"""Errors that `test_encoding.py` must notice."""

from planted.mutation import Mutation

MUTATIONS = (
    Mutation(
        "a prediction has the token that begins prompts",
        "Encoder.bare",
        ", add_special_tokens=False",
        "",
        "test_encoding.py::test_a_prediction_is_encoded_without_the_token_that_begins_a_prompt",
    ),
    Mutation(
        "a chat ends with its last message",
        "encoder:_chat",
        "messages, add_generation_prompt=True,",
        "messages,",
        "test_encoding.py::test_a_chat_is_encoded_up_to_where_its_answer_begins",
    ),
    Mutation(
        "messages are counted from zero",
        "encoder:_chat",
        "enumerate(messages, 1)",
        "enumerate(messages)",
        "test_encoding.py::test_a_chat_is_refused_by_its_wrong_message",
    ),
    Mutation(
        "a refusal of the template is no ValueError",
        "encoder:_chat",
        "except (TemplateError, TypeError, ",
        "except (TypeError, ",
        "test_encoding.py::test_a_chat_is_refused_by_its_wrong_message",
    ),
    Mutation(
        "text that follows other text has a line end",
        "encoder:continuation",
        "return ids[len(line_end) :]",
        "return ids",
        "test_encoding.py::test_text_that_follows_other_text_has_only_its_own_space",
    ),
    Mutation(
        "text that would merge with a line end keeps it",
        "encoder:continuation",
        "return _bare_ids(tokenizer, text)",
        "return ids",
        "test_encoding.py::test_text_that_would_merge_with_a_line_end_is_encoded_alone",
    ),
    Mutation(
        "the last token of the vocabulary is unknown",
        "Encoder.known",
        "max(ids) < self.vocab_size",
        "max(ids) < self.vocab_size - 1",
        "test_encoding.py::test_text_chats_and_ids_of_every_kind_are_prompts",
    ),
    Mutation(
        "half a character in a stop string is passed on",
        "stop_strings",
        '        _whole_characters(string, "stop string")\n',
        "        pass\n",
        "test_encoding.py::test_stop_strings_are_one_several_or_none",
    ),
    Mutation(
        "raw memory is taken for ids",
        "encoder:_ids",
        "(bytes, bytearray, memoryview)",
        "(bytes, bytearray)",
        "test_encoding.py::test_an_invalid_prompt_is_refused",
    ),
    Mutation(
        "every stop string is a token",
        "Encoder.hidden_tokens",
        "token is not None and ",
        "",
        "test_encoding.py::test_a_stop_string_that_is_no_token_is_searched_in_the_text",
    ),
)
