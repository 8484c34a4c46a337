"""transformers' `generate` with a longgraft session as its decoding loop."""

from __future__ import annotations

from typing import Any

import torch

from longgraft.acceptance.sampling import Sampling
from longgraft.acceptance.sampling_defaults import SamplingDefaults
from longgraft.config.method_roles import HEADLESS
from longgraft.engine.session import Session
from longgraft.loading import load
from longgraft.runtime.byte_rows import numbers_of
from longgraft.target_model.module_forms import CACHES

# Arguments that transformers passes to every decoding loop.  Those that can change an answer are checked.
PASSED = frozenset(
    ("attention_mask", "position_ids", "cache_position", "use_cache", "logits_to_keep", "synced_gpus", *CACHES)
)
SAME_ROWS = 1e-3  # allowed difference of rows of a given cache, as a share of their norm
SAME_HALF_ROWS = 5e-2  # likewise in half precision


def custom_generate(
    model: Any,
    input_ids: torch.Tensor,
    generation_config: Any = None,
    logits_processor: Any = None,
    stopping_criteria: Any = None,
    session: Session | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """A decoding loop for transformers: `model.generate(ids, custom_generate=longgraft.custom_generate)`.

    transformers does not pass on a streamer or an assistant_model: use `Session.stream`.

    Args:
        model: The model whose `generate` was called.
        input_ids: [1, T] int64, one prompt without padding.
        generation_config: Sampling and limits come from here.
        logits_processor: Checked against the generation config.
        stopping_criteria: Checked against the generation config.
        session: A session that was loaded for this model; None: the model decodes without a drafter.
        **kwargs: What transformers passes to every decoding loop.  A given cache must hold the beginning of the
            prompt; longgraft reads the prompt itself, and leaves the given cache as it is.

    Returns:
        [1, T + new] int64, the prompt and the answer.

    Raises:
        ValueError: something was asked for that cannot be done exactly: batches, padding, other positions,
            another prompt's cache, beams, penalties other than the repetition penalty, or other criteria.

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
    config = generation_config
    if config is None:
        raise ValueError(
            "custom_generate was called without a generation config. Call it through "
            "transformers: model.generate(ids, custom_generate=longgraft.custom_generate)."
        )
    _check_request(config, kwargs, input_ids)
    session = session or load((model, None), None, tell=False, method=HEADLESS)
    if session.target.model is not model:
        raise ValueError("The session was loaded for another model. Pass load((model, tokenizer), ...) of this one.")
    for name in CACHES:
        if kwargs.get(name) is not None:
            _check_cache(kwargs[name], session, input_ids)
    eos: tuple[int, ...] = ()
    if config.eos_token_id is not None:
        eos = tuple(torch.as_tensor(config.eos_token_id).flatten().tolist())
    limit = config.max_new_tokens
    if limit is None:
        limit = config.max_length - input_ids.shape[1]
    _check_processors(logits_processor, config)
    _as_configured(
        stopping_criteria,
        {"MaxLengthCriteria": ("max_length", input_ids.shape[1] + limit), "EosTokenCriteria": ("eos_token_id", eos)},
    )
    if config.return_dict_in_generate:
        raise ValueError("return_dict_in_generate is set; longgraft returns the ids alone. Switch it off.")
    # Negative ids end nothing: by them transformers' users say that no token ends the answer.
    possible = [token for token in eos if 0 <= token < session.target.vocab_size]
    new: list[int] = []
    for step in session.open(input_ids, limit, _sampling(config), eos=possible):
        new += step.tokens
    answer = torch.tensor([new], device=input_ids.device, dtype=input_ids.dtype)
    return torch.cat([input_ids, answer], dim=1)


def _check_request(config: Any, kwargs: dict[str, Any], input_ids: torch.Tensor) -> None:
    """Raises ValueError for arguments of `generate` that longgraft does not apply."""
    for name, value in kwargs.items():
        if value is not None and name not in PASSED:
            raise ValueError(f"{name} was given, which longgraft does not apply. Leave it out or use plain generate.")
    mode = config.get_generation_mode().value
    if mode not in ("greedy_search", "sample"):
        raise ValueError(
            f"The generation config asks for {mode}; longgraft decodes by greedy_search or "
            "sample. Leave out num_beams, penalty_alpha, prompt_lookup_num_tokens, dola_layers and "
            "their like."
        )
    prompts = input_ids.shape[0]
    if prompts != 1:
        raise ValueError(f"{prompts} prompts were given, and one is taken here. Use longgraft.generate_all.")
    mask = kwargs.get("attention_mask")
    if mask is not None and not bool(mask.all()):
        raise ValueError("The attention mask hides some tokens; longgraft takes no padding. Give the bare prompt.")
    _check_positions(kwargs, input_ids.shape[1])


def _check_processors(processors: Any, config: Any) -> None:
    """Raises ValueError for logits processors other than those that the config's values make."""
    for processor in processors or ():
        if getattr(processor, "prompt_ignore_length", None) is not None:
            raise ValueError(
                "A repetition penalty with prompt_ignore_length was given; longgraft's counts "
                "the whole prompt. Leave it out or use plain generate."
            )
    _as_configured(
        processors,
        {
            "TemperatureLogitsWarper": ("temperature", config.temperature),
            "TopKLogitsWarper": ("top_k", config.top_k),
            "TopPLogitsWarper": ("top_p", config.top_p),
            "MinPLogitsWarper": ("min_p", config.min_p),
            "RepetitionPenaltyLogitsProcessor": ("penalty", config.repetition_penalty),
            "InfNanRemoveLogitsProcessor": ("", None),
        },
    )


def _sampling(config: Any) -> Sampling:
    """Returns the sampling of a config, which transformers has completed from generation_config.json."""
    settings = {"repetition_penalty": config.repetition_penalty}
    if config.do_sample:
        temperature = 1.0 if config.temperature is None else config.temperature
        settings |= {
            "temperature": temperature,
            "top_p": config.top_p,
            "top_k": config.top_k,
            "min_p": config.min_p,
            "seed": int(torch.randint(2**31, (1,))),
        }
    return SamplingDefaults().sampling(settings)


def _check_positions(kwargs: dict[str, Any], tokens: int) -> None:
    """Raises ValueError for positions other than 0, 1, 2 and so on."""
    for name in ("position_ids", "cache_position"):
        positions = kwargs.get(name)
        if positions is None:
            continue
        usual = torch.arange(tokens, device=positions.device)
        if positions.shape[-1] != tokens or not bool((positions == usual).all()):
            raise ValueError(
                f"{name} was given with other positions than 0 to {tokens - 1}, which longgraft "
                "does not apply. Leave it out or use plain generate."
            )


def _check_cache(cache: Any, session: Session, input_ids: torch.Tensor) -> None:
    """Raises ValueError unless a cache is empty or holds the prompt's beginning, which is read for this."""
    held = cache.get_seq_length()
    if held == 0:
        return
    is_shorter = held < input_ids.shape[1] and not session.engine.cache.stateful
    if not is_shorter or not _holds(cache, session, input_ids[:, :held]):
        raise ValueError(
            f"past_key_values holds {held:,} tokens that are not known to be the beginning of "
            "this prompt. Leave it out; load(..., prefixes=GiB) keeps what earlier prompts computed."
        )


def _holds(cache: Any, session: Session, beginning: torch.Tensor) -> bool:
    """Tells if a cache holds the rows of these tokens [1, n], which the session computes."""
    ours = session.engine.cache.layers
    with session.open(beginning, 2, eos=()) as request:  # a limit of 1 would end it and free its cache
        for step in request:
            if step.tokens:
                break
        if len(cache.layers) != len(ours):
            return False
        tokens = [beginning.shape[1]] * len(ours)
        return all(map(_same_rows, cache.layers, ours, tokens))


def _same_rows(layer: Any, ours: Any, held: int) -> bool:
    """Tells if a layer's keys and values of `held` tokens, or of the last of them, are nearly ours."""
    if layer.keys is None or ours.keys is None:
        return layer.keys is ours.keys
    tolerance = SAME_HALF_ROWS
    if layer.keys.dtype == ours.keys.dtype == torch.float32:
        tolerance = SAME_ROWS
    for values, our_values in ((layer.keys, ours.keys), (layer.values, ours.values)):
        rows = held
        if getattr(layer, "is_sliding", False):
            rows = values.shape[2]
        if not 0 < rows <= held:
            return False
        numbers = values[:, :, :rows].float()
        expected = numbers_of(our_values[:, :, held - rows : held], torch.float32)
        if numbers.shape != expected.shape or (numbers - expected).norm() > tolerance * expected.norm():
            return False
    return True


def _as_configured(parts: Any, configured: dict[str, tuple[str, Any]]) -> None:
    """Raises ValueError for a warper or criterion that differs from the config: only its values are applied.

    configured: class -> (attribute, its value in the config); attribute "": the class has none
    """
    for part in parts or ():
        name = type(part).__name__
        if name not in configured:
            raise ValueError(
                f"generate was given {name}, which longgraft does not apply. Switch it off or use plain generate."
            )
        attribute, wanted = configured[name]
        if not attribute:
            continue
        value = getattr(part, attribute)
        if isinstance(value, torch.Tensor):
            value = sorted(value.flatten().tolist())
            wanted = sorted(wanted)
        if value != wanted:
            raise ValueError(
                f"generate was given {name} with {attribute} {value}, and the generation config "
                f"says {wanted}. Set it there: generate({attribute}=...)."
            )
