"""A lower bound on the number of tokens of a long text, found without encoding all of it."""

from __future__ import annotations

import re
from typing import Any

PER_TOKEN = 8  # characters; shorter texts are encoded whole, and prose and code have 3 to 5
PART = 2**14  # characters that are encoded at once
# Tokens of a part that do not count.  A cut changes tokens only around it; WordPiece spells a half of up to 100
# characters of a longer word that it does not know.  A run of blanks or of unknown characters may be one token.
CUT = 256
BLANKS = re.compile(r"\s+")


def least_tokens(tokenizer: Any, text: str, most: int) -> int:
    """Returns a number of tokens that a text has at least.

    The text is encoded in parts, until they have more than `most` tokens: a whole text of 15 MB takes 25 s and
    2 GB.

    Args:
        tokenizer: The tokenizer.
        text: The text.
        most: Number of tokens that are allowed.

    Returns:
        The number, above `most` only if the text has more tokens than that; 0 for a text that is not longer
        than usual texts of so many tokens.
    """
    if len(text) <= PER_TOKEN * most:
        return 0
    # Such a token takes all blanks beside it, so that they are none.
    strips = any(token.lstrip or token.rstrip for token in tokenizer.added_tokens_decoder.values())
    tokens = 0
    for start in range(0, len(text), PART):
        part = text[start : start + PART]
        if strips:
            part = BLANKS.sub(" ", part)
        ids = tokenizer(part, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
        tokens += max(0, len(ids) - CUT)
        if tokens > most:
            break
    return tokens
