"""Names of devices and number formats.  Knows torch; knows no model."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def device_of(name: str | torch.device | None) -> torch.device:
    """The device of this name, which this machine has and this torch can use; None: the GPU where there is one."""
    room = _devices()
    if name is None:
        return torch.device("cuda" if "cuda" in room else "cpu")
    try:
        device = torch.device(name)
        count = room.get(device.type, 0)
    except RuntimeError:
        count = 0
    if not count:
        raise ValueError(f"Device {str(name)!r} is not usable here. This machine and its torch {torch.__version__} "
                         f"have {', '.join(room)}.")
    if (device.index or 0) >= count:
        raise ValueError(f"Device {str(name)!r} is not there: of {device.type} this machine has {count}, counted "
                         f"from 0. Give {device.type}:0" + (f" to {device.type}:{count - 1}." if count > 1 else "."))
    return device


def dtype_of(name: str | torch.dtype) -> torch.dtype:
    """The number format of this name, one that models are decoded in."""
    found = DTYPES.get(name) if isinstance(name, str) else name if name in DTYPES.values() else None
    if found is None:
        raise ValueError(f"dtype {str(name)!r} is unknown. Known: {', '.join(DTYPES)}.")
    return found


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A host's tensor on the device; to a GPU without waiting for it."""
    if tensor.device.type != "cpu" or device.type != "cuda":
        return tensor.to(device)
    # The pinned copy may be dropped at once: torch's allocator of pinned memory gives it to nobody before the stream
    # that reads it has done so.
    return tensor.pin_memory().to(device, non_blocking=True)


def _devices() -> dict[str, int]:
    """How many there are of each type."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return {"cpu": 1} | ({accelerator.type: torch.accelerator.device_count()} if accelerator is not None else {})
