"""Attention alone: new rows over a long prefix, by every backend that runs here, and by other plans of our kernel.

The KV caches of all layers are read in turn, as in a pass, so that the next one is in no cache of the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
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


def backends(dtype: torch.dtype) -> dict[str, Backend]:
    """Returns the backends that run here in this dtype."""
    found = {}
    for name, reason in available().items():
        if not reason and (name != "flash" or dtype in HALF):
            found[name] = BACKENDS[name]
    return found


@dataclass(frozen=True)
class Layers:
    """The attention of a shape's layers after a random prefix.

    Attributes:
        shape: The shape.
        machine: The machine that times are compared with.
        caches: Keys and values, [layers, 2, 1, Hkv, capacity, D].
    """

    shape: Shape
    machine: Machine
    caches: Tensor

    @classmethod
    def of(cls, shape: Shape, machine: Machine, capacity: int, most: int = MOST) -> Layers:
        """Fills KV caches of this capacity, for at most `most` layers."""
        config = shape.config
        layers = min(most, config["num_hidden_layers"])
        sizes = (layers, 2, 1, config["num_key_value_heads"], capacity, config["head_dim"])
        return cls(shape, machine, torch.randn(sizes, device=machine.device, dtype=machine.dtype))

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return self.shape.config["num_attention_heads"]

    def queries(self, rows: int) -> Tensor:
        """Returns random queries, [1, H, n, D]."""
        sizes = (1, self.heads, rows, self.caches.shape[-1])
        return torch.randn(sizes, device=self.machine.device, dtype=self.machine.dtype)

    def layout(self, rows: int, prefix: int) -> Layout:
        """Returns the layout of two chains after a prefix of this many tokens."""
        tree = two_chains(rows)
        return Layout(prefix, tree.depths, None if tree.is_chain else tree.mask, self.machine.device)

    def each(self, attend: Callable[[Tensor, Tensor, float], object]) -> None:
        """Calls with the keys, the values and the scale of each layer."""
        scale = self.caches.shape[-1] ** -0.5
        for keys, values in self.caches:
            attend(keys, values, scale)

    def row(
        self, part: str, case: str, rows: int, prefix: int, seconds: float, note: str = "", **figures: object
    ) -> Row:
        """Returns the row of one layer's attention.  seconds: of all layers"""
        seconds /= len(self.caches)
        kv_heads = self.caches.shape[3]
        size = self.caches.shape[-1]
        work = floors.attention((self.heads, kv_heads), size, self.machine.dtype.itemsize, prefix, rows)
        floor, bound = self.machine.floor(work)
        name = self.shape.name
        figures = {"model": name, "prefix": prefix, "rows": rows, **figures}
        note = rates(work, seconds) + note
        return Row(f"{part}, {rows} rows", f"{name} {prefix:,} {case}", seconds, floor, bound, note, figures=figures)


def attention(
    shape: Shape, machine: Machine, prefixes: Sequence[int], rows: Sequence[int], patience: float
) -> Iterator[Row]:
    """Times attention of one layer by every backend: eager and, on a GPU, recorded."""
    layers = Layers.of(shape, machine, max(prefixes) + max(rows))
    for prefix in prefixes:
        for n in rows:
            q = layers.queries(n)
            layout = layers.layout(n, prefix)
            actions: dict[str, Callable[[], object]] = {}
            for name, backend in backends(machine.dtype).items():
                attend = partial(_attend, backend, q, layout)
                try:
                    actions |= _launches(name, partial(layers.each, attend), machine.device)
                except torch.AcceleratorError:  # the device is lost to this process
                    raise
                except RuntimeError as error:  # this backend refuses the shape; the others are still timed
                    why = str(error).splitlines()[0][:110]
                    yield Row(f"attention, {n} rows", f"{shape.name} {prefix:,} {name}", note=why, ok=False)
            for name, seconds in race(actions, machine.device, patience).items():
                yield layers.row("attention", name, n, prefix, seconds, backend=name)


def _attend(backend: Backend, q: Tensor, layout: Layout, keys: Tensor, values: Tensor, scale: float) -> None:
    backend(q, keys, values, layout, scale, None)


def _launches(name: str, action: Callable[[], None], device: torch.device) -> dict[str, Callable[[], object]]:
    """Returns the actions to time: launched one by one and, on a GPU, recorded.  Runs the action."""
    action()
    if device.type != "cuda":
        return {name: action}
    return {name: action, f"{name}, recorded": recorded(action)}


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
            fits = 16 <= plan.rows < min(256, 2 * max(16, rows)) and 1 <= plan.splits <= MOST_SPLITS
            if fits and plan != around:
                yield plan


def sweep(
    shape: Shape, machine: Machine, prefixes: Sequence[int], patience: float, small: bool = False
) -> Iterator[Row]:
    """Times the kernel with its own plan, and with the best of the plans around it.

    small: only one layer, two plans and one measurement of each, because the interpreter is slow
    """
    from longgraft.attention.launch_plan import Chip, Plan

    counts = (8,) if small else (1, 16, 64)
    layers = Layers.of(shape, machine, max(prefixes) + max(counts), 1 if small else MOST)
    group = layers.heads // layers.caches.shape[3]
    for n in counts:
        own = Plan.of(group * n, layers.caches[0, 0].shape, machine.dtype, Chip.of(machine.device))
        wanted = list(islice(plans(own, group * n), 2 if small else None))
        layout = layers.layout(n, prefixes[0]).on_device
        tried = _fitting(layers, wanted, layers.queries(n), layout)
        counted = f", of {len(tried)}; {len(wanted) - len(tried)} did not fit"
        for prefix in prefixes:
            layout.length.fill_(prefix)
            spent = race(tried, machine.device, patience, least=1 if small else LEAST)
            best = min(spent, key=spent.__getitem__)
            each = {str(plan): seconds / len(layers.caches) for plan, seconds in spent.items()}
            for case, plan, more in (("its own plan", own, ""), ("the best plan", best, counted)):
                note = f", {plan.rows} x {plan.columns}, {plan.warps} warps, {plan.stages} stages, {plan.splits} splits"
                figures = {"plan": asdict(plan), "plans": each}
                yield layers.row("kernel", case, n, prefix, spent[plan], note + more, **figures)


def _fitting(
    layers: Layers, wanted: Sequence[Plan], q: Tensor, layout: DeviceLayout
) -> dict[Plan, Callable[[], object]]:
    """Returns the launches of the plans that fit the device, and runs each once."""
    from triton.runtime.errors import OutOfResources

    from longgraft.attention.triton import tree_attention

    def over(plan: Plan) -> None:
        layers.each(lambda keys, values, scale: tree_attention(q, keys, values, layout, scale, None, plan=plan))

    tried: dict[Plan, Callable[[], object]] = {}
    for plan in wanted:
        try:
            over(plan)
        except OutOfResources:
            continue
        tried[plan] = partial(over, plan)
    return tried
