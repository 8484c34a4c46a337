"""A prompt stays within its budget, and its beginning is stable while the file is edited and the cursor moves."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

import pytest
from toys.tokenizers import byte_tokenizer, of_family

from longgraft.completion.prompt.layout import PromptLayout
from longgraft.completion.prompt.stable_order import ANEW, USUAL, Habit, arrange
from longgraft.completion.snippets import Cursor, Snippet

LINES = [f"line {n} = {n * n}\n" for n in range(1000)]
PIECES = [Snippet(f"p{n}.py", f"# piece {n}\n" + "a = 1\n" * 20, worth=1.0 - n / 100) for n in range(40)]


def layout(form="auto", family: str | None = None) -> PromptLayout:
    tokenizer = of_family(family) if family else byte_tokenizer()
    return PromptLayout(tokenizer, len(tokenizer), form)


def cursor(line: int, lines=LINES) -> Cursor:
    return Cursor("file.py", "".join(lines[:line]), "".join(lines[line:]))


def common(one, other) -> int:
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("family", [None, "qwen-coder", "starcoder", "codestral"])
@pytest.mark.parametrize("tokens", [128, 1000, 4096, 30000])
def test_a_prompt_stays_within_its_budget_and_uses_most_of_it(family, tokens):
    for place in (cursor(0), cursor(5), cursor(700), Cursor("file.py", "x" * 50_000, "y" * 50_000)):
        laid = layout(family=family).lay_out(place, PIECES, tokens, "repo")
        assert len(laid.ids) <= tokens
        assert sum(map(len, laid.prediction)) <= tokens * 1.5
        if place.before and tokens <= 4096:
            assert len(laid.ids) > tokens * USUAL.filled - 64 * 16, (len(laid.ids), tokens)


def test_the_least_useful_pieces_are_left_out():
    laid = layout().lay_out(cursor(300), PIECES, 4096)
    assert set(laid.used) == set(PIECES[: len(laid.used)]) and 3 < len(laid.used) < 40
    assert laid.used[-1] == PIECES[0] and laid.unused == tuple(PIECES[len(laid.used) :])
    assert laid.tokens == tuple(len(f"{piece.path}\n{piece.text}") for piece in laid.used)
    assert len(laid.ids) == sum(laid.tokens) + len("file.py\n") + laid.before


def test_an_edit_near_the_cursor_changes_the_prompt_from_there_on():
    made = layout()
    first = made.lay_out(cursor(500), PIECES, 8192)
    edited = [*LINES[:499], "edited = True\n", *LINES[500:]]
    second = made.lay_out(cursor(500, edited), PIECES, 8192, before=first.used)
    assert len(first.ids) - common(first.ids, second.ids) <= len(LINES[499])
    longer = [*LINES[:500], "x = 1\n", "y = 2\n", *LINES[500:]]
    third = made.lay_out(cursor(502, longer), PIECES, 8192, before=second.used)
    assert common(first.ids, third.ids) == len(first.ids)


@pytest.mark.slow
def test_a_cut_file_begins_at_the_same_line_for_many_lines():
    starts = []
    for line in range(600, 728):
        laid = layout().lay_out(cursor(line), (), 8192)
        starts.append(bytes(laid.ids[:12]))
    assert len(set(starts)) <= 4


def test_a_change_of_worth_moves_no_piece():
    made = layout()
    first = made.lay_out(cursor(200), PIECES, 8192)
    ranked = [*first.used, *first.unused]  # the worst of them is now the best
    again = [replace(piece, worth=1 - n / 100, why="for another reason") for n, piece in enumerate(ranked)]
    second = made.lay_out(cursor(200), again, 8192, before=first.used)
    assert second.ids[: sum(first.tokens)] == first.ids[: sum(first.tokens)]
    assert second.used[0].why == "for another reason"


def pieces(names: str) -> list[Snippet]:
    return [Snippet(name, name) for name in names]


def arranged(ranked: str, room: int, before: str = "", habit: Habit = USUAL, **costs: int) -> str:
    found = arrange(pieces(ranked), lambda piece: costs.get(piece.path, 10), room, pieces(before), habit)
    return "".join(piece.path for piece in found)


def test_new_pieces_are_put_behind_those_that_stay():
    assert arranged("abcdefgh", 100) == "hgfedcba"  # the best nearest to the cursor
    assert arranged("abcdefghijkl", 100) == "hgfedcba"  # a fifth is left for later ones
    assert arranged("abcdefghijkl", 100, habit=ANEW) == "jihgfedcba"
    assert arranged("xabcdefgh", 100, "hgfedcba") == "hgfedcbax"
    assert arranged("yxabcdefgh", 100, "hgfedcbax") == "hgfedcbaxy"
    assert arranged("zyxabcdefgh", 100, "hgfedcbaxy") == "edcbaxyz"  # full: laid out anew
    assert arranged("abcdefg", 100, "hgfedcba") == "gfedcba"  # the first has gone, and all behind it is new
    assert arranged("abc", 100, "bxa") == "bca"
    assert arranged("abc", 100, "cba", a=200) == "cb" == arranged("abc", 100, a=200)
    assert arranged("", 100, "abc") == arranged("abc", 0, "abc") == ""
