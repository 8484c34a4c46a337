"""Known fields of requests that are not followed: they are refused unless their values change nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from longgraft.acceptance.sampling import Sampling
from longgraft.serve.formats.errors import ApiError

Neutral = dict[str, tuple[Any, ...]]
# Values of unsupported fields that change nothing, besides null.
NEUTRAL: Neutral = {
    "best_of": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "n_probs": (0,),
    "prompt_logprobs": (0,),
    "dry_multiplier": (0,),
    "xtc_probability": (0,),
    "typical_p": (1,),
    "mirostat": (0,),
    "dynatemp_range": (0,),
    "min_tokens": (0,),
    "use_beam_search": (False,),
    "n_cmpl": (1,),
    "grammar_lazy": (False,),
    "guided_whitespace_pattern": (),
    "lora": ([],),
    "image_data": ([],),
    "multimodal_data": ([],),
    "length_penalty": (1,),
    "truncate_prompt_tokens": (),
    "tools": ([],),
    "functions": ([],),
    "audio": (),
    "modalities": (["text"],),
    "continue_final_message": (False,),
    "echo": (False,),
    "chat_template": (),
    "documents": ([],),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "top_n_sigma": (0, -1),
    "adaptive_target": (0, -1),
    "stop_regex": ([], ""),
    "logits_processors": ([],),
    "custom_logit_processor": (),
    "n_indent": (0,),
    "t_max_predict_ms": (0, -1),
    "response_fields": ([],),
    "return_tokens": (False,),
    "add_special_tokens": (True,),
    "suffix": ("",),
    "truncation": ("disabled",),
    "previous_response_id": (),
    "conversation": (),
    "background": (False,),
    "mcp_servers": ([],),
    "container": (),
    "web_search_options": (),
}
# llama.cpp's samplers by their letters, in its usual order.
SAMPLERS = {
    "e": "penalties",
    "d": "dry",
    "s": "top_n_sigma",
    "k": "top_k",
    "y": "typ_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
    "t": "temperature",
}
DRAWN = ("top_k", "top_p", "min_p", "temperature")
PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")


class Unsupported(ApiError):
    """A field asks for something that is not supported."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(400, message, param, "unsupported_parameter")


def check_fields(given: Mapping[str, Any], neutral: Neutral) -> None:
    """Raises Unsupported if a known field asks for something that is not supported.

    Args:
        given: The fields that a request does not declare.
        neutral: Known fields, and their values that change nothing.
    """
    for name, value in given.items():
        if value is None or name not in neutral:
            continue
        if any(_same(value, harmless) for harmless in neutral[name]):
            continue
        remedy = "Leave it out"
        if neutral[name]:
            remedy += f" (or {' or '.join(map(json.dumps, neutral[name]))})"
        raise Unsupported(name, f"{name} is not supported here. {remedy}.")


def check_span(span: int | None, sampling: Sampling) -> None:
    """Raises Unsupported if llama.cpp's `repeat_last_n` limits a penalty."""
    if span not in (None, -1) and _has_penalties(sampling):
        raise Unsupported(
            "repeat_last_n", f"repeat_last_n is {span}, and penalties count all tokens here. Leave it out (or -1)."
        )


def check_samplers(given: str | Sequence[str] | None, sampling: Sampling) -> None:
    """Raises Unsupported if llama.cpp's `samplers` would change the answer.

    Args:
        given: Names, or a text of letters.
        sampling: The sampling of the answer.
    """
    if given is None:
        return
    names = [SAMPLERS.get(name, name) for name in given]
    active = ["penalties"] if _has_penalties(sampling) else []
    usual = names
    if sampling.temperature > 0:
        active += [name for name in DRAWN if getattr(sampling, name) != getattr(Sampling, name)]
        usual = [name for name in SAMPLERS.values() if name in names]
    if names != usual or not set(active) <= set(names):
        raise Unsupported(
            "samplers",
            f"samplers must be in llama.cpp's usual order here, and name {' and '.join(active) or 'known ones'}. "
            "Leave it out.",
        )


def _has_penalties(sampling: Sampling) -> bool:
    return any(name in sampling.shaped for name in PENALTIES)


def _same(value: Any, neutral: Any) -> bool:
    """Compares a value with a neutral one; True is not 1 here."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
