"""Public EAGLE-3 heads and their targets.  Names only: nothing is loaded.  Sources: METHODS.md 3.1, FORMATS.md."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KnownHead:
    """target and head: hub ids; trained_length: tokens up to which the head was trained or extended."""

    target: str
    head: str
    trained_length: int


KNOWN_HEADS = (
    KnownHead("meta-llama/Llama-3.1-8B-Instruct", "TanBaby/EAGLE3-LLaMA3.1-Instruct-8B-YARN-64K", 65536),
    KnownHead("Qwen/Qwen3-4B", "TanBaby/EAGLE3-Qwen3-4B-YARN-64K", 65536),
    KnownHead("Qwen/Qwen3-8B", "TanBaby/EAGLE3-Qwen3-8B-YARN-64K", 65536),
    KnownHead("Qwen/Qwen3-14B", "TanBaby/EAGLE3-Qwen3-14B-YARN-64K", 65536),
    KnownHead("meta-llama/Llama-3.1-8B-Instruct", "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", 2048),
    KnownHead("meta-llama/Llama-3.3-70B-Instruct", "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B", 2048),
    KnownHead("lmsys/vicuna-13b-v1.3", "yuhuili/EAGLE3-Vicuna1.3-13B", 2048),
    KnownHead("Qwen/Qwen3-1.7B", "AngelSlim/Qwen3-1.7B_eagle3", 2048),
    KnownHead("Qwen/Qwen3-4B", "AngelSlim/Qwen3-4B_eagle3", 2048),
    KnownHead("Qwen/Qwen3-8B", "AngelSlim/Qwen3-8B_eagle3", 2048),
    KnownHead("Qwen/Qwen3-14B", "AngelSlim/Qwen3-14B_eagle3", 2048),
    KnownHead("Qwen/Qwen3-32B", "AngelSlim/Qwen3-32B_eagle3", 2048),
    KnownHead("Qwen/Qwen3-235B-A22B", "lmsys/Qwen3-235B-A22B-EAGLE3", 2048),
)


def find_head(target: str) -> KnownHead | None:
    """The longest-trained head of this hub id, or of a folder that is named like the model; None if unknown."""
    name = target.rstrip("/").lower()
    fits = [head for head in KNOWN_HEADS
            if head.target.lower() == name or head.target.lower().split("/")[1] == name.split("/")[-1]]
    return max(fits, key=lambda head: head.trained_length, default=None)


def known_targets() -> list[str]:
    """Hub ids with at least one head."""
    return sorted({head.target for head in KNOWN_HEADS})
