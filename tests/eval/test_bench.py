"""`longgraft bench` on whole question sets: all methods share each conversation, and a resumed run continues it."""

from __future__ import annotations

import inspect
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from toys.sessions import METHODS

from longgraft.config.method_roles import PLAIN
from longgraft.eval.prompts.buckets import WHOLE, whole
from longgraft.eval.prompts.suites import Example, load_suite
from longgraft.eval.reports.compare import lines
from longgraft.eval.reports.recordings import write as write_recordings
from longgraft.eval.reports.report import write
from longgraft.eval.runs.bench import Bench
from longgraft.eval.runs.config import SHORT, SweepConfig
from longgraft.eval.runs.folder import Run
from longgraft.eval.runs.measure import PromptMeasurement
from longgraft.eval.runs.plan import check_plan
from longgraft.eval.runs.rows import ROWS, Failure, Result, Row, as_json, read_rows
from longgraft.eval.runs.sweep import lines_of_plan, sweep
from longgraft.eval.runs.variants import TRANSFORMERS
from longgraft.eval.runs.workers import Processes
from longgraft.methods.find import CORE, find

pytestmark = pytest.mark.usefixtures("one_thread")
RESULTS = Path(__file__).parents[2] / "docs" / "results"
TALK = {"_id": "talk", "turns": ["Name three prime numbers.", "And a fourth one?", "Why is it prime?"]}
LONE = {"_id": "lone", "turns": ["def add(a, b):"]}


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench.open(SweepConfig())


@pytest.fixture(autouse=True)
def opened_once(bench, monkeypatch):
    monkeypatch.setattr(Bench, "open", lambda _: bench)


def file(path: Path, *rows: dict) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def questions(tmp_path_factory) -> Path:
    return file(tmp_path_factory.mktemp("rows") / "talks.jsonl", TALK, LONE)


def config(questions: Path, **more) -> SweepConfig:
    return SweepConfig(
        **{
            "suites": (str(questions),),
            "lengths": (),
            "methods": ("pld", "graft"),
            "modes": ("greedy", "sampled"),
            "prompts": 2,
            "repeats": 1,
            "max_new_tokens": 8,
            "check_tokens": 4,
            "budget": 8,
        }
        | more
    )


@pytest.fixture(scope="module")
def run(questions, bench, tmp_path_factory) -> Path:
    """A complete run, which was never interrupted."""
    out = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bench, "open", lambda _: bench)
        sweep(config(questions), out)
    return out


def row_of(rows: list[Result], prompt: str, mode: str, method: str = "ar") -> Row:
    return next(r for r in rows if r.key[2:] == (prompt, mode, method, 0))


def test_every_turn_is_measured_for_every_method_and_nothing_is_cut(run):
    rows = read_rows(run)
    assert {(r.key.prompt_id, r.turn) for r in rows} == {("talk", 1), ("talk#2", 2), ("talk#3", 3), ("lone", 1)}
    assert len(rows) == len({r.key for r in rows}) == 4 * 2 * 3
    assert {(r.key.bucket, r.cut_tokens) for r in rows} == {(WHOLE, 0)}
    assert {r.lossless.first_divergence for r in rows} == {None}


def test_a_later_turn_follows_the_answer_of_plain_decoding_in_its_mode(run, bench):
    rows, tokenizer = read_rows(run), bench.session.tokenizer
    for mode in ("greedy", "sampled"):
        text = TALK["turns"][0]
        for turn, follow_up in enumerate(TALK["turns"][1:], 2):
            before = row_of(rows, "talk" if turn == 2 else f"talk#{turn - 1}", mode)
            text += "\n\n" + tokenizer.decode(before.token_ids, skip_special_tokens=True) + "\n\n" + follow_up
            assert {r.prompt_tokens for r in rows if (r.turn, r.key.mode) == (turn, mode)} == {
                len(tokenizer(text)["input_ids"])
            }


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kept", [1, 7])  # rows: part of a prompt, part of a turn
def test_a_run_killed_within_a_conversation_resumes_with_the_same_rows(run, questions, tmp_path, kept):
    for name in ("config.json", ROWS):
        shutil.copy(run / name, tmp_path)
    whole_text = (run / ROWS).read_text().splitlines(keepends=True)
    (tmp_path / ROWS).write_text("".join(whole_text[:kept]))
    found = sweep(config(questions), tmp_path, resume=True)
    assert len(found) == len({r.key for r in found}) == len(whole_text)
    assert "in 0 of them." in lines(read_rows(run), found)[1]


@pytest.mark.slow
def test_an_existing_answer_is_not_decoded_again(run, questions, tmp_path, bench):
    rows = [r for r in read_rows(run) if r.key.prompt_id == "talk"]
    other = bench.session.tokenizer("quite another, longer answer than was given")["input_ids"]
    row_of(rows, "talk", "greedy").token_ids[:] = other
    shutil.copy(run / "config.json", tmp_path)
    (tmp_path / ROWS).write_text("".join(as_json(row) + "\n" for row in rows))
    found = sweep(config(questions), tmp_path, resume=True)
    text = f"{TALK['turns'][0]}\n\n{bench.session.tokenizer.decode(other)}\n\n{TALK['turns'][1]}"
    assert row_of(found, "talk#2", "greedy").prompt_tokens == len(bench.session.tokenizer(text)["input_ids"])


@pytest.mark.slow
def test_workers_have_the_same_conversations_and_a_dead_one_loses_nothing(run, questions, tmp_path, monkeypatch):
    alone = [r for r in read_rows(run) if r.key.mode == "greedy" and r.key.method != "graft"]
    events, killed = Processes.events, []

    def watched(self, busy):
        for worker, kind, value in events(self, busy):
            yield worker, kind, value
            if kind == "row" and not killed:
                killed.append(worker.process.kill())

    monkeypatch.setattr(Processes, "events", watched)
    found = sweep(config(questions, modes=("greedy",), methods=("pld",)), tmp_path, workers=2)
    assert killed and len(found) == len(alone) and {r.key for r in found} == {r.key for r in alone}
    assert "in 0 of them." in lines(alone, found)[1]


def test_a_chat_template_gets_the_turns_as_messages():
    class Chat:
        chat_template = "yes"

        def apply_chat_template(self, messages, **_) -> dict:
            return {"input_ids": [(m["role"], m["content"]) for m in messages]}

    example = Example("s", "81", "One?", "", "", follow_ups=("Two?", "Three?"))
    assert example.turn_ids == ("81", "81#2", "81#3")
    last = example.next_turn("1.").next_turn("2.")
    assert (last.id, last.turn, last.turn_ids) == ("81#3", 3, ("81#3",))
    assert last.encode(Chat()) == [
        ("user", "One?"),
        ("assistant", "1."),
        ("user", "Two?"),
        ("assistant", "2."),
        ("user", "Three?"),
    ]


def test_an_end_token_is_left_out_of_the_next_turn(questions, tmp_path, bench, monkeypatch):
    first = sweep(config(questions, modes=("greedy",), methods=()), tmp_path / "a")
    end = row_of(first, "talk", "greedy").token_ids[3]
    monkeypatch.setattr(bench.session, "eos", (end,))
    found = sweep(config(questions, modes=("greedy",), methods=("pld",)), tmp_path / "b")
    tokens = row_of(found, "talk", "greedy").token_ids
    assert tokens[-1] == end and len(tokens) <= 4 and row_of(found, "talk", "greedy", "pld").token_ids == tokens
    tokenizer = bench.session.tokenizer
    text = f"{TALK['turns'][0]}\n\n{tokenizer.decode(tokens[:-1])}\n\n{TALK['turns'][1]}"
    assert row_of(found, "talk#2", "greedy").prompt_tokens == len(tokenizer(text)["input_ids"])


# Failures -----------------------------------------------------------------------------------------------------------


def test_a_prompt_beyond_the_targets_positions_fails_and_so_do_its_turns(questions, tmp_path, bench, monkeypatch):
    monkeypatch.setattr(type(bench.session.target), "max_positions", 12)
    found = sweep(config(questions, modes=("greedy",), methods=("pld",)), tmp_path)
    assert len(found) == 4 * 2 and all(isinstance(r, Failure) for r in found)
    assert "tokens and 8 may follow, but embedded has 12 positions. Lower --max-new-tokens" in found[0].error
    assert {r.error for r in found if r.turn > 1} == {"turn 1 has no answer to go on from: its own rows say why"}
    assert sweep(config(questions, modes=("greedy",), methods=("pld",)), tmp_path, resume=True) == found


def test_a_method_that_fails_does_not_end_the_conversation(questions, tmp_path, monkeypatch):
    from longgraft.methods.registry.pld import PromptLookup

    def broken(self, ask):
        raise RuntimeError("out of memory, as it were")

    monkeypatch.setattr(PromptLookup, "propose", broken)
    found = sweep(config(questions, modes=("greedy",), methods=("pld",)), tmp_path)
    assert {(r.key.prompt_id, r.key.method) for r in found if isinstance(r, Row)} == {
        (prompt, "ar") for prompt in ("talk", "talk#2", "talk#3", "lone")
    }
    assert len(found) == 4 * 2


# Plan, tables, figures ----------------------------------------------------------------------------------------------


def test_a_smaller_number_of_prompts_is_spread_over_the_suite():
    class Letters:
        def __call__(self, text: str) -> dict:
            return {"input_ids": [ord(letter) for letter in text]}

    examples = [Example("s", str(n), "x" * n, "", "") for n in range(1, 11)]
    ids = [[fitted.example.id for fitted in whole(examples, Letters(), n)[WHOLE]] for n in (3, 10, 99)]
    assert ids == [["1", "4", "7"], [str(n) for n in range(1, 11)], [str(n) for n in range(1, 11)]]


def test_the_plan_counts_turns(questions, bench):
    asked = config(questions, modes=("greedy",))
    said = "\n".join(lines_of_plan(asked, check_plan(asked), bench))
    assert "prompts by length whole: 2" in said and "4 prefills, 12 decodings" in said


@pytest.mark.slow
def test_tables_have_a_column_per_suite_and_figures_no_length(run, questions):
    from longgraft.eval.reports.plots import draw

    write(run)
    said = (run / "summary.md").read_text()
    assert "| whole | 4 | ar |" in said and "| suite | length |" not in said.split("## How")[0]
    assert "Each turn of a conversation counts as a prompt" in said
    assert [path.stem for path in draw(Run.read(run))][:2] == ["mat_by_suite", "speedup_by_suite"]


# Recordings ---------------------------------------------------------------------------------------------------------


def test_recordings_of_the_user_precede_the_true_text_and_that_the_longest(tmp_path):
    file(tmp_path / "lcc.jsonl", *({"_id": name, "context": "x"} for name in "abc"))
    file(tmp_path / "meta.jsonl", {"_id": "a", "continuation": "true"}, {"_id": "b", "continuation": "true"})
    file(
        tmp_path / "recorded.jsonl",
        {"_id": "b", "model": "big", "continuation": "longer than true"},
        {"_id": "c", "model": "small", "continuation": "short"},
        {"_id": "c", "model": "big", "continuation": "longer"},
    )
    ours = file(
        tmp_path / "ours.jsonl",
        {"_id": "a", "continuation": "ours"},
        {"_id": "c", "model": "small", "continuation": "s"},
    )
    more = file(tmp_path / "more.jsonl", {"_id": "a", "continuation": "even longer than ours"})
    assert [e.recording for e in load_suite("lcc", tmp_path)] == ["true", "true", "longer"]
    assert [e.recording for e in load_suite("lcc", tmp_path, [ours, more])] == ["ours", "true", "s"]
    assert [e.recording for e in load_suite("lcc", tmp_path, [more, ours])] == ["even longer than ours", "true", "s"]


@pytest.mark.slow
def test_a_runs_answers_are_replayed_turn_by_turn(run, questions, tmp_path, bench):
    answers = tmp_path / "answers.jsonl"
    assert write_recordings(run, answers, "sampled", "ar") == 4
    found = sweep(config(questions, modes=("replay",), recorded=(str(answers),)), tmp_path / "replayed")
    assert len(found) == 4 * 3 and not any(isinstance(r, Failure) for r in found)
    for row in found:
        texts = [
            bench.session.tokenizer.decode(r.token_ids, skip_special_tokens=True)
            for r in (row, row_of(read_rows(run), row.key.prompt_id, "sampled"))
        ]
        assert texts[1].startswith(texts[0]) and texts[0]
    with pytest.raises(ValueError, match=r"no answers of eagle3, sampled. It has: ar greedy, ar sampled, graft"):
        write_recordings(run, tmp_path / "x.jsonl", "sampled", "eagle3")
    with pytest.raises(ValueError, match="exists already"):
        write_recordings(run, answers, "sampled", "ar")


def test_the_check_beside_a_replay_samples_only_for_exact_methods(questions, tmp_path, monkeypatch):
    """A method that promises only the distribution is checked greedily; failures record the promise, too."""
    recorded = file(tmp_path / "recorded.jsonl", {"_id": "lone", "continuation": "return a + b + a + b"})
    drawn, decode = [], PromptMeasurement.decode

    def decoded(self, variant, sampling, limit, *more):
        if variant.name == "odd" and limit == 4:  # check_tokens, so neither warm-up nor replay
            drawn.append(sampling.temperature)
            raise ValueError("seen")
        return decode(self, variant, sampling, limit, *more)

    monkeypatch.setattr(PromptMeasurement, "decode", decoded)
    for promise in ("exact", "distribution"):
        monkeypatch.setitem(CORE, "odd", replace(METHODS["pld"], name="odd", promise=promise))
        found = sweep(
            config(questions, modes=("replay",), methods=("odd",), recorded=(str(recorded),)), tmp_path / promise
        )
        assert [row.promise for row in found if isinstance(row, Failure)] == [promise]
    assert drawn == [1.0, 0.0]


def test_a_replay_ends_before_a_turn_without_a_recording(questions, tmp_path):
    recorded = file(
        tmp_path / "r.jsonl",
        {"_id": "talk", "continuation": "Two, three and five."},
        {"_id": "lone", "suite": "others", "continuation": "of another suite"},
    )
    found = sweep(config(questions, modes=("replay",), methods=(), recorded=(str(recorded),)), tmp_path / "run")
    assert [r.key.prompt_id for r in found] == ["talk"]


# The commands -------------------------------------------------------------------------------------------------------


def test_bench_has_the_options_of_sweep_except_lengths_and_its_own_defaults():
    from longgraft.cli.measure import measuring

    ours, theirs = (
        next(
            set(inspect.signature(command.callback).parameters)
            for command in measuring.registered_commands
            if command.name == name
        )
        for name in ("bench", "sweep")
    )
    assert theirs - ours == {"lengths"} and ours <= theirs
    made = SweepConfig.load(None, SHORT, methods=("pld",), prompts=None)
    assert (made.lengths, made.modes, made.prompts, made.methods) == ((), ("greedy",), 20, ("pld",))


def test_flags_win_over_the_file_and_the_file_over_the_commands_defaults(tmp_path):
    path = tmp_path / "c.json"
    path.write_text('{"prompts": 7, "repeats": 2}')
    made = SweepConfig.load(path, SHORT, repeats=1)
    assert (made.prompts, made.repeats, made.max_new_tokens) == (7, 1, 1024)


@pytest.mark.parametrize("path", sorted(RESULTS.rglob("sweep.toml")), ids=lambda path: path.parent.name)
def test_the_configurations_of_committed_results_name_methods_that_exist(path):
    config = SweepConfig.load(path)
    ours = {variant.method for variant in config.variants} - set(TRANSFORMERS)
    assert config.suites and PLAIN in ours and all(map(find, ours))


def test_bench_runs_from_the_command_line_and_suites_are_listed(questions, tmp_path, command):
    assert "summary.md" in command(
        "bench",
        "--suites",
        questions,
        "--methods",
        "pld",
        "--repeats",
        1,
        "--max-new-tokens",
        6,
        "--prompts",
        1,
        "--out",
        tmp_path / "run",
    )
    assert {r.key.prompt_id for r in read_rows(tmp_path / "run")} == {"talk", "talk#2", "talk#3"}
    assert "3 answers in" in command(
        "recordings", tmp_path / "run", "--mode", "greedy", "--out", tmp_path / "answers.jsonl"
    )
    listed = command("suites")
    assert "MT-Bench: open questions" in listed and "eagle_sum.jsonl" in listed and "hub openai/gsm8k, main" in listed
    said = " ".join(command("sweep", "--help").replace("\u2502", " ").split())
    assert "see `longgraft suites`" in said and "list-suites" not in said
