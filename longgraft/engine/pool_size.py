"""The size of a pool of KV rows, and how many requests it holds at once."""

from __future__ import annotations

from longgraft.runtime.kv_cache import rounded
from longgraft.trees.padded import SIZES

MEMORY_SHARE = 0.8  # share of the free memory that caches may fill
RECORDINGS = 2 << 30  # bytes that are left to the recordings of passes
LONE_SHARE = 0.25  # share of these rows that a pool for one request at a time takes


def request_rows(prompt_tokens: int, new_tokens: int, budget: int) -> int:
    """Returns the rows that a request reserves: its tokens, and the largest tree with the rows that pad it."""
    return rounded(prompt_tokens + new_tokens + max(budget, SIZES[-1]))


def fitting_rows(free: float, bytes_per_token: int) -> int:
    """Returns the rows of a pool that memory alone bounds.

    Args:
        free: Free bytes.
        bytes_per_token: Bytes of a row of the target's cache in all layers.
    """
    return int(max(0.0, MEMORY_SHARE * free - RECORDINGS) / bytes_per_token)


def pool_rows(fitting: int, lanes: int, longest: int) -> int:
    """Returns the rows of a pool.

    Args:
        fitting: As `fitting_rows` returns them.
        lanes: Most requests at once.
        longest: Rows of the longest request.
    """
    if lanes == 1:
        fitting = int(LONE_SHARE * fitting)
    return min(lanes * longest, fitting)


def requests_that_fit(rows: int, prompt_tokens: int, new_tokens: int, budget: int) -> int:
    """Returns how many requests of one length a pool holds at once."""
    return rows // request_rows(prompt_tokens, new_tokens, budget)
