"""Predicted outputs: text that an answer may repeat, such as a draft of it, the edited file or other files.

This is OpenAI's interface; it also counts how much of the prediction was repeated.  The target never reads
the text, so only speed depends on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

import torch

from longgraft.engine.encoder import Encoder

Prediction = str | Sequence[int] | torch.Tensor | Sequence[str | Sequence[int] | torch.Tensor]


def encode_prediction(encoder: Encoder, prediction: Prediction | None) -> list[list[int]]:
    """Returns the token ids of each text that is not empty.

    Raises ValueError for anything but text and token ids.
    """
    if prediction is None:
        return []
    texts: Iterable[Any] = [prediction]
    several = isinstance(prediction, Sequence) and not isinstance(prediction, (str, bytes))
    if several and not all(isinstance(item, Integral) for item in prediction):
        texts = prediction
    encoded = []
    for text in texts:
        ids = encoder.bare(text, "prediction")
        if ids:
            encoded.append(ids)
    return encoded


def accepted(prediction: Sequence[int], answer: Sequence[int]) -> tuple[int, int]:
    """Returns OpenAI's (accepted_prediction_tokens, rejected_prediction_tokens).

    Accepted are the tokens of the prediction that the answer has in the same order; the others are rejected.
    It is the longest common subsequence, bit-parallel in one integer (Hyyro 2004), which takes milliseconds
    for two texts of 10,000 tokens.
    """
    common = set(prediction).intersection(answer)  # an answer is short, so most tokens cost no time and memory
    places: dict[int, int] = {}
    shared = [token for token in prediction if token in common]
    for place, token in enumerate(shared):
        places[token] = places.get(token, 0) | 1 << place
    full = (1 << len(shared)) - 1
    row = full  # bit 0 marks a token of the prediction that lengthens the subsequence
    for token in answer:
        if token in common:
            matches = row & places[token]
            row = ((row + matches) | (row - matches)) & full
    repeated = len(shared) - row.bit_count()
    return repeated, len(prediction) - repeated
