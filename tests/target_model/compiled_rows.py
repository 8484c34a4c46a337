"""Compiles the fused kernels and draws as an 8B model launches them, without a GPU; fails if a register is spilled."""

from __future__ import annotations

import re
import subprocess
import tempfile

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from longgraft.acceptance import draw_kernel
from longgraft.kernels import fused_triton, head_triton, layer_triton, rope_write_triton, topk_triton, tree_triton
from longgraft.target_model.module_forms import ACTIVATIONS, NORMS
from longgraft.target_model.topk import MOST_CHILDREN, MOST_FUSED
from longgraft.trees.padded import FIELDS, SIZES

DRAWN = {"TILE": draw_kernel.TILE, "LISTED": draw_kernel.LISTED}
LAUNCHES = [  # kernel, its constants, warps
    ("_norm", {"size": 4096, "FORM": "rounded", "TOGETHER": 1, "WIDTH": 4096}, 8),
    ("_norm", {"size": 128, "FORM": "rounded", "TOGETHER": 8, "WIDTH": 128}, 2),
    ("_norm", {"size": 5376, "FORM": "from one", "TOGETHER": 1, "WIDTH": 8192}, 16),
    ("_gated", {"ACTIVATION": "silu", "TILE": fused_triton.TILE}, 4),
    ("_gated", {"ACTIVATION": "tanh", "TILE": fused_triton.TILE}, 4),
    ("_rotary", {"HALF": 64}, 1),
    ("_write", {"WIDTH": 128}, 1),
    ("_draw", DRAWN, draw_kernel.WARPS),
]
# Triton compiles a number that is 1 as a constant; a pass of several slots has the largest programs.
FORESTS = [(1, {"slots": 1, "rows": 1}), *((size, {"slots": 1}) for size in SIZES[1:]), (SIZES[-1], {})]
for size, ones in FORESTS:
    shape = {"N": size, "WIDE": -(-size // tree_triton.BITS)} | ones
    LAUNCHES.append(("_geometry", shape | {"DOUBLINGS": (size - 1).bit_length()}, tree_triton.WARPS))
    LAUNCHES.append(("_accepted", shape | {"FIELDS": FIELDS}, tree_triton.WARPS))
for column in (32, 64):  # 128,256 and 151,936 tokens
    ranked = {"K": MOST_FUSED, "TILE": topk_triton.TILE, "COLUMN": column}
    LAUNCHES.append(("_topk", ranked | {"OFFSETS": None}, topk_triton.WARPS))
    LAUNCHES.append(("_topk", ranked | {"OFFSETS": None, "SHARES": None}, topk_triton.WARPS))
# A draft head of 32,000 tokens.
LAUNCHES.append(("_topk", {"K": MOST_CHILDREN, "TILE": topk_triton.TILE, "COLUMN": 8}, topk_triton.WARPS))
for columns in (32, 128):  # of the second and the ninth level of a beam of ten
    beam = {"B": 10, "K": 10, "WIDTH": 128, "COLUMNS": columns}
    LAUNCHES.append(("_beam", beam, 4))
TILE = {"BM": layer_triton.ROWS, "BN": layer_triton.COLUMNS, "BK": layer_triton.BYTES // 2}
for k in (4096, 2000):  # the tiles of the second cross the end of its rows
    for more in ({"BIAS": True, "RESIDUAL": False}, {"BIAS": False, "RESIDUAL": True}):
        LAUNCHES.append(("_product", {"K": k, "PDL": False} | more | TILE, layer_triton.WARPS))
    for activation in ACTIVATIONS:
        shape = {"K": k, "PDL": False, "ACTIVATION": activation}
        LAUNCHES.append(("_gated_product", shape | TILE, layer_triton.WARPS))
for form in ("", *NORMS):
    LAUNCHES.append(("_rope_write", {"D": 128, "WIDTH": 64, "FORM": form}, 1))
DEPENDENT = [  # launches that wait for the one before, from sm_90 on
    (name, constants | {"PDL": True}, warps) for name, constants, warps in LAUNCHES if "PDL" in constants
]
MODULES = {"_draw": draw_kernel, "_geometry": tree_triton, "_accepted": tree_triton, "_topk": topk_triton}
MODULES |= {"_beam": head_triton}
MODULES |= {"_product": layer_triton, "_gated_product": layer_triton, "_rope_write": rope_write_triton}
STAGES = {"_product": layer_triton.STAGES, "_gated_product": layer_triton.GATED_STAGES}
TYPES = {
    "ROWS": "*i64",
    "BEST": "*i64",
    "GAINS": "*fp32",
    "VISIBLE": "*u8",
    "SUMS": "*fp32",
    "PARENTS": "*i64",
    "CHOSEN": "*i64",
    "ABOVE": "*i64",
    "FOLLOWING": "*u8",
    "ROW_KEYS": "*i64",
    "SCRATCH": "*i32",
    "OUT": "*i64",
    "IDS": "*i32",
    "SHARES": "*fp32",
    "OFFSETS": "*i64",
    "INPUTS": "*i64",
    "SCORES": "*fp32",
    "ORIGIN": "*i8",
    "LIVE": "*i1",
    "WORDS": "*i32",
    "SIZES": "*i32",
    "PLACES": "*i64",
    "DRAWS": "*i64",
    "RECORD": "*i64",
    "KEPT": "*i64",
    "epsilon": "fp32",
}
ORDERS = {"*bf16": torch.bfloat16, "*fp32": torch.float32}
ARCHITECTURES = {80: "sm_80", 90: "sm_90a"}
ALIGNED = [["tt.divisibility", 16]]


def kind(name: str, element: str, constants: dict) -> str:
    """Returns the type of this argument in a launch; the names of pointers are capitals."""
    if name in constants:
        return "constexpr"
    return TYPES.get(name, element if name.isupper() else "i32")


for capability in ARCHITECTURES:
    for name, constants, warps in LAUNCHES + (DEPENDENT if capability >= 90 else []):
        # Float32 has no matrix units that round as torch does, and its products may spill.
        for element in ("*bf16",) if "BK" in constants else ("*bf16", "*fp32"):
            function = getattr(MODULES.get(name, fused_triton), name)
            if name == "_draw":
                constants = constants | dict(
                    zip(("SHIFT", "BITS"), draw_kernel.ORDER_BITS[ORDERS[element]], strict=True)
                )
            kinds = {each: kind(each, element, constants) for each in function.arg_names}
            aligned = {
                (place,): ALIGNED for place, each in enumerate(kinds.values()) if each not in ("constexpr", "fp32")
            }
            made = compile(
                ASTSource(function, kinds, constants, aligned),
                target=GPUTarget("cuda", capability, 32),
                options={"num_warps": warps, "num_stages": STAGES.get(name, 3), **fused_triton.EXACT},
            )
            with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
                file.write(made.asm["ptx"])
                file.flush()
                told = subprocess.run(
                    [
                        knobs.nvidia.ptxas.path,
                        "-v",
                        f"--gpu-name={ARCHITECTURES[capability]}",
                        file.name,
                        "-o",
                        "/dev/null",
                    ],
                    capture_output=True,
                    text=True,
                    check=True,
                ).stderr
            used = int(re.search(r"Used (\d+) registers", told)[1])
            print(
                f"sm_{capability} {name} {element} {constants}: {used} registers, {made.metadata.shared} bytes shared"
            )
            assert "0 bytes spill stores, 0 bytes spill loads" in told, told
            if "BK" in constants and capability >= 90:
                assert "wgmma.mma_async" in made.asm["ptx"], name
