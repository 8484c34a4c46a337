"""Tables, plots, comparisons and costs of rows made by hand, so that every figure can be checked."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import pytest
from toys.sessions import METHODS
from toys.sources import ROOT

import longgraft
from longgraft.budget.cost_model import Costs
from longgraft.comparison.levels import Check, level, step_of
from longgraft.eval.reports.cells import cells
from longgraft.eval.reports.compare import compare, lines
from longgraft.eval.reports.estimates import judged
from longgraft.eval.reports.oracle import bounds, fastest_width, without_waste
from longgraft.eval.reports.overview import drifts
from longgraft.eval.reports.panels import METHODS as STYLED
from longgraft.eval.reports.panels import STYLES, places, style_of
from longgraft.eval.reports.plots import checked_suffix, draw
from longgraft.eval.reports.posted import posted
from longgraft.eval.reports.report import summary, write
from longgraft.eval.reports.run_costs import costs_of, costs_of_run
from longgraft.eval.reports.steps import STEP_COLUMNS, acceptance_by_position, shares_of_time
from longgraft.eval.reports.tables import lossless_level
from longgraft.eval.runs.folder import Run
from longgraft.eval.runs.rows import Failure, Key, Row, as_json
from longgraft.eval.statistics import Mean, bootstrap

CONFIG = {"max_new_tokens": 8, "repeats": 2, "seed": 0, "temperature": 1.0}
ENVIRONMENT = {
    "target": "toy",
    "dtype": "float32",
    "attention": "split",
    "device": "CPU",
    "threads": 1,
    "torch": "2",
    "transformers": "5",
    "git": "abc",
    "changed": False,
}
SAME = Check(8, None)


def row(
    method="ar", rate=10.0, accepted=(0, 0), prompt="a", repeat=0, bucket=4096, suite="lcc", mode="replay", **more
) -> Row:
    steps = len(accepted)
    kind = "plain" if method == "ar" else "draft"
    about = dict(
        kinds={kind: steps},
        prompt_tokens=bucket,
        new_tokens=sum(accepted) + steps,
        steps=steps,
        accepted_per_step=list(accepted),
        mat=sum(accepted) / max(1, steps),
        tokens_per_step=1.0,
        prefill_seconds=2.0,
        decode_seconds=1.0,
        decode_tokens_per_second=rate,
        stages={},
        peak_memory_bytes=2**30,
        token_ids=[1, 2],
        loop=False,
        accepted_by_origin={"draft": sum(accepted), "retrieved": 0, "both": 0},
        lossless=SAME,
        seconds_by_part={"verify": 0.1 * steps, "draft": 0.05 * steps},
    )
    return Row(Key(suite, bucket, prompt, mode, method, repeat), **about | more)


def failure(method="ar", bucket=4096, error="RuntimeError: out of memory") -> Failure:
    return Failure(Key("lcc", bucket, "a", "replay", method, 0), error)


def run(rows, folder=Path("run"), config=CONFIG, **more) -> Run:
    return Run(folder, rows, config, ENVIRONMENT | more)


ROWS = [
    row(rate=10, repeat=0),
    row(rate=20, repeat=1),
    row("graft", 30, (2, 4), repeat=0),
    row("graft", 40, (2, 4), repeat=1),
    row(rate=10, prompt="b"),
    row("graft", 10, (1, 1), prompt="b"),
    row(bucket=8192),
    failure("graft", 8192),
]


def cell(rows, method, bucket):
    return next(c for c in cells(rows) if c.method == method and c.bucket == bucket)


def written(folder, name="summary.csv", rows=()) -> list[dict[str, str]]:
    """Writes the report of a folder, with these rows if there are any, and returns the lines of one table."""
    if rows:
        (folder / "per_prompt.jsonl").write_text("".join(as_json(r) + "\n" for r in rows))
    write(folder)
    with open(folder / name, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_speedups_are_paired_by_prompt_and_repeat():
    found = cell(ROWS, "graft", 4096)
    # prompt a: 30 / 10 and 40 / 20, median 2.5; prompt b: 10 / 10
    assert (found.speedups, found.mat, found.prompts) == ((1.0, 2.5), Mean((3 + 1) / 2, count=2), 2)
    failed = cell(ROWS, "graft", 8192)
    assert (failed.prompts, failed.failures, failed.mat, failed.speedup) == (0, 1, None, None)
    both = [*ROWS, row(suite="qmsum"), row("graft", 50, (0, 0), suite="qmsum")]
    assert {c.suite: c.prompts for c in cells(both) if (c.method, c.bucket) == ("graft", 4096)} == {
        "lcc": 2,
        "qmsum": 1,
        "all": 3,
    }


def test_a_prompt_with_a_speed_of_zero_counts():
    rows = [row(prompt=p) for p in "ab"] + [
        row("graft", 30, (2, 4)),
        row("graft", 0, (2, 4), prompt="b", decode_seconds=0.0),
    ]
    found = cell(rows, "graft", 4096)
    assert found.speedup == Mean(0.0, count=2) and found.speedups == (0.0, 3.0) and found.step_cost == 0.5
    before = replace(rows[3], decode_tokens_per_second=30.0)
    assert "tokens per second x 0.000," in lines([rows[2], before], rows[2:])[-1]


def test_a_mean_speedup_is_geometric_in_every_table_and_has_an_interval_from_five_prompts_on():
    def rows(factors):
        return [
            made
            for prompt, factor in zip("abcdef", factors, strict=False)
            for made in (row(prompt=prompt), row("graft", 10 * factor, (2, 4), prompt=prompt))
        ]

    few, many = (cell(rows(factors), "graft", 4096).speedup for factors in ((0.5, 2, 8), (0.5, 2, 8, 2, 2)))
    assert (few.value, few.interval, many.value) == (pytest.approx(2), None, pytest.approx(2))
    low, high = many.interval
    assert 0.5 < low < 2 < high < 8 and low == pytest.approx(4 / high)  # as far below as above, by factor
    text = summary(run(rows((0.5, 2, 8, 2, 2))))
    assert f"| **2.00 ({low:.0f}-{high:.0f})** |" in line_of(text, "| 4K | 5 | graft |")


def test_the_main_table_is_shown_with_and_without_answers_that_loop(folder):
    """Checks tables of both suites, of lossy methods, and the lines of summary.csv."""
    rows = [
        made
        for suite in ("lcc", "qmsum")
        for made in (
            row(suite=suite),
            row("graft", 30, (2, 4), suite=suite),
            row("other", 90, (9, 9), suite=suite, promise="lossy"),
            row(prompt="c", suite=suite, loop=True),
            row("graft", 90, (9, 9), prompt="c", suite=suite, loop=True),
        )
    ]
    first, without = summary(run(rows)).split("### Without answers that loop")
    assert "| 4K | 4 (2 looping) | graft | **5.20** | 3.00 to 9.00 |" in first
    assert "| 4K | 2 | graft | **3.00** | 3.00 to 3.00 |" in without and "| 4K | 2 | other (LOSSY) | 9.00 |" in without
    assert "Without answers that loop" not in summary(run(ROWS))
    lines = [line for line in written(folder, rows=rows) if (line["suite"], line["method"]) == ("lcc", "graft")]
    assert [(line["answers"], line["prompts"], line["loops"], float(line["speedup_median"])) for line in lines] == [
        ("all", "2", "1", 6.0),
        ("without those that loop", "1", "0", 3.0),
    ]


def test_summary_headline_leaves_out_answers_that_loop_a_second_time():
    rows = [
        made
        for prompt, rate, loop in (("a", 20, False), ("b", 20, False), ("c", 160, True))
        for made in (row(prompt=prompt, loop=loop), row("graft-x-text", rate, (2, 4), prompt=prompt, loop=loop))
    ]
    headline = summary(run(rows)).splitlines()[4]
    assert headline.startswith("Speed-up of `graft-x-text`, the default here: 4.00 at 4K (3 prompts). 1 of 3 prompts ")
    assert "in a loop every guess is right; without them: 2.00 at 4K. With the reading" in headline
    only = summary(run(rows[4:])).splitlines()[4]
    assert "1 of 1 prompt have an answer" in only and "without them: nothing was measured. With" in only
    assert lines(rows, rows)[-1].endswith("; 3 prompts (1 looping)")


def test_posted_table_has_model_machine_version_and_both_speeds():
    rates = (10, 20, 30, 40, 50)
    rows = [row(rate=10, prompt=str(rate)) for rate in rates]
    rows += [row("graft", rate, (2, 4), prompt=str(rate), reused_tokens=96) for rate in rates]
    lines = posted(run(rows, version="0.2")).splitlines()
    assert lines[0] == "toy, float32, on CPU with 1 threads; longgraft 0.2, git abc"
    assert (
        lines[2] == "| depth | mode | method | prompts | reading, tokens/s | decoding, tokens/s | over plain (95 %) |"
    )
    assert lines[4:] == [
        "| 4K | replay | ar | 5 | 2048 | 10.0 | - |",
        "| 4K | replay | graft | 5 | 2000 | 30.0 | 2.61 (2-4) |",
    ]
    assert "of an unknown version" in posted(run(rows)) and "| 8K |" not in posted(run(ROWS[-1:]))


def test_failures_of_one_error_are_one_line():
    rows = [
        row(),
        *(replace(failure("graft"), key=Key("lcc", 4096, p, "replay", "graft", 0)) for p in "abc"),
        failure("pld", error="none"),
    ]
    said = summary(run(rows)).split("## Failures")[1].split("\n\n## How")[0] + "\n"
    assert said.split("\n- ")[1:] == [
        "graft, 3 decodings: RuntimeError: out of memory",
        "lcc 4K a, pld, replay: none\n",
    ]


@pytest.mark.parametrize(("errors", "rest"), [(20, ""), (22, "- and 2 more\n")])
def test_a_long_list_has_twenty_lines_and_the_number_of_the_others(errors, rest):
    rows = [row(), *(failure("graft", error=f"error {n}") for n in range(errors))]
    said = summary(run(rows)).split("## Failures")[1].split("\n## How")[0]
    assert said.count(": error ") == 20 and said.endswith(f": error 19\n{rest}")


def test_summary_says_with_what_and_how_it_was_measured():
    text = summary(run(ROWS, git="0123456789abcdef", changed=True))
    assert "attention split, on CPU with 1 threads; torch 2, transformers 5; git 0123456789ab, with uncommitted" in text
    assert "At most 8 new tokens, 1 to 2 repeats, seed 0, temperature 1.0 where sampled." in text
    assert "uncommitted" not in summary(run(ROWS))


def test_summary_names_methods_that_learn_over_the_run():
    rows = [row(), *(row("retrieval", prompt=str(before), learned_from=before) for before in (4, 0, 7))]
    text = summary(run(rows))
    said = "- `retrieval` learns over the run: its prompts began with what it had learnt from 0 to 7 others of the run."
    assert said in text and "`ar` learns" not in text
    rows = [row(), *(row("retrieval", prompt=str(before), learned_from=before) for before in (1, 0, 2))]
    assert "from 0 to 2 others of their mode, suite and length." in summary(run(rows))


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["smollm2/questions", "high_batch/smollm2", "qwen2.5-coder/long"])
def test_the_summary_of_a_committed_run_is_made_again_byte_for_byte(folder):
    committed = ROOT / "docs/results" / folder
    assert summary(Run.read(committed)) == (committed / "summary.md").read_text(encoding="utf-8")


def test_summary_begins_with_speed_ups_by_length_and_then_by_suite():
    rows = [
        made
        for suite, factors in (("lcc", (2.0, 0.5)), ("qmsum", (0.98, 8.0)))
        for prompt, factor in zip("ab", factors, strict=True)
        for made in (
            row(rate=10, prompt=prompt, suite=suite),
            row("pld", 10 * factor, (2, 1), prompt=prompt, suite=suite),
            row("graft-x-text", 20, (2, 4), prompt=prompt, suite=suite),
            row("typical", 90, (9, 9), prompt=prompt, suite=suite, promise="lossy"),
        )
    ]
    lines = summary(run(rows)).split("## How")[0].splitlines()
    assert lines[4] == (
        "Speed-up of `graft-x-text`, the default here: 2.00 at 4K (4 prompts). With the reading of the "
        "prompt: 1.20 at 4K. 4 of 4 answers have plain decoding's tokens."
    )
    exact = "exact: identical (4/4, all 8 tokens)"
    assert lines[8:12] == [
        f"| 4K | 4 | ar | - | - | - | - | 2.00 | 1.00 | - | {exact} |",
        f"| 4K | 4 | graft-x-text | **2.00** | 2.00 to 2.00 | 0 of 4 | 3.00 | 2.00 | 1.00 | 1.20 | {exact} |",
        f"| 4K | 4 | pld | 1.67 | 0.50 to 8.00 | 1 of 4 | 1.50 | 2.00 | 1.00 | 1.06 | {exact} |",
        "| 4K | 4 | typical (LOSSY) | 9.00 | 9.00 to 9.00 | 0 of 4 | 9.00 | 2.00 | 1.00 | 1.42 | lossy: not compared |",
    ]
    assert "| suite | length | prompts | ar, tokens/s | pld | graft-x-text | typical (LOSSY) |" in lines
    # Geometric means of 2 and 0.5, and of 0.98 and 8; the fastest lossless one is bold.
    assert "| lcc | 4K | 2 | 10.0 | 1.00 | **2.00** | 9.00 |" in lines
    assert "| qmsum | 4K | 2 | 10.0 | **2.80** | 2.00 | 9.00 |" in lines
    assert (
        "`graft-x-text`, the default here, is the fastest in 1 of 2 suites and lengths; it is behind in qmsum 4K "
        "(pld 2.80, -29%)." in lines
    )


@pytest.mark.parametrize(
    ("target", "drafter", "default"),
    [
        ("qwen2.5-coder-0.5b", "auto", "graft-x-text"),  # its head ships and loses
        ("qwen2.5-coder-0.5b", "FOLDER", "graft-x"),
        ("embedded", "auto", "graft-x"),
        ("embedded", "none", "graft-x-text"),
        ("unknown", "auto", "graft-x-text"),
        ("unknown", "FOLDER", "graft-x"),
    ],
)
def test_a_report_names_the_default_of_its_target_and_drafter(target, drafter, default):
    rows = [row(), row("graft-x", 20, (2, 4)), row("graft-x-text", 30, (2, 4))]
    text = summary(run(rows, config=CONFIG | {"drafter": drafter}, target=target))
    assert f"\n`{default}`, the default here, is the fastest in {default.count('text')} of 1 suites" in text


def test_end_to_end_seconds_count_the_reading_and_an_answer_of_plain_decodings_length():
    rows = [
        row(rate=10, prefill_seconds=3.0, decode_seconds=2.0),
        # Twice as fast, so plain decoding's answer would take 1 s; this one has other tokens and took 5 s.
        row("graft", 20, (2, 4), prefill_seconds=4.0, decode_seconds=5.0),
    ]
    found = cell(rows, "graft", 4096)
    assert found.end_to_end.value == pytest.approx((3 + 2) / (4 + 1))
    assert (found.prefill_seconds, found.answer_seconds) == (4.0, 5.0)
    assert "| 4.00 | 5.00 | 1.00 |" in line_of(summary(run(rows)), "| 4K | 1 | graft |")


def test_summary_counts_rows_that_other_programs_or_a_slower_machine_disturbed():
    rates = (10.0, 10.0, 10.0, 8.0, 12.0, 10.5)  # of prompts in order of time: -20 %, +20 % and +5 %
    rows = [row(rate=rate, prompt=str(n), other_load=0.5 if n == 2 else 0.02) for n, rate in enumerate(rates)]
    assert drifts(rows) == pytest.approx([1, 1, 1, 0.8, 1.2, 1.05])
    text = summary(run(rows))
    assert "other programs kept 0.02 cores busy (median; at most 0.50); 1 of 6 rows had more than 0.3" in text
    assert "Plain decoding ran at 0.80 to 1.20 of the speed" in text
    assert "2 of 6 prompts are off by more than 15%" in text
    assert "other programs" not in summary(run(ROWS))  # nothing was recorded


def test_the_table_by_suite_shows_the_spread_over_prompts_and_shares_of_steps():
    rows = [row(rate=10, prompt=p, repeat=n) for p in "abc" for n in range(3)]
    rows += [
        row("graft", 10 * ratio, accepted, prompt=p, repeat=n, kinds=kinds)
        for p, ratios, accepted, kinds in (
            ("a", (0.5, 0.9, 9), (1, 1), {"plain": 2}),
            ("b", (2, 1.25, 1), (3, 2), {"draft": 2}),
            ("c", (3, 2.5, 1), (0, 0), {"memory": 1, "draft": 1}),
        )
        for n, ratio in enumerate(ratios)
    ]
    rows[-1] = replace(rows[-1], kinds={"draft": 2}, decode_seconds=4.0, forwards={"draft": 18, "own": 9})
    text = summary(run([*rows, row(bucket=8192), row("graft", 20, bucket=8192, kinds={})]))
    table = text.split("### By suite")[1].split("###")[0]
    # Medians of three repeats: 0.9, 1.25 and 2.5.
    assert (
        "| lcc | 4K | graft | 3 | 0 | 1.25 | 0.90 | 2.50 | 1.17 | 1.17 | 33% / 11% / 56% | 1.00 | 1.00 | 0.50 |"
        in table
    )
    assert "| lcc | 8K | graft | 1 | 0 | 2.00 | 2.00 | 2.00 | 0.00 | 0.00 | - | 1.00 | - | - |" in table
    assert "| ar |" not in table
    assert "| lcc | 4K | graft | 1 | 0 | - | - | - | 3.00 |" in summary(run([row("graft", 30, (2, 4))]))


@pytest.mark.parametrize(
    ("dtype", "checks", "message"),
    [
        ("float32", [(96, None, None), (64, None, None)], "exact: identical (2/2, all 64 to 96 tokens)"),
        ("bfloat16", [(96, None, None)], "greedy-bf16: identical (1/1, all 96 tokens)"),
        ("float32", [(8, None, None), (96, None, None)], "exact: identical (2/2, the first 8 of up to 96 tokens)"),
        (
            "bfloat16",
            [(96, None, None), (96, 3, 0.02)],
            "greedy-bf16: 1/2 differ, margins below 0.1 or one step of bfloat16",
        ),
        ("float32", [(96, 3, 0.02)], "none: 1/1 differ, margins below 0.1 or one step of float32"),
        ("bfloat16", [(96, 3, 0.02), (96, 3, 0.5)], "none: 2/2 differ, margin up to 0.50"),
        ("bfloat16", [(96, 3, 0.02), (96, 3, None)], "none: 2/2 differ"),
    ],
)
def test_losslessness_names_its_level_and_the_margins_of_greedy_draws_only(dtype, checks, message):
    lengths = (96, 64) if checks[-1][0] == 64 else (96,) * len(checks)
    found = replace(cell(ROWS, "graft", 4096), checks=tuple(Check(*check) for check in checks), lengths=lengths)
    assert lossless_level(found, dtype) == message


def test_an_answer_that_ended_at_once_is_neither_a_prompt_nor_a_failure():
    ended = [*ROWS[:6], row(rate=0, accepted=(), prompt="c"), row("graft", 0, (), prompt="c")]
    assert cell(ended, "graft", 4096) == cell(ROWS, "graft", 4096)
    assert cell(ended[-2:], "graft", 4096).prompts == 0 and cell(ended[-2:], "graft", 4096).failures == 0
    # It is a divergence if plain decoding went on.
    parted = [row("graft", 0, (), prompt="c", repeat=n, lossless=Check(8, 1)) for n in (0, 1)]
    assert lossless_level(cell([*ROWS[:6], *parted], "graft", 4096), "float32") == "none: 1/3 differ"


def line_of(text, start):
    return next(line for line in text.splitlines() if line.startswith(start))


def test_requested_prompts_that_were_not_measured_are_named():
    asked = CONFIG | {"suites": ["lcc", "qmsum"], "lengths": [4096, 8192, 65536], "modes": ["replay", "greedy"]}
    text = summary(run(ROWS, config=asked))
    assert "No prompt measured: 4K (qmsum), 8K (qmsum), 64K (lcc, qmsum)." in text.split("## Mode: greedy")[0]
    assert "No prompt measured: 4K (lcc, qmsum), 8K" in text.split("## Mode: greedy")[1]
    less = asked | {"suites": ["lcc"], "lengths": [4096, 8192], "modes": ["replay"]}
    assert "No prompt measured" not in summary(run(ROWS, config=less))
    assert "At most 8 new tokens" in text


def test_acceptance_by_position_is_given_of_all_drafts_and_of_those_accepted_so_far():
    # Five steps, of which one proposed nothing.
    rows = [row("graft", 1, (0, 1, 2, 2, 0), kinds={"plain": 1, "draft": 3, "memory": 1})]
    found = acceptance_by_position(rows)
    assert [position.raw for position in found] == pytest.approx([3 / 4, 2 / 4, 0])
    assert [position.conditional for position in found] == pytest.approx([3 / 4, 2 / 3, 0])
    assert len(acceptance_by_position([row("pld", 1, (9,))])) == 8
    # Lengths apart, suites and repeats together; without plain decoding, and rows that do not say what was proposed.
    rows += [
        row("graft", 1, (4,), suite="qmsum", repeat=1),
        row("graft", 1, (1, 0), bucket=8192),
        row("old", 1, (2,), kinds={}),
        row(),
    ]
    table = summary(run(rows)).split("### Acceptance by position")[1].split("\n\n###")[0]
    assert table.splitlines()[-2:] == [
        "| 4K | graft | 5 | 0.80 (0.80) | 0.60 (0.75) | 0.20 (0.33) | 0.20 (1.00) | 0.00 (0.00) | - | - | - |",
        "| 8K | graft | 2 | 0.50 (0.50) | 0.00 (0.00) | - | - | - | - | - | - |",
    ]


def test_shares_of_time_are_of_all_parts_that_were_recorded():
    seconds = {"verify": 5.0, "accept": 1.0, "draft": 2.0, "retrieve": 1.0, "control": 0.5, "new": 0.5}
    rows = [row("graft", 1, (2, 4), seconds_by_part=seconds, decode_seconds=10.0), row(seconds_by_part={})]
    shares = {"verification": 0.6, "drafting": 0.2, "retrieving": 0.1, "other": 0.1}
    assert shares_of_time(rows) == pytest.approx(shares)
    table = summary(run(rows)).split("### Where the time of decoding went")[1].split("\n\n###")[0]
    assert table.splitlines()[-1] == "| 4K | graft | 60.0% | 20.0% | 10.0% | 10.0% | 5000.0 |"
    assert "known of a sweep with `--profile` only" in summary(run(rows, device="NVIDIA H100"))


def test_every_part_of_a_step_that_the_clock_times_has_a_column():
    sources = Path(longgraft.__file__).parent.rglob("*.py")
    timed = {name for path in sources for name in re.findall(r'\.part\("(\w+)"', path.read_text(encoding="utf-8"))}
    assert timed and timed <= {column.removesuffix("_ms") for column in STEP_COLUMNS.split(",")}


def test_the_oracles_choose_methods_in_hindsight_and_verify_nothing_in_vain():
    prices = Costs({}, "made up", {4096: {1: 1.0, 5: 2.0}}, {}, {})
    rows = [row(rate=10, prompt=p, new_tokens=11) for p in "ab"]
    rows += [
        row("pld", 10 * speed, (4, 0, 3), prompt=p, repeat=n, new_tokens=11)
        for p, speed in zip("ab", (4, 0.5), strict=True)
        for n in range(2)
    ]
    rows += [row("graft", 10 * speed, (9,), prompt=p) for p, speed in zip("ab", (2, 0.8), strict=True)]
    found = dict(bounds(rows, prices))
    assert found["pld, measured"] == [4.0, 0.5]
    assert found["hindsight: the fastest method of each prompt"] == [4.0, 1.0]
    # Passes of 5, 1 and 4 rows take 2, 1 and 1.75 s for ten tokens, which take 10 s one by one.
    assert found["only accepted nodes of pld"] == pytest.approx([10 / 4.75] * 2)
    assert without_waste(rows[2], prices) == pytest.approx(10 / 4.75)
    assert found["no mistake, 5 rows a pass"] == pytest.approx([10 / 4] * 2)  # two passes of 2 s
    # Passes of 3 rows take 1.5 s: three of them, and one of 1 row.
    assert fastest_width(rows[:1], prices, 3) == (3, pytest.approx([10 / 5.5]))
    assert list(dict(bounds(rows, None))) == list(found)[:2] and not bounds(rows[:2], prices)


def test_the_oracles_take_prices_from_the_file_of_costs_that_a_run_was_given(tmp_path):
    Costs({}, "made up", {4096: {1: 1.0, 3: 1.5, 5: 2.0}}, {}, {}).save(tmp_path / "costs.json")
    rows = [row(new_tokens=11), row("pld", 20, (4, 0, 3), new_tokens=11)]
    given = summary(run(rows, config=CONFIG | {"costs": str(tmp_path / "costs.json")})).split("### Oracles")[1]
    assert "(1, 3, 5 rows)" in given and "| 4K | no mistake, 5 rows a pass | 1 | 2.50 |" in given
    moved = summary(run(rows, config=CONFIG | {"costs": str(tmp_path / "moved.json")}))
    assert "Bounds by the price of passes are missing." in moved


def test_the_oracles_say_why_prices_are_missing_and_leave_lossy_methods_out():
    rows = [row(), row("graft", 20, (2, 4)), row("typical", 90, (9, 9), promise="lossy")]
    table = summary(run(rows)).split("### Oracles")[1].split("###")[0]
    assert table.splitlines()[-2:] == [
        "| 4K | graft, measured | 1 | 2.00 |",
        "| 4K | hindsight: the fastest method of each prompt | 1 | 2.00 |",
    ]
    assert "Bounds by the price of passes are missing. Costs are taken from rows of the methods ar and eagle3" in table
    rows.append(row("eagle3", 20, (3, 3), seconds_by_part={"draft": 0.018, "verify": 0.04, "accept": 0.002}))
    assert "measured ones\n(1, 60 rows)." in summary(run(rows)).split("### Oracles")[1]
    assert "Oracles" not in summary(run([row(), failure("graft")]))
    assert "measured on a GPU without --profile" in summary(run(rows, device="H200")).split("### Oracles")[1]


JUDGED = dict(by_probability={"0.1": (100, 15.0, 20), "0.9": (40, 38.0, 30)}, by_match={"2": (8, 2.0, 4)})


def test_expected_acceptance_is_shown_beside_the_accepted_nodes_of_one_repeat():
    rows = [row("graft", 1, prompt=p, repeat=n, **JUDGED) for p in "ab" for n in range(2)]
    rows.append(row("graft", 1, prompt="c", by_probability={"0.0": (1, 0.05, 0)}, by_match={"17+": (1200, 600, 900)}))
    assert judged(rows, "probability") == {"0.0": (1, 0.05, 0), "0.1": (200, 30.0, 40), "0.9": (80, 76.0, 60)}
    text = summary(run([*rows, row()]))
    assert "| graft | - | 16: 0.25, 0.50 | - | - | - | 1,200: 0.50, 0.75 |" in text
    assert "length of their match" not in summary(run(ROWS))


def test_the_bootstrap_draws_samples_as_large_as_the_values_and_follows_its_level():
    # Means of eight draws of 0 or 1 are binomial: 0.4 % lie below 1/8 and above 7/8 each, 3.5 % up to them.
    coins = [0.0] * 4 + [1.0] * 4
    assert bootstrap(coins) == (0.5, 1 / 8, 7 / 8)
    assert bootstrap(coins, level=0.9) == (0.5, 2 / 8, 6 / 8) and bootstrap(coins, level=0.999) == (0.5, 0.0, 1.0)
    with pytest.raises(ValueError, match="no prompt"):
        bootstrap([])
    assert Mean.of([1.0, 2.0, 3.0, 4.0]) == Mean(2.5, count=4) and Mean.of([1.0, 2.0, 3.0, 4.0, 5.0]).interval


def test_mat_is_given_over_prompts_and_over_steps(folder):
    rows = [row("graft", 1, (8,)), row("graft", 1, (1,) * 9, prompt="b"), row("graft", 1, (8,), repeat=1)]
    found = cell(rows, "graft", 4096)
    assert found.mat == Mean((8 + 1) / 2, count=2) and found.mat_pooled == (8 + 9) / 10
    assert "| 4.50 | 1.70 |" in line_of(summary(run(rows)), "| lcc | 4K | graft |")
    (line,) = written(folder, rows=rows)
    assert (line["mat"], line["mat_low"], line["mat_pooled"]) == ("4.5", "", "1.7")


# Losslessness -------------------------------------------------------------------------------------------------------


def test_drawn_answers_are_compared_by_their_ids_and_not_by_the_recorded_check():
    plain = row(mode="sampled", token_ids=[1, 2, 3, 4])
    same, other = (row("graft", mode="sampled", token_ids=[1, 2, last, 4], lossless=None) for last in (3, 9))
    assert cell([plain, same], "graft", 4096).checks == (Check(4, None),)
    assert cell([plain, other], "graft", 4096).checks == (Check(4, 2),)
    # A margin is kept only if it was measured where the ids part.
    for noted, expected in ((Check(4, 2, 0.1, 17.0), Check(4, 2, 0.1, 17.0)), (Check(4, 1, 0.1), Check(4, 2))):
        assert cell([plain, replace(other, lossless=noted)], "graft", 4096).checks == (expected,)
    # The ids of a replay are given, so the draws beside it count.
    given = row("graft", token_ids=[7, 7], lossless=Check(32, 5))
    assert cell([row(), given], "graft", 4096).checks == (Check(32, 5),)


def test_answers_are_compared_up_to_the_shorter_limit():
    plain = row(mode="sampled", token_ids=[1, 2, 3, 4, 5, 6], limit=6)
    short = row("graft", mode="sampled", token_ids=[1, 2, 3, 4], limit=4)
    assert cell([plain, short], "graft", 4096).checks == (Check(4, None),)
    assert cell([plain, replace(short, limit=6)], "graft", 4096).checks == (Check(6, 4),)  # it ended too soon


def test_a_repeat_that_differs_makes_its_prompt_differ():
    plain = row(mode="greedy", token_ids=[1, 2])
    repeats = [row("graft", mode="greedy", repeat=n, token_ids=[1, last]) for n, last in enumerate((2, 2, 3))]
    assert cell([plain, *repeats], "graft", 4096).checks == (Check(2, 1),)


def test_a_near_tie_is_as_wide_as_a_step_of_half_precision_at_the_logits_size():
    assert [step_of("bfloat16", logit) for logit in (1.0, 8.0, 17.0, -40.0)] == [2**-7, 0.0625, 0.125, 0.25]
    assert step_of("float16", 17.0) == 2**-6 and step_of("float32", 0.0) == 0.0
    assert Check(8, 3, 0.125, at=17.0).near("bfloat16") and not Check(8, 3, 0.125, at=15.9).near("bfloat16")
    assert Check(8, 3, 0.1).near("bfloat16") and not Check(8, 3, 0.125).near("bfloat16")
    assert level([Check(8, 3, 0.125, at=17.0)], "bfloat16") == "greedy-bf16"
    assert level([Check(8, 3, 0.125, at=17.0)], "float32") == "none" and level([Check(8, None)], "float32") == "exact"


def test_lossy_methods_come_last_and_are_marked():
    typical = row("typical", 90, (9, 9), promise="lossy", token_ids=[3, 4], mode="sampled", lossless=Check(2, 0))
    text = summary(run([row(mode="sampled"), typical, row("graft", 30, (2, 4), mode="sampled")]))
    methods = [line.split(" | ")[2] for line in text.split("## How")[0].splitlines() if line.startswith("| 4K |")]
    assert methods == ["ar", "graft", "typical (LOSSY)"]
    assert line_of(text, "| 4K | 1 | typical (LOSSY) |").endswith("| lossy: not compared |")
    assert text.index("| lcc | 4K | graft |") < text.index("| lcc | 4K | typical (LOSSY) |")
    assert "differs from token" not in text and cell([row(mode="sampled"), typical], "typical", 4096).checks == ()


def test_a_lossy_method_stays_lossy_where_all_its_rows_are_failures():
    rows = [row(), row(bucket=8192), row("typical", 90, (9, 9), promise="lossy"), failure("typical", 8192)]
    assert cell(rows, "typical", 8192).promise == "lossy"
    assert "| 8K | 0 | typical (LOSSY) | - |" in summary(run(rows))
    failed = [row(), replace(failure("typical"), promise="lossy")]  # all its rows are failures
    assert cell(failed, "typical", 4096).promise == "lossy"
    assert line_of(summary(run(failed)), "| 4K | 0 | typical (LOSSY) |").endswith("| lossy: not compared; 1 failed |")


@pytest.mark.parametrize("mode", ["greedy", "replay"])
def test_a_method_that_promises_the_distribution_must_give_the_same_greedy_tokens(mode):
    """A replay is checked by a draw beside it, which is greedy if it has a margin."""
    other = row("rejection", 30, (2, 4), promise="distribution", token_ids=[3, 4], mode=mode, lossless=Check(2, 0, 0.7))
    text = summary(run([row(mode=mode), other]))
    assert line_of(text, "| 4K | 1 | rejection |").endswith("| none: 1/1 differ, margin up to 0.70 |")
    assert f"rejection, {mode}: differs from token 0 on, margin 0.7000" in text
    for drawn in ("replay", "sampled"):
        text = summary(run([row(mode=drawn), replace(other, key=other.key._replace(mode=drawn), lossless=Check(2, 0))]))
        assert "| distribution: 1/1 differ, as they may |" in text and "differs from token" not in text
    lossy = replace(other, promise="lossy")
    assert "differs from token" not in summary(run([row(mode=mode), lossy]))


def test_an_allowed_difference_does_not_hide_a_forbidden_one():
    """Draws may differ beside a replay, and greedy answers, which have a margin, may not."""
    drawn, greedy = Check(2, 0), Check(2, 0, 0.7)
    of_one = replace(cell(ROWS, "graft", 4096), promise="distribution", mode="replay")
    found = [lossless_level(replace(of_one, checks=checks), "float32") for checks in ((drawn,), (drawn, greedy))]
    assert found == ["distribution: 1/1 differ, as they may", "none: 2/2 differ"]


# Files --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "per_prompt.jsonl").write_text("".join(as_json(r) + "\n" for r in ROWS))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "environment.json").write_text(json.dumps(ENVIRONMENT))
    return tmp_path


def test_a_folder_gets_its_tables_and_figures(folder):
    write(folder)
    assert len((folder / "summary.csv").read_text().splitlines()) == 1 + 2 * 2
    first = {path.name: path.read_bytes() for path in draw(Run.read(folder))}
    assert len(first) == 5 and all(b"<svg" in text for text in first.values())
    assert first == {path.name: path.read_bytes() for path in draw(Run.read(folder))}
    speeds = first["speedup_by_length.svg"].decode()
    assert "<!-- Seconds: reading (grey) + answer -->" in speeds and "<!-- 4K graft -->" in speeds
    assert {path.suffix for path in draw(Run.read(folder), suffix="png")} == {".png"} == {checked_suffix(".png")}
    with pytest.raises(ValueError, match=r"cannot be written\. Known: \.svg, \.png, \.pdf"):
        draw(Run.read(folder), suffix=".gif")


def test_acceptance_by_position_is_drawn_from_thirty_drafts_on(folder):
    for drafts, is_drawn in ((29, False), (30, True)):
        (folder / "per_prompt.jsonl").write_text(as_json(row("graft", 1, (1,) * drafts)) + "\n")
        (path,) = (path for path in draw(Run.read(folder)) if path.stem == "acceptance_by_position")
        assert ("<!-- graft -->" in path.read_text()) == is_drawn


def test_steps_hold_the_time_to_the_first_token_memory_and_the_accepted_tokens_of_one_repeat(folder):
    for device, memory in (("CPU", ""), ("NVIDIA H100", "1024")):
        (folder / "environment.json").write_text(json.dumps(ENVIRONMENT | {"device": device}))
        found = next(line for line in written(folder, "steps.csv") if line["method"] == "graft")
        # Prompt a twice, (2, 4) each, and prompt b once, (1, 1).
        assert (found["accepted_draft"], found["first_token_seconds"], found["peak_memory_mib"]) == ("8", "2.0", memory)
        assert float(found["verify_ms"]) == pytest.approx(100.0)


def test_a_method_has_one_colour_in_all_figures():
    assert set(METHODS) <= set(STYLED) and len(set(STYLED)) == len(STYLED) <= STYLES
    assert places(["pld", "graft-x"]) == {"pld": STYLED.index("pld"), "graft-x": 0}
    variants = [f"graft+depth={depth}" for depth in range(60)]
    numbers = places(["graft", *variants[:3]])
    assert len(set(numbers.values())) == 4 == len({style_of(number)["color"] for number in numbers.values()})
    assert len(set(places(["graft", *variants]).values())) == 61
    assert places(["mine"]) == {"mine": crc32(b"mine") % STYLES}
    assert len({str(style_of(number) | {"markersize": 0}) for number in range(STYLES)}) == STYLES


@pytest.mark.parametrize("prompts, said", [("abcde", True), ("ab", False)])
def test_a_figure_names_intervals_only_if_it_draws_one(monkeypatch, prompts, said):
    rows = [made for prompt in prompts for made in (row(prompt=prompt), row("pld", 20, (1, 1), prompt=prompt))]
    drawn = {}
    monkeypatch.setattr(
        "longgraft.eval.reports.plots.save", lambda plt, figure, caption, path: drawn.update({path.stem: figure})
    )
    draw(run(rows))
    title = drawn["speedup_by_length"].axes[0].get_title()
    assert title == "Decoding speed" + (", with 95 % intervals over prompts" if said else "")
    (band,) = drawn["mat_by_length"].axes[0].collections
    assert bool(band.get_paths()) == said


@pytest.mark.parametrize(
    "rows, labels, message",
    [
        ([], {}, "no rows to draw"),
        (ROWS[-1:], {}, r"All rows \(1\) are failures\. The first: RuntimeError: out of memory"),
        ([row(accepted=())], {}, r"of the rows \(1\), 0 are failures and the others ended at once"),
        (ROWS, {"ar": "plain", "grfat": "ours"}, r"No row is of grfat\. There are: ar, graft\."),
        (ROWS[-2:], {"graft": "ours"}, r"All rows of graft \(1\) are failures"),
    ],
)
def test_plots_without_usable_rows_are_refused_with_the_reason(rows, labels, message):
    with pytest.raises(ValueError, match=message):
        draw(run(rows), labels)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("environment", "[]", r"holds \[\]; a table is needed"),
        ("environment", "{}", "has no 'target'"),
        ("environment", json.dumps(ENVIRONMENT | {"device": 3}), "'device' is 3; text is needed"),
        ("environment", json.dumps(ENVIRONMENT | {"threads": True}), "'threads' is true; a whole number is needed"),
        ("config", "{", "not JSON"),
        ("config", json.dumps(CONFIG | {"seed": "0"}), "'seed' is \"0\""),
        ("config", None, "No such"),
    ],
)
def test_files_beside_the_rows_must_have_the_expected_fields(folder, name, text, message):
    path = folder / f"{name}.json"
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        write(folder)
    assert f"{name}.json" in str(error.value)


def test_two_runs_are_compared_row_by_row():
    same = lines(ROWS, ROWS)
    assert "7 rows in common" in same[0] and "failed in the first 1, in the second 1" in same[0]
    assert "in 0 of them." in same[1]
    other = [row("graft", 60, (2, 4), repeat=0, token_ids=[1, 3]), failure("pld")]
    found = lines(ROWS, other)
    assert "only in the first 7, only in the second 1; failed in the first 1, in the second 1." in found[0]
    assert "in 1 of them:" in found[1] and "lcc 4096 a replay graft 0" in found[2] and "x 2.000," in found[3]


def test_a_comparison_of_two_models_warns():
    ours = run(ROWS)
    theirs = run(ROWS, target="another")
    warning = compare(ours, theirs)[2]
    assert f"two models are paired, {ENVIRONMENT['target']} and another" in warning
    assert "warning" not in "".join(compare(ours, ours))


@pytest.mark.parametrize(
    "other",
    [
        dict(token_ids=[1, 3]),
        dict(steps=3),
        dict(accepted_per_step=[4, 2]),
        dict(accepted_by_origin={"draft": 5, "retrieved": 1, "both": 0}),
        dict(stages={"d0": 2}),
    ],
    ids=str,
)
def test_rows_differ_by_their_tokens_and_by_every_count(other):
    mine = row("graft", 30, (2, 4))
    assert "in 1 of them:" in lines([mine], [replace(mine, **other)])[1]
    assert "in 0 of them." in lines([mine], [replace(mine, decode_seconds=9.0)])[1]


def test_a_comparison_pools_repeats_and_keeps_suites_and_lengths_apart():
    def rows(rates, accepted):
        return [row("graft", rate, accepted, prompt=p, repeat=n) for p in "ab" for n, rate in enumerate(rates)] + [
            row("graft", 10, bucket=8192),
            row("graft", 10, suite="qmsum"),
            row("graft", 10, mode="greedy"),
        ]

    found = lines(rows((10, 20, 90), (2, 2)), rows((30, 10, 50), (1, 2)))[-4:]
    # medians 20 and 30: not the mean of 3, 0.5 and 0.56
    assert found[0] == ("replay, lcc, 4K, graft: tokens per second x 1.500, MAT x 0.750; 2 prompts")
    assert [line.split(": ")[0] for line in found[1:]] == [
        "replay, lcc, 8K, graft",
        "replay, qmsum, 4K, graft",
        "greedy, lcc, 4K, graft",
    ]
    assert found[1].endswith("MAT -; 1 prompt")


def test_the_ratio_of_two_runs_speeds_is_a_geometric_mean():
    first, second = (
        [row("graft", rate, accepted, prompt=p) for p, rate, accepted in rows]
        for rows in ((("a", 10, (2, 2)), ("b", 40, (0, 4))), (("a", 40, (4, 4)), ("b", 10, (0, 0))))
    )
    # four times and a quarter as fast: not 2.125 times
    assert lines(first, second)[-1].endswith("tokens per second x 1.000, MAT x 1.000; 2 prompts")


def test_rows_of_prompts_with_other_texts_are_not_compared():
    first = [row(rate=10), row(rate=10, prompt="b", fingerprint="old"), row(rate=10, prompt="c", fingerprint="same")]
    second = [
        row(rate=20, fingerprint="new"),
        row(rate=90, prompt="b", fingerprint="new"),
        row(rate=20, prompt="c", fingerprint="same"),
    ]
    found = lines(first, second)
    assert found[0].startswith("2 rows in common;") and found[-1].endswith("x 2.000, MAT -; 2 prompts")
    assert found[1] == "1 more were measured on prompts of the same id and another text, and are left out."
    with pytest.raises(ValueError, match="have the same ids and other texts, so no rows can be compared"):
        lines(first[1:2], second[1:2])


def test_comparing_runs_without_a_common_row_is_refused():
    with pytest.raises(
        ValueError,
        match=r"no measured row in common(?s:.)*suites lcc; lengths 4K, 8K; methods ar, "
        r"graft; modes replay; 1 of 8 rows failed\.\n.*suites qmsum; lengths whole;",
    ):
        lines(ROWS, [row(suite="qmsum", bucket=0)])


def test_the_costs_of_a_sweep_are_those_of_its_steps():
    rows = [
        row(seconds_by_part={"verify": 0.02, "host": 0.002}, accepted=(0, 0)),
        row("eagle3", 1, (3, 3), seconds_by_part={"draft": 0.018, "verify": 0.04, "accept": 0.002}),
        row("eagle3+budget=16", 1, (3,), seconds_by_part={"draft": 0.009, "verify": 0.015, "accept": 0.001}),
        row("eagle3@2k", 1, (3,), seconds_by_part={"draft": 1.0, "verify": 1.0}),
        row("graft", 1, (3,), seconds_by_part={"draft": 0.002, "retrieve": 0.001, "merge": 0.002, "host": 0.003}),
        row(accepted=(0,), bucket=8192),
        row("not-installed", 1, (3,)),
        row("llama.cpp", 1, (3,)),
    ]
    found = costs_of(rows, ENVIRONMENT, {"draft_top_k": 8})
    assert found.passes.keys() == {4096}
    assert found.passes[4096] == pytest.approx({1: 0.011, 16: 0.016, 60: 0.021})
    assert found.levels[4096] == pytest.approx({8: 0.001}) and found.feeds == found.levels
    assert found.host == pytest.approx(0.006)
    assert found.key == {"model": "toy", "dtype": "float32", "attention": "split", "device": "CPU", "threads": "1"}
    assert costs_of(rows[:2], ENVIRONMENT, {"budget": 30}).passes[4096].keys() == {1, 30}
    with pytest.raises(ValueError, match="of the methods ar and eagle3"):
        costs_of(rows[:1], ENVIRONMENT, {})
    with pytest.raises(ValueError, match="on a GPU without --profile"):
        costs_of_run(run(rows, device="H200"))
    for device, config in (("H200", {"profile": True}), ("CPU of 2 cores", {})):
        assert costs_of_run(run(rows, config=CONFIG | config, device=device)).passes == found.passes


def test_a_method_that_lacks_prompts_is_not_the_fastest():
    rows = [
        row(prompt="a"),
        row(prompt="b"),
        row("suffix", 20, prompt="a"),
        row("suffix", 20, prompt="b"),
        row("pld", 90, prompt="a"),
    ]
    said = summary(run(rows))
    assert "| suffix | **2.00**" in said and "**9.00**" not in said
    assert "| suffix, measured | 2 | 2.00 |" in said
