"""transformers' `generate` with a longgraft session as its decoding loop."""

from __future__ import annotations

from typing import Any

import torch

from longgraft.acceptance.sampling_defaults import SamplingDefaults
from longgraft.config.method_roles import HEADLESS
from longgraft.engine.session import Session
from longgraft.loading import load
from longgraft.runtime.byte_rows import numbers_of
from longgraft.target_model.module_forms import CACHES

# Arguments that transformers passes to every decoding loop.  Those that can change an answer are checked.
PASSED = frozenset(("attention_mask", "position_ids", "cache_position", "use_cache", "logits_to_keep", "synced_gpus",
                    *CACHES))
# Allowed difference of rows of a given cache, as a share of their norm; the second in half precision.
SAME_ROWS, SAME_HALF_ROWS = 1e-3, 5e-2


def custom_generate(model: Any, input_ids: torch.Tensor, generation_config: Any = None, logits_processor: Any = None,
                    stopping_criteria: Any = None, session: Session | None = None, **kwargs: Any) -> torch.Tensor:
    """A decoding loop for transformers: `model.generate(ids, custom_generate=longgraft.custom_generate)`.

    transformers does not pass on a streamer or an assistant_model: use `Session.stream`.

    Args:
        model: The model whose `generate` was called.
        input_ids: [1, T] int64, one prompt without padding.
        generation_config: Sampling and limits come from here.
        logits_processor: Checked against the generation config.
        stopping_criteria: Checked against the generation config.
        session: A session that was loaded for this model; None: the model decodes without a drafter.
        **kwargs: What transformers passes to every decoding loop.  A given cache must hold the beginning of the prompt;
            longgraft reads the prompt itself, and leaves the given cache as it is.

    Returns:
        [1, T + new] int64, the prompt and the answer.

    Raises:
        ValueError: something was asked for that cannot be done exactly: batches, padding, other positions, another
            prompt's cache, beams, penalties other than the repetition penalty, or other criteria.

    Examples:
        >>> import longgraft
        >>> session = longgraft.load(tell=False)
        >>> model, tokenizer = session.target.model, session.tokenizer     # any pair of transformers will do
        >>> prompt = tokenizer("if __name__ ==", return_tensors="pt")
        >>> ids = model.generate(**prompt, max_new_tokens=5, do_sample=False,
        ...                      custom_generate=longgraft.custom_generate, session=session)
        >>> tokenizer.decode(ids[0])
        'if __name__ == "__main__":'
    """
    c = generation_config
    if c is None:
        raise ValueError("custom_generate was called without a generation config. Call it through transformers: "
                         "model.generate(ids, custom_generate=longgraft.custom_generate).")
    if unknown := [name for name, value in kwargs.items() if value is not None and name not in PASSED]:
        raise ValueError(f"{unknown[0]} was given, which longgraft does not apply. Leave it out or use plain generate.")
    if (mode := c.get_generation_mode().value) not in ("greedy_search", "sample"):
        raise ValueError(f"The generation config asks for {mode}; longgraft decodes by greedy_search or sample. Leave "
                         "out num_beams, penalty_alpha, prompt_lookup_num_tokens, dola_layers and their like.")
    if input_ids.shape[0] != 1:
        raise ValueError(f"{input_ids.shape[0]} prompts were given, and one is taken here. Use longgraft.generate_all.")
    mask = kwargs.get("attention_mask")
    if mask is not None and not bool(mask.all()):
        raise ValueError("The attention mask hides some tokens; longgraft takes no padding. Give the bare prompt.")
    _check_positions(kwargs, input_ids.shape[1])
    session = session or load((model, None), None, tell=False, method=HEADLESS)
    if session.target.model is not model:
        raise ValueError("The session was loaded for another model. Pass load((model, tokenizer), ...) of this one.")
    for name in CACHES:
        if kwargs.get(name) is not None:
            _check_cache(kwargs[name], session, input_ids)
    # By a negative id transformers' users say that no token ends the answer.
    eos = () if c.eos_token_id is None else tuple(torch.as_tensor(c.eos_token_id).flatten().tolist())
    limit = c.max_length - input_ids.shape[1] if c.max_new_tokens is None else c.max_new_tokens
    if any(getattr(part, "prompt_ignore_length", None) is not None for part in logits_processor or ()):
        raise ValueError("A repetition penalty with prompt_ignore_length was given; longgraft's counts the whole "
                         "prompt. Leave it out or use plain generate.")
    _as_configured(logits_processor, {
        "TemperatureLogitsWarper": ("temperature", c.temperature), "TopKLogitsWarper": ("top_k", c.top_k),
        "TopPLogitsWarper": ("top_p", c.top_p), "MinPLogitsWarper": ("min_p", c.min_p),
        "RepetitionPenaltyLogitsProcessor": ("penalty", c.repetition_penalty),
        "InfNanRemoveLogitsProcessor": ("", None)})
    _as_configured(stopping_criteria, {
        "MaxLengthCriteria": ("max_length", input_ids.shape[1] + limit), "EosTokenCriteria": ("eos_token_id", eos)})
    if c.return_dict_in_generate:
        raise ValueError("return_dict_in_generate is set; longgraft returns the ids alone. Switch it off.")
    # transformers has completed the request from generation_config.json, so nothing is taken from it again.
    given = {"repetition_penalty": c.repetition_penalty}
    if c.do_sample:
        given |= {"temperature": 1.0 if c.temperature is None else c.temperature, "top_p": c.top_p, "top_k": c.top_k,
                  "min_p": c.min_p, "seed": int(torch.randint(2 ** 31, (1,)))}
    sampling = SamplingDefaults().sampling(given)
    new: list[int] = []
    possible = [token for token in eos if 0 <= token < session.target.vocab_size]     # other ids end nothing
    for step in session.open(input_ids, limit, sampling, eos=possible):
        new += step.tokens
    return torch.cat([input_ids, torch.tensor([new], device=input_ids.device, dtype=input_ids.dtype)], dim=1)


def _check_positions(kwargs: dict[str, Any], tokens: int) -> None:
    """Raises ValueError for positions other than 0, 1, 2 and so on."""
    for name in ("position_ids", "cache_position"):
        given = kwargs.get(name)
        if given is None:
            continue
        usual = given.shape[-1] == tokens and bool((given == torch.arange(tokens, device=given.device)).all())
        if not usual:
            raise ValueError(f"{name} was given with other positions than 0 to {tokens - 1}, which longgraft does not "
                             "apply. Leave it out or use plain generate.")


def _check_cache(given: Any, session: Session, input_ids: torch.Tensor) -> None:
    """Raises ValueError unless a given cache is empty or holds the beginning of the prompt, which is read for this."""
    held = given.get_seq_length()
    if held == 0:
        return
    if held >= input_ids.shape[1] or session.engine.cache.stateful or not _holds(given, session, input_ids[:, :held]):
        raise ValueError(f"past_key_values holds {held:,} tokens that are not known to be the beginning of this "
                         "prompt. Leave it out; load(..., prefixes=GiB) keeps what earlier prompts computed.")


def _holds(given: Any, session: Session, beginning: torch.Tensor) -> bool:
    """Tells if a cache holds the rows of these tokens [1, n], which the session computes."""
    layers, ours = given.layers, session.engine.cache.layers
    with session.open(beginning, 2, eos=()) as request:     # with a limit of 1 it would end, and free its cache
        for step in request:
            if step.tokens:
                break
        return len(layers) == len(ours) and all(
            _same_rows(theirs, own, beginning.shape[1]) for theirs, own in zip(layers, ours, strict=True))


def _same_rows(theirs: Any, own: Any, held: int) -> bool:
    """Tells if a layer's keys and values of `held` tokens, or of the last of them, are nearly the same."""
    if theirs.keys is None or own.keys is None:
        return theirs.keys is own.keys
    for given, kept in ((theirs.keys, own.keys), (theirs.values, own.values)):
        rows = given.shape[2] if getattr(theirs, "is_sliding", False) else held
        if not 0 < rows <= held:
            return False
        given, ours = given[:, :, :rows].float(), numbers_of(kept[:, :, held - rows:held], torch.float32)
        if given.shape != ours.shape:
            return False
        exact = theirs.keys.dtype == own.keys.dtype == torch.float32
        if (given - ours).norm() > (SAME_ROWS if exact else SAME_HALF_ROWS) * ours.norm():
            return False
    return True


def _as_configured(parts: Any, known: dict[str, tuple[str, Any]]) -> None:
    """Raises ValueError for a warper or criterion that differs from the config: only the config's values are applied.

    known: class -> (attribute, its value in the config); attribute "": the class has none
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
