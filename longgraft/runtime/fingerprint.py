"""Fingerprints of tokenizers and other values, for files that outlive a process."""

from __future__ import annotations

import hashlib
from typing import Any


def vocabulary(tokenizer: Any) -> str:
    """Returns the fingerprint of a tokenizer's vocabulary: token ids have no meaning under another vocabulary."""
    return digest("none" if tokenizer is None else sorted(tokenizer.get_vocab().items()))


def digest(value: Any) -> str:
    """Returns the fingerprint of a value's repr: 16 hexadecimal digits of its SHA-256."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]
