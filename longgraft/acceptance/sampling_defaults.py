"""A model's generation_config.json completes the sampling of requests.

A sampled answer takes from the file what its request leaves out.  A greedy answer takes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from longgraft.acceptance.sampling import DRAWN, Sampling

FILE = "generation_config.json"
SAMPLED = ("temperature", "top_p", "top_k", "min_p")  # fields that count only if the file says do_sample
# Settings of transformers that change answers and that no request takes, and their values that change nothing.
UNAPPLIED: Mapping[str, tuple[Any, ...]] = {
    "typical_p": (1.0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1.0,),
    "bad_words_ids": ([],),
    "sequence_bias": ({},),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "min_new_tokens": (0,),
    "num_beams": (1,),
}


@dataclass(frozen=True)
class SamplingDefaults:
    """The sampling that a model's generation config recommends.

    Attributes:
        values: Fields of `Sampling` that the file sets.
        unapplied: Settings of the file that change answers in transformers and are not supported here.

    Example:
        `SamplingDefaults.of(model, "qwen").sampling({"temperature": 0.7})`
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    unapplied: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Any, name: str) -> SamplingDefaults:
        """Reads a transformers model's generation config.

        Args:
            model: The model.
            name: Its name, for messages.

        Raises:
            ValueError: a value cannot be used; the message names file, key and value.
        """
        config = getattr(model, "generation_config", None)
        values: dict[str, Any] = {}
        if getattr(config, "do_sample", None):
            # 1 is transformers' own default.
            values = {"temperature": 1.0} | _set_values(config, SAMPLED)
        values |= _set_values(config, ("repetition_penalty",))
        for key, value in values.items():
            try:
                _alone(key, value)
            except ValueError as error:
                raise ValueError(f"{FILE} of {name}: {error} Correct the value there, or remove it.") from error
        unapplied = {key: value for key, value in _set_values(config, UNAPPLIED).items() if value not in UNAPPLIED[key]}
        return cls(values, unapplied)

    @property
    def temperature(self) -> float:
        """The temperature of an answer that names none, where such answers follow the file; 0 is greedy."""
        if "temperature" in self.values:
            return Sampling(**self.values).temperature
        return 0.0

    @property
    def described(self) -> str:
        """Describes the file in a line for people; "" if it says nothing."""
        effective = [
            f"{name} {value:g}"
            for name, value in self.values.items()
            if name == "temperature" or _alone(name, value) != Sampling(temperature=1.0)
        ]
        lines = []
        if effective:
            lines.append(
                f"{', '.join(effective)}; sampled answers take from these what their requests leave "
                "out, greedy ones and measurements nothing"
            )
        lines += [f"{name} {value} is not applied" for name, value in self.unapplied.items()]
        return f"{FILE}: {'; '.join(lines)}" if lines else ""

    def sampling(self, given: Mapping[str, Any]) -> Sampling:
        """Returns the sampling of a request, completed from the file if the request sets a temperature.

        Args:
            given: Fields of `Sampling`; those that are None are left out.

        Raises:
            ValueError: a value is out of range, or would change nothing.
        """
        requested = {name: value for name, value in given.items() if value is not None}
        if not requested.get("temperature") or "replay" in requested:
            return Sampling(**requested)
        completed = Sampling(**{**self.values, **requested})
        if completed.temperature == 0:
            return Sampling(**{name: value for name, value in requested.items() if name not in DRAWN})
        return completed


def _set_values(config: Any, names: Iterable[str]) -> dict[str, Any]:
    """Returns those of the named settings that a generation config sets."""
    values = {name: getattr(config, name, None) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _alone(name: str, value: Any) -> Sampling:
    """Returns the sampling of an answer at temperature 1 in which only this field is set."""
    return Sampling(**{"temperature": 1.0} | {name: value})
