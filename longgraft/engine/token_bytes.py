"""The bytes that each token of a tokenizer stands for; a token may be a part of a character."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from transformers.convert_slow_tokenizer import bytes_to_unicode

SPACE = "\u2581"        # SentencePiece's space
UNKNOWN = "\ufffd"


class TokenBytes:
    """Maps token ids to bytes.  Special tokens are spelled out; an id without a token has no bytes."""

    def __init__(self, tokenizer: Any) -> None:
        """tokenizer: None if there is none; then no id has bytes"""
        self._tokenizer, self._known = tokenizer, dict[int, bytes]()
        self._added = {} if tokenizer is None else tokenizer.added_tokens_decoder
        kinds = set(_decoders(getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)))
        self._alphabet = {char: byte for byte, char in bytes_to_unicode().items()} if "ByteLevel" in kinds else None
        self._spaces = bool(kinds & {"Metaspace", "ByteFallback"})

    def __call__(self, token: int) -> bytes:
        if token not in self._known:
            self._known[token] = self._found(token)
        return self._known[token]

    def text(self, token: int) -> str:
        """Returns the token's text, with U+FFFD for parts of characters."""
        return self(token).decode(errors="replace")

    def _found(self, token: int) -> bytes:
        if self._tokenizer is None:
            return b""
        if token in self._added:
            return self._added[token].content.encode()
        spelt = self._tokenizer.convert_ids_to_tokens(token)
        if spelt is None:
            return b""
        if self._alphabet is not None and set(spelt) <= self._alphabet.keys():
            return bytes(map(self._alphabet.__getitem__, spelt))
        if self._spaces:
            whole = len(spelt) == 6 and spelt.startswith("<0x") and spelt.endswith(">")
            return bytes.fromhex(spelt[3:5]) if whole else spelt.replace(SPACE, " ").encode()
        text = self._tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return (spelt if UNKNOWN in text else text).encode()


def _decoders(decoder: Any) -> Iterator[str]:
    """Yields the types of a decoder of `tokenizers` and of its parts; None has none."""
    waiting = [] if decoder is None else [json.loads(decoder.__getstate__())]
    while waiting:
        part = waiting.pop()
        yield part["type"]
        waiting += part.get("decoders", ())
