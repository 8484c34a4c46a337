"""The suite notices planted errors: two of them here, all of them by `python tests/mutations.py`."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
from mutations import Copy, main
from planted import MUTATIONS, Mutation

TESTS = Path(__file__).parents[1]
HANDFUL = ("top-p drops the token that crosses its border", "the rate counts the first token")


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Copy:
    return Copy(tmp_path_factory.mktemp("copy"))


def test_every_error_can_be_planted_and_names_existing_tests(copy):
    for mutation in MUTATIONS:
        with copy.planted(mutation):
            pass
        for claim in mutation.noticed.split():
            file, _, name = claim.partition("::")
            text = (copy.root / copy.test(file)).read_text()
            assert f"def {name.partition('[')[0]}(" in text, claim
            assert not re.search(r"^(from|import) benchmarks", text, re.MULTILINE), file  # the copy has none
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS) >= 45


@pytest.mark.parametrize(
    ("symbol", "old"),
    [("ProposalTree", "no such text"), ("ProposalTree", "self"), ("NoSuchTree", "self"), ("METHODS", "Method(")],
)
def test_a_symbol_or_text_that_is_not_there_exactly_once_is_refused(copy, symbol, old):
    with (
        pytest.raises(ValueError, match="and must be there once"),
        copy.planted(Mutation("rotten", symbol, old, "", "")),
    ):
        pass


@pytest.mark.slow
def test_planted_errors_are_noticed_and_a_harmless_change_survives():
    code = (
        "import sys; from mutations import MUTATIONS, Mutation, survivors; print(survivors(["
        "*(one for name in sys.argv[1:] for one in MUTATIONS if one.name == name), "
        "Mutation('harmless', 'tree:', 'immutable value', 'value', "
        "'test_figures.py::test_the_decoding_rate_excludes_the_prefills_token')]))"
    )
    done = subprocess.run([sys.executable, "-c", code, *HANDFUL], cwd=TESTS, capture_output=True, text=True)
    told = [re.sub(r" +[0-9.]+ s ", " ", line) for line in done.stdout.splitlines()]
    assert told == [*(f"noticed  {name}" for name in HANDFUL), "SURVIVES  harmless", "['harmless']"], done.stderr


def test_parts_of_the_list_are_planted_and_survivors_are_reported(monkeypatch, capsys):
    planted = []

    def survivors(mutations):
        planted.append([mutation.name for mutation in mutations])
        return planted[-1][:1]

    monkeypatch.setattr("mutations.survivors", survivors)
    assert [main(["--part", f"{part}/3"]) for part in (1, 2, 3)] == [1, 1, 1]
    assert sorted(chain(*planted)) == sorted(one.name for one in MUTATIONS) and planted[1][0] == MUTATIONS[1].name
    first = capsys.readouterr().out.splitlines()[:2]
    assert first[0].startswith(f"{len(planted[0]) - 1} of {len(planted[0])} planted errors were noticed")
    assert first[1] == f"  survives: {MUTATIONS[0].name}"


@pytest.mark.parametrize("part", ["0/3", "4/3", "3", "a/b"])
def test_a_part_that_is_not_there_is_refused(part, capsys):
    with pytest.raises(SystemExit):
        main(["--part", part])
    assert "Give K/N with K from 1 to N" in capsys.readouterr().err


def test_an_unknown_error_is_refused_with_similar_names(capsys):
    assert main([HANDFUL[0][:-1]]) == 2 and HANDFUL[0] in capsys.readouterr().err
