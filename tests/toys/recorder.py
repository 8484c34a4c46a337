"""A stand-in for CUDA graphs on a CPU.

It records operations with their Python numbers frozen, and replays them into the tensors that they wrote at recording.
A region with a baked-in length or a changed shape then fails, and so does a read on the host or a copy to the device.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from longgraft.runtime.cuda_graphs import WARM
from longgraft.target_model import attention_interface

READS = {"_local_scalar_dense", "equal", "is_nonzero", "nonzero", "masked_select", "_unique2"}
HOST = (attention_interface.ROWS, attention_interface.BACK)  # masks are looked up here, on the host by intention


class Refused(RuntimeError):
    """Raised for an operation with which a capture would fail."""


class _Tape(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, tuple, dict, list[Tensor]]] = []
        # id of each new tensor -> whether it is on the device; None for a tensor made from no other (zeros, arange),
        # which may be on either.
        self.made: dict[int, bool | None] = {}
        self.kept: list[Any] = []  # a freed tensor's id could be given to a later one
        self.host = {id(one) for one in HOST}

    def on_device(self, tensor: Tensor) -> bool | None:
        return self.made.get(id(tensor), id(tensor) not in self.host)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        name, theirs = func._schema.name.split("::")[1], [self.on_device(one) for one in given]
        if name in READS and any(theirs):
            raise Refused(f"{name} reads a value of the device")
        if any(theirs) and any(one.ndim and device is False for one, device in zip(given, theirs, strict=True)):
            raise Refused(f"{name} takes a host's tensor to the device")
        out = func(*args, **kwargs)
        outs = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        device = True if any(theirs) else False if False in theirs or name == "lift_fresh" else None
        for one in outs:
            self.made.setdefault(id(one), device)
        self.kept += [given, outs]
        if device is not False:
            views = {one.untyped_storage().data_ptr() for one in given}
            new = [one for one in outs if one.untyped_storage().data_ptr() not in views or not one.numel()]
            # A view shows the new values without being computed again.
            if new or func._schema.is_mutable:
                self.operations.append((func, args, kwargs, new))
        return out


def recorder(region):
    """Records a region as a `longgraft.runtime.cuda_graphs.Recorder`, after warm-up runs as on a GPU."""
    for _ in range(WARM):
        region()
    tape = _Tape()
    with tape:
        returned = region()

    def replay() -> None:
        # Everything runs twice, because a region must do the same when it runs again on the same numbers.
        for func, args, kwargs, outs in tape.operations * 2:
            new = func(*args, **kwargs)
            # An operation in place has no output to copy.
            if outs:
                fresh = (new,) if isinstance(new, Tensor) else [one for one in new if isinstance(one, Tensor)]
                for old, one in zip(outs, fresh, strict=True):
                    old.copy_(one)

    return replay, returned
