"""What tells tokenizers, weights and values apart, in files that outlive a process."""

from __future__ import annotations

import hashlib
from typing import Any


def vocabulary(tokenizer: Any) -> str:
    """Tells tokenizers apart: ids mean nothing under another."""
    return digest("none" if tokenizer is None else sorted(tokenizer.get_vocab().items()))


def digest(value: Any) -> str:
    """Tells values apart that are written differently."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]
