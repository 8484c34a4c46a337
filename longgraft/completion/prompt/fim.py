"""Fill-in-the-middle tokens of a model, found in its tokenizer (Bavarian et al., arXiv 2207.14255).

Qwen3's tokenizer has the tokens of Qwen-coder, so a general model may have them without being trained to use
them; then the layout must be left to right.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any


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


BAR = "\uff5c"  # DeepSeek's bar, which is wider than |
PIPES = FimFamily(
    "fim_prefix with bars",
    "<|fim_prefix|>",
    "<|fim_suffix|>",
    "<|fim_middle|>",
    ends=("<|fim_pad|>", "<|endoftext|>", "<|end_of_text|>", "<|im_start|>", "<|im_end|>"),
)
ANGLES = FimFamily("fim_prefix", "<fim_prefix>", "<fim_suffix>", "<fim_middle>", ends=("<fim_pad>", "<|endoftext|>"))
DASHES = FimFamily("fim-prefix", "<fim-prefix>", "<fim-suffix>", "<fim-middle>", ends=("<fim-pad>", "<|endoftext|>"))
FILES = "separator path text"  # a snippet after a separator token

# The first family whose needed tokens a tokenizer has is chosen, so families with a separator come first.
FAMILIES = (
    # Qwen2.5-Coder's report (arXiv 2409.12186) and the example Qwen2.5-Coder-repolevel-fim.py of its
    # repository; llama.cpp's server lays /infill out alike.
    replace(
        PIPES,
        name="qwen-coder",
        repository="<|repo_name|>",
        separator="<|file_sep|>",
        snippet=FILES,
        among="repository name snippets separator path prefix before suffix after middle",
    ),
    # CodeGemma's report (arXiv 2406.11409) and model card, which lists these four tokens as terminators, too;
    # the place of paths is not documented.
    replace(
        PIPES,
        name="codegemma",
        separator="<|file_separator|>",
        snippet=FILES,
        among="snippets separator path prefix before suffix after middle",
    ),
    # Granite 4's tokenizer; the order among files is not documented, and is Qwen's.
    replace(
        PIPES,
        name="granite-4",
        repository="<|reponame|>",
        separator="<|filename|>",
        snippet=FILES,
        among="repository name snippets separator path prefix before suffix after middle",
    ),
    # StarCoder 2's report (arXiv 2402.19173): the path is the first line of what was cut in three.
    replace(
        ANGLES,
        name="starcoder2",
        repository="<repo_name>",
        separator="<file_sep>",
        snippet=FILES,
        named="{}",
        among="repository name snippets separator prefix path before suffix after middle",
    ),
    # StarCoder's report (arXiv 2305.06161): <reponame>name<filename>path, and code; Granite code has its tokenizer.
    replace(
        ANGLES,
        name="starcoder",
        repository="<reponame>",
        separator="<filename>",
        snippet=FILES,
        named="{}",
        among="repository name snippets prefix separator path before suffix after middle",
    ),
    # DeepSeek-Coder's report (arXiv 2401.14196) and model card: a repository's files follow "#path" lines.
    FimFamily(
        "deepseek-coder",
        f"<{BAR}fim▁begin{BAR}>",
        f"<{BAR}fim▁hole{BAR}>",
        f"<{BAR}fim▁end{BAR}>",
        headed="#{}\n",
        among="snippets prefix path before suffix after middle",
        ends=("<|EOT|>", f"<{BAR}end▁of▁sentence{BAR}>"),
    ),
    # Code Llama's report (arXiv 2308.12950).
    FimFamily("codellama", "▁<PRE>", "▁<SUF>", "▁<MID>", ends=("▁<EOT>",)),
    # mistral-common's encode_fim: the suffix first, no middle token; other files as Mistral's and Continue's
    # prompts for Codestral have them, within the prefix.
    FimFamily(
        "codestral",
        "[PREFIX]",
        "[SUFFIX]",
        order="suffix after prefix before",
        headed="+++++ {}\n",
        among="suffix after prefix snippets path before",
        ends=("[MIDDLE]",),
    ),
    # CodeGeeX4's Infilling_guideline.md; GLM 4 has its tokens.
    FimFamily(
        "glm",
        "<|code_prefix|>",
        "<|code_suffix|>",
        "<|code_middle|>",
        headed="###PATH:{}\n",
        order="suffix after prefix before middle",
        among="snippets path suffix after prefix before middle",
        ends=("<|endoftext|>", "<|user|>"),
    ),
    PIPES,  # codeqwen, and others without files of their own
    ANGLES,  # stable-code, SmolLM
    DASHES,  # SantaCoder's model card
)


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
    family = next((candidate for candidate in FAMILIES if all(text in predicted for text in candidate.needed)), None)
    if family is None:
        return None
    roles = {role: getattr(family, role) for role in ("prefix", "suffix", "middle", "repository", "separator")}
    ids = {role: predicted[text] for role, text in roles.items() if text in predicted}
    ends = {predicted[text] for text in family.spellings if text in predicted}
    return Fim(family, ids, tuple(sorted(ends)))
