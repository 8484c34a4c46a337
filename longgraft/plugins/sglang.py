"""The entry point of SGLang: registers the speculative algorithm LONGGRAFT.

python -m sglang.launch_server --model-path MODEL --speculative-algorithm LONGGRAFT
"""

from __future__ import annotations

import logging
from functools import partial
from importlib.metadata import version
from typing import Any

from longgraft.plugins.options import TextOptions, untried

log = logging.getLogger(__name__)


def register(name: str = "LONGGRAFT", options: TextOptions | None = None) -> None:
    """Registers the algorithm.  SGLang calls this in each of its processes, whatever algorithm they run.

    Args:
        name: Name for `--speculative-algorithm`.
        options: Limits of the texts; None: the usual ones.  The price is not read: SGLang verifies as many rows for
            each request as `--speculative-num-draft-tokens` says.
    """
    try:
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

        from longgraft.plugins.sglang_algorithm import TextAlgorithm
    except (ImportError, AttributeError) as error:
        log.warning(f"{untried('sglang', version('sglang'))} {name} is not registered: {error}.")
        return

    def worker(server_args: Any) -> Any:
        """Imports the worker where it runs; it needs what only SGLang's scheduler loads."""
        from longgraft.plugins.sglang_worker import TextWorker

        return partial(TextWorker, options or TextOptions())

    SpeculativeAlgorithm.register(name, supports_overlap=True, spec_class=TextAlgorithm)(worker)
