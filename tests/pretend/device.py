"""A pretend CUDA device, which counts launches, reads and copies on machines without a GPU.

Tensors on the CPU are real; those on "cuda" are fake: they have a shape, strides and a dtype, by torch's own rules for
its CUDA kernels.  Reads of them are answered with made-up numbers.

`pretend()` changes torch for the whole process, so it needs a process of its own.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

CUDA = torch.device("cuda:0")
PACKAGES = ("longgraft", "transformers")  # an event's place is the innermost frame in these packages,
CARRIER = "longgraft.runtime.devices"  # except this module, which copies for others
IDLE = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "_unsafe_view", "detach_"}
INDEXES = {"index", "index_put", "index_put_"}

Answer = Callable[[int, Tensor], Tensor]
"""(number of earlier reads at this place since the log began, an empty host tensor) -> the tensor that is read"""


class Event(NamedTuple):
    """An event on the device: its kind, its place as "module:function" and line, and the bytes of new tensors.

    launch: an operation that makes no view; sent: a copy to the device for which the host does not wait
    copy:   a copy to the device for which the host waits; read: a copy to the host
    wait:   the host waits for all launches; statistics: a query of the allocator
    """

    kind: str
    name: str
    place: str
    line: int
    bytes: int = 0


class Pretend(TorchDispatchMode):
    """A mode that logs operations on fake CUDA tensors and copies between them and the host.

    answers: results of reads by place; other reads give integers 0, 1, 2, ... or floats of -0.1
    """

    def __init__(self, answers: dict[str, Answer] | None = None) -> None:
        super().__init__()
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.answers = answers or {}
        self.log: list[Event] = []
        self._pinned: dict[int, Tensor] = {}  # kept alive, so that no other tensor gets their addresses

    def note(self, kind: str, name: str, made: Any = ()) -> str:
        """Logs an event, and returns its place."""
        place, line = _place()
        size = sum(t.numel() * t.itemsize for t in tree_flatten(made)[0] if isinstance(t, Tensor))
        self.log.append(Event(kind, name, place, line, size))
        return place

    def module(self, make: Callable[[], nn.Module]) -> Any:
        """Builds a module with `make` and moves it to the device with fake parameters and buffers."""
        with torch.device("meta"):
            module = make().eval().requires_grad_(False)
        with self.fake:
            return module.to_empty(device=CUDA)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
        name = func._schema.name.partition("::")[2]
        if name == "device":
            return tensors[0].fake_device  # type: ignore[attr-defined]
        with self:  # under inference mode, composite operations arrive undivided
            if (made := func.decompose(*args, **kwargs)) is not NotImplemented:
                return made
        to = None if kwargs.get("device") is None else torch.device(kwargs["device"]).type
        if not any(isinstance(t, FakeTensor) for t in tensors) and to != "cuda":
            return self._on_the_host(name, func, args, kwargs)
        if name == "_local_scalar_dense":
            return self._read(tensors[0], tensors[0].dtype).item()
        if name == "_to_copy" and to == "cpu":
            return self._read(tensors[0], kwargs.get("dtype") or tensors[0].dtype)
        if name == "copy_" and not isinstance(args[0], FakeTensor):
            return args[0].copy_(self._read(args[1], args[1].dtype))
        kind = self._kind(name, func._schema, args, kwargs)
        with self.fake:
            # Host tensors are faked for this operation only.
            real = {id(t): self.fake.from_tensor(t) for t in tensors if not isinstance(t, FakeTensor)}
            args, kwargs = tree_map(lambda x: real.get(id(x), x), (args, kwargs))
            made = func(*args, **kwargs)
        if kind:
            self.note(kind, name, made)
        return made

    def _on_the_host(self, name: str, func: Any, args: tuple, kwargs: dict) -> Any:
        if name == "is_pinned":
            return _address(args[0]) in self._pinned
        if name == "_pin_memory" or kwargs.get("pin_memory"):
            out = args[0].clone() if name == "_pin_memory" else func(*args, **(kwargs | {"pin_memory": False}))
            self._pinned[_address(out)] = out
            return out
        return func(*args, **kwargs)

    def _read(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Returns the answer for a read of a tensor on the device."""
        place = self.note("read", "read", tensor)
        nth = sum(event.kind == "read" and event.place == place for event in self.log) - 1
        like = torch.empty(tensor.shape, dtype=dtype)
        said = self.answers.get(place, _made_up)(nth, like)
        assert said.shape == like.shape, f"{place} reads {tuple(like.shape)} and is answered {tuple(said.shape)}"
        return said.to(dtype)

    def _kind(self, name: str, schema: Any, args: tuple, kwargs: dict) -> str:
        """Returns the kind of an operation that makes something on the device; "" for views and mere allocations."""
        if name in INDEXES:
            for index in (x for x in args[1] if isinstance(x, Tensor)):
                if not isinstance(index, FakeTensor):
                    self.note("copy", "index", index)
                if index.dtype == torch.bool:
                    self.note("read", "nonzero")
        if name == "index_put_" and args[2].dim() == 0:
            self.note("copy", "value")  # torch makes the number of `x[index] = number` on the host
        source, dtype = (args[1], args[0].dtype) if name == "copy_" else (args[0] if args else 0, kwargs.get("dtype"))
        if name in ("copy_", "_to_copy") and not isinstance(source, FakeTensor):
            patient = kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2])
            # A change of dtype happens first, on the host, in memory that is not pinned.
            return "sent" if patient and _address(source) in self._pinned and dtype in (None, source.dtype) else "copy"
        is_view = any(said.alias_info is not None and not said.alias_info.is_write for said in schema.returns)
        return "" if is_view or name in IDLE else "launch"


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _made_up(_: int, like: Tensor) -> Tensor:
    if like.is_floating_point():
        return torch.full_like(like, -0.1)
    return torch.arange(like.numel()).reshape(like.shape)


def _place() -> tuple[str, int]:
    """Returns the innermost function in PACKAGES and its current line."""
    for frame in _frames():
        module = frame.f_globals.get("__name__", "")
        if module.partition(".")[0] in PACKAGES and module != CARRIER:
            return f"{module}:{frame.f_code.co_name}", frame.f_lineno
    return "elsewhere", 0


def _frames() -> Iterator[Any]:
    frame = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back


class StreamEvent:
    """An event of a stream that is never over when the host asks, as where the host is fast."""

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return False


def pretend(answers: dict[str, Answer] | None = None) -> Pretend:
    """Makes this process believe that it has a GPU; to be called once."""
    ctypes.CDLL(str(_guard()))
    device = Pretend(answers)
    cuda: Any = torch.cuda
    cuda.is_available = lambda: True
    cuda._initialized, cuda._lazy_init, torch._C._cuda_init = True, lambda: None, lambda: None
    cuda.device_count, cuda.current_device = lambda: 1, lambda: 0
    cuda.get_device_capability, cuda.get_device_name = lambda *_: (9, 0), lambda *_: "pretend"
    cuda.mem_get_info = lambda *_: (120 << 30, 140 << 30)
    cuda.synchronize = lambda *_: device.note("wait", "synchronize")
    cuda.Event = StreamEvent
    for name in ("max_memory_allocated", "reset_peak_memory_stats"):
        setattr(cuda, name, lambda *_, name=name: device.note("statistics", name) and 0)
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device="cuda") copies from the host
    FakeTensor.tolist = lambda tensor: tensor.cpu().tolist()  # one copy, as for CUDA tensors
    F.scaled_dot_product_attention = _torchs_choice
    return device


def _torchs_choice(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Chooses as torch 2.11 to 2.13 do on sm_90: cuDNN in half precision, which plans anew for each number of keys."""
    assert dropout_p == 0.0 and not enable_gqa
    if q.dtype in (torch.float16, torch.bfloat16):
        return torch.ops.aten._scaled_dot_product_cudnn_attention(
            q, k, v, attn_mask, False, 0.0, is_causal, scale=scale
        )[0]
    bias = None if attn_mask is None else attn_mask[None, None].expand(*q.shape[:3], -1).to(q.dtype)
    return torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, bias, False, 0.0, is_causal, scale=scale)[0]


def _guard() -> Path:
    """Returns the library of `guard.cpp`, compiled once for this version of torch."""
    source, torchs = Path(__file__).with_name("guard.cpp"), Path(torch.__file__).parent
    said = hashlib.sha256(source.read_bytes() + torch.__version__.encode() + str(torchs).encode()).hexdigest()[:16]
    path = Path.home() / ".cache" / "longgraft" / f"guard-{said}.so"
    if not path.exists():
        compiler = next((found for name in ("c++", "g++", "clang++") if (found := shutil.which(name))), None)
        if compiler is None:
            raise FileNotFoundError("The pretend device needs a C++ compiler: c++, g++ or clang++.")
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}.partial")
        subprocess.run(
            [
                compiler,
                "-O0",
                "-std=c++20",
                "-shared",
                "-fPIC",
                f"-I{torchs / 'include'}",
                str(source),
                "-o",
                str(part),
                f"-L{torchs / 'lib'}",
                "-lc10",
            ],
            check=True,
        )
        part.replace(path)  # the file is complete even if two processes build at once
    return path
