"""JSONL and text that users give: lines end at line feeds only, and a byte order mark is no part of the text."""

from __future__ import annotations

import gzip
import json

import pytest

from longgraft.cli.prompts import PromptOptions
from longgraft.completion.repository.gitignore import spec_of
from longgraft.eval.prompts.sources import read_rows
from longgraft.eval.prompts.suites import read_prompts, suite_name
from longgraft.files.data_files import parse_json, read_text
from longgraft.files.json_lines import json_lines, read_json_lines
from longgraft.yarn_drafters.training import packages
from longgraft.yarn_drafters.training.documents import read_documents
from longgraft.yarn_drafters.training.regenerate import texts_of

MARK = "\ufeff"
SEPARATED = "one\u2028two\u2029three\x85four"  # JSON and editors allow these characters within a line
ROWS = "".join(json.dumps({"prompt": text}, ensure_ascii=False) + "\n" for text in (SEPARATED, "next"))


def file_of(folder, text, name="rows.jsonl"):
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("text", [ROWS, MARK + ROWS, ROWS.replace("\n", "\r\n"), ROWS.rstrip("\n")])
def test_rows_end_at_line_feeds_only_in_texts_files_and_compressed_files(text, tmp_path):
    found = [
        json_lines(text, "x"),
        read_json_lines(file_of(tmp_path, text)),
        read_json_lines(file_of(tmp_path, text, "rows.jsonl.gz")),
    ]
    for lines in found:
        assert [line.value["prompt"] for line in lines] == [SEPARATED, "next"]


def test_a_carriage_return_between_two_values_does_not_end_a_row(tmp_path):
    path = file_of(tmp_path, '{"a": 1,\r"b": 2}\n')
    assert [line.value for line in read_json_lines(path)] == [{"a": 1, "b": 2}]


def test_blank_lines_count_and_a_mark_within_joined_files_is_no_text(tmp_path):
    path = file_of(tmp_path, f"{MARK}1\n \n{MARK}2\n")
    assert [(line.number, line.place, line.value) for line in read_json_lines(path)] == [
        (1, f"{path}, line 1", 1),
        (3, f"{path}, line 3", 2),
    ]


def test_an_empty_file_with_a_mark_has_no_rows(tmp_path):
    assert not [*json_lines(MARK, "x"), *read_json_lines(file_of(tmp_path, MARK))]


def test_a_missing_file_is_named_with_what_to_do(tmp_path):
    with pytest.raises(ValueError, match=r"absent\.jsonl cannot be read: No such file or directory\. Give one\."):
        list(read_json_lines(tmp_path / "absent.jsonl", "Give one."))


def test_json_text_may_begin_with_a_mark():
    assert parse_json(f"{MARK}[1]", "x") == parse_json(f"{MARK}[1]".encode(), "x") == [1]


@pytest.mark.parametrize(
    "options",
    [{"prompts": "rows.jsonl"}, {"prompt_file": ("text.txt",)}, {"messages": "chat.json"}, {"prompt_ids": "ids.json"}],
)
def test_prompts_of_files_with_a_mark_are_those_of_files_without_one(options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    contents = {
        "rows.jsonl": ROWS,
        "text.txt": SEPARATED,
        "ids.json": "[1, 2]",
        "chat.json": '[{"role": "user", "content": "Hi"}]',
    }
    found = []
    for mark in (MARK, ""):
        for name, content in contents.items():
            file_of(tmp_path, mark + content, name)
        found.append(PromptOptions(**options).read())
    assert found[0] == found[1]


@pytest.mark.parametrize("option, content", [("prompts", ROWS), ("messages", '[{"role": "user", "content": "Hi"}]')])
def test_compressed_prompts_are_those_of_the_plain_file(option, content, tmp_path):
    plain, packed = (file_of(tmp_path, content, name) for name in ("a.json", "a.json.gz"))
    assert PromptOptions(**{option: str(packed)}).read() == PromptOptions(**{option: str(plain)}).read()


@pytest.mark.parametrize(
    "content, said",
    [
        (gzip.compress(ROWS.encode(), mtime=0)[:-9], "Compressed file ended before"),
        (ROWS.encode(), "Not a gzipped file"),
        (b"\x1f\x8b\x08\x00" + b"\xff" * 20, "invalid"),
    ],
)
def test_damaged_compressed_files_are_named_in_one_sentence(content, said, tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(content)
    for read in (lambda: PromptOptions(prompts=str(path)).read(), lambda: read_text(path)):
        with pytest.raises(ValueError, match=rf"^File .*a\.jsonl\.gz cannot be read: .*{said}"):
            read()


def test_a_compressed_file_without_its_ending_is_recognised(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(gzip.compress(ROWS.encode()))
    for read in (
        lambda: PromptOptions(prompts=str(path)).read(),
        lambda: list(read_documents([path])),
        lambda: read_text(path),
    ):
        with pytest.raises(ValueError, match=r"is compressed by gzip; let its name end in \.gz"):
            read()


@pytest.mark.parametrize("rows", ['{"prompt": ""}\n{"prompt": "x"}', '{"prompt": "x"}\n{"prompt": ""}'])
def test_an_empty_prompt_among_rows_is_refused_with_its_line(rows, tmp_path):
    number = 1 + rows.splitlines().index('{"prompt": ""}')
    with pytest.raises(ValueError, match=rf"rows\.jsonl, line {number}: the prompt is empty"):
        PromptOptions(prompts=str(file_of(tmp_path, rows)), chat=True).read()


@pytest.mark.parametrize("key, value", [("tools", [{"name": "find"}]), ("functions", [{}]), ("system", "Be brief.")])
def test_a_prompt_row_with_what_is_not_read_is_refused_with_its_line(key, value, tmp_path):
    row = {"messages": [{"role": "user", "content": "Hi"}], key: value}
    with pytest.raises(ValueError, match=rf"rows\.jsonl, line 1 has {key}, which is not read here"):
        PromptOptions(prompts=str(file_of(tmp_path, json.dumps(row)))).read()


def test_a_prediction_does_not_begin_with_a_mark(tmp_path):
    assert PromptOptions(prompt="x", prediction=str(file_of(tmp_path, f"{MARK}as is", "p.txt"))).predicted() == "as is"


def test_prompts_with_line_separators_are_one_row_each(tmp_path):
    asked = PromptOptions(prompts=str(file_of(tmp_path, ROWS))).read()
    assert [(one.prompt, one.name) for one in asked] == [(SEPARATED, "1"), ("next", "2")]


@pytest.mark.parametrize(
    "name, content",
    [
        (name + packed, content)
        for packed in ("", ".gz")
        for name, content in (
            ("a.jsonl", '{"text": "x"}\n'),
            ("a.ndjson", '{"text": "x"}\n'),
            ("a.json", '[{"text": "x"}]'),
            ("a.txt", "x"),
        )
    ],
)
def test_training_text_does_not_begin_with_a_mark(name, content, tmp_path):
    (document,) = read_documents([file_of(tmp_path, MARK + content, name)])
    assert document.text == "x"


def test_a_suite_and_a_prompt_of_a_file_do_not_begin_with_a_mark(tmp_path):
    (_, row), (_, later) = read_rows(file_of(tmp_path, MARK + ROWS))
    assert (row, later) == ({"prompt": SEPARATED}, {"prompt": "next"})
    for name in ("a.jsonl.gz", "a.ndjson", "a.json.gz"):
        assert [one.prompt() for one in read_prompts(file_of(tmp_path, ROWS, name), 2)] == [SEPARATED, "next"]
    assert read_rows(file_of(tmp_path, '[{"prompt": "x"}]', "b.json.gz"))[0].row == {"prompt": "x"}
    assert (suite_name("a/b.jsonl.gz"), suite_name("c.json"), suite_name("qmsum")) == ("b", "c", "qmsum")
    assert read_prompts(file_of(tmp_path, f"{MARK}x", "a.txt"), 1)[0].prompt() == "x"


def test_excluded_rows_are_read_whole(tmp_path):
    assert list(texts_of([file_of(tmp_path, f"{MARK}{ROWS}\n")])) == [SEPARATED, "next"]


def test_rows_that_packages_must_not_repeat_are_read_whole(tmp_path):
    path = file_of(tmp_path, MARK + json.dumps({"context": SEPARATED}, ensure_ascii=False) + "\n\n")
    assert list(packages.collect([], [path], 100)) == []
    with pytest.raises(ValueError, match="line 1: one JSON object is needed; found int"):
        list(packages.collect([], [file_of(tmp_path, "3\n")], 100))


def test_the_first_pattern_of_an_ignore_file_with_a_mark_counts(tmp_path):
    spec = spec_of(file_of(tmp_path, f"{MARK}a.py\nb\x85.py\n", ".gitignore"))
    assert spec.match_file("a.py") and spec.match_file("b\x85.py") and not spec.match_file("b")
