"""Entries of a configuration that transformers leaves out when it reads the metadata of a GGUF file."""

from __future__ import annotations

from typing import Any

# Entries by the metadata's keys, without the architecture before them.
_LEFT_OUT = {
    "qwen2moe": {"expert_feed_forward_length": "moe_intermediate_size",
                 "expert_shared_feed_forward_length": "shared_expert_intermediate_size"},
    "qwen3moe": {"expert_feed_forward_length": "moe_intermediate_size"},
}


def restore_entries(config: Any, metadata: dict[str, Any], architecture: str) -> None:
    """Sets the entries that transformers leaves at the sizes of one known model."""
    for key, entry in _LEFT_OUT.get(architecture, {}).items():
        value = metadata.get(f"{architecture}.{key}")
        if value is not None:
            setattr(config, entry, value)
