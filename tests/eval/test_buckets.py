"""Buckets: prompts have the length of their bucket, end at natural boundaries, and share one text in all buckets."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from longgraft.eval.prompts.buckets import Bucket, fit, plan
from longgraft.eval.prompts.suites import Example, load_suite

ROWS = Path(__file__).parents[3] / "shared" / "data"
TOKENIZER = Path(__file__).parents[2] / "yarn_drafters" / "embedded" / "target"


class Words:
    """A tokenizer with a token per word and other character.  calls: encodings so far; drift: error of its offsets."""

    chat_template = None

    def __init__(self, is_fast: bool = True, drift: int = 0) -> None:
        self.is_fast, self.drift, self.calls = is_fast, drift, 0

    def __call__(self, text, add_special_tokens=True, return_offsets_mapping=False):
        assert self.is_fast or not return_offsets_mapping
        self.calls += 1
        found = list(re.finditer(r"\w+|\W", text))
        spans = [(max(0, m.start() + self.drift), m.end()) for m in found]
        return {"input_ids": [hash(m[0]) % 50_000 for m in found], "offset_mapping": spans}


def meeting(turns: int = 40) -> Example:
    body = "\n".join(f"Speaker {'AB'[n % 2]}: word {n}. More: {'x ' * (n % 7)}end." for n in range(turns))
    return Example("qmsum", "m", "Read:\n", body, "\n\nQuestion?", unit="turn")


def code(lines: int = 60) -> Example:
    return Example(
        "lcc",
        "c",
        "Go on.\n",
        "".join(f"    name_{n} = {n}\n" for n in range(lines)),
        "Next:\n",
        chat=False,
        unit="line",
    )


def book(name: str, words: int) -> Example:
    """Returns a book with two tokens per word and a sentence end after every fifth word."""
    text = "".join(f"w{n}{'.' if n % 5 == 4 else ''} " for n in range(words))
    return Example("pg19", name, "", text, "", chat=False, unit="sentence")


def size(example: Example, body: str | None = None) -> int:
    return len(example.encode(Words(), body))


def text_of(fitted) -> str:
    """Returns the part of the body that was kept."""
    body, cut = fitted.example.body, fitted.cut_characters
    return body[: len(body) - cut] if fitted.example.chat else body[cut:]


# Lengths and buckets ------------------------------------------------------------------------------------------------


def test_a_bucket_includes_its_upper_end_and_not_its_lower():
    bucket = Bucket(4, 8)
    assert [n for n in range(12) if n in bucket] == [5, 6, 7, 8]


def test_a_prompt_is_in_the_bucket_that_ends_at_its_length_and_in_none_twice_as_long():
    example = book("b", 50)
    tokens = size(example)
    fitted = fit(example, Words(), tokens)
    assert len(fitted.ids) == tokens and (fitted.cut_characters, fitted.cut_tokens) == (0, 0)
    assert fit(example, Words(), 2 * tokens) is None and fit(example, Words(), 2 * tokens - 1) is not None
    assert fit(example, Words(), tokens - 1).cut_tokens > 0


# Cuts ---------------------------------------------------------------------------------------------------------------


def test_a_document_ends_at_a_sentence_and_not_at_an_initial_or_a_title():
    first = "One two three four five six seven eight nine ten."
    body = f"{first} Dr. No met J. Smith there. He left (so he said.) And more text follows here without an end"
    example = Example("gov_report", "d", "", body, "", unit="sentence")
    second = f"{first} Dr. No met J. Smith there."
    assert {text_of(fit(example, Words(), length)) for length in range(size(example, first), size(example))} == {
        first,
        second,
        f"{second} He left (so he said.)",
    }


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "tokenizer",
    [Words(), Words(is_fast=False), Words(drift=400), Words(drift=-400)],
    ids=["offsets", "no offsets", "late offsets", "early offsets"],
)
@pytest.mark.parametrize("example", [meeting(), code(), book("b", 200)], ids=["meeting", "code", "book"])
def test_a_cut_keeps_the_longest_text_up_to_a_boundary_even_with_wrong_offsets(example, tokenizer):
    gap = {"turn": r"\n(?=Speaker)", "line": r"\n", "sentence": r"(?<=\.) "}[example.unit]
    if example.chat:
        parts = [example.body[: m.start()] for m in re.finditer(gap, example.body)]
    else:
        parts = [example.body[m.end() :] for m in re.finditer(gap, example.body)]
    sizes = {size(example, part): part for part in parts if part}
    for length in range(100, size(example), 11):
        best = max(tokens for tokens in sizes if tokens <= length)
        fitted = fit(example, tokenizer, length)
        assert text_of(fitted) == sizes[best], length
        assert list(fitted.ids) == example.encode(Words(), sizes[best]) and fitted.cut_tokens == size(example) - best


def test_a_turn_as_long_as_a_bucket_is_cut_at_a_sentence_and_a_sentence_at_a_word():
    body = "A: hi.\nB: " + "one two three. " * 20 + "four " * 200 + "\nA: bye."
    example = Example("qmsum", "m", "", body, "", unit="turn")
    short, long = fit(example, Words(), 150), fit(example, Words(), 500)
    assert text_of(short).endswith("three.") and 140 < len(short.ids) <= 150
    assert text_of(long).endswith("four") and 498 <= len(long.ids) <= 500


def test_only_the_body_is_cut():
    asked = Example("qmsum", "m", "before " * 60, "A: one.\nB: two.\n", "after " * 60, unit="turn")
    assert fit(asked, Words(), 200) is None
    question = Example("qa", "q", "why " * 100, "", "")
    assert fit(question, Words(), 100) is None and len(fit(question, Words(), 4096).ids) == 200


def test_a_cut_needs_at_most_five_encodings():
    tokenizer = Words()
    example = replace(book("b", 5000), before="asked " * 300)
    assert fit(example, tokenizer, 4000).cut_tokens > 0
    assert tokenizer.calls <= 5


# Plans --------------------------------------------------------------------------------------------------------------


def test_all_buckets_have_the_same_prompts_if_they_are_long_enough():
    examples = [book("short", 60), book("first", 900), book("middle", 300), book("second", 800), book("third", 1000)]
    planned = plan(examples, Words(), (200, 400, 800), 2)
    assert {length: [f.example.id for f in found] for length, found in planned.items()} == {
        200: ["first", "second"],
        400: ["first", "second"],
        800: ["first", "second"],
    }
    for length, found in planned.items():
        assert all(0.9 * length < len(f.ids) <= length and f.cut_tokens for f in found)
    ends = [text_of(planned[length][0]) for length in (200, 400, 800)]
    assert ends[2].endswith(ends[1]) and ends[1].endswith(ends[0])  # the same text, more or less of it


def test_the_next_longest_prompts_fill_a_bucket_up_to_the_requested_number():
    examples = [book("50", 50), book("150", 150), book("tiny", 10), book("350", 350), book("60", 60)]
    planned = plan(examples, Words(), (800, 400, 200, 1600), 3)
    assert list(planned) == [200, 400, 800, 1600]
    names = {length: [f.example.id for f in found] for length, found in planned.items()}
    assert names[1600] == [] and names[800] == ["350"] and names[400] == ["350", "150"]
    assert names[200] == ["350", "150", "50"]  # 60 would do as well, but three were asked for
    assert [f.bucket for f in planned[800]] == [Bucket(400, 800)] and planned[200][0].bucket == Bucket(100, 200)


@pytest.mark.parametrize(
    "examples, lengths, names",
    [
        (
            [Example("qa", "q", "why " * 150, "", ""), book("long", 500)],
            (200, 400, 800),  # q cannot be cut
            {200: ["long"], 400: ["long", "q"], 800: ["long"]},
        ),
        (
            [book("150", 150), book("500", 500)],
            (200, 300, 1600),  # 150 serves buckets up to twice its length
            {200: ["500", "150"], 300: ["500", "150"], 1600: ["500"]},
        ),
        ([Example("qa", str(n), "why?", "", "") for n in range(3)], (4096, 8192), {4096: ["0", "1"], 8192: []}),
    ],
)
def test_a_prompt_is_in_each_bucket_it_is_long_enough_for_and_a_short_one_in_the_first(examples, lengths, names):
    planned = plan(examples, Words(), lengths, 2)
    assert {length: [f.example.id for f in found] for length, found in planned.items()} == names
    assert {f.bucket.high for length, found in planned.items() for f in found} <= set(lengths)


def test_the_longest_prompts_leave_room_for_an_answer():
    planned = plan([book("long", 1000)], Words(), (400, 800), 1, most=750)
    assert [
        (length, len(found[0].ids) <= min(length, 750), found[0].bucket.high) for length, found in planned.items()
    ] == [(400, True, 400), (800, True, 750)]


def test_planning_stops_reading_when_the_longest_suffice():
    tokenizer = Words()
    plan([book(str(n), 1000) for n in range(40)], tokenizer, (200, 400, 800), 2)
    assert tokenizer.calls <= 2 * (2 + 3 * 3)
    assert plan([], tokenizer, (100,), 1) == {100: []}
    with pytest.raises(ValueError, match="lengths and prompts of 1 or more"):
        plan([], tokenizer, (), 1)


# Real rows ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(TOKENIZER)


@pytest.mark.slow
@pytest.mark.parametrize("suite", ["qmsum", "gov_report", "repobench-p"])
def test_five_real_rows_fill_every_bucket_at_natural_boundaries(suite, tokenizer):
    if not ROWS.is_dir():
        pytest.skip("the real rows (shared/data) are not beside this checkout")
    planned = plan(load_suite(suite, ROWS), tokenizer, (4096, 8192, 16384, 32768), 5)
    assert len({tuple(f.example.id for f in found) for found in planned.values()}) == 1
    for length, found in planned.items():
        assert len(found) == 5
        for fitted in found:
            example, kept = fitted.example, text_of(fitted)
            assert len(fitted.ids) in fitted.bucket and fitted.bucket.high == length
            if not fitted.cut_characters:
                continue
            rest = example.body[len(kept) :] if example.chat else example.body[: -len(kept)]
            assert {
                "turn": re.match(r"\n[^\n:]+:", rest),
                "line": rest.endswith("\n"),
                "sentence": kept[-1] in ".!?\"')”",
            }[example.unit]
            if length == 4096:
                assert list(fitted.ids) == example.encode(tokenizer, kept) and len(fitted.ids) > 3500


def test_tokens_of_the_chat_template_count(tokenizer):
    class Chat:
        chat_template = "there is one"

        def apply_chat_template(self, messages, **_):
            return {"input_ids": [0] * 90 + Words()(messages[0]["content"])["input_ids"]}

        def __call__(self, text, **_):
            raise AssertionError("plain encoding would miss the template")

    example = replace(meeting(), body="A: b.\nB: c.", after="")
    assert len(fit(example, Chat(), 150).ids) == 90 + size(example)
