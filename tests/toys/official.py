"""Models and settings with which the official implementations were run."""

from __future__ import annotations

import torch

from longgraft.target_model.model import Target

SETTINGS = {"t60_d7_k10": (60, 8, 10), "t16_d3_k4": (16, 4, 4)}  # budget, levels (EAGLE's depth + 1), top-k


def load_target(golden, kind):
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    return Target(AutoModelForCausalLM.from_pretrained(golden / f"models/target_{kind}").eval(), kind)
