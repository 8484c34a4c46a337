"""Special tokens that the text of a request spells, such as <|im_end|>: allowed, encoded as text, or refused.

The roles of a chat are given by its messages, so its texts need no special tokens, and those of its tools
and template arguments need none either; a prompt for /v1/completions may.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from longgraft.completion.prompt.encoding import PartEncoder
from longgraft.serve.formats.errors import ApiError

# Marks of the cuts in texts: a number between two characters that Unicode leaves to private use.  A template may
# write texts as JSON in ASCII.
MARK = re.compile(r"(?:\ue000|\\ue000)([0-9]+)(?:\ue001|\\ue001)")


class SpecialTokens:
    """Encoder of a request's texts by one policy.

    Args:
        coder: Finds special tokens, and encodes texts without them.
        policy: allow, escape or refuse.
    """

    def __init__(self, coder: PartEncoder, policy: str) -> None:
        self._coder = coder
        self._policy = policy

    def check(self, value: Any, param: str) -> None:
        """Raises ApiError if a text within a JSON value spells a special token and the policy is to refuse it."""
        if self._policy != "refuse":
            return
        for text in texts_of(value):
            token = self._coder.marked(text)
            if token:
                raise ApiError(
                    400,
                    f"{param} spells the special token {token}. Leave it out, or set "
                    "special_tokens_in_content to escape.",
                    param,
                )

    def encode(self, text: str, param: str) -> list[int] | None:
        """Returns the ids of a text, encoded as ordinary text.

        None if its special tokens are allowed, or it has none.

        Raises:
            ApiError: they are refused.
        """
        self.check(text, param)
        if self._policy != "escape" or self._coder.marked(text) is None:
            return None
        return self._coder.joined(self._coder.pieces(text))

    def rendered(
        self, fields: Mapping[str, Any], render: Callable[[Mapping[str, Any]], str]
    ) -> tuple[str, list[str] | None]:
        """Renders fields of a request, and cuts the special tokens within their texts.

        Args:
            fields: JSON values by the names of their fields.
            render: Makes one text of them, with special tokens of its own.

        Returns:
            The text, and its pieces for `PartEncoder.joined`; None if the whole text is to be encoded as usual.

        Raises:
            ApiError: special tokens are refused.
        """
        for param, value in fields.items():
            self.check(value, param)
        texts = list(texts_of(fields))
        if self._policy != "escape" or not any(map(self._coder.marked, texts)):
            return render(fields), None
        mark = mark_for(texts)
        marked = mapped(fields, lambda text: mark.join(self._coder.pieces(text)))
        parts = render(marked).replace(ascii(mark)[1:-1], mark).split(mark)
        return "".join(parts), parts


def mark_for(texts: Iterable[str]) -> str:
    """Returns a mark that none of the texts contains.

    It begins and ends with characters that it has only there, so no mark arises where it meets a text.
    """
    taken = {number for text in texts for number in MARK.findall(text)}
    number = 0
    while str(number) in taken:
        number += 1
    return f"\ue000{number}\ue001"


def texts_of(value: Any) -> Iterator[str]:
    """Yields each text of a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from texts_of(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts_of(item)


def mapped(value: Any, change: Callable[[str], str]) -> Any:
    """Returns a JSON value with each of its texts changed, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): mapped(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [mapped(item, change) for item in value]
    return value
