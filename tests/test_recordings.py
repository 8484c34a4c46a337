"""Recorded continuations: text or token ids, and nothing between the two."""

from __future__ import annotations

import json

import pytest

from longgraft.config.recording_file import read_recording
from longgraft.eval.prompts.suites import load_suite


@pytest.mark.parametrize(("text", "found"), [
    ("[5, 6, 7]", [5, 6, 7]), ("return x[1]", "return x[1]"), ("[not json", "[not json"), ("3", "3"), ('"a"', '"a"')])
def test_a_file_holds_text_or_one_list_of_ids(tmp_path, text, found):
    (tmp_path / "said").write_text(text)
    assert read_recording(tmp_path / "said") == found


@pytest.mark.parametrize("text", ["[1.5]", "[[1]]", '{"a": 1}', "[true]", "[-1]", "[]", '["a"]', "[" * 100_000])
def test_what_is_neither_is_refused_and_not_replayed_as_text(tmp_path, text):
    (tmp_path / "said").write_text(text)
    with pytest.raises(ValueError, match=r"one JSON list of token ids|nested too deeply"):
        read_recording(tmp_path / "said")
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        read_recording(tmp_path / "absent")


@pytest.mark.parametrize(("row", "said"), [
    ({"_id": "b", "said": "x"}, "column continuation is missing. Columns found: _id, said"),
    ({"continuation": "x"}, "no id"),
    ({"_id": "a", "continuation": [1, 2]}, "column continuation must be text; it is list"),
    ({"_id": "a", "continuation": "x", "runaway_at": "3"}, 'runaway_at must be a number of characters; it is "3"'),
    ({"_id": True, "continuation": "x"}, "_id must be text or a whole number; it is true"),
    ({"_id": 1.5, "continuation": "x"}, "_id must be text or a whole number; it is 1.5"),
    ({"_id": "\ud800", "continuation": "x"}, "half a character")])
def test_a_recorded_row_of_another_kind_is_named_with_its_line(tmp_path, row, said):
    (tmp_path / "s.jsonl").write_text('{"_id": "a", "text": "words"}\n')
    (tmp_path / "r.jsonl").write_text('{"_id": "b", "continuation": "x"}\n' + json.dumps(row) + "\n")
    with pytest.raises(ValueError, match=r"r\.jsonl, line 2: ") as error:
        load_suite(str(tmp_path / "s.jsonl"), recorded=[tmp_path / "r.jsonl"])
    assert said in str(error.value)


def test_rows_of_suites_that_no_tokenizer_takes_are_named(tmp_path):
    for line, said in [('{"text": "a\\udc00"}', "half a character"), ("[" * 100_000, "nested too deeply"),
                       ('{"text": "a", "continuation": 3}', "column continuation must be text")]:
        (tmp_path / "s.jsonl").write_text('{"text": "fine"}\n' + line + "\n")
        with pytest.raises(ValueError, match=r"s\.jsonl, line 2") as error:
            load_suite(str(tmp_path / "s.jsonl"))
        assert said in str(error.value)
