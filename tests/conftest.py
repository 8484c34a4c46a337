"""Settings and fixtures of the test suite; toy models and sessions are in `toys`."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

# What developers set for themselves must not change what a test sees.
for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "LONGGRAFT_API_KEY"):
    os.environ.pop(name, None)
for name in ("ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
    os.environ.pop(name, None)
    os.environ.pop(name.lower(), None)

# The test workers take all cores.  Each worker, and each process it starts, uses one thread, so that none waits.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

# Triton reads this once, when it is first imported.  Without a GPU its kernels are interpreted.
os.environ.setdefault("TRITON_INTERPRET", str(int(not torch.cuda.is_available())))

from toys.commands import run, saved_pair
from toys.levels import stop_without_kernels
from toys.models import SHARED
from toys.quick import QuickTests, SlowTests

from longgraft.kernels.build import NotBuilt, library
from longgraft.kernels.cpu import CpuKernels, cpu_kernels

CAPTURING = "_output_capturing_hooks_installed"  # transformers sets it on a model with hooks of its own
GOLDEN = Path(__file__).parent / "golden"
FULL_GOLDEN = Path(__file__).parents[2] / "shared" / "golden"


# The slowest files run first, so that no worker is left with one of them at the end.
FIRST = (
    "ray",
    "gpu",
    "lossless",
    "fixed",
    "triton",
    "benchmarks",
    "pretend",
    "kernels",
    "side_by_side",
    "measure",
    "sweep",
    "bench",
    "prefixes",
    "mutations",
    "cli",
    "partial",
    "training_drafter",
    "families",
    "memories",
    "docs",
)


def pytest_addoption(parser) -> None:
    parser.addoption(
        "--on",
        default="cuda" if torch.cuda.is_available() else "cpu",
        metavar="DEVICE",
        help="Device for tests marked gpu. Default: cuda, or cpu without one, as a rehearsal.",
    )
    parser.addoption("--mark-slow", action="store_true", help="Measure the quick tests, and write tests/slow.txt.")


def pytest_configure(config) -> None:
    config.option.loadscopereorder = False  # pytest-xdist's order is by number of tests
    config.pluginmanager.register(QuickTests())
    if config.getoption("--mark-slow"):
        config.pluginmanager.register(SlowTests())
    gc.disable()  # until all tests are collected: imports leave no garbage
    gc.freeze()


def pytest_collection_finish() -> None:
    """Spares later searches for garbage the modules and the tests, which live until the end."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items) -> None:
    order = {f"test_{name}.py": n for n, name in enumerate(FIRST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report) -> None:
    """Ends a worker after a CUDA error, once it has reported it, because every later test would fail there, too."""
    lost = report.failed and any(words in report.longreprtext for words in ("CUDA error", "AcceleratorError"))
    if lost and "PYTEST_XDIST_WORKER" in os.environ:
        os._exit(3)


@pytest.fixture(scope="session")
def device(request) -> torch.device:
    """Device of the tests marked gpu."""
    return torch.device(request.config.getoption("--on"))


@pytest.fixture(autouse=True)
def indexes(tmp_path_factory, monkeypatch) -> None:
    """Indexes of repositories go to a folder of the test run."""
    folder = tmp_path_factory.getbasetemp() / "indexes"
    monkeypatch.setattr("longgraft.completion.repository.index.cache_folder", lambda: folder)


@pytest.fixture(autouse=True)
def unhooked() -> Iterator[None]:
    """Fails a test that asks a shared model for its hidden states: it must ask a copy (`hidden_states`).

    This project's own hooks are not checked, because a server's thread may still be in a pass.
    """
    yield
    hooked = [family for family, model in SHARED.items() if hasattr(model.get_decoder(), CAPTURING)]
    for family in hooked:  # so that the following tests do not fail
        del SHARED[family]
    assert not hooked, f"transformers left its hooks on the shared {hooked}"


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Path:
    """Folders of a toy target with a word tokenizer and of a toy head, and a prompt in two files."""
    return saved_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def cli(capsys, monkeypatch) -> Callable[..., tuple[int, str, str]]:
    """Runs `longgraft ...` and returns (exit status, stdout, stderr)."""
    return partial(run, capsys, monkeypatch)


@pytest.fixture
def command(cli) -> Callable[..., str]:
    """Runs `longgraft ...`, which must succeed, and returns its output."""

    def printed(*words: object) -> str:
        code, out, err = cli(*words)
        assert code == 0, err
        return out

    return printed


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Makes torch use one thread, so that sums have one order for every OMP_NUM_THREADS."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["llama", "qwen3", "mistral-window", "qwen3-moe"])
def family(request) -> str:
    return request.param


class Golden:
    """Outputs of the official implementations, from this repository's small set or the full set beside it."""

    def __truediv__(self, name: str) -> Path:
        """Returns a file or folder of outputs; skips the test if neither set has it."""
        found = next((root / name for root in (GOLDEN, FULL_GOLDEN) if (root / name).exists()), None)
        if found is None:
            pytest.skip(f"{name} is in the full set of official outputs only: ../shared/golden beside this checkout")
        return found


@pytest.fixture
def golden() -> Golden:
    return Golden()


@pytest.fixture(scope="session")
def kernels(request) -> CpuKernels:
    """The compiled kernels, of this machine or of a level (`EVERY_LEVEL`)."""
    built = cpu_kernels()
    if isinstance(built, NotBuilt):
        stop_without_kernels(built)
    level = getattr(request, "param", None)
    return built if level is None else CpuKernels(library(level=level))
