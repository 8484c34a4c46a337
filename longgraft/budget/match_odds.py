"""How probable a remembered token is: a small table of constants, with their sources.  Knows lengths and ranks."""

from __future__ import annotations

from dataclasses import dataclass

from longgraft.trees.templates import WEIGHTS


@dataclass(frozen=True)
class MatchOdds:
    """Probabilities that a ranking gives to remembered successors.

    Tuned on prompts of 2K tokens with the embedded pair, none of which is reported (docs/choices.md, one ranking).

    power, half: where the drafter has children, a match of n tokens adds n^power / (n^power + half)
    alone:       where it has none, the successor's probability is n / (n + alone)
    row:         what the best entry of the matrix's row adds beside drafted children; others by their rank's weight
    """

    power: float = 1.5
    half: float = 60.0
    alone: float = 2.0
    row: float = 0.06

    def bonus(self, match: int) -> float:
        """What a match of this many tokens adds to the drafter's probability of its successor."""
        strength = match ** self.power
        return strength / (strength + self.half)

    def probability(self, match: int) -> float:
        """The successor's probability where nothing was drafted."""
        return match / (match + self.alone)

    def rank_bonuses(self) -> tuple[float, ...]:
        """What each entry of a row adds, best first."""
        return tuple(self.row * weight for weight in WEIGHTS)
