"""TriForce (arXiv 2404.11912): a small model drafts, and the target corrects it on a part of its cache, then verifies.

The small model drafts from a window of the text: its first and its newest tokens.  StreamingLLM (arXiv
2309.17453) keeps rows that depend on evicted tokens; here the window is recomputed as a separate text when it
moves, which is that paper's baseline.  So no prompt is too long for the model, the model reads no prompt, and
its drafts depend only on the history.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor

from longgraft.config.options import Checked, Option, option
from longgraft.memories.token_history import TokenHistory
from longgraft.methods.building import history
from longgraft.methods.method import Method
from longgraft.methods.parts import Parts
from longgraft.protocol.proposer import Ask
from longgraft.runtime.clock import Clock
from longgraft.trees.tree import DRAFT, ROOT, ProposalTree
from longgraft.zoo.cascade import Cascade
from longgraft.zoo.partial_kv import SINKS, partial
from longgraft.zoo.selection import Chunks
from longgraft.zoo.small_model import SMALL, DraftModelCache

# The window moves by 1 / MOVES of its newest tokens at a time, so that it is rarely recomputed.
MOVES = 4


class StreamingDrafter:
    """A drafter of a chain of up to `length` tokens.

    Attributes:
        small: A cache without committed tokens, used by this proposer only.
    """

    def __init__(
        self, small: DraftModelCache, history: TokenHistory, sizes: tuple[int, int, int], clock: Clock | None = None
    ) -> None:
        """sizes: (sinks, tokens of the window, length)."""
        self.memories = (history,)
        self.small = small
        self.history = history
        self.clock = clock or Clock()
        self.sinks, self.window, self.length = sizes
        self._held: list[int] = []

    @torch.inference_mode()
    def propose(self, ask: Ask) -> ProposalTree:
        length = min(self.length, ask.budget - 1)
        text = self.text(ask.root)
        scores = [0.0]
        begin = len(text) - 1
        with self.clock.part("draft"):
            while len(scores) <= length:
                token, score = ask.drawn(self._after(text)[None], len(scores))
                text.append(token)
                scores.append(scores[-1] + score)
        tokens = text[begin:]
        return ProposalTree.build(tokens, [*range(-1, length)], scores, [ROOT] + [DRAFT] * length)

    def text(self, root: int) -> list[int]:
        """Returns the window, the root last."""
        tokens = self.history.up_to(root)
        newest = self.window - self.sinks
        if len(tokens) <= self.window:
            return tokens.tolist()
        step = max(1, newest // MOVES)
        start = -(-(len(tokens) - newest) // step) * step
        return [*tokens[: self.sinks].tolist(), *tokens[start:].tolist()]

    def _after(self, text: list[int]) -> Tensor:
        """Returns logits [V] of the next token; tokens that are in the cache already are not read again."""
        if not self._held:
            self.small.reset(self.window + self.length)
        # After an interrupted pass the cache's content is unknown
        held = self._held
        self._held = []
        pairs = enumerate(zip(held, text[:-1], strict=False))
        same = next((i for i, (held_token, token) in pairs if held_token != token), min(len(held), len(text) - 1))
        self.small.back(same)
        logits = self.small.extend(torch.tensor(text[same:]))
        self._held = list(text)
        return logits


NewestShare = Annotated[
    float,
    Ge(0.0),
    Le(0.5),
    Option("Share of the rows that is the newest, whatever their keys", source="its code has 0; docs/methods.md"),
]


@dataclass(frozen=True)
class TriForceChoices(Checked):
    """Choices of `triforce`."""

    rows: Annotated[int, Ge(16), Le(1_000_000)] = option(
        1024,
        "Rows kept of the target's cache, in chunks of 8",
        unit="rows",
        source="its code has 4,096, for contexts of 120,000 tokens",
    )
    newest: NewestShare = 0.5
    every: Annotated[int, Ge(1), Le(1_000_000)] | None = option(
        None, "Tokens after which chunks are chosen anew", unit="tokens", none="never", source="its code"
    )
    length: Annotated[int, Ge(1), Le(64)] = option(
        6, "Tokens decoded on the part before a full pass", unit="tokens", source="its code"
    )
    drafts: Annotated[int, Ge(1), Le(64)] = option(
        1, "Tokens of one draft of the small model", unit="tokens", source="its code"
    )
    window: Annotated[int, Ge(32), Le(65536)] = option(
        256, "Tokens that the small model sees, 16 of them the first", unit="tokens", source="its code"
    )


def triforce(p: Parts) -> Cascade:
    """A small model drafts from a window; the target verifies on chunks of its cache."""
    chosen = p.choices
    model = p.the(SMALL)
    small = DraftModelCache(model, p.target.vocab_size, p.clock)
    window = min(chosen.window, model.max_positions - chosen.drafts)
    inner = StreamingDrafter(small, history(p), (SINKS, window, chosen.drafts), p.clock)
    select = Chunks(chosen.rows, int(chosen.newest * chosen.rows))
    return Cascade(p.target, inner, partial(p, select, chosen.every), (chosen.length, 1 + chosen.drafts), p.clock)


METHOD = Method(
    "triforce",
    "a small model, corrected by the target on a part of its cache, then verified in full",
    "TriForce (arXiv 2404.11912)",
    triforce,
    (SMALL,),
    choices=TriForceChoices(),
)
