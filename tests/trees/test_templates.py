"""Templates: the paper's counts, closed and nested; any number of slots; Token Recycling's official tree."""

from __future__ import annotations

import json

import pytest

from longgraft.trees.templates import Template, bounded, chain, envelope, for_slots, graft_templates, token_recycling

COUNTS = {  # per depth, Graft (arXiv 2605.20104), Table 7
    "full": [8, 16, 14, 11, 8, 7, 6, 5, 5],
    "d0": [8, 10, 8, 6, 5, 4, 4, 4, 3],
    "d1": [6, 7, 5, 4, 4, 3, 3, 2, 2],
    "d5": [4, 3, 3, 2, 2, 2, 2, 1, 1],
}


def counts(template: Template) -> list[int]:
    depths = [len(path) for path in template.paths]
    return [depths.count(depth) for depth in range(1, max(depths) + 1)]


def assert_closed(template: Template) -> None:
    """Checks that nodes are distinct, parents come before children, and ranks are below 8."""
    paths = template.paths
    assert len(set(paths)) == len(paths)
    assert all(parent < node for node, parent in enumerate(template.parents))
    assert all(path[:-1] in paths or len(path) == 1 for path in paths)
    assert all(0 <= rank < 8 for path in paths for rank in path)


@pytest.mark.parametrize("name", COUNTS)
def test_stage_templates_have_the_papers_counts(name):
    template = graft_templates()[name]
    assert counts(template) == COUNTS[name]
    assert_closed(template)
    depths = [len(path) for path in template.paths]
    assert depths == sorted(depths) and depths[-1] == 9
    assert all((*path[:-1], rank) in template.paths for path in template.paths for rank in range(path[-1]))


def test_stage_templates_are_nested():
    nested = [set(graft_templates()[name].paths) for name in ("d5", "d1", "d0", "full")]
    assert nested[0] < nested[1] < nested[2] < nested[3]


@pytest.mark.parametrize("slots, name", [(80, "full"), (52, "d0"), (36, "d1"), (20, "d5")])
def test_a_stages_slots_get_its_own_template(slots, name):
    assert for_slots(slots) is graft_templates()[name]


def test_small_serving_trees_are_those_of_the_appendix():
    written = {3: "0 1 00", 5: "0 1 2 00 000", 6: "0 1 2 00 01 000"}
    for slots, text in written.items():
        assert ["".join(map(str, path)) for path in for_slots(slots).paths] == text.split()


@pytest.mark.parametrize("slots", [*range(1, 81), 81, 128, 200, 500])
def test_any_number_of_slots_has_a_closed_template_of_that_size(slots):
    template = for_slots(slots)
    assert len(template) == slots
    assert_closed(template)
    assert all((*path[:-1], rank) in template.paths for path in template.paths for rank in range(path[-1]))
    if slots <= 80:
        assert set(template.paths) <= set(graft_templates()["full"].paths)


@pytest.mark.parametrize("slots", [1, 3, 7, 20, 36, 44, 52, 80, 100])
def test_the_envelope_is_the_slots_own_nodes_then_the_rest_of_the_full_template(slots):
    template, own, full = envelope(slots), for_slots(slots).paths, graft_templates()["full"].paths
    assert template.paths[:slots] == own
    assert template.paths[slots:] == tuple(path for path in full if path not in own)
    assert_closed(template)


def test_token_recyclings_template_is_the_official_one(golden):
    saved = json.loads((golden / "token_recycling/tree_template.json").read_text())
    ours = token_recycling()
    assert [list(path) for path in ours.paths] == saved["template"]
    assert len(ours) + 1 == saved["n_nodes_with_root"]
    assert ours.parents == saved["father_index"] and ours.ranks == saved["candi_index"]
    assert [0] + [len(path) for path in ours.paths] == saved["position_offset"]


@pytest.mark.parametrize("slots", [8, 20, 36, 52, 80])
def test_bounds_on_depth_and_width_hold_and_fill_the_slots_where_they_leave_room(slots):
    assert bounded(slots, 9, 8) is envelope(slots)
    for depth, width in ((2, 8), (4, 8), (12, 8), (9, 1), (9, 2), (3, 3)):
        template = bounded(slots, depth, width)
        assert_closed(template)
        assert all(len(path) <= depth and max(path) < width for path in template.paths)
        room = sum(width**d for d in range(1, depth + 1))
        assert len(template) >= min(slots, room)
    assert bounded(slots, 9, 1).paths == chain(9).paths
