"""Rows on disk are read from any version, refused with file and line, and written by one sweep at a time."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import pytest

from longgraft.comparison.levels import Check
from longgraft.eval.runs.rows import (
    COMPRESSED,
    ROWS,
    Failure,
    Key,
    Row,
    RowLog,
    as_json,
    parse_row,
    read_rows,
    sole_sweep,
)

# A row of version 0.1.0, which had no promise, no limit and no count of prompts that were learnt from.
OLD = {
    "suite": "lcc",
    "bucket": 4096,
    "prompt_id": "a",
    "turn": 1,
    "cut_tokens": 3,
    "mode": "greedy",
    "method": "graft",
    "repeat": 0,
    "prompt_tokens": 4000,
    "new_tokens": 4,
    "steps": 2,
    "accepted_per_step": [1, 0],
    "mat": 0.5,
    "tokens_per_step": 1.5,
    "prefill_seconds": 2,
    "decode_seconds": 0.5,
    "decode_tokens_per_second": 6.0,
    "accepted_by_origin": {"draft": 1, "retrieved": 0, "both": 0},
    "stages": {"d0": 2},
    "seconds_by_part": {"verify": 1},
    "peak_memory_bytes": 9,
    "token_ids": [5, 6, 7, 8],
    "loop": False,
    "lossless": {"tokens": 4, "first_divergence": 2, "margin": 0.01},
    "score": ["ROUGE-L", 0.25],
}
FAILED = {
    "suite": "lcc",
    "bucket": 4096,
    "prompt_id": "b",
    "mode": "greedy",
    "method": "graft",
    "repeat": 0,
    "error": "x",
}


def write(folder, *lines) -> None:
    (folder / ROWS).write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))


def test_old_rows_are_read_and_new_rows_are_read_back_unchanged():
    found = parse_row(json.dumps(OLD), "here")
    assert isinstance(found, Row) and found.key == Key("lcc", 4096, "a", "greedy", "graft", 0)
    assert found.lossless == Check(4, 2, 0.01) and found.score == ("ROUGE-L", 0.25) and found.cut_tokens == 3
    assert (found.promise, found.limit, found.learned_from) == ("exact", None, None)
    assert found.kinds == found.by_probability == found.by_match == {}
    judged = replace(found, kinds={"plain": 3}, by_probability={"0.9": (4, 3.75, 3)}, by_match={"17+": (1, 0.5, 0)})
    failed = parse_row(json.dumps(FAILED), "here")
    assert failed == Failure(Key("lcc", 4096, "b", "greedy", "graft", 0), "x")
    assert [parse_row(as_json(row), "here") for row in (found, judged, failed)] == [found, judged, failed]
    assert set(OLD) < set(json.loads(as_json(found)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"token_ids": [5, True]}, "token_ids must be a list, each a whole number; it is"),
        ({"token_ids": [5, -1]}, "token_ids must be"),
        ({"token_ids": [1.5]}, "token_ids must be"),
        ({"bucket": True}, "bucket must be a whole number; it is true"),
        ({"mat": "high"}, 'mat must be a number; it is "high"'),
        ({"mat": float("nan")}, "mat must be a number; it is NaN"),
        ({"suite": 3}, "suite must be text"),
        ({"stages": [1]}, "stages must be"),
        ({"seconds_by_part": {"verify": None}}, "seconds_by_part must be"),
        ({"lossless": {"tokens": 4}}, "lossless must be"),
        ({"score": ["x"]}, "score must be"),
        ({"loop": 1}, "loop must be"),
        ({"kinds": {"plain": 0.5}}, "kinds must be"),
        (
            {"by_probability": {"0.9": [1, 2]}},
            "by_probability must be a table, each a list of a whole number and a number",
        ),
        ({"by_match": {"1": [1, None, 1]}}, "by_match must be"),
        ({"by_match": {"1": [1.5, 1, 1]}}, "by_match must be"),
    ],
)
def test_a_value_of_the_wrong_kind_is_named_with_file_and_line(tmp_path, change, message):
    write(tmp_path, OLD | {"prompt_id": "z"}, OLD | change)
    with pytest.raises(ValueError, match=r"per_prompt\.jsonl, line 2: ") as error:
        read_rows(tmp_path)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{broken\n", "line 1 is not JSON"),
        ("3\n", "line 1: one JSON object is needed; found int"),
        ('{"suite": "lcc"}\n', "line 1: no row of a sweep: bucket, prompt_id, mode, method, repeat is missing"),
        ("[" * 100_000 + "\n", "line 1 is nested too deeply"),
        ('{"suite": "\\ud800"}\n', "half a character"),
        (json.dumps({name: value for name, value in OLD.items() if name != "mat"}) + "\n", "no row .*: mat is missing"),
        ("", "holds no row"),
        (json.dumps(OLD)[:-9], "holds no row"),
    ],
)
def test_an_invalid_row_is_named_with_file_and_line(tmp_path, line, message):
    write(tmp_path, line)
    with pytest.raises(ValueError, match=message):
        read_rows(tmp_path)


def test_a_row_that_is_being_written_is_left_out(tmp_path):
    with pytest.raises(ValueError, match=r"holds no per_prompt\.jsonl"):
        read_rows(tmp_path)
    write(tmp_path, OLD, json.dumps(FAILED)[:20])
    assert [row.key.prompt_id for row in read_rows(tmp_path)] == ["a"]


def test_a_row_that_is_there_twice_is_refused(tmp_path):
    write(tmp_path, OLD, FAILED, OLD)
    with pytest.raises(ValueError, match="line 3: lcc 4096 a greedy graft 0 is there already"):
        read_rows(tmp_path)


def test_a_log_continues_after_a_broken_end_and_removes_failures_that_are_tried_again(tmp_path):
    write(tmp_path, OLD, FAILED, json.dumps(OLD)[:30])
    log = RowLog(tmp_path)
    assert [row.key.prompt_id for row in log.rows] == ["a", "b"]
    log.append(Failure(Key("lcc", 4096, "c", "greedy", "graft", 0), "y"))
    log.close()
    assert (tmp_path / ROWS).read_text() == "".join(json.dumps(row) + "\n" for row in (OLD, FAILED)) + as_json(
        log.rows[-1]
    ) + "\n"
    assert [row.key.prompt_id for row in RowLog(tmp_path, retry=True).rows] == ["a"]
    assert (tmp_path / ROWS).read_text() == json.dumps(OLD) + "\n"


def test_compressed_rows_are_read_and_continued(tmp_path):
    write(tmp_path, OLD, FAILED)
    expected, text = read_rows(tmp_path), (tmp_path / ROWS).read_bytes()
    packed = tmp_path / COMPRESSED
    packed.write_bytes(gzip.compress(text))
    with pytest.raises(ValueError, match="a run has one of them"):
        read_rows(tmp_path)
    (tmp_path / ROWS).unlink()
    assert read_rows(tmp_path) == expected
    packed.write_bytes(gzip.compress(text)[:-9])
    with pytest.raises(ValueError, match="no whole gzip file"):
        read_rows(tmp_path)
    packed.write_bytes(gzip.compress(text))
    log = RowLog(tmp_path)
    log.close()
    assert (log.rows, (tmp_path / ROWS).read_bytes(), packed.exists()) == (expected, text, False)


def test_a_second_sweep_into_a_folder_is_refused_while_the_first_writes(tmp_path):
    with sole_sweep(tmp_path / "run"):
        with pytest.raises(ValueError, match="Another sweep is writing into"), sole_sweep(tmp_path / "run"):
            pass
        write(tmp_path / "run", OLD)
    with sole_sweep(tmp_path / "run"):
        assert read_rows(tmp_path / "run")


def test_a_folder_into_which_nothing_was_written_is_removed(tmp_path):
    with pytest.raises(ValueError, match="no model"), sole_sweep(tmp_path / "run"):
        raise ValueError("no model")
    assert not (tmp_path / "run").exists()
