"""Text comes in pieces that add up, never in half characters, and never past a stop string."""

from __future__ import annotations

import pytest
from toys.tokenizers import TEXT, Bytes

from longgraft.engine.detokenizer import Detokenizer


@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_pieces_add_up_to_the_text_without_broken_characters(size):
    ids, detokenizer = list(TEXT.encode()), Detokenizer(Bytes())
    pieces = [detokenizer.push(ids[i:i + size]) for i in range(0, len(ids), size)] + [detokenizer.finish()]
    assert "".join(pieces) == detokenizer.text == TEXT
    assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("stop, expected", [("return", "naïve 🦊 code: "), ("→ y;", "naïve 🦊 code: return x "),
                                            ("absent", TEXT), ("z", TEXT[:-1]), ("n", "")])
@pytest.mark.parametrize("size", [1, 3])
def test_nothing_of_a_stop_string_is_ever_given_out(stop, expected, size):
    ids, detokenizer, given = list(TEXT.encode()), Detokenizer(Bytes(), [stop]), ""
    for i in range(0, len(ids), size):
        given += detokenizer.push(ids[i:i + size])
        assert expected.startswith(given)
        if detokenizer.stopped:
            break
    assert given + detokenizer.finish() == expected
    assert detokenizer.stopped == (stop != "absent")


def test_the_earlier_of_two_stop_strings_ends_the_text():
    detokenizer = Detokenizer(Bytes(), ["z", "return"])
    assert detokenizer.push(list(TEXT.encode())) + detokenizer.finish() == "naïve 🦊 code: "


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize("until, expected", [("code", TEXT), (r"\A\s*na", TEXT), ("y", TEXT[:TEXT.index("x")]),
                                             (r"\Acode", TEXT[:TEXT.index("x")])])
def test_stop_strings_count_until_a_match(until, expected, size):
    ids, detokenizer = list(TEXT.encode()), Detokenizer(Bytes(), ["x", "z"], until)
    text = "".join(detokenizer.push(ids[at:at + size]) for at in range(0, len(ids), size)) + detokenizer.finish()
    assert text == expected


def test_stop_strings_never_count_again_after_a_match():
    text, detokenizer = "begin" + "." * 200 + "stop.", Detokenizer(Bytes(), ["stop"], "begin")
    assert "".join(detokenizer.push([byte]) for byte in text.encode()) + detokenizer.finish() == text
