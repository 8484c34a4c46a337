"""The benchmark of constrained answers: its tasks have a constraint, and its rows compare with plain decoding."""

from __future__ import annotations

import pytest
import torch
import typer
from toys.tools import tool_session

from benchmarks import constrained
from benchmarks.report import Report
from longgraft.comparison.with_plain import plain_session

TEXT = {"type": "string", "maxLength": 40}


def test_a_short_form_is_a_schema_whose_fields_are_required():
    schema = constrained.schema_of({"name": "text", "state": ["open", "closed"], "labels": {"*": "text"}})
    labels = {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 2}
    assert schema["properties"] == {"name": TEXT, "state": {"enum": ["open", "closed"]}, "labels": labels}
    assert schema["required"] == ["name", "state", "labels"] and schema["additionalProperties"] is False


def test_a_text_follows_a_schema_by_its_decimals():
    schema = {"type": "number", "multipleOf": 0.01}
    assert constrained.follows(schema, "1.15")
    assert not constrained.follows(schema, "1.155") and not constrained.follows(schema, "1.")


def test_a_tool_task_offers_the_tools_that_come_after_and_takes_one_valid_call():
    session = tool_session()
    tasks = list(constrained.tool_tasks(session))
    assert len(tasks) == 30 and tasks[0].name == "bash"
    shown = session.tokenizer.decode(tasks[-1].prompt)
    assert tasks[-1].name in shown and "bash" in shown and "str_replace_based_edit" in shown
    call = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
    assert tasks[0].valid(call) and not tasks[0].valid(call.replace('"ls"', "3"))
    assert not tasks[0].valid(f"{call}\n{call}") and not tasks[0].valid(f"So be it.{call}")


@pytest.mark.parametrize("tasks_of", [lambda session: constrained.schema_tasks(), constrained.tool_tasks])
def test_a_row_compares_with_plain_decoding_under_the_same_constraint(tasks_of, tmp_path):
    session = tool_session()
    report = Report("constrained", tmp_path, 1, torch.device("cpu"), method="pld")
    task = next(tasks_of(session))
    with pytest.raises(typer.Exit):
        constrained.measure(report, session, [task], 12)
    row, whole = report.rows
    assert row.part == task.name and row.figures["same_ids"] and not report.failures
    free = session.generate(task.prompt, 12).text
    assert plain_session(session).generate(task.prompt, 12, **task.constraint).text == row.figures["text"] != free
    assert whole.ok and whole.note.startswith("1 answers, 0 complete, 0 valid, 1 with the ids")
