"""The end tokens of a model, from its files (docs/choices.md, "End tokens")."""

from __future__ import annotations

from typing import Any


def end_tokens(model: Any, tokenizer: Any, name: str = "the model") -> tuple[int, ...]:
    """Returns the ids that end an answer: the generation config's, else the model's, and the tokenizer's.

    Negative ids, by which a file says that there is no end token, are left out.  If the configuration names only
    such ids, no token ends an answer.

    Args:
        model: A transformers model.
        tokenizer: Its tokenizer, or None.
        name: The model's name, for messages.

    Raises:
        ValueError: an id is no whole number.
    """
    ids, _ = _configured(model, name)
    if not ids or max(ids) >= 0:
        ids += _ids(tokenizer, "The tokenizer", name)
    return tuple(dict.fromkeys(token for token in ids if token >= 0))


def end_note(model: Any, tokenizer: Any, vocab_size: int) -> str:
    """Returns a sentence about an end token of the tokenizer that the model's configuration lacks; "" for none.

    Args:
        model, tokenizer: As in `end_tokens`.
        vocab_size: Number of ids that the model predicts.
    """
    configured, place = _configured(model, "the model")
    added = [token for token in _ids(tokenizer, "The tokenizer", "the model") if token not in configured]
    if not configured or not added or not 0 <= added[0] < vocab_size:
        return ""
    token = f"the tokenizer's end token {tokenizer.convert_ids_to_tokens(added[0])!r}"
    if max(configured) < 0:
        return f"no token ends an answer, as {place} says ({max(configured)}), also not {token}"
    return f"answers end at {token}, too, which {place} does not name; transformers' generate goes on behind it"


def _configured(model: Any, name: str) -> tuple[list[int], str]:
    """Returns the ids of the first configuration that names some, as transformers' generate does, and its file."""
    places = {"generation_config.json": getattr(model, "generation_config", None), "config.json": model.config}
    for place, config in places.items():
        ids = _ids(config, place, name)
        if ids:
            return ids, place
    return [], ""


def _ids(config: Any, place: str, name: str) -> list[int]:
    """Returns the ids of end tokens that a configuration or a tokenizer names, one or several; [] for none."""
    named = getattr(config, "eos_token_id", None)
    if named is None:
        return []
    ids = list(named) if isinstance(named, list | tuple | set) else [named]
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in ids):
        raise ValueError(
            f"{place} of {name}: eos_token_id is {named!r}; a whole number or a list of "
            "them is needed. Correct it there."
        )
    return ids
