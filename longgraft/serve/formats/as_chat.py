"""The chat that a request of another API stands for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from longgraft.serve.formats.logit_fields import LogitFields
from longgraft.serve.formats.request_fields import ChatRequest
from longgraft.serve.formats.unsupported_fields import Unsupported
from longgraft.serve.request_body import invalid

# Fields of chats that only the answers of /v1/chat/completions have, with the values that change nothing.
ONLY_CHATS: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "return_token_ids": (False,),
    "timings_per_token": (False,),
}
SAME = dict.fromkeys(("max_completion_tokens", "n_predict"), "max_tokens")  # further names of one field
# Fields that change the prompt of a chat, or would if they were followed.
OF_PROMPT = {
    "add_generation_prompt",
    "add_special_tokens",
    "audio",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "conversation",
    "documents",
    "functions",
    "image_data",
    "multimodal_data",
    "previous_response_id",
    "special_tokens_in_content",
    "tools",
    "truncate_prompt_tokens",
    "truncation",
}


def chat_of(fields: Mapping[str, Any], extra: Mapping[str, Any]) -> ChatRequest:
    """Returns the chat of a request.

    Args:
        fields: Fields of the chat, made of the request's.
        extra: Fields of the request that its API does not have.  Those that a chat has count as there.

    Raises:
        Unsupported: a further field is not supported, or there already.
        ApiError: a further field is wrong.
        ValueError: there is no message.
    """
    if not fields["messages"]:
        raise ValueError("There is no message to answer. Send one of the user at least.")
    named = {name: value for name, value in fields.items() if value is not None}
    for name, value in extra.items():
        if value is None:
            continue
        if SAME.get(name, name) in named:
            raise Unsupported(name, f"{name} is given beside this API's own field for it. Leave it out.")
        if name in ONLY_CHATS and value not in ONLY_CHATS[name]:
            raise Unsupported(name, f"{name} is not supported here. Leave it out, or ask /v1/chat/completions.")
    body = {**extra, **named}
    try:
        chat = ChatRequest.model_validate(body)
    except ValidationError as error:
        raise invalid(error, body) from error
    chat.check_supported()
    return chat


def of_prompt(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the further fields that the prompt depends on; where it is only counted, the others change nothing."""
    return {name: value for name, value in extra.items() if name in OF_PROMPT}


def may_constrain(extra: Mapping[str, Any]) -> bool:
    """Returns True if a further field may have a constraint to compile."""
    return any(extra.get(name) is not None for name in LogitFields.model_fields)
