"""transformers' own `generate`, decoding by a session of ours.  Knows generation configs; knows no method."""

from __future__ import annotations

from typing import Any

import torch

from longgraft.acceptance.sampling import Sampling
from longgraft.config.method_roles import HEADLESS
from longgraft.engine.session import Session
from longgraft.loading import load


def custom_generate(model: Any, input_ids: torch.Tensor, generation_config: Any = None, logits_processor: Any = None,
                    stopping_criteria: Any = None, session: Session | None = None, **kwargs: Any) -> torch.Tensor:
    """For transformers: `model.generate(ids, custom_generate=longgraft.custom_generate, session=session)`.

    input_ids: [1, T]; returns [1, T + new].  Sampling comes from the generation config; what cannot be
    honoured exactly (batches, padding, penalties, other criteria) is refused; a streamer is out of reach, since
    transformers hides it from callables: use `Session.stream`.  Without a session the model decodes without a drafter.
    """
    c = generation_config
    if c.num_beams not in (None, 1):
        raise ValueError(f"num_beams is {c.num_beams}, and longgraft says what one beam says. Leave it out.")
    if kwargs.get("inputs_embeds") is not None:
        raise ValueError("inputs_embeds were given, and longgraft reads token ids. Give input_ids alone.")
    if input_ids.shape[0] != 1:
        raise ValueError(f"{input_ids.shape[0]} prompts were given; longgraft decodes one at a time. Loop over them.")
    mask = kwargs.get("attention_mask")
    if mask is not None and not bool(mask.all()):
        raise ValueError("The attention mask hides some tokens; longgraft takes no padding. Give the bare prompt.")
    session = session or load((model, None), None, tell=False, method=HEADLESS)
    if session.target.model is not model:
        raise ValueError("The session was loaded for another model. Pass load((model, tokenizer), ...) of this one.")
    ends = _ids_of(c.eos_token_id)
    limit = c.max_length - input_ids.shape[1] if c.max_new_tokens is None else c.max_new_tokens
    _as_configured(logits_processor, {
        "TemperatureLogitsWarper": ("temperature", c.temperature), "TopKLogitsWarper": ("top_k", c.top_k),
        "TopPLogitsWarper": ("top_p", c.top_p), "MinPLogitsWarper": ("min_p", c.min_p),
        "InfNanRemoveLogitsProcessor": ("", None)})
    _as_configured(stopping_criteria, {
        "MaxLengthCriteria": ("max_length", input_ids.shape[1] + limit), "EosTokenCriteria": ("eos_token_id", ends)})
    if c.return_dict_in_generate:
        raise ValueError("return_dict_in_generate is set; longgraft returns the ids alone. Switch it off.")
    sampling = Sampling()
    if c.do_sample:
        sampling = Sampling(c.temperature if c.temperature is not None else 1.0,
                            c.top_p if c.top_p is not None else 1.0, c.top_k or 0, c.min_p or 0.0,
                            int(torch.randint(2 ** 31, (1,))))
    new: list[int] = []
    for step in session.open(input_ids[0].tolist(), limit, sampling, eos=ends):
        new += step.tokens
    return torch.cat([input_ids, torch.tensor([new], device=input_ids.device, dtype=input_ids.dtype)], dim=1)


def _as_configured(parts: Any, known: dict[str, tuple[str, Any]]) -> None:
    """transformers builds warpers and criteria from the config, as we do; what a caller made otherwise would be lost.

    known: class -> (attribute, its value by the config); an attribute of "" has none.
    """
    for part in parts or ():
        name = type(part).__name__
        if name not in known:
            raise ValueError(f"generate was given {name}, which longgraft does not apply. "
                             "Switch it off or use plain generate.")
        attribute, wanted = known[name]
        found = getattr(part, attribute) if attribute else None
        if isinstance(found, torch.Tensor):
            found, wanted = sorted(found.flatten().tolist()), sorted(wanted)
        if found != wanted:
            raise ValueError(f"generate was given {name} with {attribute} {found}, and the generation config says "
                             f"{wanted}. Set it there: generate({attribute}=...).")


def _ids_of(tokens: Any) -> tuple[int, ...]:
    """End tokens of a generation config: none, one or several."""
    return () if tokens is None else tuple(torch.as_tensor(tokens).flatten().tolist())
