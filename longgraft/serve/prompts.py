"""Encodes request fields as token ids: plain prompts, prompts with a suffix, chats."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import chain
from typing import Any

from jinja2.exceptions import TemplateError

from longgraft.acceptance.json_schemas import TooExpensive
from longgraft.acceptance.sampling import CONSTRAINTS, Sampling
from longgraft.completion.prompt.next_edit import current_window
from longgraft.completion.snippets import Cursor
from longgraft.engine.generation_request import GenerationRequest
from longgraft.engine.text_length import PER_TOKEN, least_tokens
from longgraft.serve.answer_context import AnswerContext
from longgraft.serve.formats.errors import ApiError, client_errors
from longgraft.serve.formats.logit_fields import left_out
from longgraft.serve.formats.request_fields import AnswerRequest, ChatRequest, CompletionRequest
from longgraft.serve.state import State
from longgraft.serve.tools.families import ToolFamily, family_of
from longgraft.serve.tools.grammar import Tool, grammar
from longgraft.serve.tools.reader import CallReader
from longgraft.serve.tools.rendering import rendered

# Arguments of a chat template that the server sets itself.
RESERVED = {
    "messages",
    "conversation",
    "tokenize",
    "return_dict",
    "return_tensors",
    "add_generation_prompt",
    "chat_template",
    "continue_final_message",
    "tools",
    "documents",
}
# Tokens of a chat that are counted even if the model takes fewer, because the client may shorten it by the count.
# A text of so many tokens is about as long as the longest that /tokenize takes.
COUNTED = 2**17
# Tools of a request whose schemas may take too much work to compile: finding out takes seconds for each.
MOST_EXPENSIVE = 2

Encoded = tuple[GenerationRequest, AnswerContext]
"""A request that has its prompt, and what the answer's format must know of the prompt."""


def completions(state: State, body: CompletionRequest) -> list[Encoded]:
    """Encodes all prompts of a request."""
    return [_completion(state, body, prompt) for prompt in body.prompts]


def _completion(state: State, body: CompletionRequest, prompt: str | list[int]) -> Encoded:
    """Encodes a plain prompt, whose special tokens count unless the request objects, or one with a suffix."""
    if body.suffix:
        return _with_suffix(state, body, prompt, body.suffix)
    requested = plain_prompt(state, prompt, body.special_tokens_in_content or "allow")
    if not body.echo:
        return requested, AnswerContext()
    echo = prompt if isinstance(prompt, str) else state.text(requested.ids)
    return requested, AnswerContext(echo=echo)


def plain_prompt(state: State, prompt: str | list[int], policy: str) -> GenerationRequest:
    """Encodes text or token ids.  The current window of a next edit's prompt is a prediction.

    Args:
        policy: What to do with special tokens that the text spells.
    """
    ids = _plain_ids(state, prompt, policy)
    if not isinstance(prompt, str):
        return GenerationRequest(ids)
    window = current_window(prompt)
    if window is None:
        return GenerationRequest(ids)
    return GenerationRequest(ids, predictions=(state.ids(window, "prompt")[: state.positions],))


def _plain_ids(state: State, prompt: str | list[int], policy: str) -> list[int]:
    with client_errors("prompt"):
        if isinstance(prompt, str):
            state.check_length(prompt, "prompt")
        ids = state.session.encode(prompt)
    if not isinstance(prompt, str) or policy == "allow":
        return ids
    bare = state.special_tokens(policy).encode(prompt, "prompt")
    if bare is None:
        return ids
    return [*state.layout.coder.begin, *bare]


def _with_suffix(state: State, body: CompletionRequest, prompt: str | list[int], suffix: str) -> Encoded:
    """Encodes prompt and suffix with the model's fill-in-the-middle tokens.

    A model without such tokens continues the prompt, and the suffix is a prediction.
    """
    if not isinstance(prompt, str):
        raise ApiError(
            400, "A suffix goes with a prompt that is text. Send the text, or lay the ids out yourself.", "suffix"
        )
    if body.echo:
        raise ApiError(400, "echo does not go with a suffix. Leave one of them out.", "echo")
    state.need_tokenizer("suffix")
    with client_errors("prompt"):
        if state.layout.form != "fim":
            rest = state.ids(suffix[: PER_TOKEN * state.positions], "suffix")[: state.positions]
            requested = GenerationRequest(_plain_ids(state, prompt, "allow"), predictions=(rest,))
            return requested, AnswerContext(layout=state.layout.form)
        # Prompt and suffix are cut to leave room for the new tokens.
        answer = state.options.max_answer_tokens if body.new_tokens is None else body.new_tokens
        room = max(state.max_prompt_tokens - answer, state.max_prompt_tokens // 2)
        laid = state.layout.lay_out(Cursor("", prompt, suffix), (), room)
    requested = GenerationRequest(list(laid.ids), eos=laid.ends, predictions=laid.prediction)
    return requested, AnswerContext(layout=laid.form)


def prepared(state: State, body: AnswerRequest, encoded: Encoded, predicted: Sequence[int] | None = None) -> Encoded:
    """Returns the whole request, with the sampling, the ends, the limits and the prediction of the body.

    Args:
        state: The server.
        body: The fields of the request.
        encoded: The request that has its prompt, with the prompt's own end tokens, predictions and grammar of
            calls.
        predicted: The ids of the body's prediction, if they are known already.
    """
    requested, context = encoded
    tool_calls = requested.sampling.tool_calls
    sampling = sampling_of(state, body, tool_calls)
    with client_errors("stop"):
        stop = body.stops()
    if stop:
        state.need_tokenizer("stop")
    state.check_ids(body.stop_token_ids or (), "stop_token_ids")
    budget, corpus = speculation_of(state, body)
    constraint_field = next(iter(body.constraints()), None)
    if tool_calls and constraint_field is None:
        constraint_field = "tools"
    new_tokens = state.new_tokens(requested.ids, body.new_tokens, body.prompt_field)
    client = client_of(state, body)
    if predicted is None:
        predicted = prediction_ids(state, body)
    # The request's own prediction comes last, because retrievers prefer the last text.
    predictions = [tokens for tokens in (*requested.predictions, predicted) if tokens]
    eos = (*body.eos(state.session.eos), *(requested.eos or ()))
    requested = replace(
        requested,
        max_new_tokens=new_tokens,
        sampling=sampling,
        stop=stop,
        eos=eos,
        predictions=tuple(predictions),
        budget=budget,
        corpus=corpus,
        priority=body.priority or 0,
        client=client,
    )
    return requested, replace(
        context,
        predicted=predicted,
        constraint_field=constraint_field,
        only_reads=body.new_tokens == 0,
        notes=(*body.notes, *context.notes),
        with_timings=bool(body.timings_per_token and body.stream),
    )


def sampling_of(state: State, body: AnswerRequest, tool_calls: str | None = None) -> Sampling:
    """Returns the request's sampling, after checking that the session supports it.

    Raises ApiError about the wrong field, whose name is the first word of the error.

    Args:
        tool_calls: The grammar of the answer's tool calls.
    """
    about = ""
    try:
        sampling = body.sampling(state.session.defaults)
        about = next(iter(body.constraints()), "")
        biases = body.biases(partial(state.ids, param="logit_bias"))
        if biases:
            sampling = replace(sampling, logit_bias=biases)
        state.check_ids(list(biases), "logit_bias")
        state.session.constraint(sampling, state.session.eos)
        if tool_calls is not None:
            about = "tools"
            sampling = replace(sampling, tool_calls=tool_calls)
            state.session.constraint(sampling, state.session.eos)
    except ValueError as error:
        raise _constraint_error(error, about) from error
    return sampling


def _constraint_error(error: ValueError, about: str) -> ApiError:
    """Returns the error about a field.

    Args:
        error: Its first word names the field or the constraint.
        about: The field that has the constraint.
    """
    field, _, rest = str(error).partition(" ")
    if field in CONSTRAINTS and about:
        field = about
    return ApiError(400, f"{field} {rest}", field)


def chat(state: State, body: ChatRequest, most: int = 0) -> Encoded:
    """Encodes messages with the model's chat template, and prepares for the calls that the answer may have.

    Args:
        most: Most tokens that are counted, if they may be more than those of a prompt.
    """
    text, pieces = chat_text(state, body)
    tokenizer = state.need_template("messages")
    state.check_length(text, "messages", most)
    if pieces is None:
        ids = state.ids(text, "messages")
    else:
        ids = state.layout.coder.joined(pieces)
    requested = GenerationRequest(ids)
    return _with_calls(state, requested, body, _shown(tokenizer, body)[1])


def _shown(tokenizer: Any, body: ChatRequest) -> tuple[list[dict[str, Any]], ToolFamily]:
    """Returns (the tools for the chat template, the way in which the model writes calls)."""
    tools = [tool.for_template() for tool in body.tools or ()]
    return tools, family_of(tokenizer.get_chat_template(tools=tools or None))


def chat_text(state: State, body: ChatRequest) -> tuple[str, list[str] | None]:
    """Writes messages with the model's chat template.

    Returns:
        The text, and its pieces for `PartEncoder.joined`; None if it is to be encoded as usual.
    """
    tokenizer = state.need_template("messages")
    messages = [message.for_template(f"messages[{number}]") for number, message in enumerate(body.messages)]
    kwargs: dict[str, Any] = body.chat_template_kwargs or {}
    reserved = RESERVED & set(kwargs)
    if reserved:
        raise ApiError(
            400,
            f"chat_template_kwargs sets {min(reserved)}, which the server sets itself. Leave it out.",
            "chat_template_kwargs",
        )
    body.check_names()
    tools, family = _shown(tokenizer, body)
    fields = {"messages": messages, "tools": tools, "chat_template_kwargs": kwargs}
    special = state.special_tokens(body.special_tokens_in_content or state.options.special_tokens_in_content)

    opened = body.add_generation_prompt is not False

    def render(fields: Mapping[str, Any]) -> str:
        messages, more = rendered(family, fields["messages"], fields["tools"])
        more |= fields["chat_template_kwargs"]
        return tokenizer.apply_chat_template(messages, add_generation_prompt=opened, tokenize=False, **more)

    try:
        return special.rendered(fields, render)
    except (TemplateError, TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:
        raise ApiError(
            400, f"The model's chat template refuses these messages: {' '.join(str(error).split())}.", "messages"
        ) from error


def _with_calls(state: State, requested: GenerationRequest, body: ChatRequest, family: ToolFamily) -> Encoded:
    """Adds the reader and the grammar of the tool calls that the answer may have."""
    with client_errors("tool_choice"):
        tools = body.callable_tools()
    with client_errors("response_format"):
        formed = bool(body.constraints())
        if not body.tools or (not tools and formed):
            return requested, AnswerContext()
    if formed and tools:
        family = _beside_format(state, body, family, tools)
    reader = CallReader()
    if tools:
        reader = CallReader(family, tools, alone=formed)
    context = AnswerContext(calls=reader)
    requested = replace(requested, stop_until="" if body.must_call else reader.begin)
    if not body.must_call and find_spec("llguidance") is None:
        return requested, context  # calls are read as the model writes them
    given = tools
    if not body.must_call and not any(tool.strict for tool in tools):
        tools = _followable(state, family, tools)
        if not formed and _fault(state, family, tools) is not None:
            note = "No call follows its tool's schema, because all of them together cannot be followed."
            return requested, replace(context, notes=[note])
    with client_errors("tools"):
        context = replace(context, notes=_notes_of(given, tools))
        text = not body.must_call and not formed
        rules = grammar(family, tools, state.tokenizer.get_added_vocab(), text, body.many_calls)
    return replace(requested, sampling=Sampling(tool_calls=rules)), context


def _beside_format(state: State, body: ChatRequest, family: ToolFamily, tools: Sequence[Tool]) -> ToolFamily:
    """Returns the family whose calls may be an object without tags, as some models write them.

    If text that follows the format may be such an object, it is text.
    """
    if family.tagged:
        return family
    about, (kind, value) = next(iter(body.constraints().items()))
    try:
        form = state.session.constraint(Sampling(**{kind: value}), state.session.eos)
    except ValueError as error:
        raise _constraint_error(error, about) from error
    for tool in tools:
        for key in ("arguments", "parameters"):
            ids = state.ids(f'{{"name": {json.dumps(tool.name, ensure_ascii=False)}, "{key}": {{', "tools")
            if form is None or form.accepted(ids) == len(ids):
                return family
    return replace(family, bare=True)


def _followable(state: State, family: ToolFamily, tools: Sequence[Tool]) -> list[Tool]:
    """Returns the tools; one whose schema takes too much work takes any arguments.

    Raises ApiError if more than MOST_EXPENSIVE take too much work to compile.
    """
    if _fault(state, family, tools) is None:
        return list(tools)
    expensive = 0
    followable = []
    for tool in tools:
        fault = _fault(state, family, [tool])
        if isinstance(fault, TooExpensive):
            expensive += 1
            if expensive > MOST_EXPENSIVE:
                raise _constraint_error(fault, "tools")
        if fault is not None:
            tool = replace(tool, parameters={})
        followable.append(tool)
    return followable


def _notes_of(given: Sequence[Tool], followed: Sequence[Tool]) -> list[str]:
    """Returns sentences on what is left out of the schemas of tools."""
    notes = []
    for before, after in zip(given, followed, strict=True):
        name = f"Function {after.name}"
        if after is not before:
            notes.append(f"{name} takes any arguments, because its schema cannot be followed.")
        notes += left_out(name, after.unfollowed)
    return notes


def _fault(state: State, family: ToolFamily, tools: Sequence[Tool]) -> ValueError | None:
    """Returns the reason why answers cannot follow the schemas of these tools, or None."""
    try:
        calls = grammar(family, tools, state.tokenizer.get_added_vocab(), text=not tools)
        state.session.constraint(Sampling(tool_calls=calls), state.session.eos)
    except ValueError as error:
        return error
    return None


def prediction_ids(state: State, body: AnswerRequest) -> list[int]:
    """Returns the token ids of the request's prediction, or [].

    Raises ApiError if no answer could be as long.
    """
    least = 0
    ids = list[int]()
    with client_errors("prediction"):
        if body.prediction_text:
            least = least_tokens(state.need_tokenizer("prediction"), body.prediction_text, state.positions)
        if least <= state.positions:
            ids = list(chain.from_iterable(state.session.predicted(body.prediction_text)))
    if max(least, len(ids)) > state.positions:
        raise ApiError(
            400,
            f"The prediction has {max(least, len(ids)):,} tokens or more, and no answer here has more than "
            f"{state.positions:,}. Shorten it.",
            "prediction",
        )
    return ids


def client_of(state: State, body: AnswerRequest) -> str | None:
    """Returns the client of a request whose answer may be remembered, which is filled in later, or None.

    Raises ApiError if answers are to be remembered and the server does not.
    """
    remember = body.longgraft.remember if body.longgraft else None
    if remember and state.session.engine.earlier is None:
        raise ApiError(
            400,
            "longgraft.remember is true, and this server remembers no answers. Leave it out, "
            "or start the server with --remember and a number of bytes.",
            "longgraft.remember",
        )
    return None if remember is False else ""


def speculation_of(state: State, body: AnswerRequest) -> tuple[int | None, str | None]:
    """Returns the request's (largest number of nodes per verification, corpus name); None: the server's."""
    with client_errors("speculative"):
        budget = body.budget(state.session.method)
    corpus = body.longgraft.corpus if body.longgraft else None
    with client_errors("longgraft.corpus"):
        if corpus is not None:
            state.session.corpus(corpus)
    return budget, corpus
