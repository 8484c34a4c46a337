"""Whether the hub of models and data sets can be reached, and its client where it cannot.  Imports it when asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


def hub_answers() -> bool:
    """Whether the hub can be reached: its client itself would try for 40 seconds, and print each attempt."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=10)
    except Exception:       # the transport's classes, and the client's own where it is set to work offline
        return False
    return True


@contextmanager
def offline() -> Iterator[None]:
    """The hub's client reads its cache alone."""
    from huggingface_hub import constants

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
