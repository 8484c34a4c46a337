"""The suite notices small errors; `python tests/mutations.py` plants all of them, this a handful."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from mutations import Copy
from planted import MUTATIONS, Mutation

TESTS = Path(__file__).parent
HANDFUL = ("top-p drops the token that crosses its border", "an end token inside a path is missed",
           "a gate compares 1 + log-probability", "drafted siblings see one another",
           "a drafter forgets what waits when more comes", "the rate counts the first token")


def test_every_error_can_be_planted_and_names_claims_that_there_are(tmp_path):
    copy = Copy(tmp_path)
    for mutation in MUTATIONS:
        with copy.planted(mutation):
            pass
        for claim in mutation.noticed.split():
            file, _, name = claim.partition("::")
            assert f"def {name.partition('[')[0]}(" in (TESTS / file).read_text() if name else (TESTS / file).exists()
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS) >= 45


@pytest.mark.parametrize(("symbol", "old"), [
    ("ProposalTree", "no such text"), ("ProposalTree", "self"), ("NoSuchTree", "self"), ("METHODS", "Method(")])
def test_what_is_not_there_once_is_refused(tmp_path, symbol, old):
    with (pytest.raises(ValueError, match="and must be there once"),
          Copy(tmp_path).planted(Mutation("rotten", symbol, old, "", ""))):
        pass


@pytest.mark.slow
def test_a_handful_of_small_errors_is_noticed_one_by_one():
    done = subprocess.run([sys.executable, str(TESTS / "mutations.py"), *HANDFUL], capture_output=True, text=True,
                          check=False)
    assert (done.returncode, done.stdout.splitlines()) == (0, [f"noticed   {name}" for name in HANDFUL]), done.stderr


@pytest.mark.slow
def test_an_error_that_changes_nothing_is_said_to_survive():
    code = ("from mutations import Mutation, survivors; print(survivors(["
            "Mutation('harmless', 'tree:', 'Knows', 'knows', "
            "'test_figures.py::test_the_rate_is_of_the_tokens_that_decoding_yielded')]))")
    done = subprocess.run([sys.executable, "-c", code], cwd=TESTS, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["SURVIVES  harmless", "['harmless']"], done.stderr
