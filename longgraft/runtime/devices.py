"""Devices and number formats by name."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def device_of(name: str | torch.device | None) -> torch.device:
    """Returns the device of this name (None: the GPU if there is one).

    Raises:
        ValueError: this machine, or its torch, does not have the device.
    """
    counts = _devices()
    if name is None:
        return torch.device("cuda" if "cuda" in counts else "cpu")
    try:
        device = torch.device(name)
        count = counts.get(device.type, 0)
    except RuntimeError:
        count = 0
    if not count:
        raise ValueError(
            f"Device {str(name)!r} is not usable here. This machine and its torch "
            f"{torch.__version__} have {', '.join(counts)}."
        )
    if (device.index or 0) >= count:
        advice = f"Give {device.type}:0"
        if count > 1:
            advice += f" to {device.type}:{count - 1}"
        raise ValueError(
            f"Device {str(name)!r} does not exist: this machine has {count} of type {device.type}. {advice}."
        )
    return device


def dtype_of(name: str | torch.dtype) -> torch.dtype:
    """Returns the torch dtype of this name; raises ValueError unless it is one of `DTYPES`."""
    if isinstance(name, torch.dtype) and name in DTYPES.values():
        return name
    if isinstance(name, str) and name in DTYPES:
        return DTYPES[name]
    raise ValueError(f"dtype {str(name)!r} is unknown. Known: {', '.join(DTYPES)}.")


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Returns a host tensor on the device; the copy to a GPU is asynchronous."""
    if tensor.device.type != "cpu" or device.type != "cuda":
        return tensor.to(device)
    # The pinned copy may be dropped at once: torch's pinned allocator reuses it only after the stream has read it.
    return tensor.pin_memory().to(device, non_blocking=True)


def _devices() -> dict[str, int]:
    """Returns the number of devices of each type."""
    counts = {"cpu": 1}
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is not None:
        counts[accelerator.type] = torch.accelerator.device_count()
    return counts
