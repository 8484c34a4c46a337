"""A GGUF file's tokenizer splits texts by the rule that the file names, and follows the file's other metadata."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from toys.gguf_files import write_vocabulary
from toys.tokenizers import BYTES
from transformers import AutoTokenizer

from longgraft.models.files import files_of
from longgraft.models.gguf_splits import SPLITS

# Merges that run over the borders at which the rules split.
MERGES = ["Ċ Ċ", "1 2", "12 3", "123 4", "a B", "Ġ Ġ", "' s", "Ġ x", ". ĊĊ"]
TOKENS = [*BYTES, *(merge.replace(" ", "") for merge in MERGES)]
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGGRAFT_CACHE", str(tmp_path / "cache"))


def read(path, **entries):
    """Returns the tokenizer of a byte-level GGUF file with this metadata, as it is kept."""
    write_vocabulary(path, TOKENS, **{"tokenizer__ggml__model": "gpt2", "tokenizer__ggml__merges": MERGES} | entries)
    return AutoTokenizer.from_pretrained(files_of(path).path)


@pytest.mark.parametrize(
    ("rule", "pieces"),
    [
        ("smollm", ["ĊĊ", "1", "2", "3", "4", "Ġ", "Ġ", "aB"]),
        ("starcoder", ["ĊĊ", "1", "2", "3", "4", "Ġ", "Ġ", "aB"]),
        ("command-r", ["ĊĊ", "1", "2", "3", "4", "Ġ", "Ġ", "aB"]),
        ("gpt-2", ["Ċ", "Ċ", "1234", "Ġ", "Ġ", "aB"]),
        ("default", ["Ċ", "Ċ", "123", "4", "Ġ", "Ġ", "aB"]),
        ("", ["Ċ", "Ċ", "123", "4", "Ġ", "Ġ", "aB"]),
        (None, ["Ċ", "Ċ", "123", "4", "Ġ", "Ġ", "aB"]),
        ("deepseek-llm", ["Ċ", "Ċ", "1234", "Ġ", "Ġ", "aB"]),
        ("deepseek-coder", ["Ċ", "Ċ", "1", "2", "3", "4", "Ġ", "Ġ", "aB"]),
        ("deepseek-v3", ["ĊĊ", "123", "4", "Ġ", "Ġ", "aB"]),
        ("llama-bpe", ["<s>", "ĊĊ", "123", "4", "Ġ", "Ġ", "aB"]),
        ("qwen2", ["ĊĊ", "1", "2", "3", "4", "Ġ", "Ġ", "aB"]),
        ("gpt-4o", ["ĊĊ", "123", "4", "Ġ", "Ġ", "a", "B"]),
        ("falcon", ["Ċ", "Ċ", "123", "4", "Ġ", "Ġ", "aB"]),
        ("afmoe", ["ĊĊ", "1", "2", "3", "4", "Ġ", "Ġ", "aB"]),
        ("superbpe", ["ĊĊ", "1", "2", "3", "4", "ĠĠ", "aB"]),
    ],
)
def test_texts_are_split_by_the_rule_that_the_file_names(rule, pieces, tmp_path):
    tokenizer = read(tmp_path / "toy.gguf", tokenizer__ggml__pre=rule)
    found = tokenizer.convert_ids_to_tokens(tokenizer("\n\n1234  aB").input_ids)
    assert found == pieces
    assert tokenizer.decode(tokenizer("\n\n1234  aB").input_ids, skip_special_tokens=True) == "\n\n1234  aB"


def test_a_file_without_a_rule_is_read_with_a_note_once(tmp_path, capsys):
    read(tmp_path / "named.gguf", tokenizer__ggml__pre="gpt-2")
    assert "longgraft:" not in capsys.readouterr().err
    read(tmp_path / "toy.gguf")
    said = r"longgraft: .*toy.gguf does not name the rule by which it splits texts \(tokenizer.ggml.pre\), .*\n"
    assert re.search(said, capsys.readouterr().err)
    read(tmp_path / "toy.gguf")
    assert "longgraft:" not in capsys.readouterr().err


TEXT = "It's 12345678 na\u00efve camelCaseWORD.\n\n 1. f(x)\t\u4e2d\u6587 \u00ef \ud55c <a|b>\r\n  don't"


@pytest.mark.one_in(6)
@pytest.mark.parametrize("rule", SPLITS)
def test_every_rule_is_read_and_loses_no_character(rule, tmp_path):
    tokenizer = read(tmp_path / "toy.gguf", tokenizer__ggml__pre=rule)
    assert tokenizer.decode(tokenizer(TEXT).input_ids, skip_special_tokens=True) == TEXT


def test_the_guide_lists_every_rule():
    guide = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    assert not [rule for rule in SPLITS if f"`{rule}`" not in guide]


@pytest.mark.parametrize("rule", ["made-up", "gemma4"])  # the second is no byte-level tokenizer's
def test_an_unknown_rule_is_refused_by_its_name(rule, tmp_path):
    with pytest.raises(
        ValueError,
        match=rf"^Model '.*' splits texts by the rule '{rule}' \(tokenizer.ggml.pre\), "
        r"which is none of the \d+ that longgraft knows \(docs/models.md lists them\)"
        r"\. Give the original model",
    ):
        read(tmp_path / "toy.gguf", tokenizer__ggml__pre=rule)


def test_a_piece_that_is_a_token_is_whole_where_the_rule_says_so(tmp_path):
    words = {"tokenizer__ggml__merges": MERGES[:1]}  # "123" is a token, and no merges lead to it
    assert read(tmp_path / "a.gguf", tokenizer__ggml__pre="llama-bpe", **words).tokenize("123") == ["123"]
    assert read(tmp_path / "b.gguf", tokenizer__ggml__pre="glm4", **words).tokenize("123") == ["1", "2", "3"]


def test_the_files_own_word_about_the_begin_token_counts(tmp_path):
    def first(name, **entries):
        return read(tmp_path / name, **entries)("x").input_ids[0]

    x = TOKENS.index("x") + 2
    assert first("a.gguf", tokenizer__ggml__pre="llama-bpe") == 1
    assert first("b.gguf", tokenizer__ggml__pre="llama-bpe", tokenizer__ggml__add_bos_token=False) == x
    assert first("c.gguf", tokenizer__ggml__pre="qwen2") == x
    assert first("d.gguf", tokenizer__ggml__pre="qwen2", tokenizer__ggml__add_bos_token=True) == 1


def write_sentencepiece(path, **entries) -> None:
    tokens = [*BYTE_TOKENS, "▁", "t", "h", "e", "▁t", "▁th", "▁the"]
    scores = [float(-n) for n in range(len(tokens) + 2)]
    write_vocabulary(path, tokens, **{"tokenizer__ggml__model": "llama", "tokenizer__ggml__scores": scores} | entries)


@pytest.mark.parametrize(
    ("prefix", "pieces"), [(None, ["▁the", "▁the"]), (True, ["▁the", "▁the"]), (False, ["t", "h", "e", "▁the"])]
)
@pytest.mark.parametrize("architecture", ["llama", "granite"])
def test_sentencepiece_puts_a_space_before_a_text_unless_the_file_forbids_it(architecture, prefix, pieces, tmp_path):
    """transformers reads the first architecture, longgraft the second."""
    write_sentencepiece(
        tmp_path / "toy.gguf",
        architecture=architecture,
        tokenizer__ggml__add_space_prefix=prefix,
        tokenizer__ggml__pre="made-up",
    )  # not asked for
    tokenizer = AutoTokenizer.from_pretrained(files_of(tmp_path / "toy.gguf").path)
    ids = tokenizer("the the").input_ids
    assert ids[0] == 1 and tokenizer.convert_ids_to_tokens(ids[1:]) == pieces
    assert tokenizer.decode(ids, skip_special_tokens=True) == "the the"
    assert tokenizer.decode(tokenizer("thé").input_ids, skip_special_tokens=True) == "thé"  # by its bytes


def test_folders_that_an_older_version_made_of_a_file_are_made_again(tmp_path):
    read(tmp_path / "toy.gguf", tokenizer__ggml__pre="smollm")
    current = Path(files_of(tmp_path / "toy.gguf").path)
    old = [current.with_name(current.name.split(".")[0] + end) for end in ("", "-float32")]
    for path in old:
        current.rename(path)
        path.joinpath("tokenizer.json").write_text("{}")  # another rule's
        assert AutoTokenizer.from_pretrained(files_of(tmp_path / "toy.gguf").path).tokenize("1234") == list("1234")
        assert not path.exists()
