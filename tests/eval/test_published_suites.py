"""SPEED-Bench, LongBench v2 and suites of edits in the forms in which they are published or prepared."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from longgraft.eval.prompts.buckets import plan
from longgraft.eval.prompts.suites import SUITES, load_suite
from longgraft.eval.runs.config import SweepConfig
from longgraft.eval.runs.plan import Reader, planned
from longgraft.eval.scores import score

WITHHELD = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"


class Words:
    """A tokenizer of words, without a chat template."""

    def __call__(self, text: str) -> dict:
        return {"input_ids": list(range(len(text.split())))}


def speed(identity: str, category: str, *turns: str) -> dict:
    """Returns a row with the columns of nvidia/SPEED-Bench."""
    return {
        "question_id": identity,
        "category": category,
        "sub_category": "",
        "turns": list(turns),
        "source": "here",
        "src_id": identity,
        "difficulty": "",
        "multiturn": len(turns) > 1,
    }


QUALITATIVE = (speed("a", "coding", "Write f.", "Test f."), speed("b", "math", "1 + 1?"))
THROUGHPUT = [
    speed(f"{tier}-{number}", tier, "word " * 1100)
    for tier in ("low_entropy", "mixed", "high_entropy")
    for number in range(4)
]


def as_parquet(path: Path, rows: list[dict] | tuple[dict, ...]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    return path


def as_jsonl(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def prepared_by_model_optimizer(folder: Path, split: str, rows) -> None:
    as_parquet(folder / "speed" / split / "test.parquet", rows)


def prepared_for_one_folder_below(folder: Path, split: str, rows) -> None:
    as_parquet(folder / split / "test.parquet", rows)


def copied_from_the_hub(folder: Path, split: str, rows) -> None:
    as_parquet(folder / split / "test-00000-of-00002.parquet", rows[:1])
    as_parquet(folder / split / "test-00001-of-00002.parquet", rows[1:])


def prepared_by_nemo_skills(folder: Path, split: str, rows) -> None:
    messages = []
    for row in rows:
        turns = [{"role": "user", "content": turn} for turn in row["turns"]]
        rest = {column: value for column, value in row.items() if column != "turns"}
        messages.append({**rest, "messages": turns})
    as_jsonl(folder / f"{split}.jsonl", messages)


FORMS = (prepared_by_model_optimizer, prepared_for_one_folder_below, copied_from_the_hub, prepared_by_nemo_skills)


# SPEED-Bench --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_qualitative_split_gives_the_same_prompts(tmp_path, form):
    form(tmp_path, "qualitative", QUALITATIVE)
    talk, question = load_suite("speed_bench", tmp_path)
    assert (talk.id, talk.prompt(), talk.follow_ups) == ("a", "Write f.", ("Test f.",))
    assert (question.id, question.prompt(), question.follow_ups, question.chat) == ("b", "1 + 1?", (), True)


@pytest.mark.parametrize("form", FORMS)
def test_a_tier_of_a_throughput_split_has_its_rows_alone(tmp_path, form):
    form(tmp_path, "throughput_1k", THROUGHPUT)
    assert len(load_suite("speed_bench_throughput_1k", tmp_path)) == 12
    tier = load_suite("speed_bench_throughput_1k_mixed", tmp_path)
    assert [example.id for example in tier] == ["mixed-0", "mixed-1", "mixed-2", "mixed-3"]


def test_every_category_and_tier_is_a_suite():
    names = [name for name in SUITES if name.startswith("speed_bench")]
    assert len(names) == 1 + 11 + 5 * (1 + 3)
    assert "speed_bench_roleplay" in names and "speed_bench_throughput_32k_high_entropy" in names


def test_a_category_without_withheld_prompts_loads_beside_one_with_them(tmp_path):
    rows = (*QUALITATIVE, speed("c", "qa", f"{WITHHELD}\n\nSummarise: {{article}}"))
    prepared_for_one_folder_below(tmp_path, "qualitative", rows)
    (example,) = load_suite("speed_bench_math", tmp_path)
    assert example.prompt() == "1 + 1?"
    with pytest.raises(ValueError, match=r"row 3: SPEED-Bench has no text(?s:.*)prepare_data.py --dataset speed"):
        load_suite("speed_bench_qa", tmp_path)
    with pytest.raises(ValueError, match=r"row 1 and the rows after it have no category stem, which speed_bench_stem"):
        load_suite("speed_bench_stem", tmp_path)


def test_prompts_of_a_fixed_length_are_uncut_in_their_bucket_and_evenly_spread(tmp_path):
    prepared_for_one_folder_below(tmp_path, "throughput_1k", THROUGHPUT)
    examples = load_suite("speed_bench_throughput_1k", tmp_path)
    chosen = plan(examples, Words(), (1024, 2048), 3)
    assert [fitted.example.id for fitted in chosen[1024]] == ["low_entropy-0", "mixed-0", "high_entropy-0"]
    assert [(len(fitted.ids), fitted.cut_tokens) for fitted in chosen[1024]] == [(1100, 0)] * 3
    assert chosen[2048] == []
    assert plan(examples, Words(), (1024,), 3, most=1099) == {1024: []}


def test_a_sweep_without_the_bucket_of_a_fixed_length_says_which_to_give(tmp_path):
    prepared_for_one_folder_below(tmp_path, "throughput_1k", THROUGHPUT)
    suites = {"speed_bench_throughput_1k": load_suite("speed_bench_throughput_1k", tmp_path)}
    config = SweepConfig(suites=tuple(suites), lengths=(4096,))
    with pytest.raises(ValueError, match=r"prompts of \w+ have 1,024 tokens(?s:.*)Give --buckets 1k"):
        planned(config, suites, Reader("toy", Words(), 8192))


# LongBench v2 -------------------------------------------------------------------------------------------------------

PROMPT = """Please read the following text and answer the question below.

<text>
One.
Two.
</text>

What is the correct answer to this question: Why {choice_A}?
Choices:
(A) a
(B) b
(C) c
(D) d

Format your response as follows: "The correct answer is (insert answer here)"."""


def choice(identity: str = "66f3", length: str = "short", **changes) -> dict:
    """Returns a row with the columns of THUDM/LongBench-v2."""
    return {
        "_id": identity,
        "domain": "Single-Document QA",
        "sub_domain": "Academic",
        "difficulty": "easy",
        "length": length,
        "question": " Why {choice_A}?",
        "choice_A": "a",
        "choice_B": "b ",
        "choice_C": "c",
        "choice_D": "d",
        "answer": "B",
        "context": "\nOne.\nTwo.\n",
    } | changes


def as_data_json(folder: Path, rows: list[dict]) -> None:
    (folder / "data.json").write_text(json.dumps(rows, indent=1))


def as_longbench_v2_jsonl(folder: Path, rows: list[dict]) -> None:
    as_jsonl(folder / "longbench_v2.jsonl", rows)


def as_longbench_v2_parquet(folder: Path, rows: list[dict]) -> None:
    as_parquet(folder / "longbench_v2.parquet", rows)


@pytest.mark.parametrize("form", [as_data_json, as_longbench_v2_jsonl, as_longbench_v2_parquet])
def test_every_form_of_longbench_v2_gives_the_official_prompt(tmp_path, form):
    form(tmp_path, [choice(), choice("66f4", "long")])
    short, long = load_suite("longbench_v2", tmp_path)
    assert short.prompt() == PROMPT and short.body == "One.\nTwo."
    assert (short.id, short.answers, short.chat, short.max_new_tokens) == ("66f3", ("B",), True, 128)
    assert [example.id for example in load_suite("longbench_v2_long", tmp_path)] == [long.id]


def test_a_row_of_longbench_v2_keeps_its_prompt_in_a_file_of_any_name(tmp_path):
    path = as_jsonl(tmp_path / "some.jsonl", [choice()])
    (example,) = load_suite(str(path))
    assert example.prompt() == PROMPT and example.suite == "longbench_v2"


def test_a_missing_choice_is_named(tmp_path):
    row = choice()
    del row["choice_C"]
    as_longbench_v2_jsonl(tmp_path, [row])
    with pytest.raises(ValueError, match=r"longbench_v2.jsonl, line 1: column choice_C is missing"):
        load_suite("longbench_v2", tmp_path)


def test_long_texts_of_longbench_v2_are_cut_at_lines_to_every_bucket(tmp_path):
    as_data_json(tmp_path, [choice(context="word word word word word.\n" * 100)])
    chosen = plan(load_suite("longbench_v2", tmp_path), Words(), (128, 256), 1)
    for length in (128, 256):
        (fitted,) = chosen[length]
        assert length - 5 <= len(fitted.ids) <= length and fitted.cut_tokens > 0


@pytest.mark.parametrize(
    ("text", "accuracy"),
    [
        ("The correct answer is (B)", 1.0),
        ("**The correct answer is B**.", 1.0),
        ("The correct answer is (C)", 0.0),
        ("Maybe. The correct answer is A. No: The correct answer is (B).", 1.0),  # the one in parentheses
        ("B", 0.0),
        ("the correct answer is (B)", 0.0),
        ("", 0.0),
    ],
)
def test_the_score_of_longbench_v2_is_whether_the_stated_choice_is_right(text, accuracy):
    assert score("longbench_v2", text, ("B",)) == score("longbench_v2_medium", text, ("B",)) == ("accuracy", accuracy)


# Edits --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("suite", "row", "replayed"),
    [
        (
            "can_it_edit",
            {
                "id": 1,
                "before": "x = 1\n",
                "after": "x = 2\n",
                "instruction_descriptive": "Set x to 2.",
                "instruction_lazy": "x is 2",
                "tests": "assert x == 2",
            },
            {"true": "x = 2\n"},
        ),
        (
            "instruct_coder",
            {"instruction": "Set x to 2.", "input": "x = 1\n", "output": "x = 2\n"},
            {"true": "x = 2\n"},
        ),
        ("blazedit_5k", {"code": "x = 1\n", "change_request": "Set x to 2.", "norm_distance": 0.1}, {}),
    ],
)
def test_rows_of_edit_suites_ask_for_the_whole_file_and_predict_it(tmp_path, suite, row, replayed):
    as_jsonl(tmp_path / f"{suite}.jsonl", [row])
    (example,) = load_suite(suite, tmp_path)
    assert example.prompt().startswith("x = 1\n\n\nEdit this file: Set x to 2.\nAnswer with the whole file")
    assert (example.prediction, example.continuations) == ("x = 1\n", replayed)


def test_a_missing_column_of_an_edit_suite_is_named(tmp_path):
    as_jsonl(tmp_path / "instruct_coder.jsonl", [{"instruction": "Set x to 2.", "output": "x = 2\n"}])
    with pytest.raises(ValueError, match=r"instruct_coder.jsonl, line 1: column input is missing"):
        load_suite("instruct_coder", tmp_path)


# Broken files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.parquet", b"PAR", "a.parquet cannot be read as a Parquet table"),
        ("a.json", b"[]", "a.json has no rows"),
        ("a.json", b"[1]", "a.json, row 1: one JSON object is needed; found int"),
        ("a.json", b"[{]", "a.json is not JSON"),
        ("a.json", b'{"prompt": 3}', "a.json, line 1: column prompt must be"),
    ],
)
def test_a_broken_table_or_list_names_its_place(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=message):
        load_suite(str(tmp_path / name))


def test_an_absent_table_or_list_says_what_to_give(tmp_path):
    for name in ("no.parquet", "no.json"):
        with pytest.raises(ValueError, match=r"cannot be read(?s:.*)Give the path of a JSONL file"):
            load_suite(str(tmp_path / name))
