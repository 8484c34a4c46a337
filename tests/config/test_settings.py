"""Every option is defined once: checks, parsing, printing and flags come from its field."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, fields
from typing import Annotated, Literal

import pytest
from annotated_types import Ge, Le

from longgraft.acceptance.sampling import Sampling
from longgraft.acceptance.sampling_defaults import SamplingDefaults
from longgraft.config.answer_settings import LogitSettings, SamplingSettings, StopSettings
from longgraft.config.option_files import describe
from longgraft.config.options import Checked, Option, Share, made, option, options, size
from longgraft.config.settings import Bounds, Drafting, HeadOverrides, Pair, Retrieving, Settings
from longgraft.drafters.eagle3 import LEVELS, TOP_K
from longgraft.files.data_files import read_table
from longgraft.files.file_errors import reason
from longgraft.methods.find import find
from longgraft.methods.registry.graft import GraftChoices


@dataclass(frozen=True)
class Toy(Checked):
    """A group with every kind of option."""

    count: Annotated[int, Ge(1), Le(9)] = option(3, "Of things", unit="things")
    share: Share = option(0.5, "Of all")
    lengths: tuple[Annotated[int, Ge(1), Le(9)], ...] = option((1, 2), "In a row", flag="--rows")
    pair: tuple[float, int] | None = option(None, "Of both", none="neither")
    names: tuple[Literal["a", "b"], ...] = option(("a",), "Of people")
    places: dict[str, str] = option({}, "By name", many=True)
    quick: bool = option(False, "Not slowly")
    head: HeadOverrides = HeadOverrides()


@pytest.mark.parametrize(
    "values, message",
    [
        ({"count": 0}, r"count is 0; it must be a whole number from 1 to 9 \(things\)"),
        ({"count": 10}, "count is 10"),
        ({"count": True}, "count is True"),
        ({"count": "3"}, "count is '3'"),
        ({"count": 3.0}, "count is 3.0"),
        ({"count": None}, "count is missing"),
        ({"share": float("nan")}, "share is nan"),
        ({"share": True}, "share is True"),
        ({"share": float("inf")}, "share is inf"),
        ({"lengths": (1, 99)}, "lengths is"),
        ({"lengths": [1]}, "lengths is"),
        ({"lengths": 1}, "lengths is 1"),
        ({"pair": (1.0,)}, "pair is"),
        ({"pair": (1.0, 2.5)}, "pair is"),
        ({"names": ("c",)}, "names: 'c' is unknown. Known: a, b"),
        ({"names": "a"}, "names is 'a'"),
        ({"places": {"x": 1}}, "places is"),
        ({"quick": 1}, "quick is 1"),
        ({"head": {}}, "head is"),
    ],
)
def test_a_value_of_another_type_or_out_of_range_is_named(values, message):
    with pytest.raises(ValueError, match=message):
        Toy(**values)
    assert Toy(count=1).count == 1 and Toy(count=9, share=1).count == 9


@pytest.mark.parametrize(
    "name, text, value",
    [
        ("count", "9", 9),
        ("lengths", "1, 2,3", (1, 2, 3)),
        ("pair", "none", None),
        ("pair", "2,4", (2.0, 4)),
        ("names", "a,b", ("a", "b")),
        ("count", "-2", -2),
        ("places", "x=/y,z=w", {"x": "/y", "z": "w"}),
        ("quick", "true", True),
        ("share", "1e-1", 0.1),
    ],
)
def test_a_text_is_read_by_the_fields_type(name, text, value):
    assert options(Toy)[name].parse(text) == value


@pytest.mark.parametrize(
    "name, text",
    [
        ("count", "none"),
        ("count", "2.5"),
        ("count", "--1"),
        ("share", "half"),
        ("pair", "1,x"),
        ("pair", "1"),
        ("pair", "1/2/3"),
        ("places", "x"),
        ("quick", "yes"),
        ("count", "9" * 5000),
    ],
)
def test_a_text_of_another_kind_is_refused(name, text):
    with pytest.raises(ValueError, match=f"{name} is '"):
        options(Toy)[name].parse(text)


def test_sizes_may_end_in_a_letter():
    assert [size(text) for text in ("512", "8k", "1.5K", "100m", "2b")] == [512, 8192, 1536, 10**8, 2 * 10**9]
    for text in ("", "k", "1.5", "-1k", "8kk", "1e3", "\u0663"):
        with pytest.raises(ValueError, match="is no number such as"):
            size(text)


def test_a_librarys_error_becomes_plain_words(tmp_path):
    from safetensors import safe_open

    (tmp_path / "text").write_text("hello")
    (tmp_path / "bytes").write_bytes(b"x\xff")
    for read, said in (
        (lambda: safe_open(tmp_path, "pt"), "it is a folder"),
        (lambda: tmp_path.read_text(), "it is a folder"),
        (lambda: safe_open(tmp_path / "text", "pt"), "it is no whole safetensors file"),
        (lambda: json.loads("{,"), "it is no JSON from line 1, column 2 on"),
        (lambda: (tmp_path / "bytes").read_text("utf-8"), "it is not UTF-8 at byte 1"),
        (lambda: (tmp_path / "absent").read_text(), "No such file or directory"),
        (lambda: {}["version"], "'version' is missing or unknown"),
        (lambda: None.get("x"), "it is damaged, or of another format"),
        (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
    ):
        with pytest.raises(Exception) as error:
            read()
        assert reason(error.value) == said


@pytest.mark.parametrize(
    "text, message",
    [
        ('{"count": "3"}', "count is '3'"),
        ('{"count": true}', "count is True"),
        ('{"cuont": 3}', "sets 'cuont', .* Known: count, head, names, pair, places, quick, rows, share"),
        ("[1]", r"holds \[1\]; a table is needed"),
        ("{", "is not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"rows": [1, "2"]}', "rows is"),
        ('{"head": {"window": "x"}}', "head: window is 'x'"),
        ("\xff", "cannot be read"),
        ('{"count": 1e999}', "count is inf"),
        ('{"places": {"a": {"b": {}}}}', "places is"),
    ],
)
def test_a_files_mistake_is_named_with_the_file_and_the_field(tmp_path, text, message):
    path = tmp_path / "options.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=message) as error:
        made(Toy, read_table(path), str(path))
    assert str(path) in str(error.value)


def test_a_file_may_use_the_names_of_fields_or_flags(tmp_path):
    path = tmp_path / "options.toml"
    path.write_text('rows = "4,8"\npair = [2.0, 3]\n[head]\nwindow = 7\n')
    found = made(Toy, {"count": 5, "lengths": (9,)} | read_table(path), str(path))
    assert (found.lengths, found.pair, found.head.window, found.count) == ((4, 8), (2.0, 3), 7, 5)


def test_printed_settings_are_read_back_unchanged():
    groups = (
        Pair(),
        Settings(budget=30, head=HeadOverrides(window=9)),
        SamplingSettings(0.5, seed=2**40),
        StopSettings(stop=('a\n\u2028"',)),
    )
    table = tomllib.loads("\n".join(describe(*groups)))
    for group in groups:
        own = {name: value for name, value in table.items() if name in options(type(group))}
        assert made(type(group), own, "print") == group


def test_every_option_says_what_it_is_for_and_what_its_numbers_mean():
    for group in (HeadOverrides, Pair, Settings, SamplingSettings, StopSettings, Drafting, Retrieving):
        for name, one in options(group).items():
            assert one.help or one.kind is HeadOverrides, name  # its fields say it
            assert one.none or "None" not in str(one.kind), f"{name} does not say what None stands for"
            assert one.default is None or group().__dict__[name] == one.default


@pytest.mark.parametrize(
    "name, default, text",
    [
        ("count", 3, "Of things; from 1 to 9; default: 3 things."),
        ("share", 0.25, "Of all; from 0 to 1; default: 0.25."),
        ("pair", None, "Of both; default: neither."),
        ("names", ("a",), "Of people; one or more of a, b; default: a."),
        ("places", {}, "By name."),
        ("quick", False, "Not slowly."),
    ],
)
def test_help_says_the_range_the_choices_the_default_and_its_unit(name, default, text):
    assert options(Toy)[name].help_text(default) == text


def test_help_hides_neither_choices_nor_default_because_the_sentence_has_such_words():
    described = Option("The line is cut off", hint=Literal["line", "block"], unit="seconds")
    assert described.help_text(30.0) == "The line is cut off; one of line, block; default: 30 seconds."


def test_settings_have_the_defaults_of_the_code_that_reads_them():
    assert (Bounds.draft_levels, Bounds.draft_top_k) == (LEVELS, TOP_K)
    # No option sets a recording or the grammar of tool calls.
    names = {f.name for f in fields(Sampling) if f.name not in ("replay", "tool_calls")}
    options = vars(SamplingSettings()) | LogitSettings().read()
    assert options.keys() == names and SamplingDefaults().sampling(options) == Sampling()


def test_python_may_give_objects_where_flags_give_names(tmp_path):
    import torch

    made = Settings(dtype=torch.bfloat16, calibration=tmp_path)
    assert made.dtype == "bfloat16" and made.calibration == str(tmp_path)
    with pytest.raises(ValueError, match="dtype: 'int8' is unknown"):
        Settings(dtype=torch.int8)


def test_one_method_takes_settings_of_its_own():
    from longgraft.eval.runs.variants import Variant

    found = Variant.parse("graft@long+budget=30+levels=5+window=2k+warm=none")
    assert (found.own_budget, found.calibrations) == (30, {"warm": "none"})
    assert found.method == "graft+levels=5+window=2k"
    assert find(found.method).choices == GraftChoices(levels=5, window=2048)
    for name, said in (
        ("graft+budget=5000", "from 1 to 4,096"),
        ("pld+levels=2", "pld does not read levels"),
        ("eagle3+depth=2", "does not read depth. It reads budget, levels, top_k, window"),
        ("graft+levels=99", r"graft\+levels=99.*levels is 99; it must be .* from 1 to 64"),
        ("graft+speed=2", r"Known: budget=NUMBER.*warm=NAME"),
        ("graft+budget=x", "budget is 'x'"),
        ("transformers+budget=2", "transformers does not read budget"),
    ):
        with pytest.raises(ValueError, match=said):
            Variant.parse(name)
