"""longgraft's decoding loop as transformers loads it from a folder or a repository of the hub."""

from __future__ import annotations

from typing import Any

import longgraft

# transformers passes none of them on to a callable.
NOT_PASSED = ("streamer", "assistant_model", "assistant_tokenizer", "tokenizer")
# They said where this file is, and have no other meaning.
OF_THE_HUB = ("revision", "token", "cache_dir", "force_download", "local_files_only", "proxies")


def generate(model: Any, **given: Any) -> Any:
    """Answers with `longgraft.custom_generate`.

    Args:
        model: The model whose `generate` was called.
        **given: All arguments of that call; `session` may be among them.

    Raises:
        ValueError: something was given that longgraft does not apply.
    """
    for name in NOT_PASSED:
        if given.pop(name, None) is not None:
            raise ValueError(
                f"{name} was given, which longgraft's custom_generate does not apply. Leave it out; "
                "longgraft.load(...).stream(...) streams, and its stop= ends answers at a text."
            )
    for name in OF_THE_HUB:
        given.pop(name, None)
    return model.generate(custom_generate=longgraft.custom_generate, **given)
