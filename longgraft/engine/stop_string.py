"""A stop string that is searched in growing text."""

from __future__ import annotations


class StopString:
    """A stop string, and how much of it the text ends with (Knuth, Morris and Pratt 1977, with their shorter chains).

    The algorithm's table grows with the matched characters, so that a character of text costs about the same
    whatever the string's length is.

    Attributes:
        string: The stop string.
        matched: Length of the string's longest beginning that the text ends with.
    """

    def __init__(self, string: str) -> None:
        self.matched = 0
        self.string = string
        # By matched characters: how many stay matched if the next one of the text is another than the string's; -1:
        # none, and the next one begins no match either.
        self._kept = [-1]
        self._border = 0  # length of the longest beginning of the string that the table's part of it ends with

    def place(self, piece: str) -> int | None:
        """Takes new text, and returns where in it the string begins, if the string is complete; else None.

        A place below 0 is one in the text before.
        """
        string = self.string
        end = 0
        while end < len(piece):
            if self.matched == 0:
                end = piece.find(string[0], end)
                if end < 0:
                    return None
            self._grow_to(self.matched)
            while self.matched >= 0 and string[self.matched] != piece[end]:
                self.matched = self._kept[self.matched]
            self.matched += 1
            end += 1
            if self.matched == len(string):
                return end - self.matched
        return None

    def _grow_to(self, matched: int) -> None:
        """Makes the table reach to this number of matched characters."""
        string = self.string
        while len(self._kept) <= matched:
            char = string[len(self._kept)]
            if string[self._border] == char:
                self._kept.append(self._kept[self._border])
            else:
                self._kept.append(self._border)
                while self._border >= 0 and string[self._border] != char:
                    self._border = self._kept[self._border]
            self._border += 1
