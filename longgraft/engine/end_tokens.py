"""The end tokens of a model, from its files."""

from __future__ import annotations

from typing import Any


def end_tokens(model: Any, tokenizer: Any, name: str = "the model") -> tuple[int, ...]:
    """Returns the ids that end an answer: the generation config's, else the model's, else the tokenizer's.

    Negative ids, by which a file says that there is no end token, are left out.

    Args:
        model: A transformers model.
        tokenizer: Its tokenizer, or None.
        name: The model's name, for messages.

    Raises:
        ValueError: an id is no whole number.
    """
    places = {
        "generation_config.json": getattr(model, "generation_config", None),
        "config.json": model.config,
        "The tokenizer": tokenizer,
    }
    for place, config in places.items():
        named = getattr(config, "eos_token_id", None)
        if named is None:
            continue
        ids = named if isinstance(named, list | tuple | set) else [named]
        if not all(isinstance(token, int) and not isinstance(token, bool) for token in ids):
            raise ValueError(
                f"{place} of {name}: eos_token_id is {named!r}; a whole number or a list of "
                "them is needed. Correct it there."
            )
        return tuple(token for token in ids if token >= 0)
    return ()
