"""From what was asked to token ids: bare prompts, prompts with a suffix, chats.  Knows tokenizers; knows no HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jinja2.exceptions import TemplateError

from longgraft.acceptance.sampling import Sampling
from longgraft.completion.snippets import Cursor
from longgraft.serve.formats.errors import ApiError, refusing
from longgraft.serve.formats.request_fields import USUAL_TOKENS, ChatAsked, CompletionAsked, Drawing
from longgraft.serve.state import State

# What the template is given by the server itself.
OURS = {"messages", "conversation", "tokenize", "return_dict", "return_tensors", "add_generation_prompt",
        "chat_template", "continue_final_message", "tools", "documents"}


@dataclass(frozen=True)
class Read:
    """A prompt.

    stop, eos: what ends the answer beside what was asked; echo: the prompt as text, where it was asked back; form: of a
    prompt with a suffix, fim or left-to-right; told: ids of texts that the answer may repeat, and the prompt does not
    show
    """

    ids: list[int]
    stop: tuple[str, ...] = ()
    eos: tuple[int, ...] = ()
    echo: str = ""
    form: str = ""
    told: tuple[Sequence[int], ...] = ()


def completion(state: State, asked: CompletionAsked) -> Read:
    """A bare prompt, or one with a suffix."""
    prompt = asked.prompt
    if asked.suffix:
        return _filling(state, asked, prompt, asked.suffix)
    with refusing("prompt"):
        ids = state.session.encode(prompt)
    if not asked.echo:
        return Read(ids)
    return Read(ids, echo=prompt if isinstance(prompt, str) else state.text(ids))


def _filling(state: State, asked: CompletionAsked, prompt: str | list[int], suffix: str) -> Read:
    """What stands between two texts: by the model's own fill-in-the-middle tokens; where it has none, the first is gone
    on with, and the second is known to those who propose."""
    if not isinstance(prompt, str):
        raise ApiError(400, "A suffix goes with a prompt that is text. Send the text, or lay the ids out yourself.",
                       "suffix")
    if asked.echo:
        raise ApiError(400, "echo does not go with a suffix. Leave one of them out.", "echo")
    rest = state.ids(suffix, "suffix")
    with refusing("prompt"):
        if state.layout.form != "fim":
            return Read(state.session.encode(prompt), form=state.layout.form, told=(rest[:state.positions],))
        # The prompt is cut to what has room beside the wanted tokens; of the suffix the beginning is shown.
        room = max(state.most_prompt - (asked.wanted_tokens or USUAL_TOKENS), state.most_prompt // 2)
        state.whole(prompt, "prompt")
        laid = state.layout.lay_out(Cursor("", prompt, suffix), (), room)
        return Read(list(laid.ids), eos=laid.ends, form=laid.form, told=laid.prediction)


def drawn(state: State, asked: Drawing) -> Sampling:
    """How tokens are drawn; ApiError about the field that is wrong, with whose name the sentence begins."""
    try:
        return asked.sampling(state.usual)
    except ValueError as error:
        raise ApiError(400, str(error), str(error).partition(" ")[0]) from error


def chat(state: State, asked: ChatAsked) -> Read:
    """Messages, by the model's template."""
    tokenizer = state.need_template("messages")
    with refusing("messages"):
        messages = [message.plain() for message in asked.messages]
    kwargs: dict[str, Any] = asked.chat_template_kwargs or {}
    if taken := OURS & set(kwargs):
        raise ApiError(400, f"chat_template_kwargs sets {min(taken)}, which is the server's to say. Leave it out.",
                       "chat_template_kwargs")
    try:
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **kwargs)
    except (TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
        raise ApiError(400, f"The model's chat template refuses these messages: {' '.join(str(error).split())}.",
                       "messages") from error
    return Read(state.ids(text, "messages"))


def predicted(state: State, asked: Drawing) -> list[int]:
    """A prediction's token ids; none where there is none.  ApiError for more than any answer could repeat."""
    with refusing("prediction"):
        ids = [token for text in state.session.predicted(asked.predicted) for token in text]
    if len(ids) > state.positions:
        raise ApiError(400, f"The prediction has {len(ids):,} tokens, and no answer here has more than "
                            f"{state.positions:,}. Shorten it.", "prediction")
    return ids
