"""A growing answer's Markdown as HTML, block by block, for the page."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from functools import cache
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.token import Token

OFTEN = 0.15  # seconds between two renderings
SHARE = 10  # times that the last rendering took, between it and the next one
# Time to read a paragraph's marks grows with the square of these.
LONGEST = 2**13  # characters
BRACKETS = 2**7  # opening brackets
NESTED = 20  # levels of blocks: each line is tried at every level
FIRST_HEADING = 3  # level of an answer's first heading: the page has two above it
LINKED = re.compile(r"https?://|mailto:", re.IGNORECASE)
LINE_END = re.compile(r"\r\n|\r(?=.)", re.DOTALL)


class MarkdownBlocks:
    """Top-level blocks of a text that grows, of which only those at the end may still change.

    Raw HTML, images and reference links stay text.  Links open in a new tab, and lead to web pages and mail addresses
    only.
    """

    def __init__(self) -> None:
        self.changed = False  # True if text has come since the last rendering
        self._final = 0  # blocks that no further text can change
        self._rest = ""  # text behind these blocks
        self._next = 0.0  # time of the next rendering

    def push(self, text: str) -> None:
        """Appends text."""
        self._rest += text
        self.changed |= bool(text)

    def due(self) -> bool:
        """Returns True if there is new text, and the last rendering was long ago."""
        return self.changed and time.monotonic() >= self._next

    def rendered(self) -> dict[str, Any]:
        """Returns {from, blocks}: the HTML of the blocks from the first one that may have changed."""
        began = time.monotonic()
        first = self._final
        blocks = self._render()
        self.changed = False
        ended = time.monotonic()
        self._next = ended + max(OFTEN, SHARE * (ended - began))
        return {"from": first, "blocks": blocks}

    def _render(self) -> list[str]:
        parser = _parser()
        self._rest = LINE_END.sub("\n", self._rest)
        tokens = parser.parse(self._rest)
        _adapt(tokens)
        groups = _blocks(tokens)
        blocks = [parser.renderer.render(group, parser.options, {}) for group in groups]
        if len(groups) > 1:
            self._settle(groups)
        return blocks

    def _settle(self, groups: Sequence[Sequence[Token]]) -> None:
        """Keeps the last block as the rest, if its first two lines are whole.

        Half a line may still join the block before, and the second line makes a table.
        """
        place = groups[-1][0].map
        assert place is not None  # every top-level block has one
        at = 0
        for _ in range(place[0]):
            at = self._rest.index("\n", at) + 1
        if self._rest.count("\n", at) > 1:
            self._rest = self._rest[at:]
            self._final += len(groups) - 1


def _leave_long(state: StateCore) -> None:
    """Leaves the marks unread in a paragraph that would take long."""
    for token in state.tokens:
        if token.type == "inline" and (len(token.content) > LONGEST or token.content.count("[") > BRACKETS):
            token.children = [Token("text", "", 0, content=token.content)]
            token.content = ""


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("js-default", {"html": False, "maxNesting": NESTED})
    parser.disable(["image", "reference"])
    parser.core.ruler.before("inline", "long", _leave_long)
    # markdown-it's own check; a link that it refuses stays text.
    parser.validateLink = lambda url: LINKED.match(url) is not None  # type: ignore[method-assign]
    return parser


def _blocks(tokens: Sequence[Token]) -> list[list[Token]]:
    """Splits tokens into top-level blocks."""
    blocks = list[list[Token]]()
    depth = 0
    for token in tokens:
        if depth == 0:
            blocks.append([])
        blocks[-1].append(token)
        depth += token.nesting
    return blocks


def _adapt(tokens: Sequence[Token]) -> None:
    """Makes headings smaller, opens links in a new tab, and aligns cells without a style attribute."""
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1]) + FIRST_HEADING - 1)}"
        elif token.type == "link_open":
            token.attrs |= {"target": "_blank", "rel": "noopener noreferrer"}
        elif "style" in token.attrs:  # the page's policy forbids it
            token.attrs["align"] = str(token.attrs.pop("style")).rpartition(":")[2]
        _adapt(token.children or ())
