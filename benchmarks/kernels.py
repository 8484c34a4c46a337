"""Attention alone: new rows over a long prefix, by every backend that runs here, and by other plans of our kernel.

The KV caches of all layers are read in turn, as in a pass, so that the next one is in no cache of the device.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from benchmarks import floors
from benchmarks.machine import LEAST, Machine, race, rates, recorded
from benchmarks.report import Row
from benchmarks.rig import two_chains
from benchmarks.shapes import Shape
from longgraft.attention.backends import BACKENDS, HALF, Backend, available
from longgraft.attention.layout import DeviceLayout, Layout

if TYPE_CHECKING:
    from longgraft.attention.launch_plan import Plan

MOST = 16  # most layers with KV caches; at 4K tokens no device caches them all
# The fields of a configuration that attention depends on.
HEADS = ("num_attention_heads", "num_key_value_heads", "head_dim")


def backends(dtype: torch.dtype) -> dict[str, Backend]:
    """Returns the backends that run here in this dtype."""
    return {
        name: BACKENDS[name]
        for name, reason in available().items()
        if not reason and (name != "flash" or dtype in HALF)
    }


def layout(rows: int, prefix: int, device: torch.device) -> Layout:
    """Returns the layout of two chains after a prefix of this many tokens."""
    tree = two_chains(rows)
    return Layout(prefix, tree.depths, None if tree.is_chain else tree.mask, device)


def caches(shape: Shape, machine: Machine, capacity: int, most: int = MOST) -> Tensor:
    """Returns random keys and values, [layers, 2, 1, Hkv, capacity, D], for at most `most` layers."""
    c = shape.config
    layers = min(most, c["num_hidden_layers"])
    return torch.randn(
        layers, 2, 1, c["num_key_value_heads"], capacity, c["head_dim"], device=machine.device, dtype=machine.dtype
    )


def queries(shape: Shape, machine: Machine, rows: int) -> Tensor:
    """Returns random queries, [1, H, n, D]."""
    c = shape.config
    return torch.randn(1, c["num_attention_heads"], rows, c["head_dim"], device=machine.device, dtype=machine.dtype)


def row(
    shape: Shape,
    machine: Machine,
    rows: int,
    prefix: int,
    seconds: float,
    part: str,
    case: str,
    note: str = "",
    **figures: object,
) -> Row:
    """Returns the row of one layer's attention."""
    c = shape.config
    work = floors.attention(
        (c["num_attention_heads"], c["num_key_value_heads"]), c["head_dim"], machine.dtype.itemsize, prefix, rows
    )
    floor, bound = machine.floor(work)
    return Row(
        f"{part}, {rows} rows",
        f"{shape.name} {prefix:,} {case}",
        seconds,
        floor,
        bound,
        rates(work, seconds) + note,
        figures={"model": shape.name, "prefix": prefix, "rows": rows, **figures},
    )


def attention(
    shape: Shape, machine: Machine, prefixes: Sequence[int], rows: Sequence[int], patience: float
) -> Iterator[Row]:
    """Times attention of one layer by every backend: eager and, on a GPU, recorded."""
    every = caches(shape, machine, max(prefixes) + max(rows))
    scale = every.shape[-1] ** -0.5
    for prefix in prefixes:
        for n in rows:
            q, placed = queries(shape, machine, n), layout(n, prefix, machine.device)

            def over(backend: Backend, q: Tensor = q, placed: Layout = placed) -> None:
                for keys, values in every:
                    backend(q, keys, values, placed, scale, None)

            actions: dict[str, Callable[[], object]] = {}
            for name, backend in backends(machine.dtype).items():
                try:
                    actions |= _launches(name, partial(over, backend), machine.device)
                except torch.AcceleratorError:  # the device is lost to this process
                    raise
                except RuntimeError as error:  # this backend refuses the shape; the others are still timed
                    why = str(error).splitlines()[0][:110]
                    yield Row(f"attention, {n} rows", f"{shape.name} {prefix:,} {name}", note=why, ok=False)
            spent = race(actions, machine.device, patience)
            for name in actions:
                yield row(shape, machine, n, prefix, spent[name] / len(every), "attention", name, backend=name)


def _launches(name: str, action: Callable[[], None], device: torch.device) -> dict[str, Callable[[], object]]:
    """Returns the actions to time: launched one by one and, on a GPU, recorded.  Runs the action."""
    action()
    if device.type != "cuda":
        return {name: action}
    return {name: action, f"{name}, recorded": recorded(action)}


def interpreted() -> bool:
    """Returns True if Triton computes on a CPU, for a rehearsal."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def plans(around: Plan, rows: int) -> Iterator[Plan]:
    """Yields the kernel's own plan, then plans that differ from it in one number.  rows: G * n rows of a key head"""
    from longgraft.attention.launch_plan import MOST_SPLITS

    yield around
    others = {
        "rows": (around.rows // 2, around.rows * 2),
        "columns": (32, 64, 128),
        "warps": (4, 8),
        "stages": (2, 3, 4),
        "splits": (around.splits // 4, around.splits // 2, around.splits * 2, around.splits * 4),
    }
    for name, values in others.items():
        for value in values:
            plan = replace(around, **{name: value})
            if plan != around and 16 <= plan.rows < min(256, 2 * max(16, rows)) and 1 <= plan.splits <= MOST_SPLITS:
                yield plan


def sweep(
    shape: Shape, machine: Machine, prefixes: Sequence[int], rows: Sequence[int], patience: float, small: bool = False
) -> Iterator[Row]:
    """Times the kernel with its own plan, and with the best of the plans around it.

    small: only one layer, two plans and one measurement of each, because the interpreter is slow
    """
    from triton.runtime.errors import OutOfResources

    from longgraft.attention.launch_plan import Chip, Plan
    from longgraft.attention.triton import tree_attention

    every = caches(shape, machine, max(prefixes) + max(rows), 1 if small else MOST)
    group = shape.config["num_attention_heads"] // every.shape[3]
    for n in rows:
        own = Plan.of(group * n, every[0, 0].shape, machine.dtype, Chip.of(machine.device))
        tried, too_large = dict[Plan, Callable[[], None]](), 0
        q, length = queries(shape, machine, n), layout(n, prefixes[0], machine.device).on_device
        for plan in islice(plans(own, group * n), 2 if small else None):

            def over(plan: Plan = plan, q: Tensor = q, placed: DeviceLayout = length) -> None:
                for keys, values in every:
                    tree_attention(q, keys, values, placed, every.shape[-1] ** -0.5, None, plan=plan)

            try:
                over()
                tried[plan] = over
            except OutOfResources:
                too_large += 1
        for prefix in prefixes:
            length.length.fill_(prefix)
            spent = race(
                {str(plan): action for plan, action in tried.items()},
                machine.device,
                patience,
                least=1 if small else LEAST,
            )
            best = min(tried, key=lambda plan: spent[str(plan)])
            for which, plan in {"its own plan": own, "the best plan": best}.items():
                note = f", {plan.rows} x {plan.columns}, {plan.warps} warps, {plan.stages} stages, {plan.splits} splits"
                yield row(
                    shape,
                    machine,
                    n,
                    prefix,
                    spent[str(plan)] / len(every),
                    "kernel",
                    which,
                    note + (f", of {len(tried)}; {too_large} did not fit" if which == "the best plan" else ""),
                    plan=asdict(plan),
                    plans={each: took / len(every) for each, took in spent.items()},
                )
