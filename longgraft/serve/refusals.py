"""The exceptions that refuse a request, or end it before its answer."""

from __future__ import annotations


class Busy(Exception):
    """The refusal of a full queue.

    Attributes:
        retry_after: Estimated seconds until a place is free.
    """

    def __init__(self, waiting: int, retry_after: int) -> None:
        super().__init__(f"{waiting} requests wait already, and no more are accepted. Try again in {retry_after} s.")
        self.retry_after = retry_after


class Closing(Exception):
    """The refusal of a server that is being shut down."""

    def __init__(self) -> None:
        super().__init__("The server is being shut down. Ask again when it is back.")


class Failed(Exception):
    """The end of a request whose decoding raised an exception, which is this one's cause, and is in the log."""
