"""A wheel's libraries: right at each level of processors, and with the bits of a local build at the chosen one."""

from __future__ import annotations

import ctypes.util
import platform
from pathlib import Path

import pytest
import torch

# Collected here too, with this file's `kernels`: at each level that this processor has.
from test_compiled_layers import (  # noqa: F401
    in_integers,
    model_of,
    passes,
    test_a_compiled_layer_gives_the_results_of_its_own_code,
    test_compiled_layers_with_integer_weights_equal_their_own_code_and_stay_close_to_floats,
)
from test_integers import (  # noqa: F401
    test_packed_weight_equals_dequantized_blocks,
    test_products_equal_those_of_dequantized_blocks,
    test_sums_of_the_largest_and_least_codes_are_exact,
)
from test_kernels import threads  # noqa: F401

from longgraft.kernels import build
from longgraft.kernels.cpu import CpuKernels, cpu_kernels
from longgraft.target_model.model import Target

pytestmark = pytest.mark.slow       # they are compiled first
HERE = [level for level in build.LEVELS.get(platform.machine(), ()) if level.needs <= build._features()]
TRIED = [level for level in HERE if level in (HERE[0], HERE[-1]) or level.name == "avx2"]


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    """Returns the folder of a package with libraries."""
    if isinstance(built := cpu_kernels(), build.NotBuilt):
        pytest.skip(f"no compiled kernels: {built}")
    folder = tmp_path_factory.mktemp("package")
    build.prebuild(folder, TRIED)
    return folder


def library(package: Path, level: build.Level) -> Path:
    return package / "kernels" / "prebuilt" / f"cpu_kernels-{level.name}.so"


@pytest.fixture(scope="module", params=TRIED, ids=[level.name for level in TRIED])
def kernels(request, package) -> CpuKernels:
    return CpuKernels(library(package, request.param))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_the_best_library_has_the_bits_of_a_local_build(family, dtype, package):
    local, wheels = cpu_kernels(), CpuKernels(library(package, HERE[0]))
    model = model_of(family, dtype)
    for made in (lambda kernels: Target(model, kernels=kernels), lambda kernels: in_integers(model, kernels)):
        for ours, theirs in zip(passes(made(wheels)), passes(made(local)), strict=True):
            assert torch.equal(ours.logits, theirs.logits) and torch.equal(ours.hidden[1], theirs.hidden[1])
    x, half = torch.randn(5, 300).to(dtype), torch.randn(70, 300)
    weight = torch.nn.Parameter(torch.cat([half, -half], 1).to(dtype))
    with torch.no_grad():       # the sum is 0 but for what was rounded
        residues = [kernels.product(x.repeat(1, 2), weight) for kernels in (wheels, local)]
    assert torch.equal(*residues) and residues[0].any()


def test_a_processor_gets_the_best_library_that_it_can_run_and_else_builds_one(package, tmp_path, monkeypatch):
    source = package / "kernels" / "cpu_kernels.cpp"

    def chosen(*features: str) -> list[str]:
        monkeypatch.setattr(build, "_features", lambda: set(features))
        return [path.stem.removeprefix("cpu_kernels-") for path in build.prebuilt(source)]

    monkeypatch.setitem(build.LEVELS, platform.machine(), (build.Level("good", (), frozenset("ab")),
                                                           build.Level("fair", (), frozenset("a")),
                                                           build.Level("any", ())))
    for name in ("good", "fair", "any"):
        library(package, build.Level(name, ())).write_bytes(b"")
    assert chosen("a", "b", "c") == ["good", "fair", "any"]
    assert chosen("a") == ["fair", "any"] and chosen("b") == ["any"]
    monkeypatch.setattr(build, "library", lambda source: Path(ctypes.util.find_library("c")))
    assert build.loaded(source).getpid()        # an empty file is no library: one is built
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert not chosen("a", "b")
