"""How the suite is run, and its fixtures; models and sessions are in `toys`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

# Tests take all cores and each of them one, also what it starts: of two threads, one waits for a core at every product.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

# Triton reads it once, when anything first imports it: its kernels are interpreted where they cannot run.
os.environ.setdefault("TRITON_INTERPRET", str(int(not torch.cuda.is_available())))

from toys.commands import run, saved_pair
from toys.models import SHARED
from toys.training import counting

from longgraft.kernels.build import NotBuilt
from longgraft.kernels.cpu import CpuKernels, cpu_kernels
from longgraft.yarn_drafters.training.corpus import EncodedCorpus

CAPTURING = "_output_capturing_hooks_installed"      # transformers sets it on a model with hooks of its own
GOLDEN = Path(__file__).parent / "golden"
FULL_GOLDEN = Path(__file__).parents[2] / "shared" / "golden"


# Files that take longest, or wait: they go first, so that no worker is left with one of them at the end.
FIRST = ("ray", "lossless", "fixed", "triton", "benchmarks", "pretend", "kernels", "side_by_side", "measure", "sweep",
         "bench", "prefixes", "mutations", "cli", "partial", "training_drafter", "families", "memories", "docs")


def pytest_addoption(parser) -> None:
    parser.addoption("--on", default="cuda", metavar="DEVICE", help="Of the tests marked gpu; cpu rehearses them.")


def pytest_configure(config) -> None:
    config.option.loadscopereorder = False      # pytest-xdist's own order, by numbers of tests, leaves few long ones


def pytest_collection_modifyitems(items) -> None:
    order = {f"test_{name}.py": n for n, name in enumerate(FIRST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


@pytest.fixture(scope="session")
def device(request) -> torch.device:
    """Where the tests marked gpu run."""
    where = torch.device(request.config.getoption("--on"))
    if where.type == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device here; benchmarks/gpu/check.sh runs this on one, `-m gpu --on cpu` rehearses it")
    return where


@pytest.fixture(autouse=True)
def unhooked() -> Iterator[None]:
    """A test that asks a shared model for its hidden states fails: it must ask a copy (`hidden_states`).

    Hooks of ours are not looked for: a server's thread may still be in a pass.
    """
    yield
    hooked = [family for family, model in SHARED.items() if hasattr(model.get_decoder(), CAPTURING)]
    for family in hooked:       # the tests behind this one have not done it
        del SHARED[family]
    assert not hooked, f"transformers left its hooks on the shared {hooked}"


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Path:
    """Folders of a toy target with a word tokenizer and of a toy head, and a prompt in two files."""
    return saved_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def cli(capsys, monkeypatch) -> Callable[..., tuple[int, str, str]]:
    """(exit status, stdout, stderr) of `longgraft ...`."""
    return partial(run, capsys, monkeypatch)


@pytest.fixture
def command(cli) -> Callable[..., str]:
    """What `longgraft ...` prints; it must succeed."""
    def printed(*words: object) -> str:
        code, out, err = cli(*words)
        assert code == 0, err
        return out
    return printed


@pytest.fixture(scope="module")
def corpus() -> EncodedCorpus:
    return counting()


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Sums in one order, whatever OMP_NUM_THREADS is."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["llama", "qwen3", "mistral-window", "qwen3-moe"])
def family(request) -> str:
    return request.param


class Golden:
    """Outputs of the official implementations: the small set of this repository, else the full one beside it."""

    def __truediv__(self, name: str) -> Path:
        """A file or folder of theirs; what only the full set has is skipped where that is missing."""
        found = next((root / name for root in (GOLDEN, FULL_GOLDEN) if (root / name).exists()), None)
        if found is None:
            pytest.skip(f"{name} is in the full set of official outputs only: ../shared/golden beside this checkout")
        return found


@pytest.fixture
def golden() -> Golden:
    return Golden()


@pytest.fixture(scope="session")
def kernels() -> CpuKernels:
    """The compiled ones; where no compiler is, there is nothing to test."""
    if isinstance(built := cpu_kernels(), NotBuilt):
        pytest.skip(f"no compiled kernels: {built}")
    return built


