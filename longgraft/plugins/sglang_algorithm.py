"""LONGGRAFT as SGLang sees it: its NGRAM with other proposals."""

from __future__ import annotations

import logging
from typing import Any

import sglang
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_registry import CustomSpecAlgo

from longgraft.plugins.options import warn_if_untried

NODES = 12  # as NGRAM's
RUNNING = 48  # likewise
TRIE = 64  # nodes of NGRAM's own trie, which stays empty; it allocates all of them at once
# Options of NGRAM that have no effect here, with their defaults.
UNUSED = {
    "speculative_ngram_min_bfs_breadth": 1,
    "speculative_ngram_max_bfs_breadth": 10,
    "speculative_ngram_match_type": "BFS",
    "speculative_ngram_max_trie_depth": 18,
    "speculative_ngram_capacity": 10_000_000,
    "speculative_ngram_external_corpus_path": None,
    "speculative_ngram_external_sam_budget": 0,
    "speculative_num_steps": None,
    "speculative_eagle_topk": None,
}
log = logging.getLogger(__name__)


class TextAlgorithm(CustomSpecAlgo):
    """An algorithm that keeps NGRAM's verification, sampling, grammars, cache and CUDA graphs."""

    # The scheduler calls this one, which CustomSpecAlgo of 0.5.23 lacks.
    create_future_map = SpeculativeAlgorithm.create_future_map

    def is_ngram(self) -> bool:
        return True

    def has_draft_kv(self) -> bool:
        return False

    def need_topk(self) -> bool:
        return False

    def carries_draft_hidden_states(self) -> bool:
        return False

    def handle_server_args(self, server_args: Any) -> None:
        """Completes SGLang's options.

        Raises:
            ValueError: an option was given that has no effect here, or that NGRAM's trees exclude.
        """
        args = server_args
        warn_if_untried("sglang", sglang.__version__, log)
        nodes = NODES if args.speculative_num_draft_tokens is None else args.speculative_num_draft_tokens
        ours = {"speculative_ngram_capacity": TRIE, "speculative_num_steps": nodes // 2, "speculative_eagle_topk": 2}
        for name, usual in UNUSED.items():
            given = getattr(args, name)
            if given not in (usual, ours.get(name)):
                flag = name.replace("_", "-")
                raise ValueError(f"--{flag} is {given!r}, which {self.name} does not use. Leave it out.")
        self._check(args, nodes)
        args.speculative_num_draft_tokens = nodes
        for name, value in ours.items():
            setattr(args, name, value)  # a breadth of 2 means a tree; steps x breadth bounds the reserved cache
        if args.max_running_requests is None:
            args.max_running_requests = RUNNING
            log.warning(f"--max-running-requests is {RUNNING} with {self.name}, unless it is given.")
        if args.enable_mixed_chunk:
            args.enable_mixed_chunk = False
            log.warning(f"--enable-mixed-chunk is off: {self.name}, like NGRAM, has no mixed batches.")
        if args.device == "cpu" and not args.disable_overlap_schedule:
            args.disable_overlap_schedule = True
            log.warning("The overlap schedule is off: SGLang has none for speculative decoding on a CPU.")

    def _check(self, args: Any, nodes: int) -> None:
        if nodes < 2:
            raise ValueError(
                f"--speculative-num-draft-tokens is {nodes}. Give 2 or more: one is the last token itself."
            )
        if args.device not in ("cuda", "cpu", "xpu"):
            raise ValueError(f"{self.name} runs on cuda, cpu and xpu, like NGRAM, and the device is {args.device}.")
        if args.enable_dp_attention:
            raise ValueError(f"--enable-dp-attention is on, and {self.name}, like NGRAM, needs it off.")
        if (args.page_size or 1) > 1 and args.attention_backend != "flashinfer":
            raise ValueError(
                f"--page-size is {args.page_size} with --attention-backend {args.attention_backend}. "
                "A tree needs --page-size 1 or the backend flashinfer."
            )
