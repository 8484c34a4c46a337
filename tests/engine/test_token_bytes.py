"""The bytes of a token are those that it stands for, also if it is a part of a character."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models
from toys.served import characters
from toys.tokenizers import TEXT, byte_tokenizer
from transformers import PreTrainedTokenizerFast

from longgraft.acceptance.shaping import TokenLogprob
from longgraft.engine.token_bytes import TokenBytes
from longgraft.serve.formats.logprobs import LogprobSeries, chat_logprobs, completion_logprobs

BYTES = byte_tokenizer(special=("<|im_end|>",), plain=("<tool>",))


def sentencepiece() -> PreTrainedTokenizerFast:
    """Returns a tokenizer with a space of its own and with bytes for characters that it lacks."""
    ids = {piece: n for n, piece in enumerate(["<unk>", "<0xE2>", "<0x82>", "<0xAC>", "\u2581the", "the"])}
    made = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    made.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=made)


@pytest.mark.parametrize("text", [TEXT, "a<|im_end|>b<tool>\n", "\u20ac"])
def test_the_bytes_of_a_texts_tokens_are_the_texts(text):
    spelt = TokenBytes(BYTES)
    assert b"".join(map(spelt, BYTES.encode(text))) == text.encode()


def test_pieces_keep_their_space_and_bytes_are_bytes():
    spelt = TokenBytes(sentencepiece())
    assert [spelt(token) for token in (4, 5)] == [b" the", b"the"]
    assert b"".join(map(spelt, (1, 2, 3))).decode() == "\u20ac"


def test_a_token_without_a_spelling_has_no_bytes():
    assert TokenBytes(BYTES)(9999) == TokenBytes(None)(3) == b""
    assert TokenBytes(characters())(characters().encode("q")[0]) == b"q"


def test_a_token_that_is_not_spelled_in_the_alphabet_of_bytes_is_its_text():
    made = Tokenizer(models.WordLevel({"\u65e5": 0, "\u010a": 1}, unk_token="\u010a"))
    made.decoder = decoders.ByteLevel()
    spelt = TokenBytes(PreTrainedTokenizerFast(tokenizer_object=made))
    assert [spelt(token) for token in (0, 1)] == ["\u65e5".encode(), b"\n"]


def test_parts_of_a_character_are_entries_of_their_own():
    """Both decode to U+FFFD."""
    first, second, third = BYTES.encode("\u20ac")
    given = [TokenLogprob(first, -0.5, ((second, -1.0), (third, -2.0))), TokenLogprob(second, -0.25)]
    columns = completion_logprobs(given, TokenBytes(BYTES), 7)
    assert columns["tokens"] == ["bytes:\\xe2", "bytes:\\x82"] and columns["text_offset"] == [7, 8]
    assert columns["top_logprobs"][0] == {"bytes:\\x82": -1.0, "bytes:\\xac": -2.0}
    rows = chat_logprobs(given, TokenBytes(BYTES))["content"]
    assert rows[0]["bytes"] == [0xE2] and [one["bytes"] for one in rows[0]["top_logprobs"]] == [[0x82], [0xAC]]


def test_two_tokens_with_the_same_text_are_two_entries():
    spelt = TokenBytes(sentencepiece())
    spelt._bytes[3] = b"the"
    top = completion_logprobs([TokenLogprob(5, -0.1, ((5, -0.1), (3, -0.2)))], spelt)["top_logprobs"]
    assert top == [{"the": -0.1, "token_id:3": -0.2}]


def test_parts_of_a_series_are_the_whole_series():
    spelt, text = TokenBytes(BYTES), "na\u00efve end"
    prompt, answer = ([TokenLogprob(token, -1.0) for token in BYTES.encode(part)] for part in (text, "\u20ac is"))
    whole = LogprobSeries(completion_logprobs, spelt, text).part(prompt, answer, len(answer))
    series = LogprobSeries(completion_logprobs, spelt, text)
    parts = [series.part(prompt, answer[:end], size) for end, size in ((2, 2), (2, 0), (6, 4))]
    assert parts[1] is None
    assert {name: parts[0][name] + parts[2][name] for name in whole} == whole
    assert whole["text_offset"][len(prompt) :] == [9, 10, 10, 10, 11, 12]
