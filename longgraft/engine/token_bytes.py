"""The bytes that each token of a tokenizer stands for; a token may be a part of a character."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from transformers.convert_slow_tokenizer import bytes_to_unicode

SPACE = "\u2581"  # SentencePiece's space
UNKNOWN = "\ufffd"


class TokenBytes:
    """The bytes of token ids.  Special tokens are spelled out; an id without a token has no bytes.

    Args:
        tokenizer: The tokenizer; None if there is none, and then no id has bytes.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._bytes = dict[int, bytes]()
        self._added = {} if tokenizer is None else tokenizer.added_tokens_decoder
        kinds = set(_decoders(getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)))
        self._alphabet: dict[str, int] | None = None
        if "ByteLevel" in kinds:
            self._alphabet = {char: byte for byte, char in bytes_to_unicode().items()}
        self._spaces = bool(kinds & {"Metaspace", "ByteFallback"})

    def __call__(self, token: int) -> bytes:
        if token not in self._bytes:
            self._bytes[token] = self._spelt(token)
        return self._bytes[token]

    def text(self, token: int) -> str:
        """Returns the token's text, with U+FFFD for parts of characters."""
        return self(token).decode(errors="replace")

    def _spelt(self, token: int) -> bytes:
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
            if len(spelt) == 6 and spelt.startswith("<0x") and spelt.endswith(">"):
                return bytes.fromhex(spelt[3:5])
            return spelt.replace(SPACE, " ").encode()
        text = self._tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if UNKNOWN in text:
            return spelt.encode()
        return text.encode()


def _decoders(decoder: Any) -> Iterator[str]:
    """Yields the types of a decoder of `tokenizers` and of its parts; None has none."""
    waiting = []
    if decoder is not None:
        waiting.append(json.loads(decoder.__getstate__()))
    while waiting:
        part = waiting.pop()
        yield part["type"]
        waiting += part.get("decoders", ())
