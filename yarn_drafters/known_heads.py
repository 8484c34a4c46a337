"""Lists public EAGLE-3 heads and their target models.  Names only: nothing is loaded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KnownHead:
    """A public EAGLE-3 head.

    Attributes:
        target: Hub id of the target model.
        head: Hub id of the head.
        trained_length: Tokens that the head was trained or extended to; 2,048 if its authors give none.
        note: Facts that its config leaves out.
    """

    target: str
    head: str
    trained_length: int
    note: str = ""


SPECPV = "trained on the input of layer N // 2 + 1, run by its makers on N // 2: try both feature_layers"
ANGELSLIM = "config says rope_theta 1e6; trained at 10000"
SPECFORGE = "rope base 10000 or the config's, by date: compare both"
SPECULATORS = "lm_head is a frozen copy of the target's rows; ships its embedding"

KNOWN_HEADS = (
    KnownHead("meta-llama/Llama-3.1-8B-Instruct", "TanBaby/EAGLE3-LLaMA3.1-Instruct-8B-YARN-64K", 65536, SPECPV),
    KnownHead("Qwen/Qwen3-4B", "TanBaby/EAGLE3-Qwen3-4B-YARN-64K", 65536, SPECPV),
    KnownHead("Qwen/Qwen3-8B", "TanBaby/EAGLE3-Qwen3-8B-YARN-64K", 65536, SPECPV),
    KnownHead("Qwen/Qwen3-14B", "TanBaby/EAGLE3-Qwen3-14B-YARN-64K", 65536, SPECPV),
    KnownHead("meta-llama/Llama-3.1-8B-Instruct", "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", 2048),
    KnownHead(
        "meta-llama/Llama-3.3-70B-Instruct",
        "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B",
        2048,
        "6,144 wide over a target of 8,192; ships its embedding",
    ),
    KnownHead("lmsys/vicuna-13b-v1.3", "yuhuili/EAGLE3-Vicuna1.3-13B", 2048),
    KnownHead("Qwen/Qwen3-1.7B", "AngelSlim/Qwen3-1.7B_eagle3", 2048, ANGELSLIM),
    KnownHead("Qwen/Qwen3-4B", "AngelSlim/Qwen3-4B_eagle3", 2048, ANGELSLIM),
    KnownHead("Qwen/Qwen3-8B", "AngelSlim/Qwen3-8B_eagle3", 2048, ANGELSLIM),
    KnownHead("Qwen/Qwen3-14B", "AngelSlim/Qwen3-14B_eagle3", 2048, ANGELSLIM),
    KnownHead("Qwen/Qwen3-32B", "AngelSlim/Qwen3-32B_eagle3", 2048, ANGELSLIM),
    KnownHead("Qwen/Qwen3-235B-A22B", "lmsys/Qwen3-235B-A22B-EAGLE3", 2048, SPECFORGE),
    KnownHead("Qwen/Qwen3-8B", "RedHatAI/Qwen3-8B-speculator.eagle3", 2048, SPECULATORS),
    KnownHead("Qwen/Qwen3-14B", "RedHatAI/Qwen3-14B-speculator.eagle3", 2048, SPECULATORS),
)


def find_head(target: str) -> KnownHead | None:
    """Returns the head with the largest trained_length for a target, the first of equals; None if there is none.

    Args:
        target: Hub id, or a folder of the same name.
    """
    name = target.rstrip("/").lower()
    fits = [
        head
        for head in KNOWN_HEADS
        if head.target.lower() == name or head.target.lower().split("/")[1] == name.split("/")[-1]
    ]
    return max(fits, key=lambda head: head.trained_length, default=None)


def known_targets() -> list[str]:
    """Returns the hub ids of targets with at least one head."""
    return sorted({head.target for head in KNOWN_HEADS})
