"""Chats are encoded for training as they are decoded, whatever the template shows of thoughts, blanks and calls."""

from __future__ import annotations

import json
import re

import pytest
from toys.tokenizers import byte_tokenizer, sentencepiece

from longgraft.cli.prompts import messages
from longgraft.engine.chat_messages import chat_message
from longgraft.engine.encoder import Encoder
from longgraft.eval.prompts.suites import load_suite
from longgraft.yarn_drafters.training.chats import ChatEncoder
from longgraft.yarn_drafters.training.corpus import encode_corpus, split_coded, train_tokenizer
from longgraft.yarn_drafters.training.documents import Document, read_documents

# The layouts of public templates: how an earlier answer is shown, and with what the prompt ends.
USER = "{% for m in messages %}{% if m.role == 'user' %}<U>{{ m.content }}{% elif m.role == 'assistant' %}"
ASKS = "{% endif %}{% endfor %}{% if add_generation_prompt %}"
# The templates of R1's distills and of QwQ.
DROPPED = USER + "<A>{{ m.content.split('</think>')[-1] }}<E>" + ASKS + "<A><think>\n{% endif %}"
VERBATIM = USER + "<A>{{ m.content }}<E>" + ASKS + "<A><think>\n{% endif %}"
CLOSED = USER + "<A>{{ m.content }}<E>" + ASKS + "<A><think></think>{% endif %}"
# Qwen3 Thinking's.
WRITTEN = (
    USER + "<A><think>\n{% if '</think>' in m.content %}{{ m.content.split('</think>')[0].split('<think>')[-1]"
    ".strip() }}{% endif %}{{ '\n</think>\n\n' + m.content.split('</think>')[-1].strip() }}<E>\n"
    + ASKS
    + "<A><think>\n{% endif %}"
)
BLANK = USER + "A: {{ m.content }}\n" + ASKS + "A: {% endif %}"
TRIMMED = USER + "A:{{ ' ' + m.content | trim }}\n" + ASKS + "A: {% endif %}"


def tokenizer_of(template, spaced=False):
    """Returns a tokenizer that merges words with the space before them, with a template.

    spaced: it also puts a space before every text
    """
    marks = ("<U>", "<A>", "<E>", "<think>", "</think>")
    if spaced:
        tokenizer = byte_tokenizer(plain=marks, spaced=True, merges=(("\u0120", "P"),))  # "\u0120": a space
    else:
        tokenizer = train_tokenizer(["<U>Where?A: Paris, I think.\n\n It is Paris."] * 9, 300)
        tokenizer.add_tokens(list(marks))
    tokenizer.chat_template = template
    return tokenizer


def coded(tokenizer, turns, ended=True):
    """Returns (ids, learnt text, number of ids before it) of each document that a chat becomes."""
    roles = ("user", "assistant")
    chat = Document("", "chat", "", [{"role": roles[n % 2], "content": text} for n, text in enumerate(turns)], ended)
    found = []
    for document in ChatEncoder(tokenizer).documents(chat):
        learnt = [token for token in document if token >= 0]
        found.append(
            (
                [~token if token < 0 else token for token in document],
                tokenizer.decode(learnt),
                len(document) - len(learnt),
            )
        )
    return found


def prompt_of(tokenizer, question):
    return tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=True
    )["input_ids"]


@pytest.mark.parametrize(
    "template, answer, learnt",
    [
        (DROPPED, "I know it.</think>\n\nParis.", "I know it.</think>\n\nParis.<E>"),  # as the model's own text is
        (DROPPED, "<think>\nI know it.</think>\n\nParis.", "I know it.</think>\n\nParis.<E>"),  # as data sets write it
        (DROPPED, "\n<think>I know it.</think>Paris.", "I know it.</think>Paris.<E>"),
        (VERBATIM, "I know it.</think>\n\nParis.", "I know it.</think>\n\nParis.<E>"),
        (VERBATIM, "<think>\nI know it.</think>\n\nParis.", "I know it.</think>\n\nParis.<E>"),
        (CLOSED, "Paris.", "Paris.<E>"),
        (CLOSED, "<think></think>Paris.", "Paris.<E>"),
        (WRITTEN, "<think>\nI know it.\n</think>\n\nParis.", "I know it.\n</think>\n\nParis.<E>\n"),
        (WRITTEN, "Paris.", "\n</think>\n\nParis.<E>\n"),
        (BLANK, "Paris, I think.", "Paris, I think.\n"),
        (TRIMMED, " Paris.\n", "Paris.\n"),
    ],
)
def test_an_answer_is_learnt_behind_the_prompt_as_it_is_decoded(template, answer, learnt):
    tokenizer = tokenizer_of(template)
    ((ids, said, context),) = coded(tokenizer, ["Where?", answer])
    assert said == learnt and ids[:context] == prompt_of(tokenizer, "Where?")
    assert ids[context:] == tokenizer(learnt)["input_ids"]


@pytest.mark.parametrize("template", [BLANK, TRIMMED])
def test_a_tokenizer_that_begins_texts_with_a_space_puts_none_between_a_blank_and_an_answer(template):
    tokenizer = tokenizer_of(template, spaced=True)
    ((ids, said, context),) = coded(tokenizer, ["Where?", "Paris."])
    assert said == "Paris.\n" and ids[:context] == prompt_of(tokenizer, "Where?")
    assert tokenizer.decode(ids).endswith("A: Paris.\n")


@pytest.mark.parametrize("template", [DROPPED, VERBATIM])
def test_an_answer_without_the_thought_that_the_prompt_opens_is_learnt_as_the_template_shows_it(template):
    ((ids, learnt, _),) = coded(tokenizer := tokenizer_of(template), ["Where?", "Paris."])
    assert learnt == "Paris.<E>" and tokenizer.decode(ids) == "<U>Where?<A>Paris.<E>"


def test_a_thought_that_was_cut_off_is_learnt_behind_its_opening_and_without_an_end():
    tokenizer = tokenizer_of(DROPPED)
    for answer in ("I know", "<think>\nI know"):
        ((ids, learnt, _),) = coded(tokenizer, ["Where?", answer], ended=False)
        assert learnt == "I know" and tokenizer.decode(ids) == "<U>Where?<A><think>\nI know"


def test_each_answer_with_a_thought_follows_the_past_without_thoughts():
    tokenizer = tokenizer_of(DROPPED)
    found = coded(tokenizer, ["Where?", "One.</think>Paris.", "Sure?", "Two.</think>Yes."])
    assert [(tokenizer.decode(ids), learnt) for ids, learnt, _ in found] == [
        ("<U>Where?<A><think>\nOne.</think>Paris.<E>", "One.</think>Paris.<E>"),
        ("<U>Where?<A>Paris.<E><U>Sure?<A><think>\nTwo.</think>Yes.<E>", "Two.</think>Yes.<E>"),
    ]


def test_a_prompt_that_opens_no_thought_keeps_one_document_for_all_turns():
    plain = USER + "<A>{{ m.content }}<E>" + ASKS + "<A>{% endif %}"
    ((ids, learnt, _),) = coded(tokenizer := tokenizer_of(plain), ["Where?", "Paris.", "Sure?", "Yes."])
    assert learnt == "Paris.<E>Yes.<E>" and tokenizer.decode(ids) == "<U>Where?<A>Paris.<E><U>Sure?<A>Yes.<E>"


def test_the_error_about_chats_that_cannot_be_learnt_says_why(tmp_path, capsys):
    strict = USER + "{{ raise_exception('No answers, please.') }}" + ASKS + "<A>{% endif %}"
    chats = [
        [{"role": "user", "content": "Where?"}],
        [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": "Paris."}],
    ]
    file = tmp_path / "chats.jsonl"
    file.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    with pytest.raises(
        ValueError,
        match=r"chats\.jsonl: nothing to learn from.* Chats left out: 1 without an answer \(first: .*line 1\) "
        r"and 1 that the chat template does not take \(first: .*line 2: No answers, please\)\.$",
    ):
        encode_corpus([file], tokenizer_of(strict), tmp_path / "c.npz")
    assert capsys.readouterr().err == ""
    encode_corpus([file], tokenizer_of(BLANK), tmp_path / "c.npz")
    assert capsys.readouterr().err == f"longgraft: Chats left out: 1 without an answer (first: {file}, line 1).\n"


# Messages in OpenAI's form --------------------------------------------------------------------------------------------

CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"city": "Paris"}'}}
CHAT = [
    {"role": "user", "content": [{"type": "text", "text": "Where?"}, {"type": "text", "text": "Now?"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None},
    {"role": "tool", "tool_call_id": "c1", "content": "Paris"},
    {"role": "assistant", "content": "In Paris."},
]
CALLS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if 'tool_calls' in m %}{% for c in m.tool_calls %}"
    "{{ c.function.name }}:{{ c.function.arguments.city }}{% endfor %}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def test_calls_without_content_and_parts_of_content_are_learnt(tmp_path):
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": CHAT}) + "\n")
    tokenizer = tokenizer_of(CALLS)
    corpus = encode_corpus([tmp_path / "chats.jsonl"], tokenizer, tmp_path / "c.npz")
    ids, learnt = split_coded(corpus.tokens)
    assert tokenizer.decode(ids) == "<user>Where?\nNow?\n<assistant>find:Paris\n<tool>Paris\n<assistant>In Paris.\n"
    assert tokenizer.decode(ids[learnt]) == "find:Paris\nIn Paris.\n"


def test_the_command_line_and_python_take_calls_without_content_and_parts_of_content():
    found = messages(CHAT, "chat.json")
    assert [one["content"] for one in found] == ["Where?\nNow?", "", "Paris", "In Paris."]
    assert found[1]["tool_calls"][0]["function"]["arguments"] == {"city": "Paris"} and "refusal" not in found[1]
    encoder = Encoder(tokenizer_of(CALLS), 400, "toy")
    assert encoder.encode(CHAT) == encoder.encode(found) and "find:Paris" in encoder.tokenizer.decode(
        encoder.encode(CHAT)
    )


def test_a_suite_takes_parts_of_content(tmp_path):
    developer = {"role": "developer", "content": "Be brief."}
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": [developer, *CHAT[:2]]}) + "\n")
    (example,) = load_suite(str(tmp_path / "chats.jsonl"))
    assert example.prompt() == "Be brief.\n\nWhere?\nNow?"


@pytest.mark.parametrize(
    "row, said",
    [
        ({"messages": CHAT}, "message 3 is of role 'tool', and only the turns of system and user are asked"),
        ({"messages": CHAT[:1], "tools": [{"name": "find"}]}, "has tools, which are not asked with"),
    ],
)
def test_a_suite_s_row_with_turns_or_tools_that_it_does_not_ask_with_is_refused(row, said, tmp_path):
    (tmp_path / "chats.jsonl").write_text("\n" + json.dumps(row))
    with pytest.raises(ValueError, match=rf"chats\.jsonl, line 2.*{said}"):
        load_suite(str(tmp_path / "chats.jsonl"))


def test_turns_of_either_form_are_messages(tmp_path):
    rows = [{"messages": CHAT[:1]}, {"conversations": [{"from": "human", "value": CHAT[0]["content"]}]}]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [document.turns for document in read_documents([tmp_path / "chats.jsonl"])] == [
        ({"role": "user", "content": "Where?\nNow?"},)
    ] * 2


@pytest.mark.parametrize(
    "arguments, found",
    [
        ('{"city": "Paris"}', {"city": "Paris"}),
        ({"city": "Paris"}, {"city": "Paris"}),
        ('{"city": "', '{"city": "'),
        ("[1]", "[1]"),
        ("[" * 100_000, "[" * 100_000),
        (None, None),
    ],
)
def test_arguments_of_a_call_are_parsed_if_they_are_an_object(arguments, found):
    call = {"function": {"name": "find", "arguments": arguments}}
    message = chat_message({"role": "assistant", "content": None, "tool_calls": [call]}, "x")
    assert message["tool_calls"][0]["function"]["arguments"] == found


@pytest.mark.parametrize(
    "message, said",
    [
        ("Hi", "x is a str; a message such as"),
        ({"content": "Hi"}, "x has content, and no role that is text"),
        ({}, "x has nothing, and no role"),
        ({"role": "user"}, "x has no content; text, a list of text parts, or tool"),
        ({"role": "user", "content": None}, "x has no content"),
        ({"role": "user", "content": 5}, "content of type int"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "x has no content"),
        ({"role": "user", "content": ["Hi"]}, "x has a content part of type 'str'; parts of text are needed"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": "u"}]}, "content part of type 'image_url'"),
        ({"role": "user", "content": [{"type": "text", "text": None}]}, "content part of type 'text'"),
    ],
)
def test_a_message_of_another_kind_is_refused_with_what_is_needed(message, said):
    with pytest.raises(ValueError, match=said):
        chat_message(message, "x")


# Whole rows, or none ------------------------------------------------------------------------------------------------

WHOLE = (
    "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}:{{ c.function.arguments.city }}{% endfor %}{{ '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
FIND = {"name": "find", "parameters": {}}
ASKED = {"role": "user", "content": "Where?"}
SAID = {"role": "assistant", "content": "Paris."}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}


def learnt_of(row, template, tmp_path):
    """Returns (the whole text, the learnt text) of a row."""
    (tmp_path / "chats.jsonl").write_text(json.dumps(row) + "\n")
    tokenizer = tokenizer_of(template)
    ids, learnt = split_coded(encode_corpus([tmp_path / "chats.jsonl"], tokenizer, tmp_path / "c.npz").tokens)
    return tokenizer.decode(ids), tokenizer.decode(ids[learnt])


@pytest.mark.parametrize(
    "field",
    [
        {"tools": [{"type": "function", "function": FIND}]},
        {"tools": [FIND]},
        {"tools": json.dumps([FIND])},
        {"functions": [FIND]},
        {"tools": None, "functions": json.dumps(FIND)},
    ],
)
def test_tools_of_a_row_reach_the_template(field, tmp_path):
    text, learnt = learnt_of({"messages": [ASKED, SAID], **field}, WHOLE, tmp_path)
    assert text == "[find]<user>Where?\n<assistant>Paris.\n" and learnt == "Paris.\n"


def test_a_column_of_tools_that_is_null_means_no_tools(tmp_path):
    text, _ = learnt_of({"messages": [ASKED, SAID], "tools": "null"}, WHOLE, tmp_path)
    assert "[find]" not in text and "Paris." in text


@pytest.mark.parametrize(
    "value",
    [
        '{"name": "find", "arguments": {"city": "Paris"}}',
        '[{"name": "find", "arguments": "{\\"city\\": \\"Paris\\"}"}]',
    ],
)
def test_calls_and_systems_of_sharegpt_are_read_as_messages(value, tmp_path):
    turns = [("human", "Where?"), ("function_call", value), ("observation", "It is."), ("GPT", "Paris.")]
    row = {"conversations": [{"from": who, "value": text} for who, text in turns], "system": "Be brief."}
    text, learnt = learnt_of(row, WHOLE, tmp_path)
    assert text == "<system>Be brief.\n<user>Where?\n<assistant>find:Paris\n<tool>It is.\n<assistant>Paris.\n"
    assert learnt == "find:Paris\nParis.\n"


def test_openai_s_older_calls_are_learnt(tmp_path):
    older = {"role": "assistant", "content": None, "function_call": CALL["function"]}
    row = {"messages": [ASKED, older, {"role": "function", "name": "find", "content": "It is."}, SAID]}
    text, learnt = learnt_of(row, WHOLE, tmp_path)
    assert text == "<user>Where?\n<assistant>find:Paris\n<tool>It is.\n<assistant>Paris.\n"
    assert learnt == "find:Paris\nParis.\n"


@pytest.mark.parametrize("flag", [{"weight": 0}, {"train": False}, {"loss": False, "weight": 1}])
@pytest.mark.parametrize("system", [{}, {"system": "Be brief."}])
def test_answers_that_are_not_to_be_learnt_are_context(flag, system, tmp_path):
    row = {"messages": [ASKED, SAID | flag, ASKED, {"role": "assistant", "content": "Yes.", "train": True}], **system}
    text, learnt = learnt_of(row, WHOLE, tmp_path)
    assert text.endswith("<user>Where?\n<assistant>Paris.\n<user>Where?\n<assistant>Yes.\n") and learnt == "Yes.\n"


def test_empty_answers_are_context(tmp_path):
    text, learnt = learnt_of({"messages": [ASKED, {"role": "assistant", "content": ""}, ASKED, SAID]}, WHOLE, tmp_path)
    assert text == "<user>Where?\n<assistant>\n<user>Where?\n<assistant>Paris.\n" and learnt == "Paris.\n"


PLAIN = USER + "<A>{{ m.content }}<E>" + ASKS + "<A>{% endif %}"
CALLS_ALONE = (
    "{% for m in messages %}<{{ m.role }}>{% if m.tool_calls %}{{ m.tool_calls[0].function.name }}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
AFTER_TWO = PLAIN.replace(
    "{% for", "{% if messages|length > 3 %}{{ raise_exception('Too long.') }}{% endif %}{% for", 1
)


@pytest.mark.parametrize(
    "template, row, said",
    [
        (PLAIN, {"messages": [{"role": "system", "content": "S"}, ASKED, SAID]}, r"it does not show turn 1 \(system\)"),
        (
            PLAIN,
            {"messages": [ASKED, SAID, {"role": "tool", "content": "T"}, SAID]},
            r"it does not show turn 3 \(tool\)",
        ),
        (PLAIN, {"messages": [{"role": "wizard", "content": "W"}, ASKED, SAID]}, r"it does not show turn 1 \(wizard\)"),
        (PLAIN, {"messages": [ASKED, SAID], "tools": [FIND]}, "it does not show the tools"),
        (PLAIN, {"messages": [ASKED, CALLED]}, "it does not show the calls of turn 2"),
        (CALLS_ALONE, {"messages": [ASKED, CALLED | {"content": "I look."}]}, r"it does not show turn 2 \(assistant\)"),
        (
            PLAIN,
            {"messages": [ASKED, SAID | {"reasoning_content": "Hm."}]},
            "it does not show reasoning_content of turn 2",
        ),
        (AFTER_TWO, {"messages": [ASKED, SAID, ASKED, SAID]}, "Too long"),
    ],
)
def test_a_chat_that_the_template_does_not_show_whole_is_left_out_with_its_place(template, row, said, tmp_path, capsys):
    (tmp_path / "good.jsonl").write_text(json.dumps({"messages": [ASKED, SAID]}))
    (tmp_path / "bad.jsonl").write_text("\n" + json.dumps(row))
    files = [tmp_path / "good.jsonl", tmp_path / "bad.jsonl"]
    corpus = encode_corpus(files, tokenizer_of(template), tmp_path / "c.npz")
    found = capsys.readouterr().err
    assert len(corpus.types) == 1
    assert re.search(
        rf"left out: 1 that the chat template does not take \(first: .*bad\.jsonl, line 2: {said}\)\.", found
    )


def test_a_thought_that_the_template_shows_is_learnt(tmp_path):
    shows = PLAIN.replace("<A>{{ m.content }}", "<A>{{ m.reasoning_content or '' }}|{{ m.content }}")
    row = {"messages": [ASKED, SAID, ASKED, SAID | {"reasoning_content": " Hm.\n"}]}
    assert learnt_of(row, shows, tmp_path)[1] == "|Paris.<E> Hm.\n|Paris.<E>"
    with pytest.raises(ValueError, match="it does not show reasoning_content of turn 4"):
        learnt_of(row, PLAIN, tmp_path)


def test_only_the_last_answer_of_a_chat_is_cut_off():
    ((_, learnt, _),) = coded(tokenizer_of(PLAIN), ["Where?", "Paris.", "Sure?", "Yes"], ended=False)
    assert learnt == "Paris.<E>Yes"


def test_an_answer_to_nothing_is_context(tmp_path):
    row = {"messages": [SAID, ASKED, {"role": "assistant", "content": "Yes."}]}
    assert learnt_of(row, PLAIN, tmp_path) == ("<A>Paris.<E><U>Where?<A>Yes.<E>", "Yes.<E>")


def test_a_chat_has_the_special_tokens_of_its_template_alone():
    """And not those that the tokenizer puts before a plain text."""
    tokenizer = sentencepiece()
    tokenizer.chat_template = "<s>{% for m in messages %}{{ m.content }}{% if not loop.last %} {% endif %}{% endfor %}"
    chat = Document("", "chat", turns=[ASKED | {"content": "the"}, SAID | {"content": "paris"}])
    ((first, *rest),) = ChatEncoder(tokenizer).documents(chat)
    assert ~first == tokenizer.bos_token_id and ~first not in {~token if token < 0 else token for token in rest}


def test_turns_after_the_last_answer_teach_nothing_and_refuse_nothing(tmp_path):
    row = {"messages": [ASKED, SAID, {"role": "tool", "content": "T"}]}
    assert learnt_of(row, PLAIN, tmp_path) == ("<U>Where?<A>Paris.<E>", "Paris.<E>")
