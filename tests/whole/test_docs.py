"""Tests of docs/adding-a-method.md: its code runs as printed, as a method from outside the package."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from toys.models import VOCAB, toy_model
from toys.sessions import METHODS
from toys.sources import BLOCKS, CHOICES_FILE, IN_PYTHON, METHOD_FILE, ROOT, TEST_FILE

import longgraft
from longgraft.acceptance.rules import DrawThenWalk, Sampled
from longgraft.eval.checks.losslessness import assert_lossless
from longgraft.eval.runs.rows import Row, read_rows
from longgraft.eval.runs.variants import Variant
from longgraft.methods.find import as_method, find, installed
from longgraft.trees.tree import ProposalTree

ENTRY_POINTS = next(text for language, text in BLOCKS if language == "toml")
NAME = "my_method.py:METHOD"


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A user's folder with the documented file."""
    torch.set_num_threads(1)
    (tmp_path / "my_method.py").write_text(METHOD_FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_method", raising=False)
    return tmp_path


def test_documented_method_has_at_most_48_lines():
    assert len(METHOD_FILE.splitlines()) <= 48


def test_documented_method_is_listed_and_equals_plain_decoding(folder, command):
    assert "bigrams" not in command("methods") and "what followed a token last time" in command("methods", NAME)
    (folder / "prompt.txt").write_text((ROOT / "longgraft/trees/tree.py").read_text()[:1500])
    answer = json.loads(
        command(
            "generate",
            "--method",
            NAME,
            "--drafter",
            "none",
            "--prompt-file",
            "prompt.txt",
            "--max-new-tokens",
            24,
            "--compare",
            "--json",
        )
    )
    assert answer["method"] == "bigrams" and answer["compare"]["identical"]
    assert answer["stats"]["accepted_by_origin"]["retrieved"] > 0


def test_load_accepts_a_method_and_a_proposer(folder):
    space: dict = {}
    exec(IN_PYTHON, space)
    plain = longgraft.load(method="ar", tell=False).generate("def add(a, b):", 8).token_ids
    for method in (space["METHOD"], space["Bigrams"](space["Successors"]())):
        assert longgraft.load(method=method, tell=False).generate("def add(a, b):", 8).token_ids == plain


def test_choices_are_set_in_a_methods_name(folder, command):
    (folder / "sure.py").write_text(CHOICES_FILE)
    (folder / "prompt.txt").write_text((ROOT / "longgraft/trees/tree.py").read_text()[:1500])
    answers = [
        json.loads(
            command(
                "generate",
                "--method",
                f"sure.py:METHOD+least={least}",
                "--budget",
                60,
                "--json",
                "--prompt-file",
                "prompt.txt",
                "--max-new-tokens",
                12,
            )
        )
        for least in ("0", "1.0")
    ]
    assert [answer["method"] for answer in answers] == ["sure+least=0.0", "sure+least=1.0"]
    dense, cut = (answer["stats"] for answer in answers)
    assert set(dense["stages"]) == {"none"} and set(cut["stages"]) == {"d0"}
    assert answers[0]["token_ids"] == answers[1]["token_ids"]
    assert "+every=2" in command("methods", "sure.py:METHOD")


@pytest.mark.slow
def test_documented_test_passes(folder):
    space: dict = {}
    exec(TEST_FILE, space)
    space["test_bigrams_say_what_plain_decoding_says"]()


@pytest.mark.slow
def test_sweep_measures_an_outside_method_under_its_given_name(folder, command):
    text = (ROOT / "longgraft/engine/session.py").read_text()
    (folder / "rows.jsonl").write_text(json.dumps({"_id": "a", "text": text[:2200], "continuation": text[2200:2300]}))
    where = str(folder / NAME)
    names = ("ar", NAME, f"{NAME}+budget=4", where)
    command(
        "sweep",
        "--suites",
        "rows.jsonl",
        "--buckets",
        256,
        "--methods",
        ",".join(names),
        "--mode",
        "replay,sampled",
        "--prompts",
        1,
        "--repeats",
        1,
        "--max-new-tokens",
        12,
        "--drafter",
        "none",
        "--out",
        "run",
    )
    rows = read_rows(folder / "run")
    assert {row.key.method for row in rows} == set(names) and len(rows) == 8
    assert all(isinstance(row, Row) and row.lossless.first_divergence is None for row in rows)
    counts = {name: [row.accepted_per_step for row in rows if row.key.method == name] for name in names}
    assert counts[NAME] == counts[where] and max(map(max, counts[f"{NAME}+budget=4"])) <= 3
    summary = (folder / "run/summary.md").read_text()
    assert all(f"| {name} |" in summary for name in names)
    label = f"{NAME}+budget=4=four nodes"
    command("plot", "run", "--label", label)
    assert "<!-- four nodes -->" in (folder / "run/mat_by_length.svg").read_text()


def test_entry_point_registers_a_method(folder, command, monkeypatch):
    info = folder / "bigrams-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bigrams\nVersion: 1.0\n")
    group, entry = ENTRY_POINTS.strip().splitlines()
    assert group == '[project.entry-points."longgraft.methods.v2"]'
    (info / "entry_points.txt").write_text(f"[longgraft.methods.v2]\n{entry.replace(chr(34), '')}\n")
    installed.cache_clear()
    try:
        assert "what followed a token last time" in command("methods")
        assert find("bigrams").budget == 11 and Variant.parse("bigrams+budget=4").budget(None) == 4
    finally:
        installed.cache_clear()


def test_method_path_may_contain_syntax_characters(tmp_path):
    odd = tmp_path / "a+b@c"
    odd.mkdir()
    (odd / "my_method.py").write_text(METHOD_FILE)
    variant = Variant.parse(f"{odd}/{NAME}@long+budget=4")
    assert (variant.method, variant.head, variant.budget(60)) == (f"{odd}/{NAME}", "long", 4)


NEEDY = """
from __future__ import annotations

from dataclasses import dataclass

from my_method import Bigrams, Successors

from longgraft.methods.find import Method
from longgraft.methods.needs import Need


@dataclass
class Store:
    pairs: dict[int, int]


STORE = Need("store", "a store of pairs", lambda sources: Store({1: sources.target.vocab_size}))
GIVEN = []
METHOD = Method("stored", "-", "-", lambda parts: GIVEN.append(parts.the(STORE)) or Bigrams(Successors()), (STORE,))
"""


def test_sweep_loads_an_outside_methods_needs(folder, command):
    (folder / "needy.py").write_text(NEEDY)
    text = (ROOT / "longgraft/engine/session.py").read_text()[:2200]
    (folder / "rows.jsonl").write_text(json.dumps({"_id": "a", "text": text}))
    command(
        "sweep",
        "--suites",
        "rows.jsonl",
        "--buckets",
        256,
        "--methods",
        "needy.py:METHOD",
        "--mode",
        "sampled",
        "--prompts",
        1,
        "--repeats",
        1,
        "--max-new-tokens",
        4,
        "--drafter",
        "none",
        "--out",
        "run",
    )
    assert not any(row.key.method != "ar" and not isinstance(row, Row) for row in read_rows(folder / "run"))
    assert all(store.pairs[1] == 4096 for store in sys.modules["needy.py"].GIVEN)


def test_choices_page_has_every_heading_that_code_names():
    headings = {line[3:].lower() for line in (ROOT / "docs/choices.md").read_text().splitlines() if line[:3] == "## "}
    folders = [ROOT / name for name in ("longgraft", "yarn_drafters", "prefill", "eval")]
    named = [
        name
        for folder in folders
        for path in folder.rglob("*.py")
        for name in re.findall(r"docs/choices\.md, ([a-z -]+)", path.read_text())
    ]
    assert len(named) >= 5 and set(named) <= headings


class Astray:
    """Proposes a tree with another root than the one asked for."""

    memories = ()

    def propose(self, ask):
        return ProposalTree.chain(torch.tensor([(ask.root + 1) % VOCAB]))


def test_assert_lossless_names_the_first_wrong_token():
    with pytest.raises(
        AssertionError,
        match=r"^Astray, budget 1, greedy, prompt of 75 tokens: it decodes \[\d+\] "
        r"where plain decoding has \[\d+\], at new token \d+\.$",
    ):
        assert_lossless(Astray(), (toy_model(), None))


class OtherSeed(DrawThenWalk):
    """Draws with another seed, which keeps the target's distribution but not its tokens."""

    law = "otherwise"

    def __init__(self, rule):
        self.rule = replace(rule, seed=9) if isinstance(rule, Sampled) else rule

    def keys(self, positions):
        return self.rule.keys(positions)

    def choose(self, logits, keys):
        return self.rule.choose(logits, keys)


@pytest.mark.slow
def test_assert_lossless_checks_the_declared_promise():
    method = replace(METHODS["retrieval"], verifies=lambda parts: lambda one: replace(one, rule=OtherSeed(one.rule)))
    with pytest.raises(AssertionError, match="sampled"):
        assert_lossless(method, (toy_model(), None))
    assert assert_lossless(replace(method, promise="distribution"), (toy_model(), None)) > 0
    with pytest.raises(AssertionError, match="greedy"):
        assert_lossless(replace(as_method(Astray(), "astray"), promise="distribution"), (toy_model(), None))
    with pytest.raises(ValueError, match="'retrieval' is lossy"):
        assert_lossless(replace(method, promise="lossy"), (toy_model(), None))
