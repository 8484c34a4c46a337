"""Fill-in-the-middle tokens are found in a tokenizer, put in its family's order, and never made by a file's text."""

from __future__ import annotations

from dataclasses import replace

import pytest
from toys.tokenizers import NEWLINE, SPELLINGS, byte_tokenizer, of_family

from longgraft.completion.prompt.encoding import LONGEST, PartEncoder, blocks
from longgraft.completion.prompt.fim import families, fim_of
from longgraft.completion.prompt.layout import PromptLayout
from longgraft.completion.snippets import Cursor, Snippet

CURSOR = Cursor("a.py", "x = ", "\ny\n")
PIECES = (Snippet("b.py", "def b(): 1\n"), Snippet("c.py", "c = 2"))  # the best first
BARS = "|", "\uff5c"
# Expected prompts: with the file alone, and with pieces, of which the best is nearest to the cursor.
PROMPTS = {
    "qwen-coder": (
        "<|fim_prefix|>x =<|fim_suffix|>\ny\n<|fim_middle|>",
        "<|repo_name|>repo\n<|file_sep|>c.py\nc = 2\n<|file_sep|>b.py\ndef b(): 1\n"
        "<|file_sep|>a.py\n<|fim_prefix|>x =<|fim_suffix|>\ny\n<|fim_middle|>",
    ),
    "codegemma": (
        "<|fim_prefix|>x =<|fim_suffix|>\ny\n<|fim_middle|>",
        "<|file_separator|>c.py\nc = 2\n<|file_separator|>b.py\ndef b(): 1\n"
        "<|file_separator|>a.py\n<|fim_prefix|>x =<|fim_suffix|>\ny\n<|fim_middle|>",
    ),
    "granite-4": (
        "<|fim_prefix|>x =<|fim_suffix|>\ny\n<|fim_middle|>",
        "<|reponame|>repo\n<|filename|>c.py\nc = 2\n<|filename|>b.py\ndef b(): 1\n"
        "<|filename|>a.py\n<|fim_prefix|>x =<|fim_suffix|>\ny\n<|fim_middle|>",
    ),
    "starcoder2": (
        "<fim_prefix>x =<fim_suffix>\ny\n<fim_middle>",
        "<repo_name>repo<file_sep>c.py\nc = 2\n<file_sep>b.py\ndef b(): 1\n"
        "<file_sep><fim_prefix>a.py\nx =<fim_suffix>\ny\n<fim_middle>",
    ),
    "starcoder": (
        "<fim_prefix>x =<fim_suffix>\ny\n<fim_middle>",
        "<reponame>repo<filename>c.py\nc = 2\n<filename>b.py\ndef b(): 1\n"
        "<fim_prefix><filename>a.py\nx =<fim_suffix>\ny\n<fim_middle>",
    ),
    "deepseek-coder": (
        "<|fim▁begin|>x =<|fim▁hole|>\ny\n<|fim▁end|>".replace(*BARS),
        "#c.py\nc = 2\n#b.py\ndef b(): 1\n<|fim▁begin|>#a.py\nx =<|fim▁hole|>\ny\n<|fim▁end|>".replace(*BARS),
    ),
    "codellama": ("▁<PRE>x =▁<SUF>\ny\n▁<MID>", "c.py\nc = 2\nb.py\ndef b(): 1\na.py\n▁<PRE>x =▁<SUF>\ny\n▁<MID>"),
    "codestral": (
        "[SUFFIX]\ny\n[PREFIX]x =",
        "[SUFFIX]\ny\n[PREFIX]+++++ c.py\nc = 2\n+++++ b.py\ndef b(): 1\n+++++ a.py\nx =",
    ),
    "glm": (
        "<|code_suffix|>\ny\n<|code_prefix|>x =<|code_middle|>",
        "###PATH:c.py\nc = 2\n###PATH:b.py\ndef b(): 1\n"
        "###PATH:a.py\n<|code_suffix|>\ny\n<|code_prefix|>x =<|code_middle|>",
    ),
    "fim_prefix with bars": (
        "<|fim_prefix|>x =<|fim_suffix|>\ny\n<|fim_middle|>",
        "c.py\nc = 2\nb.py\ndef b(): 1\na.py\n<|fim_prefix|>x =<|fim_suffix|>\ny\n<|fim_middle|>",
    ),
    "fim_prefix": (
        "<fim_prefix>x =<fim_suffix>\ny\n<fim_middle>",
        "c.py\nc = 2\nb.py\ndef b(): 1\na.py\n<fim_prefix>x =<fim_suffix>\ny\n<fim_middle>",
    ),
    "fim-prefix": (
        "<fim-prefix>x =<fim-suffix>\ny\n<fim-middle>",
        "c.py\nc = 2\nb.py\ndef b(): 1\na.py\n<fim-prefix>x =<fim-suffix>\ny\n<fim-middle>",
    ),
}


def test_every_family_has_a_prompt_here():
    assert set(PROMPTS) == {family.name for family in families()} == set(SPELLINGS)


@pytest.mark.parametrize("name", PROMPTS)
def test_a_prompt_has_its_familys_tokens_in_order(name):
    tokenizer = of_family(name, begins=True)
    layout = PromptLayout(tokenizer, len(tokenizer))
    alone, among = (layout.lay_out(CURSOR, pieces, 2048, "repo") for pieces in ((), PIECES))
    assert (layout.fim.family.name, among.form) == (name, "fim")
    assert (tokenizer.decode(alone.ids), tokenizer.decode(among.ids)) == tuple("<s>" + text for text in PROMPTS[name])
    assert among.used == PIECES[::-1] and not among.unused and among.held == " "


def test_text_that_belongs_to_no_file_keeps_its_last_blanks():
    tokenizer = of_family("qwen-coder")
    laid = PromptLayout(tokenizer, len(tokenizer)).lay_out(replace(CURSOR, path=""))
    assert tokenizer.decode(laid.ids) == "<|fim_prefix|>x = <|fim_suffix|>\ny\n<|fim_middle|>" and not laid.held


@pytest.mark.parametrize("name", PROMPTS)
def test_all_of_a_familys_tokens_end_a_completion(name):
    tokenizer = of_family(name)
    spelled = {tokenizer.convert_tokens_to_ids(text) for text in SPELLINGS[name].split()}
    assert set(PromptLayout(tokenizer, len(tokenizer)).lay_out(CURSOR).ends) == spelled


def test_tokens_that_are_not_single_added_ids_do_not_count():
    assert fim_of(byte_tokenizer(("<|fim_prefix|>", "<|fim_suffix|>")), 10**6) is None  # no middle
    assert fim_of(byte_tokenizer(), 10**6) is None and fim_of(None, 10**6) is None
    tokenizer = of_family("fim_prefix")
    assert fim_of(tokenizer, len(tokenizer) - 1) is None  # the model never predicts the last token
    assert fim_of(byte_tokenizer(plain=tuple(SPELLINGS["qwen-coder"].split())), 10**6) is not None  # Qwen's own


def test_a_prompt_without_a_repository_token_names_no_repository():
    tokenizer = byte_tokenizer(tuple(SPELLINGS["qwen-coder"].replace("<|repo_name|>", "").split()))
    text = tokenizer.decode(PromptLayout(tokenizer, len(tokenizer)).lay_out(CURSOR, PIECES, 2048, "repo").ids)
    assert text.startswith("<|file_sep|>c.py\n") and "repo" not in text


def test_left_to_right_is_repobenchs_layout():
    tokenizer = byte_tokenizer()
    layout = PromptLayout(tokenizer, len(tokenizer))
    laid = layout.lay_out(CURSOR, PIECES, 2048, "repo")
    assert tokenizer.decode(laid.ids) == "c.py\nc = 2\nb.py\ndef b(): 1\na.py\nx =" and laid.held == " "
    assert (laid.form, laid.ends, laid.after) == ("left-to-right", (), 0)
    assert tokenizer.decode(laid.prediction[-1]) == "\ny\n"  # the text after the cursor goes to the retrievers
    asked = PromptLayout(of_family("starcoder2"), 10**6, "left-to-right").lay_out(CURSOR, PIECES)
    assert asked.form == "left-to-right" and len(asked.ends) == 6  # its tokens still end it


def test_an_impossible_layout_is_refused():
    with pytest.raises(ValueError, match="no fill-in-the-middle tokens"):
        PromptLayout(byte_tokenizer(), 10**6, "fim")
    with pytest.raises(ValueError, match="without a tokenizer"):
        PromptLayout(None, 10**6)
    with pytest.raises(ValueError, match="nothing to complete"):
        PromptLayout(byte_tokenizer(), 10**6).lay_out(Cursor("", "", ""))


def test_text_that_spells_a_token_is_encoded_as_text():
    tokenizer = byte_tokenizer(("<|endoftext|>",), plain=tuple(SPELLINGS["qwen-coder"].split()))
    said = 'STOP = ["<|fim_middle|>", "<|file_sep|>"] <|endoftext|>\n'
    snippets = [Snippet("<|fim_pad|>.py", said)]
    laid = PromptLayout(tokenizer, len(tokenizer)).lay_out(Cursor("a.py", said, said), snippets, 4096)
    assert tokenizer.decode(laid.ids).count("<|fim_middle|>") == 4
    assert laid.ids.count(tokenizer.convert_tokens_to_ids("<|fim_middle|>")) == 1
    assert laid.ids.count(tokenizer.convert_tokens_to_ids("<|file_sep|>")) == 2
    assert not {*map(tokenizer.convert_tokens_to_ids, ("<|fim_pad|>", "<|endoftext|>"))} & set(laid.ids)


def test_no_space_is_put_between_parts():
    tokenizer = byte_tokenizer(spaced=True, begins=True)
    assert tokenizer.decode(tokenizer("ab")["input_ids"], skip_special_tokens=True) == " ab"
    coder = PartEncoder(tokenizer)
    assert [tokenizer.decode(coder.ids(text)) for text in ("ab", "\nab", " ab", "")] == ["ab", "\nab", " ab", ""]
    assert tokenizer.decode(coder.begin) == "<s>"


def test_a_line_end_that_merges_with_the_next_one_is_kept():
    tokenizer = byte_tokenizer(merges=((NEWLINE, NEWLINE),))
    assert len(tokenizer("\n\n")["input_ids"]) == 1
    assert tokenizer.decode(PartEncoder(tokenizer).ids("\n\nab")) == "\n\nab"


def test_blocks_begin_at_the_same_lines_whatever_follows():
    lines = [f"{'' if n % 5 else ' '}line {n}\n" for n in range(400)]
    whole = blocks("".join(lines))
    assert "".join(whole) == "".join(lines) and len(whole) == 7
    assert not any(block[0].isspace() for block in whole[1:])
    assert blocks("".join(lines[:300]))[:4] == whole[:4] and blocks("") == []
    indented = " x\n" * 300
    assert "".join(blocks(indented)) == indented and len(blocks(indented)) == 5
    assert all(block.endswith("\n") for block in blocks("one\x0ctwo\x85three\n" * 300))  # cut between lines only


def test_ids_of_the_text_after_a_cursor_are_not_kept():
    """This text differs at each cursor, so that keeping it would fill the memory."""
    tokenizer = byte_tokenizer(("<|endoftext|>",), plain=tuple(SPELLINGS["qwen-coder"].split()))
    layout = PromptLayout(tokenizer, len(tokenizer))
    rest, kept = "y = 2\n" * 100, layout.coder._kept.cache_info
    layout.lay_out(Cursor("a.py", "x = 1\n", rest), tokens=4096)
    before = kept().currsize
    for n in range(5):
        layout.lay_out(Cursor("a.py", "x = 1\n", rest[6 * n :]), tokens=4096)
    assert 0 < kept().currsize == before
    assert len(layout.coder.ids("z" * (LONGEST + 1))) and kept().currsize == before
