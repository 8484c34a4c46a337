"""Encodes request fields as token ids: plain prompts, prompts with a suffix, chats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

from jinja2.exceptions import TemplateError

from longgraft.acceptance.sampling import CONSTRAINTS, Sampling
from longgraft.completion.prompt.next_edit import current_window
from longgraft.completion.snippets import Cursor
from longgraft.serve.formats.errors import ApiError, client_errors
from longgraft.serve.formats.request_fields import AnswerRequest, ChatRequest, CompletionRequest
from longgraft.serve.state import State
from longgraft.serve.tools.families import Family, family_of
from longgraft.serve.tools.grammar import Tool, grammar
from longgraft.serve.tools.reader import CallReader
from longgraft.serve.tools.rendering import rendered

# Arguments of a chat template that the server sets itself.
RESERVED = {"messages", "conversation", "tokenize", "return_dict", "return_tensors", "add_generation_prompt",
            "chat_template", "continue_final_message", "tools", "documents"}


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt's token ids.

    stop, eos:   stop strings and end tokens in addition to the request's
    echo:        the prompt as text, if the request has `echo`
    layout:      layout of a prompt with a suffix: fim or left-to-right
    predictions: token ids of texts that the answer may repeat
    calls:       reads tool calls in the answer
    tool_calls:  the grammar that the answer must follow for its tool calls
    stop_until:  as in `GenerationRequest`: stop strings end text, and no call
    """

    ids: list[int]
    stop: tuple[str, ...] = ()
    eos: tuple[int, ...] = ()
    echo: str = ""
    layout: str = ""
    predictions: tuple[Sequence[int], ...] = ()
    calls: CallReader = field(default_factory=CallReader)
    tool_calls: str | None = None
    stop_until: str | None = None


def completions(state: State, body: CompletionRequest) -> list[EncodedPrompt]:
    """Encodes all prompts of a request."""
    return [_completion(state, body, prompt) for prompt in body.prompts]


def _completion(state: State, body: CompletionRequest, prompt: str | list[int]) -> EncodedPrompt:
    """Encodes a plain prompt, whose special tokens count unless the request objects, or one with a suffix."""
    if body.suffix:
        return _with_suffix(state, body, prompt, body.suffix)
    plain = plain_prompt(state, prompt, body.special_tokens_in_content or "allow")
    if not body.echo:
        return plain
    return replace(plain, echo=prompt if isinstance(prompt, str) else state.text(plain.ids))


def plain_prompt(state: State, prompt: str | list[int], policy: str) -> EncodedPrompt:
    """Encodes text or token ids.  The current window of a next edit's prompt is a prediction.

    policy: what to do with special tokens that the text spells
    """
    ids = _plain_ids(state, prompt, policy)
    window = current_window(prompt) if isinstance(prompt, str) else None
    if window is None:
        return EncodedPrompt(ids)
    return EncodedPrompt(ids, predictions=(state.ids(window, "prompt")[:state.positions],))


def _plain_ids(state: State, prompt: str | list[int], policy: str) -> list[int]:
    with client_errors("prompt"):
        ids = state.session.encode(prompt)
    if isinstance(prompt, str) and policy != "allow":
        bare = state.special_tokens(policy).encode(prompt, "prompt")
        return ids if bare is None else [*state.layout.coder.begin, *bare]
    return ids


def _with_suffix(state: State, body: CompletionRequest, prompt: str | list[int], suffix: str) -> EncodedPrompt:
    """Encodes prompt and suffix with the model's fill-in-the-middle tokens.

    A model without such tokens continues the prompt, and the suffix is a prediction.
    """
    if not isinstance(prompt, str):
        raise ApiError(400, "A suffix goes with a prompt that is text. Send the text, or lay the ids out yourself.",
                       "suffix")
    if body.echo:
        raise ApiError(400, "echo does not go with a suffix. Leave one of them out.", "echo")
    rest = state.ids(suffix, "suffix")
    with client_errors("prompt"):
        if state.layout.form != "fim":
            return EncodedPrompt(state.session.encode(prompt), layout=state.layout.form,
                                 predictions=(rest[:state.positions],))
        # Prompt and suffix are cut to leave room for the new tokens.
        room = max(state.max_prompt_tokens - body.new_tokens, state.max_prompt_tokens // 2)
        laid = state.layout.lay_out(Cursor("", prompt, suffix), (), room)
        return EncodedPrompt(list(laid.ids), eos=laid.ends, layout=laid.form, predictions=laid.prediction)


def sampling_of(state: State, body: AnswerRequest, tool_calls: str | None = None) -> Sampling:
    """Returns the request's sampling, after checking that the session supports it.

    Raises ApiError about the wrong field, whose name is the first word of the error.

    tool_calls: the grammar of the answer's tool calls
    """
    about = ""
    try:
        sampling = body.sampling(state.session.defaults)
        about = next(iter(body.constraints()), "")
        if tool_calls is not None:
            if about:
                raise ValueError(f"{about} and tools were given; an answer follows one of them. Leave one out, or set "
                                 "tool_choice to none.")
            sampling, about = replace(sampling, tool_calls=tool_calls), "tools"
        state.check_ids(list(sampling.logit_bias or ()), "logit_bias")
        state.session.constraint(sampling, state.session.eos)
    except ValueError as error:
        first, _, rest = str(error).partition(" ")
        field = about if first in CONSTRAINTS and about else first
        raise ApiError(400, f"{field} {rest}", field) from error
    return sampling


def chat(state: State, body: ChatRequest) -> EncodedPrompt:
    """Encodes messages with the model's chat template, and prepares for the calls that the answer may have."""
    text, ids = chat_text(state, body)
    tokenizer = state.need_template("messages")
    prompt = EncodedPrompt(state.ids(text, "messages") if ids is None else ids)
    return _with_calls(state, prompt, body, _shown(tokenizer, body)[1])


def _shown(tokenizer: Any, body: ChatRequest) -> tuple[list[dict[str, Any]], Family]:
    """Returns (the tools for the chat template, the way in which the model writes calls)."""
    tools = [tool.for_template() for tool in body.tools or ()]
    return tools, family_of(tokenizer.get_chat_template(tools=tools or None))


def chat_text(state: State, body: ChatRequest) -> tuple[str, list[int] | None]:
    """Writes messages with the model's chat template; ids: None if the text is to be encoded as usual."""
    tokenizer = state.need_template("messages")
    with client_errors("messages"):
        messages = [message.for_template() for message in body.messages]
    kwargs: dict[str, Any] = body.chat_template_kwargs or {}
    if taken := RESERVED & set(kwargs):
        raise ApiError(400, f"chat_template_kwargs sets {min(taken)}, which the server sets itself. Leave it out.",
                       "chat_template_kwargs")
    tools, family = _shown(tokenizer, body)
    messages, more = rendered(family, messages, tools)
    special = state.special_tokens(body.special_tokens_in_content or state.options.special_tokens_in_content)
    try:
        return special.rendered(messages, lambda given: tokenizer.apply_chat_template(
            given, add_generation_prompt=True, tokenize=False, **more, **kwargs), "messages")
    except (TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
        raise ApiError(400, f"The model's chat template refuses these messages: {' '.join(str(error).split())}.",
                       "messages") from error


def _with_calls(state: State, prompt: EncodedPrompt, body: ChatRequest, family: Family) -> EncodedPrompt:
    """Adds the reader and the grammar of the tool calls that the answer may have."""
    with client_errors("tool_choice"):
        tools = body.callable_tools()
    if not body.tools or (not tools and body.constraints()):
        return prompt
    reader = CallReader(family if tools else None, [tool.name for tool in tools])
    prompt = replace(prompt, calls=reader, stop_until="" if body.must_call else reader.begin)
    if not body.must_call and find_spec("llguidance") is None:
        return prompt       # calls are read as the model writes them
    if not body.must_call and not any(tool.strict for tool in tools):
        tools = _followable(state, family, tools)
        if not _followed(state, family, tools):
            return prompt
    with client_errors("tools"):
        rules = grammar(family, tools, state.tokenizer.get_added_vocab(), not body.must_call, body.many_calls)
    return replace(prompt, tool_calls=rules)


def _followable(state: State, family: Family, tools: Sequence[Tool]) -> list[Tool]:
    """Returns the tools; one whose schema takes too much work for a token takes any arguments."""
    if _followed(state, family, tools):
        return list(tools)
    return [tool if _followed(state, family, [tool]) else replace(tool, parameters={}) for tool in tools]


def _followed(state: State, family: Family, tools: Sequence[Tool]) -> bool:
    """Returns True if answers can follow the schemas of these tools."""
    calls = grammar(family, tools, state.tokenizer.get_added_vocab(), text=not tools)
    try:
        state.session.constraint(Sampling(tool_calls=calls), state.session.eos)
    except ValueError:
        return False
    return True


def prediction_ids(state: State, body: AnswerRequest) -> list[int]:
    """Returns the token ids of the request's prediction, or []; raises ApiError if no answer could be as long."""
    with client_errors("prediction"):
        ids = [token for text in state.session.predicted(body.prediction_text) for token in text]
    if len(ids) > state.positions:
        raise ApiError(400, f"The prediction has {len(ids):,} tokens, and no answer here has more than "
                            f"{state.positions:,}. Shorten it.", "prediction")
    return ids


def client_of(state: State, body: AnswerRequest) -> str | None:
    """Returns the client of a job whose answer may be remembered, which is filled in later, or None.

    Raises ApiError if answers are to be remembered and the server does not.
    """
    asked = None if body.longgraft is None else body.longgraft.remember
    if asked and state.session.engine.earlier is None:
        raise ApiError(400, "longgraft.remember is true, and this server remembers no answers. Leave it out, or start "
                            "the server with --remember and a number of bytes.", "longgraft.remember")
    return None if asked is False else ""


def speculation_of(state: State, body: AnswerRequest) -> tuple[int | None, str | None]:
    """Returns the request's (largest number of nodes per verification, corpus name); None: the server's."""
    with client_errors("speculative"):
        budget = body.budget(state.session.method)
    corpus = None if body.longgraft is None else body.longgraft.corpus
    with client_errors("longgraft.corpus"):
        if corpus is not None:
            state.session.corpus(corpus)
    return budget, corpus
