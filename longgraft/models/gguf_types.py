"""Types of tensors in GGUF files that the `gguf` package does not know, and who writes them."""

from __future__ import annotations

from collections.abc import Mapping


class ForeignType(ValueError):
    """A tensor has a type that cannot be read; the message names both and who writes the type, in one clause."""


OLD = "an old llama.cpp"
NEW = "a newer llama.cpp, or a fork of it,"
BITNET = "Microsoft's bitnet.cpp"
IK = "ik_llama.cpp"
FIRST_OF_IK = 97  # ik_llama.cpp numbers its types from here, far above llama.cpp's
# Number -> (name, program), from the enumerations `ggml_type` of these programs.
FOREIGN: Mapping[int, tuple[str, str]] = {
    4: ("Q4_2", OLD),
    5: ("Q4_3", OLD),
    31: ("Q4_0_4_4", OLD),
    32: ("Q4_0_4_8", OLD),
    33: ("Q4_0_8_8", OLD),
    36: ("I2_S", BITNET),
    133: ("Q6_0", IK),
    134: ("IQ1_BN", IK),
    135: ("IQ2_BN", IK),
    137: ("IQ2_K", IK),
    138: ("IQ3_K", IK),
    139: ("IQ4_K", IK),
    140: ("IQ5_K", IK),
    141: ("IQ6_K", IK),
    144: ("IQ4_KS", IK),
    145: ("IQ2_KS", IK),
    146: ("IQ4_KSS", IK),
    152: ("IQ5_KS", IK),
    153: ("IQ2_KT", IK),
    154: ("IQ3_KT", IK),
    155: ("IQ4_KT", IK),
    156: ("IQ3_KS", IK),
    157: ("IQ2_KL", IK),
    158: ("IQ1_KT", IK),
}


def foreign(tensor: str, number: int) -> ForeignType:
    """Returns the error for a tensor whose type has this number."""
    name, program = FOREIGN.get(number, ("", IK if number >= FIRST_OF_IK else NEW))
    named = f"type {name} (number {number})" if name else f"type {number}"
    return ForeignType(f"its tensor {tensor} has {named}, which {program} writes and longgraft does not read")
