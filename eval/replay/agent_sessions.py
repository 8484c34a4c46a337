"""Sessions of agents: files of Claude Code and Codex, with a line for each message or part of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from longgraft.eval.replay.logged_text import WRITTEN_ITEMS, Messages, message_of

CODEX_ITEMS = (*WRITTEN_ITEMS, "function_call_output", "custom_tool_call_output", "local_shell_call_output")
# Lines of both agents that are no messages.
OTHERS = (
    "summary",
    "file-history-snapshot",
    "queue-operation",
    "progress",
    "system",
    "session_meta",
    "event_msg",
    "turn_context",
    "state",
)


class Said(NamedTuple):
    """An answer of a session."""

    messages: Messages  # all of the session, also later ones
    end: int  # number of those before the answer
    answer: str


class AgentSessions:
    """The sessions of a log.  Claude Code's are told apart by their ids; a new one of Codex begins with its header."""

    def __init__(self) -> None:
        self._claude: dict[tuple[str, bool], Messages] = {}
        self._codex: Messages = []

    def knows(self, row: Mapping[str, Any]) -> bool:
        """Tells if a line belongs to a session."""
        kind = row.get("type", row.get("record_type"))
        if kind in OTHERS or (kind in CODEX_ITEMS and "prompt" not in row):
            return True
        if "timestamp" in row and "instructions" in row:
            return True
        holds = isinstance(row.get("payload"), Mapping) or isinstance(row.get("message"), Mapping)
        return kind is not None and holds

    def read(self, row: Mapping[str, Any]) -> Said | None:
        """Reads a line; returns the answer that it holds.

        Raises:
            ValueError: a message has an unknown speaker.
        """
        if isinstance(row.get("message"), Mapping):
            return self._read_claude(row)
        return self._read_codex(row)

    def _read_claude(self, row: Mapping[str, Any]) -> Said | None:
        if row.get("isApiErrorMessage"):
            return None
        key = str(row.get("sessionId", "")), bool(row.get("isSidechain"))
        if row.get("isCompactSummary"):
            self._claude[key] = []  # the summary stands for what came before
        return _said(self._claude.setdefault(key, []), row["message"])

    def _read_codex(self, row: Mapping[str, Any]) -> Said | None:
        kind = row.get("type")
        payload = row.get("payload", row)
        if kind == "session_meta" or ("timestamp" in row and "instructions" in row):
            self._codex = []
        elif kind == "compacted":
            history = payload.get("replacement_history") or [{"role": "user", "content": payload.get("message", "")}]
            self._codex = [message_of(item) for item in history]
        elif kind == "response_item" or (kind in CODEX_ITEMS and "payload" not in row):
            return _said(self._codex, payload)
        return None


def _said(messages: Messages, item: Any) -> Said | None:
    """Adds a message; returns it if it is an answer."""
    message = message_of(item)
    if not message["content"]:
        return None
    messages.append(message)
    if message["role"] == "assistant" and len(messages) > 1:
        return Said(messages, len(messages) - 1, message["content"])
    return None
