"""`longgraft diagnose` drafts chains with a drafter's own or with the target's keys, values and features."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
from toys.models import toy_network, toy_target
from toys.sessions import toy_prompt
from toys.trees import begun
from toys.zoo import toy_longspec

from longgraft.drafters.eagle3 import Eagle3Drafter
from longgraft.drafters.pruning import Dense
from longgraft.eval.checks.chains import OWN, ROWS, TARGET, Depth, chains, summed
from longgraft.eval.reports.diagnosis import draw, table
from longgraft.memories.eagle3_cache import Eagle3Cache
from longgraft.methods.needs import embedded
from longgraft.protocol.proposer import Ask
from longgraft.trees.tree import ProposalTree
from longgraft.zoo.longspec.drafter import LongSpecCache, LongSpecDrafter

TEXT, START, DEPTH = toy_prompt(70, seed=2), 50, 4


def drafted(drafter, start: int, depth: int) -> ProposalTree:
    """Returns the chain of most probable tokens that decoding drafts with the root at `start`."""
    begun(toy_target(), drafter.memories, TEXT[:start], following=TEXT[start])
    return drafter.propose(Ask(TEXT[start], 1 + depth, start))


def drafters():
    yield "eagle3", toy_network(1), lambda network: Eagle3Drafter(Eagle3Cache(network), Dense(), DEPTH, 1)
    network = toy_longspec(toy_target(), 1)
    yield "longspec", network, lambda network: LongSpecDrafter(LongSpecCache(network, toy_target()), [1] * DEPTH)


@pytest.mark.parametrize("kind, network, made", drafters(), ids=["eagle3", "longspec"])
def test_own_chains_are_those_that_decoding_drafts(kind, network, made):
    """If the text follows the chain of one start, that start is right at all depths; a changed token is wrong."""
    text = [*TEXT[:61], *drafted(made(network), 60, DEPTH).tokens[1:].tolist()]
    right = chains(toy_target(), network, [*text, 0], START, DEPTH)[OWN]
    assert len(right) == len(text) + 1 - DEPTH - START
    assert right[60 - START].tolist() == [True] * DEPTH
    text[62] = (text[62] + 2) % 96
    assert not chains(toy_target(), network, [*text, 0], START, DEPTH)[OWN][60 - START, 1]


@pytest.mark.parametrize("kind, network, made", drafters(), ids=["eagle3", "longspec"])
def test_the_first_depth_is_the_same_under_all_conditions_and_target_repeats_it(kind, network, made):
    found = chains(toy_target(), network, TEXT, START, DEPTH)
    for right in found.values():
        assert torch.equal(right[:, 0], found[OWN][:, 0])
    for d in range(1, DEPTH):
        assert torch.equal(found[TARGET][:-d, d], found[TARGET][d:, 0])


def spied(network, monkeypatch) -> list[torch.Tensor]:
    """Returns a list to which each later call of `logits` adds its states [S, H]."""
    logits, states = network.logits, []

    def spy(asked, *more):
        states.append(asked)
        return logits(asked, *more)

    monkeypatch.setattr(network, "logits", spy)
    return states


def test_own_chains_have_the_probabilities_of_decoding(monkeypatch):
    network = toy_network(1)
    tree = drafted(Eagle3Drafter(Eagle3Cache(network), Dense(), DEPTH, 1), 60, DEPTH)
    states = spied(network, monkeypatch)
    chains(toy_target(), network, [*TEXT[:61], *tree.tokens[1:].tolist(), 0], START, DEPTH)
    for depth, of_all in zip(range(2, DEPTH + 1), states[3:], strict=False):  # after three of depth 1
        found = network.logits(of_all[60 - START]).detach().log_softmax(-1).max()
        assert float(found) == pytest.approx(float(tree.scores[depth] - tree.scores[depth - 1]), abs=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_replaced_rows_matter_and_so_do_replaced_features(seed, monkeypatch):
    """Logits are compared, because the most probable tokens of a random drafter are seldom right."""
    network = toy_network(seed)
    order = spied(network, monkeypatch)
    chains(toy_target(), network, TEXT, START, 3)
    # Depth 1 comes three times, then depths 2 and 3 of own, rows and target.
    seen = {OWN: order[3:5], ROWS: order[5:7], TARGET: order[7:9]}
    torch.testing.assert_close(seen[OWN][0], seen[ROWS][0])  # at depth 2 no row differs yet
    assert (seen[OWN][1] - seen[ROWS][1]).abs().max() > 1e-3
    assert (seen[ROWS][1] - seen[TARGET][1]).abs().max() > 1e-3


def test_reached_starts_are_right_at_all_depths_before():
    right = torch.tensor([[1, 1, 0], [1, 0, 1], [0, 1, 1], [1, 1, 1]]).bool()
    depths = list(summed([{OWN: right[:2]}, {OWN: right[2:]}], "toy", "made up", 64))
    assert [(d.agreed, d.reached, d.accepted) for d in depths] == [(3, 4, 3), (3, 3, 2), (3, 2, 1)]
    assert {(d.prompts, d.starts) for d in depths} == {(2, 4)}


def test_a_text_that_is_too_short_is_refused():
    with pytest.raises(ValueError, match="a smaller --depth"):
        chains(toy_target(), toy_network(), TEXT[:52], START, 4)


def test_the_command_writes_rows_a_table_and_a_figure_of_the_embedded_pair(command, tmp_path):
    text = (Path(__file__).parents[1] / "toys/diagnosed.txt").read_text()
    (tmp_path / "rows.jsonl").write_text(json.dumps({"_id": "a", "text": text[:1500], "continuation": text[1500:1700]}))
    said = command(
        "diagnose",
        "--suites",
        tmp_path / "rows.jsonl",
        "--buckets",
        128,
        "--depth",
        3,
        "--max-new-tokens",
        40,
        "--head",
        "short=" + str(embedded("drafter-2k")),
        "--out",
        tmp_path / "run",
    )
    rows = list(csv.DictReader((tmp_path / "run/diagnosis.csv").open()))
    assert {row["drafter"] for row in rows} == {"drafter", "short"} and len(rows) == 2 * 3 * 3
    assert all(int(row["starts"]) == 37 >= int(row["agreed"]) for row in rows)
    firsts = {(row["drafter"], row["agreed"]) for row in rows if row["depth"] == "1"}
    assert len(firsts) == 2  # the same under all conditions
    assert int(rows[0]["agreed"]) > 10  # of 37, even for prose, because it was trained for this target
    assert "| acceptance | gap |" in said and said.split("\n\n")[0] in (tmp_path / "run/summary.md").read_text()
    assert "<svg" in (tmp_path / "run/diagnosis.svg").read_text()


def test_the_figure_omits_acceptance_of_few_starts_and_tells_many_drafters_apart(tmp_path, monkeypatch):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    figures = []
    monkeypatch.setattr(pyplot, "close", figures.append)
    draw(
        tmp_path / "few.svg",
        [Depth(f"drafter{i}", "made up", 64, OWN, d, 1, 20, 15, 20, 15) for i in range(9) for d in (1, 2)],
        "toy",
    )
    above, below = figures[0].axes
    assert not above.lines
    assert len({(line.get_color(), line.get_marker()) for line in below.lines}) == 9


def test_the_table_omits_shares_of_few_starts():
    depths = [
        Depth("toy", "made up", 64, condition, d, 1, 50, 30, reached, 15)
        for condition in (OWN, TARGET)
        for d, reached in ((1, 50), (2, 29))
    ]
    assert [line.split("|")[-3:-1] for line in table(depths)[4:7]] == [
        [" 0.30 ", " - "],
        [" 0.30 ", " - "],
        [" 0.00 ", " - "],
    ]
    assert [line.split("|")[-3:-1] for line in table(depths)[7:9]] == [[" 0.60 ", " 0.60 "]] * 2
