"""Fill-in-the-middle tokens of a model, found in its tokenizer (Bavarian et al., arXiv 2207.14255).

Qwen3's tokenizer has the tokens of Qwen-coder, so a general model may have them without being trained to use
them; then the layout must be left to right.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("fim_families.toml")


@dataclass(frozen=True)
class FimFamily:
    """The tokens of a family of models, and the order of tokens and texts in a prompt."""

    name: str
    prefix: str
    suffix: str
    middle: str = ""
    repository: str = ""
    separator: str = ""
    # Without snippets: prefix, suffix and middle are tokens, before and after the texts around the cursor.
    order: str = "prefix before suffix after middle"
    # With snippets of other files: repository and separator are tokens; name is the repository's, in the format
    # `named`; path is the file's, in the format `headed`.
    among: str = "snippets path prefix before suffix after middle"
    snippet: str = "path text"  # order within each snippet; without a separator it is only text
    named: str = "{}\n"
    headed: str = "{}\n"
    ends: tuple[str, ...] = ()  # further tokens that end a completion

    @property
    def needed(self) -> tuple[str, ...]:
        """The tokens that a tokenizer of this family must have."""
        return tuple(filter(None, (self.prefix, self.suffix, self.middle, self.separator)))

    @property
    def spellings(self) -> tuple[str, ...]:
        """All of its tokens."""
        return tuple(filter(None, (*self.needed, self.repository, *self.ends)))


@cache
def families() -> tuple[FimFamily, ...]:
    """Returns the families that are known, in the order in which a tokenizer is compared with them."""
    table = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return tuple(FimFamily(name, **keys | {"ends": tuple(keys.get("ends", ()))}) for name, keys in table.items())


@dataclass(frozen=True)
class Fim:
    """A family with a tokenizer's ids."""

    family: FimFamily
    ids: dict[str, int]  # by role; without the repository token if the tokenizer lacks it
    ends: tuple[int, ...]  # ids that always end a completion: the family's tokens, including those between files

    def words(self, order: str) -> Iterator[str]:
        """Yields an order without the tokens that this tokenizer lacks, and without the text that they introduce."""
        missing = {"repository", "name"} if "repository" not in self.ids else set()
        return (word for word in order.split() if word not in missing)


def fim_of(tokenizer: Any, vocab_size: int) -> Fim | None:
    """Returns the first family whose needed tokens this tokenizer all has, each as one added id that the
    model predicts.

    A spelling that is encoded as text, or is an id of the plain vocabulary, does not count.
    """
    added: dict[str, int] = {} if tokenizer is None else tokenizer.get_added_vocab()
    predicted = {text: token for text, token in added.items() if token < vocab_size}
    family = next((candidate for candidate in families() if all(text in predicted for text in candidate.needed)), None)
    if family is None:
        return None
    roles = {role: getattr(family, role) for role in ("prefix", "suffix", "middle", "repository", "separator")}
    ids = {role: predicted[text] for role, text in roles.items() if text in predicted}
    ends = {predicted[text] for text in family.spellings if text in predicted}
    return Fim(family, ids, tuple(sorted(ends)))
