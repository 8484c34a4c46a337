"""Schemas that cannot be followed are followed in part, or refused by the place that is wrong."""

from __future__ import annotations

import pytest
from toys.tools import UNFOLLOWABLE

from longgraft.acceptance.json_schemas import followable, problems


@pytest.mark.parametrize(("schema", "place", "left"), UNFOLLOWABLE)
def test_the_wrong_place_is_found_and_left_out(schema, place, left):
    (found,) = problems(schema)
    assert found.place == place and str(found).startswith(f"{place} is ")
    made, why = followable(schema)
    assert why == (found,) and {key: value for key, value in made.items() if key != "x-guidance"} == left
    assert all(other == found for other in problems(made))


def test_a_schema_that_can_be_followed_stays_as_it_is():
    schema = {"type": "object", "properties": {"a": {"$ref": "#/properties/b"}, "b": {"enum": ["x"]}}}
    assert followable(schema) == (schema, ())


def test_all_wrong_places_are_found_also_behind_references():
    schema = {
        "type": "object",
        "required": ["a"],
        "properties": {"a": {"$ref": "#/$defs/d"}, "b": {"$ref": "#/$defs/x~1y"}},
        "$defs": {
            "d": {"properties": {"p": {"pattern": "(?=a)"}, "q": {"type": "any"}, "r": {"$ref": "https://a.b"}}},
            "x/y": {"type": "string"},
        },
    }
    wrong = ["$defs.d.properties.p.pattern", "$defs.d.properties.q.type", "$defs.d.properties.r.$ref"]
    assert [found.place for found in problems(schema)] == wrong
    made = followable(schema)[0]
    assert made["properties"] == schema["properties"]
    assert made["$defs"]["d"]["properties"] == {"p": {}, "q": {}, "r": {}}


def test_keywords_that_exclude_each_other_behind_a_reference_are_found():
    schema = {
        "properties": {"a": {"$ref": "#/$defs/d", "type": "integer"}},
        "required": ["a"],
        "type": "object",
        "$defs": {"d": {"type": "string"}},
    }
    assert [found.place for found in problems(schema)] == ["properties.a.type"]


def test_a_schema_that_nests_too_deeply_is_one_problem():
    deep: dict = {}
    for _ in range(2000):
        deep = {"items": deep}
    assert [str(found) for found in problems(deep)] == ["it nests too deeply"] and followable(deep)[0] == {}
