"""Costs of passes on machines that were measured, by name, for estimates about them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from longgraft.budget.cost_model import Costs


def _table(source: str, milliseconds: dict[int, dict[int, float]], level: float) -> Costs:
    passes = {prefix: {rows: ms / 1e3 for rows, ms in line.items()} for prefix, line in milliseconds.items()}
    return Costs({}, source, passes, {64: {1: level, 10: 1.3 * level}}, {64: {1: level, 16: 2.5 * level}})


# Milliseconds of a pass by prefix and rows.  The models in a file's blocks run on one core.
MACHINES: Mapping[str, Costs] = {
    "zen5": _table(
        "Qwen2.5-Coder 0.5B (Q4_K_M) on one core of an AMD Zen 5, measured",
        {
            64: {1: 18, 8: 23, 16: 40, 60: 135},
            4096: {1: 21, 8: 35, 16: 61, 60: 211},
            16384: {1: 29, 8: 69, 16: 128, 60: 446},
        },
        0.003,
    ),
    "zen4": _table(
        "the same on an AMD Zen 4, measured",
        {64: {1: 27, 2: 28, 8: 65, 16: 112, 60: 318}, 4096: {1: 34, 2: 41, 8: 105, 16: 182, 60: 612}},
        0.004,
    ),
    "zen3": _table(
        "the same on an AMD Zen 3, from the ratios in its tables",
        {64: {1: 37, 2: 41, 8: 110, 16: 185, 60: 420}, 4096: {1: 43, 2: 52, 8: 140, 16: 230, 60: 640}},
        0.006,
    ),
    "xeon": _table(
        "the same on a Xeon (AVX-512 with VNNI) before cheap rows, measured",
        {
            64: {1: 47, 8: 73, 16: 160, 60: 594},
            4096: {1: 53, 8: 144, 16: 224, 60: 946},
            16384: {1: 86, 8: 239, 16: 589, 60: 2615},
        },
        0.006,
    ),
    "h100": _table(
        "Llama-3.1-8B on an H100, measured",
        {
            4096: {1: 8.36, 8: 8.57, 16: 8.75, 32: 8.88, 64: 9.26},
            32768: {1: 9.15, 8: 9.43, 16: 9.54, 32: 9.65, 64: 10.73},
        },
        0.0006,
    ),
}


def costs_of(name: str) -> Costs:
    """Returns the costs of a named machine, or of a file of `longgraft costs`; raises ValueError for another name."""
    if name in MACHINES:
        return MACHINES[name]
    if Path(name).is_file():
        return Costs.load(Path(name))
    raise ValueError(
        f"No costs are named {name!r}, and there is no such file. Known: {', '.join(MACHINES)}, or a file of "
        "`longgraft costs --out FILE`."
    )
