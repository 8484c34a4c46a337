"""Text comes in pieces that add up, never in half characters, and never past a stop string."""

from __future__ import annotations

from itertools import accumulate, cycle, islice, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from toys.tokenizers import GEMMA, LLAMA_2, METASPACE, PIECES, SPACE, TEXT, Bytes, sentencepiece

from longgraft.engine.detokenizer import Detokenizer
from longgraft.engine.stop_string import StopString

EMOJI = "\U0001f600"
LAYOUTS = {layout: sentencepiece(layout) for layout in (LLAMA_2, GEMMA, METASPACE)}


class Pieces:
    """A tokenizer whose tokens are these bytes."""

    def __init__(self, tokens):
        self.tokens = tokens

    def decode(self, ids, **_):
        return b"".join(self.tokens[n] for n in ids).decode(errors="replace")


class Counted:
    """A tokenizer that counts the tokens that it decodes."""

    def __init__(self, tokenizer):
        self.tokenizer, self.longest = tokenizer, 0

    def decode(self, ids, **how):
        self.longest = max(self.longest, len(ids))
        return self.tokenizer.decode(ids, **how)


def ids_of(*pieces: str) -> list[int]:
    return [PIECES.index(piece) for piece in pieces]


def bytes_of(text: str) -> list[int]:
    return ids_of(*(f"<0x{byte:02X}>" for byte in text.encode()))


def added(tokenizer, prompt: list[int], answer: list[int]) -> str:
    """Returns the text that decoding the prompt and the answer together adds."""
    before, whole = (
        tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        for ids in (prompt, [*prompt, *answer])
    )
    assert whole.startswith(before)
    return whole[len(before) :]


@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_pieces_add_up_to_the_text_without_broken_characters(size):
    ids, detokenizer = list(TEXT.encode()), Detokenizer(Bytes())
    pieces = [detokenizer.push(ids[i : i + size]) for i in range(0, len(ids), size)] + [detokenizer.finish()]
    assert "".join(pieces) == detokenizer.text == TEXT
    assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize(
    "stop, expected",
    [
        ("return", "naïve 🦊 code: "),
        ("→ y;", "naïve 🦊 code: return x "),
        ("absent", TEXT),
        ("z", TEXT[:-1]),
        ("n", ""),
    ],
)
@pytest.mark.parametrize("size", [1, 3])
def test_nothing_of_a_stop_string_is_ever_given_out(stop, expected, size):
    ids, detokenizer, given = list(TEXT.encode()), Detokenizer(Bytes(), [stop]), ""
    for i in range(0, len(ids), size):
        given += detokenizer.push(ids[i : i + size])
        assert expected.startswith(given)
        if detokenizer.stopped:
            break
    assert given + detokenizer.finish() == expected
    assert detokenizer.stopped == (stop != "absent")


@given(
    some.text("ab", max_size=40), some.lists(some.text("ab", min_size=1, max_size=8), max_size=4), some.integers(1, 5)
)
def test_a_text_ends_before_its_first_stop_string(text, stops, size):
    """One character a token: the first string to be complete ends the text, the longest if there are several."""
    detokenizer = Detokenizer(Bytes(), stops)
    pieces = [detokenizer.push([*text[at : at + size].encode()]) for at in range(0, len(text), size)]
    complete = [end for end in range(len(text) + 1) if text[:end].endswith(tuple(stops))]
    shown = text
    if complete:
        begun = text[: complete[0]]
        shown = begun[: -max(len(stop) for stop in stops if begun.endswith(stop))]
    assert "".join(pieces) + detokenizer.finish() == shown
    assert detokenizer.stopped == bool(complete)


@given(some.text("ab", max_size=40), some.lists(some.text("ab", min_size=1, max_size=40), max_size=4))
def test_only_the_beginning_of_a_stop_string_is_held_back(text, stops):
    detokenizer = Detokenizer(Bytes(), [stop for stop in stops if stop not in text])
    given = detokenizer.push([*text.encode()])
    longest = 0
    for length in range(len(text) + 1):
        if length and any(stop.startswith(text[-length:]) for stop in stops if stop not in text):
            longest = length
    assert given == text[: len(text) - longest]


@pytest.mark.parametrize("begins", ["a", "ab", "aab", "abaab"])
def test_a_character_costs_the_same_whatever_the_length_of_a_stop_string(begins):
    """A token once took 7 ms with 64 stop strings of 200,000 characters, after an answer of 4,000."""

    class Counted(str):
        looks = 0

        def __getitem__(self, place):
            Counted.looks += 1
            return super().__getitem__(place)

    text = begins * 1000
    search = StopString(Counted(text + "!" + text * 10))
    for count, char in enumerate(text + "c" + text + "a!c", 1):
        before = Counted.looks
        assert search.place(char) is None
        assert Counted.looks - before <= 64
        assert Counted.looks <= 8 * count


def test_the_earlier_of_two_stop_strings_ends_the_text():
    detokenizer = Detokenizer(Bytes(), ["z", "return"])
    assert detokenizer.push(list(TEXT.encode())) + detokenizer.finish() == "naïve 🦊 code: "


@pytest.mark.parametrize(("layout", "text"), [(LLAMA_2, " paris"), (METASPACE, " paris"), (GEMMA, " paris")])
@pytest.mark.parametrize("prompt", ["the capital of france is", "is", "the" + " the" * 40])
def test_an_answer_begins_with_the_space_of_its_first_token(layout, text, prompt):
    tokenizer = LAYOUTS[layout]
    detokenizer = Detokenizer(tokenizer, [" of"], tokenizer(prompt).input_ids)
    assert detokenizer.push(ids_of(SPACE + "paris")) == text
    assert detokenizer.push(ids_of("is", SPACE + "of")) == "is" and detokenizer.stopped


@pytest.mark.parametrize(("layout", "text"), [(LLAMA_2, "paris of"), (METASPACE, "paris of"), (GEMMA, " paris of")])
@pytest.mark.parametrize("prompt", [[], [1], [1] * 20])
def test_an_answer_without_text_before_it_begins_as_a_text_does(layout, text, prompt):
    detokenizer = Detokenizer(LAYOUTS[layout], prompt=prompt)
    assert detokenizer.push(ids_of(SPACE + "paris", SPACE + "of")) == text


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("prompt", [[], *(["is", *["</s>"] * count] for count in (1, 9, 30)), ["is", "<s>"]])
def test_special_tokens_take_no_space_from_the_token_after_them(layout, prompt):
    tokenizer, answer = LAYOUTS[layout], ids_of(*["</s>"] * 7, SPACE + "paris", "</s>", SPACE + "of", SPACE, "is")
    detokenizer = Detokenizer(tokenizer, prompt=ids_of(*prompt))
    assert "".join(detokenizer.push([token]) for token in answer) == added(tokenizer, ids_of(*prompt), answer)


def test_a_prompt_that_ends_in_bytes_does_not_break_those_of_the_answer():
    prompt = [*ids_of(SPACE + "is"), *bytes_of(EMOJI * 5 + "\u20ac")]
    detokenizer = Detokenizer(LAYOUTS[LLAMA_2], prompt=prompt)
    assert [detokenizer.push([token]) for token in bytes_of(EMOJI)] == ["", "", "", EMOJI]


WORDS = some.sampled_from([SPACE, SPACE + "the", "is", "\n", "</s>", "\ufffd", EMOJI, "\u20ac"])


@settings(max_examples=200, deadline=None)
@given(layout=some.sampled_from([LLAMA_2, GEMMA]), prompt=some.lists(WORDS, max_size=12), answer=some.lists(WORDS))
def test_the_text_of_an_answer_is_what_it_adds_to_the_prompts(layout, prompt, answer):
    """Characters that are no piece are bytes, which follow each other without end."""
    tokenizer = LAYOUTS[layout]
    before, ids = (
        [token for word in words for token in (ids_of(word) if word in PIECES else bytes_of(word))]
        for words in (prompt, answer)
    )
    detokenizer = Detokenizer(tokenizer, prompt=before)
    given = "".join(detokenizer.push([token]) for token in ids) + detokenizer.finish()
    assert given == detokenizer.text == added(tokenizer, before, ids)


@settings(max_examples=200, deadline=None)
@given(
    words=some.lists(some.sampled_from(["a", " b", EMOJI, "\u20ac", "\ufffd", b"\xf0\x9f", b"\x80", b"\xe2"])),
    sizes=some.lists(some.integers(1, 4), min_size=1),
)
def test_tokens_may_end_and_begin_within_characters_and_hold_bytes_that_are_none(words, sizes):
    data = b"".join(word if isinstance(word, bytes) else word.encode() for word in words)
    ends = [0, *accumulate(islice(cycle(sizes), len(data)))]
    tokens = [data[first:last] for first, last in pairwise(ends) if first < len(data)]
    detokenizer = Detokenizer(Pieces(tokens))
    given = "".join(detokenizer.push([n]) for n in range(len(tokens)))
    assert given + detokenizer.finish() == data.decode(errors="replace")


def test_characters_whose_tokens_overlap_come_as_soon_as_they_are_whole():
    tokens = [b"\xf0\x9f", *[b"\x98\x80\xf0\x9f"] * 20, b"\x98\x80"]
    detokenizer = Detokenizer(Pieces(tokens))
    pieces = [detokenizer.push([n]) for n in range(len(tokens))]
    assert pieces == ["", "", "", 3 * EMOJI, *[EMOJI] * 18]


@pytest.mark.parametrize(
    ("tokenizer", "token"),
    [
        (LAYOUTS[LLAMA_2], PIECES.index("\ufffd")),
        (LAYOUTS[LLAMA_2], PIECES.index("<0x80>")),
        (LAYOUTS[LLAMA_2], PIECES.index("</s>")),
        (LAYOUTS[LLAMA_2], PIECES.index("\n")),
        (Bytes(), 0x80),
    ],
)
def test_every_token_costs_the_same_whatever_the_text_is(tokenizer, token):
    """An answer that ended in U+FFFD was held back and decoded again for each token."""
    counted = Counted(tokenizer)
    detokenizer = Detokenizer(counted, prompt=[5] * 1000)
    given = "".join(detokenizer.push([token]) for _ in range(1000))
    assert counted.longest <= 16
    assert len(given) >= len(given + detokenizer.finish()) - 4


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize(
    "until, expected",
    [("code", TEXT), (r"\A\s*na", TEXT), ("y", TEXT[: TEXT.index("x")]), (r"\Acode", TEXT[: TEXT.index("x")])],
)
def test_stop_strings_count_until_a_match(until, expected, size):
    ids, detokenizer = list(TEXT.encode()), Detokenizer(Bytes(), ["x", "z"], stop_until=until)
    text = "".join(detokenizer.push(ids[at : at + size]) for at in range(0, len(ids), size)) + detokenizer.finish()
    assert text == expected


def test_stop_strings_never_count_again_after_a_match():
    text, detokenizer = "begin" + "." * 200 + "stop.", Detokenizer(Bytes(), ["stop"], stop_until="begin")
    assert "".join(detokenizer.push([byte]) for byte in text.encode()) + detokenizer.finish() == text


@pytest.mark.parametrize("stop", [[";"], [".", ";"], [";", "."]])
def test_a_text_ends_at_the_first_of_several_stop_strings_in_a_token(stop):
    detokenizer = Detokenizer(Pieces([b"a;b.c;"]), stop)
    assert detokenizer.push([0]) + detokenizer.finish() == "a" and detokenizer.stopped


def test_a_stop_string_does_not_count_where_the_match_begins():
    detokenizer = Detokenizer(Pieces([b"a;b;"]), [";"], stop_until=";")
    assert detokenizer.push([0]) + detokenizer.finish() == "a;b;"
