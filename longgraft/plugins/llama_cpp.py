"""A draft model for llama-cpp-python: the best chain of the text.

from llama_cpp import Llama
from longgraft.plugins.llama_cpp import TextDraft

llama = Llama("MODEL.gguf", n_ctx=8192, draft_model=TextDraft(), logits_all=True)
"""

from __future__ import annotations

import logging
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp.llama_speculative import LlamaDraftModel

from longgraft.plugins.options import TextOptions, warn_if_untried
from longgraft.plugins.text_trees import TextTrees

ON_A_CPU = TextOptions(price=0.5)  # a row costs half a plain step: Qwen2.5-Coder-0.5B in Q4_K_M, one core, AVX2


class TextDraft(LlamaDraftModel):
    """Proposes what the text makes likely.

    Args:
        most: Most tokens of a proposal.
        options: The price of a token, and limits of the text's memory.

    Raises:
        ValueError: `most` is below 1.
    """

    def __init__(self, most: int = 16, options: TextOptions = ON_A_CPU) -> None:
        if most < 1:
            raise ValueError(f"TextDraft's most is {most}. Give at least 1, or leave out draft_model.")
        log = logging.getLogger(__name__)
        warn_if_untried("llama-cpp-python", llama_cpp.__version__, log)
        self.most = most
        self.trees = TextTrees(options, log)
        self._tokens = np.empty(0, np.intc)

    def __call__(self, input_ids: np.ndarray, /, **kwargs: Any) -> np.ndarray:
        """Returns proposed tokens, which are none where nothing pays.

        Args:
            input_ids: [n] intc, the prompt and the answer so far.
            **kwargs: Not needed.
        """
        self.trees.begin_step()
        known = len(self._tokens)
        if not np.array_equal(input_ids[:known], self._tokens):
            self.trees.texts.clear()  # another prompt
        self._tokens = input_ids.copy()
        text = self.trees.follow("", input_ids[known:])
        if text is None:
            self.trees.texts.read("", input_ids)
            text = self.trees.follow("", ())
        chain = [] if text is None else self.trees.chain(text, self.most, 1)
        return np.array(chain, np.intc)
