"""The worker of LONGGRAFT in SGLang."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from sglang.srt.speculative.ngram_worker import NGRAMWorker

from longgraft.plugins.options import TextOptions
from longgraft.plugins.text_trees import TextTrees
from longgraft.plugins.texts import Text


class TextWorker(NGRAMWorker):
    """SGLang's NGRAM worker with trees from each request's own text.

    Args:
        options: Limits of the texts.
        **given: What SGLang gives its worker.
    """

    def __init__(self, options: TextOptions, **given: Any) -> None:
        super().__init__(**given)
        self.trees = TextTrees(options, logging.getLogger(__name__))

    def forward_batch_generation(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Begins to read new prompts beside the target, which reads them, too."""
        if not batch.forward_mode.is_decode():
            for request in batch.reqs:
                self._begin(request)
        return super().forward_batch_generation(batch, *args, **kwargs)

    def _begin(self, request: Any) -> None:
        prompt = request.origin_input_ids_unpadded
        text = self.trees.texts.get(request.rid)
        is_another = text is not None and not request.output_ids and text.length != len(prompt)
        if text is None or is_another:
            self._read(request, ())

    def _read(self, request: Any, late: Sequence[int]) -> None:
        tokens = [*request.origin_input_ids_unpadded, *request.output_ids, *late]
        self.trees.texts.read(request.rid, tokens)

    def _prepare_draft_tokens(self, batch: Any) -> tuple[np.ndarray, np.ndarray]:
        """Returns the trees' tokens [requests * nodes] and ancestors [requests * nodes * nodes]."""
        self.trees.begin_step()
        tokens = []
        ancestors = []
        for request, late in zip(batch.reqs, self._late(batch), strict=True):
            text = self._text(request, late)
            root = (late or request.output_ids or request.origin_input_ids_unpadded)[-1]
            nodes, above = self.trees.tree(text, root, self.draft_token_num)
            tokens.append(nodes)
            ancestors.append(above.ravel())
        return np.concatenate(tokens), np.concatenate(ancestors)

    def _late(self, batch: Any) -> list[list[int]]:
        """Returns by request the tokens that were accepted and that `output_ids` does not have yet.

        With overlap SGLang processes a step's results after the next step was launched.
        """
        if not self.enable_overlap or batch.grammar_needs_sync():
            return [[] for _ in batch.reqs]
        rows = batch.spec_info.accept_tokens.reshape(-1, self.draft_token_num).tolist()
        counts = batch.spec_info.accept_lens.tolist()
        return [row[:count] for row, count in zip(rows, counts, strict=True)]

    def _text(self, request: Any, late: list[int]) -> Text | None:
        """Returns a request's text up to its last token; None where there is none yet, or no room."""
        prompt = len(request.origin_input_ids_unpadded)
        known = prompt + len(request.output_ids) + len(late)
        text = self.trees.texts.get(request.rid)
        if text is None or text.length > known:
            self._read(request, late)
            return None
        answer = [*request.output_ids[text.length - prompt :], *late]
        return self.trees.follow(request.rid, answer[len(answer) - (known - text.length) :])

    def _update_ngram_corpus(self, batch: Any) -> None:
        """Does nothing: a text learns its tokens in the next step."""

    def clear_cache_pool(self) -> None:
        """Forgets all texts; SGLang calls it when it flushes its cache."""
        super().clear_cache_pool()
        self.trees.texts.clear()
