"""Which pieces a prompt has and in which order, so that the next prompt begins alike.  Knows costs; knows no token."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from longgraft.completion.snippets import Piece

COVERED = 0.5       # of a piece's lines: with as many shown, it is shown

Cost = Callable[[Piece], int]


@dataclass(frozen=True)
class Habit:
    """How much is given for a prompt that begins like the last one.

    filled: of the pieces' room when it is laid out anew; what becomes useful later is put behind
    missed: of what is useful now: while no more than this is missing, nothing changes
    """

    filled: float = 0.8
    missed: float = 0.0


USUAL = Habit()
ANEW = Habit(1.0)           # where nothing of a prompt is kept
STEADY = Habit(0.8, 0.5)    # docs/choices.md, "A prompt that stays"


def arrange(pieces: Sequence[Piece], cost: Cost, room: int, before: Sequence[Piece] = (), habit: Habit = ANEW
            ) -> list[Piece]:
    """The pieces of a prompt.

    pieces: best first; cost: of one, in tokens; room: for all; before: those of the last prompt, in its order
    Those of before stay in their places up to the first that is no longer among the pieces; where too much of what is
    useful is not among them, it is put behind, the best last.  Where too little of it has a place there, all is laid
    out anew, the best nearest to the cursor.
    """
    now = {place(piece): piece for piece in pieces}
    stay = [now[at] for at in takewhile(now.__contains__, map(place, before))]
    useful = _fitting(pieces, cost, habit.filled * room)
    new = [piece for piece in useful if piece not in stay and not _covered(piece, stay)]
    most, left = habit.missed * _sum(useful, cost), room - _sum(stay, cost)
    added = _fitting(new, cost, left) if _sum(new, cost) > most else []
    if left < 0 or _sum(new, cost) - _sum(added, cost) > most:
        return useful[::-1]
    return [*stay, *reversed(added)]


def place(piece: Piece) -> tuple[str, int, str]:
    """What is the same piece, whatever it is worth now."""
    return piece.path, piece.first_line, piece.text


def _fitting(pieces: Iterable[Piece], cost: Cost, room: float) -> list[Piece]:
    """The best that fit together."""
    found = []
    for piece in pieces:
        if cost(piece) <= room:
            found.append(piece)
            room -= cost(piece)
    return found


def _covered(piece: Piece, others: Iterable[Piece]) -> bool:
    """Whether enough of its lines are shown by other pieces of its file."""
    shown = {line for other in others if other.path == piece.path for line in other.text.splitlines()}
    lines = [line for line in piece.text.splitlines() if line.strip()]
    return bool(shown) and sum(line in shown for line in lines) >= COVERED * len(lines)


def _sum(pieces: Iterable[Piece], cost: Cost) -> int:
    return sum(map(cost, pieces))
