"""A proposer for vLLM: the best chain of each request's text.

vLLM imports it by name:

    vllm serve MODEL --speculative-config '{"method": "custom_class", "num_speculative_tokens": 16,
                                            "model": "longgraft.plugins.vllm.TextProposer"}'
"""

from __future__ import annotations

import logging
from collections.abc import Container
from itertools import chain
from typing import Any

import numpy as np
import vllm

from longgraft.plugins.options import TextOptions, warn_if_untried
from longgraft.plugins.text_trees import TextTrees


class Row:
    """A request as vLLM's rows show it; vLLM passes no names of requests.

    Attributes:
        tokens: [t] int32, what it has written so far, prompt and answer.
    """

    def __init__(self, tokens: np.ndarray) -> None:
        self.tokens = tokens.copy()

    def goes_on_as(self, tokens: np.ndarray) -> bool:
        """Tells if these tokens begin with the request's."""
        n = len(self.tokens)
        return n <= len(tokens) and self.tokens[-1] == tokens[n - 1] and np.array_equal(self.tokens, tokens[:n])


class TextProposer:
    """Proposes what the texts of requests make likely.

    `--additional-config '{"longgraft": {"price": 0.2}}'` sets values of `TextOptions`.

    Args:
        vllm_config: vLLM's configuration.
    """

    def __init__(self, vllm_config: Any) -> None:
        log = logging.getLogger("vllm.longgraft")  # below vLLM's logger, so its log shows the lines
        warn_if_untried("vllm", vllm.__version__, log)
        self.most = vllm_config.speculative_config.num_speculative_tokens
        self.longest = vllm_config.model_config.max_model_len
        self.trees = TextTrees(TextOptions.of(vllm_config.additional_config.get("longgraft", {})), log)
        self._rows: list[Row] = []  # of the last step, by place, and then those that pause

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: np.ndarray,
        token_ids_cpu: np.ndarray,
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Returns a chain for each request; it is empty where nothing pays.

        Args:
            sampled_token_ids: By row: the step's new tokens; none while the prompt is read in chunks.
            num_tokens_no_spec: [rows], known tokens.
            token_ids_cpu: [rows, longest], these tokens.
            slot_mappings: Places of the tokens in the KV cache, which are not needed.
        """
        self.trees.begin_step()
        running = sum(1 for sampled in sampled_token_ids if sampled)
        rows: dict[Row, None] = {}  # in order
        chains: list[list[int]] = []
        for place, sampled in enumerate(sampled_token_ids):
            known = int(num_tokens_no_spec[place])
            row, new = self._row(place, token_ids_cpu[place, :known], rows)
            rows[row] = None
            text = self.trees.follow(row, new)
            if text is None:
                self.trees.texts.read(row, row.tokens)  # beside the next pass
            most = min(self.most, self.longest - known - 1)  # the pass adds a token of its own
            if text is None or not sampled or most <= 0:
                chains.append([])
            else:
                chains.append(self.trees.chain(text, most, running))
        pausing = [row for row in self._rows if row not in rows and row in self.trees.texts]
        self._rows = [*rows, *pausing]
        return chains

    def _row(self, place: int, tokens: np.ndarray, taken: Container[Row]) -> tuple[Row, np.ndarray]:
        """Returns a place's request, which may have moved, paused or just come, and what it has written since."""
        for row in chain(self._rows[place : place + 1], self._rows):
            if row not in taken and row.goes_on_as(tokens):
                new = tokens[len(row.tokens) :]
                row.tokens = tokens.copy()
                return row, new
        return Row(tokens), tokens

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing; vLLM calls it for every proposer."""
