"""Fixtures of the tests of training."""

from __future__ import annotations

import pytest
from toys.training import counting

from longgraft.yarn_drafters.training.corpus import EncodedCorpus


@pytest.fixture(scope="module")
def corpus() -> EncodedCorpus:
    return counting()
