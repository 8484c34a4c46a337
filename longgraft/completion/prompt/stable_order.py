"""Orders the snippets of a prompt so that it keeps the last prompt's beginning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from longgraft.completion.snippets import Snippet

COVERED = 0.5  # share of a snippet's lines that other snippets must show to make it redundant

Cost = Callable[[Snippet], int]


@dataclass(frozen=True)
class Habit:
    """Limits on what a prompt gives up in order to begin like the last one."""

    filled: float = 0.8  # share of the snippets' room that a new layout fills; later snippets are appended in the rest
    missed: float = 0.0  # share of the useful tokens that may be missing before the snippets change


USUAL = Habit()
ANEW = Habit(1.0)  # for sessions that reuse no prefix
STEADY = Habit(0.8, 0.5)  # for sessions that do: docs/choices.md, "A prompt that stays"


def arrange(
    snippets: Sequence[Snippet], cost: Cost, room: int, before: Sequence[Snippet] = (), habit: Habit = ANEW
) -> list[Snippet]:
    """Returns the snippets of a prompt in order.

    Snippets of the last prompt stay, up to the first that is not in `snippets`.  If too many useful tokens
    are missing, their snippets are appended, the best last.  If too few of them fit, the layout starts anew,
    the best nearest to the cursor.

    Args:
        snippets: Best first.
        cost: Tokens of a snippet.
        room: Tokens for all snippets.
        before: The snippets of the last prompt, in its order.
        habit: What may be given up to keep the order.
    """
    now = {place(snippet): snippet for snippet in snippets}
    stay = [now[at] for at in takewhile(now.__contains__, map(place, before))]
    useful = _fitting(snippets, cost, habit.filled * room)
    new = [snippet for snippet in useful if snippet not in stay and not _covered(snippet, stay)]
    most = habit.missed * _sum(useful, cost)
    left = room - _sum(stay, cost)
    added = _fitting(new, cost, left) if _sum(new, cost) > most else []
    if left < 0 or _sum(new, cost) - _sum(added, cost) > most:
        return useful[::-1]
    return [*stay, *reversed(added)]


def place(snippet: Snippet) -> tuple[str, int, str]:
    """Returns the identity of a snippet, whatever its worth."""
    return snippet.path, snippet.first_line, snippet.text


def _fitting(snippets: Iterable[Snippet], cost: Cost, room: float) -> list[Snippet]:
    """Returns snippets that fit together, chosen greedily."""
    fitting = []
    for snippet in snippets:
        if cost(snippet) <= room:
            fitting.append(snippet)
            room -= cost(snippet)
    return fitting


def _covered(snippet: Snippet, rivals: Iterable[Snippet]) -> bool:
    """True if enough of its lines are shown by other snippets of its file."""
    shown = {line for rival in rivals if rival.path == snippet.path for line in rival.text.split("\n")}
    lines = [line for line in snippet.text.split("\n") if line.strip()]
    return bool(shown) and sum(line in shown for line in lines) >= COVERED * len(lines)


def _sum(snippets: Iterable[Snippet], cost: Cost) -> int:
    return sum(map(cost, snippets))
