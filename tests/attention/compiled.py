"""Compiles the launches of tree attention for GPUs that this machine need not have: python compiled.py.

Prints one JSON line per launch of CASES and chip.  It runs in a process of its own because the test suite interprets
the kernels, so that Triton compiles nothing there.
"""

from __future__ import annotations

import io
import json
import re
from contextlib import redirect_stdout
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import mangle_type

from longgraft.attention import triton as ours
from longgraft.attention.launch_plan import Chip, Plan
from longgraft.attention.layout import DeviceLayout

CHIPS = {80: Chip(108, False), 90: Chip(132, True)}
LLAMA, QWEN2, GEMMA = (32, 8, 128), (28, 4, 128), (16, 8, 256)  # H, Hkv, D
CASES: dict[str, tuple[tuple[int, int, int], int, int, dict]] = {  # heads, n, m (of a slot), further arguments
    "a tree": (LLAMA, 64, 64, {}),
    "one row": (LLAMA, 1, 1, {}),
    "appended rows": (LLAMA, 10, 100, {}),
    "seven heads": (QWEN2, 64, 64, {}),
    "a window": (LLAMA, 64, 64, {"window": 4096}),
    "one row, a window": (LLAMA, 1, 1, {"window": 4096}),
    "a cap": (LLAMA, 64, 64, {"softcap": 50.0}),
    "wide heads": (GEMMA, 64, 64, {"window": 4096, "softcap": 50.0}),
    "one wide row": (GEMMA, 1, 1, {}),
    "sinks": ((64, 8, 64), 64, 64, {"window": 128, "sinks": torch.empty(64, dtype=torch.bfloat16, device="meta")}),
    "narrow heads": ((32, 32, 80), 64, 64, {}),
    "one row of each slot": (LLAMA, 4, 4, {"slots": 4}),
    "full slots": (LLAMA, 256, 64, {"slots": 4}),
    "wide heads over slots": (GEMMA, 256, 64, {"slots": 4, "window": 4096, "softcap": 50.0}),
}


class Recorder:
    """Replaces a kernel and records the arguments of its launches."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.launches = kernel, []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args, **named: self.launches.append(dict(zip(self.kernel.arg_names, args, strict=False)) | named)


def launches(
    heads: tuple[int, int, int], n: int, m: int, chip: Chip, slots: int = 0, **more: Any
) -> list[tuple[Any, dict]]:
    """Returns (kernel, arguments) of `tree_attention`'s launches in bfloat16 at a capacity of 32K; computes nothing."""
    query_heads, kv_heads, size = heads
    empty = partial(torch.empty, device="meta")
    q = empty(1, n, query_heads, size, dtype=torch.bfloat16).transpose(1, 2)
    k = empty(1, kv_heads, 32768, size, dtype=torch.bfloat16)
    shapes = [(slots or 1,), (n,), (m,), (n, -(-m // 32)), (3, slots)]
    layout = DeviceLayout(*(empty(*shape, dtype=torch.int32) for shape in shapes[: 5 if slots else 4]))
    plan = Plan.of(query_heads // kv_heads * n, k.shape, k.dtype, chip, slots or 1)
    recorders = Recorder(ours._parts), Recorder(ours._merge)
    with patch.multiple(ours, _parts=recorders[0], _merge=recorders[1]):
        ours.tree_attention(q, k, k, layout, size**-0.5, plan=plan, **{"window": None, **more})
    return [(recorder.kernel, recorder.launches[0]) for recorder in recorders]


def compiled(kernel: Any, launch: dict[str, Any], capability: int) -> dict[str, int]:
    """Counts registers, spilled bytes, shared memory and matrix products of one launch."""
    options = {name: launch.pop(name) for name in ("num_warps", "num_stages") if name in launch}
    fixed = {parameter.name for parameter in kernel.params if parameter.is_constexpr}
    whole = {name: value for name, value in launch.items() if type(value) is int}
    constants = {
        name: value for name, value in launch.items() if name in fixed or value is None or whole.get(name) == 1
    }
    signature = {name: "constexpr" if name in constants else mangle_type(value) for name, value in launch.items()}
    even = {
        (kernel.arg_names.index(name),): [["tt.divisibility", 16]]
        for name, type_ in signature.items()
        if type_.startswith("*") or (type_ != "constexpr" and whole.get(name, 1) % 16 == 0)
    }
    source, target = ASTSource(kernel, signature, constants, even), GPUTarget("cuda", capability, 32)
    with redirect_stdout(io.StringIO()) as said:  # the assembler's report
        built = triton.compile(source, target, options)
    ptx, report = built.asm["ptx"], said.getvalue()
    return {
        "registers": int(re.search(r"Used (\d+) registers", report)[1]),
        "spilled": sum(map(int, re.findall(r"(\d+) bytes spill", report))),
        "shared": built.metadata.shared,
        "wgmma": ptx.count("wgmma.mma_async"),
        "mma": ptx.count("mma.sync"),
    }


if __name__ == "__main__":
    triton.knobs.nvidia.dump_ptxas_log = triton.knobs.compilation.always_compile = True
    for capability, chip in CHIPS.items():
        for case, (heads, n, m, more) in CASES.items():
            for kernel, launch in launches(heads, n, m, chip, **more):
                print(
                    json.dumps(
                        {
                            "chip": capability,
                            "case": case,
                            "kernel": kernel.__name__,
                            **compiled(kernel, launch, capability),
                        }
                    ),
                    flush=True,
                )
