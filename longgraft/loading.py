"""From names to a session: models, drafters, calibrations.

Knows hub ids, folders and the registries; knows no decoding.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from longgraft.calibration import Calibration, default_path
from longgraft.methods import Parts, build, find
from longgraft.observation import Clock
from longgraft.session import Generation, Prompt, Sampling, Session, Stats
from longgraft.settings import HeadOverrides, Settings
from longgraft.target.model import Target
from longgraft.target.refusal import refuse
from longgraft.yarn_drafters.checkpoint import load_head
from longgraft.yarn_drafters.known_heads import find_head, known_targets
from longgraft.yarn_drafters.layouts import TargetShape
from longgraft.yarn_drafters.network import Eagle3Network

EMBEDDED = "embedded"       # the pair that ships with the package
FALLBACK = "retrieval"      # what "graft" becomes where no drafter is known
# Verifying many nodes is not free on a CPU: of 8 to 60, sixteen lost least speed while most of the acceptance was
# kept (embedded pair, README "Results").
CPU_BUDGET = 16
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load(model: Any = None, drafter: str | Path | None = "auto", tell: bool = True, **options: Any) -> Session:
    """A session: `load(...)` once, then `generate` and `stream` as often as you like.

    model:   a hub id, a folder, a loaded (model, tokenizer), or None for the embedded pair
    drafter: a hub id or folder of an EAGLE-3 head; "auto": the known head of this model, else retrieval alone;
             None: no drafter
    tell:    say on stderr what was chosen
    options: the fields of `Settings`
    """
    opts = Settings(**options)
    find(opts.method)       # an unknown one is said before a model is loaded
    target, tokenizer = _target(model, opts)
    # Without added tokens: some models ship a few that they never predict.
    if tokenizer is not None and tokenizer.vocab_size > target.vocab_size:
        raise ValueError(f"The tokenizer has {tokenizer.vocab_size:,} tokens and {target.name} predicts "
                         f"{target.vocab_size:,}: it is another model's. Load the tokenizer of this model.")
    network, opts, notes = _drafter(drafter, target, opts)
    method = find(opts.method)
    clock, calibration = Clock(), _calibration(target, tokenizer, network, opts)
    parts = Parts(target, network if method.needs_drafter else None, calibration.snapshot, calibration.thresholds,
                  calibration.split, opts.draft_levels, opts.draft_top_k, opts.draft_window, opts.retrieved_depth,
                  opts.retrieved_width, opts.persist, clock)
    limits = {}
    if parts.network is not None and not (method.windowed or opts.draft_window or parts.network.config.window):
        limits[f"{target.name}'s drafter"] = parts.network.config.max_positions
    usual = method.budget if target.device.type != "cpu" else min(method.budget, CPU_BUDGET)
    budget = opts.budget or usual
    session = Session(target, tokenizer, build(opts.method, parts), clock, budget, limits, opts.chunk, parts)
    gates = f", {calibration.describe()}" if method.needs_drafter else ""
    session.about = [*notes, f"{target.name} on {target.device} in {str(target.dtype)[6:]}, attention "
                             f"{target.attention}, method {opts.method}, budget {budget}{gates}"]
    if tell:
        print(*(f"longgraft: {line}" for line in session.about), sep="\n", file=sys.stderr)
    return session


def generate(prompt: Prompt, model: Any = None, drafter: str | Path | None = "auto", max_new_tokens: int = 256,
             stop: Sequence[str] = (), **options: Any) -> Generation:
    """The model's exact answer to a long prompt.  options: the fields of `Settings` and of `Sampling`."""
    draw = {f.name: options.pop(f.name) for f in fields(Sampling) if f.name in options}
    Sampling(**draw)        # a mistake is said before a model is loaded
    session = load(model, drafter, tell=False, **options)
    return session.generate(prompt, max_new_tokens, stop, **draw)


def custom_generate(model: Any, input_ids: torch.Tensor, generation_config: Any = None, logits_processor: Any = None,
                    stopping_criteria: Any = None, session: Session | None = None, **kwargs: Any) -> torch.Tensor:
    """For transformers: `model.generate(ids, custom_generate=longgraft.custom_generate, session=session)`.

    input_ids: [1, T]; returns [1, T + new].  Sampling comes from the generation config; what cannot be
    honoured exactly (batches, padding, penalties, other criteria) is refused; a streamer is out of reach, since
    transformers hides it from callables: use `Session.stream`.  Without a session the model decodes by retrieval.
    """
    if input_ids.shape[0] != 1:
        raise ValueError(f"{input_ids.shape[0]} prompts were given; longgraft decodes one at a time. Loop over them.")
    mask = kwargs.get("attention_mask")
    if mask is not None and not bool(mask.all()):
        raise ValueError("The attention mask hides some tokens; longgraft takes no padding. Give the bare prompt.")
    session = session or load((model, None), None, tell=False, method=FALLBACK)
    if session.target.model is not model:
        raise ValueError("The session was loaded for another model. Pass load((model, tokenizer), ...) of this one.")
    _only_known(logits_processor, {"TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper",
                                   "MinPLogitsWarper", "InfNanRemoveLogitsProcessor"})
    _only_known(stopping_criteria, {"MaxLengthCriteria", "EosTokenCriteria"})
    if generation_config.return_dict_in_generate:
        raise ValueError("return_dict_in_generate is set; longgraft returns the ids alone. Switch it off.")
    c = generation_config
    sampling = Sampling()
    if c.do_sample:
        sampling = Sampling(c.temperature if c.temperature is not None else 1.0,
                            c.top_p if c.top_p is not None else 1.0, c.top_k or 0, c.min_p or 0.0,
                            int(torch.randint(2 ** 31, (1,))))
    eos = c.eos_token_id
    ends = () if eos is None else (eos,) if isinstance(eos, int) else tuple(torch.as_tensor(eos).tolist())
    ids, new = input_ids[0].tolist(), []
    limit = c.max_length - len(ids) if c.max_new_tokens is None else c.max_new_tokens
    for tokens in session.tokens(ids, Stats(), limit, sampling, ends):
        new += tokens
    return torch.cat([input_ids, torch.tensor([new], device=input_ids.device, dtype=input_ids.dtype)], dim=1)


def _only_known(parts: Any, known: set[str]) -> None:
    """transformers builds warpers and length criteria from the config, as we do; anything else would be lost."""
    if other := sorted({type(part).__name__ for part in parts or ()} - known):
        raise ValueError(f"generate was given {', '.join(other)}, which longgraft does not apply. "
                         "Switch it off or use plain generate.")


def _target(model: Any, opts: Settings) -> tuple[Target, Any]:
    if isinstance(model, tuple):
        loaded, tokenizer = model
        name = getattr(loaded.config, "_name_or_path", "") or type(loaded).__name__
        weight = loaded.get_input_embeddings().weight
        wanted = None if opts.dtype is None else _dtype(opts.dtype, weight.device, loaded.config)
        if wanted not in (None, weight.dtype) or opts.device not in (None, str(weight.device), weight.device.type):
            raise ValueError(f"The model given is {weight.dtype} on {weight.device}; {opts.dtype or 'any dtype'} on "
                             f"{opts.device or 'any device'} was asked for. Move it with model.to(...) first.")
        return Target(loaded, name, opts.attention), tokenizer
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    path, name = (str(embedded("target")), EMBEDDED) if model in (None, EMBEDDED) else (str(model), str(model))
    device = torch.device(opts.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    try:
        config = AutoConfig.from_pretrained(path)
        refuse(config, name)
        tokenizer = AutoTokenizer.from_pretrained(path)
        loaded = AutoModelForCausalLM.from_pretrained(path, dtype=_dtype(opts.dtype, device, config))
    except OSError as error:
        raise ValueError(f"Model {name!r} could not be loaded: {str(error).splitlines()[0]}\n"
                         "Give a folder with config.json and safetensors, or a hub id that this machine can reach."
                         ) from error
    return Target(loaded.eval().to(device), name, opts.attention), tokenizer


def _dtype(dtype: str | torch.dtype | None, device: torch.device, config: Any) -> torch.dtype:
    """On a CPU float32, where decoding is exact; on a GPU what the weights were saved in."""
    if isinstance(dtype, str):
        if dtype not in _DTYPES:
            raise ValueError(f"dtype {dtype!r} is unknown. Known: {', '.join(_DTYPES)}.")
        return _DTYPES[dtype]
    return dtype or (torch.float32 if device.type == "cpu" else config.dtype or torch.bfloat16)


def _drafter(drafter: str | Path | None, target: Target,
             opts: Settings) -> tuple[Eagle3Network | None, Settings, list[str]]:
    """The network, the options that its absence changes, and what to tell about it."""
    if not find(opts.method).needs_drafter:
        return None, opts, []
    path: str | Path | None = drafter
    if drafter == "auto":
        known = find_head(target.name)
        path = embedded("drafter") if target.name == EMBEDDED else known.head if known else None
        if path is None:
            if opts.method != Settings.method:
                raise ValueError(f"No EAGLE-3 head of {target.name} is known, and method {opts.method!r} needs one.\n"
                                 f"Pass --drafter; known targets: {', '.join(known_targets())}.")
            note = f"no EAGLE-3 head of {target.name} is known; decoding by retrieval alone"
            return None, replace(opts, method=FALLBACK), [note]
    if path is None:
        return None, opts, []
    return head_of(path, target, opts.head), opts, []


def head_of(path: str | Path, target: Target, overrides: HeadOverrides) -> Eagle3Network:
    """A head in the target's precision, on its device; what has no embedding of its own shares the target's."""
    shape = TargetShape(target.config.num_hidden_layers, target.config.hidden_size, target.vocab_size)
    network = load_head(path, shape, overrides, dtype=target.dtype, device=target.device)
    if network.embed_tokens is None:
        network.share_embedding(target.model.get_input_embeddings())
    return network.eval()


def _calibration(target: Target, tokenizer: Any, network: Eagle3Network | None, opts: Settings) -> Calibration:
    identity = identity_of(target, tokenizer, network)
    if opts.calibration is None:
        return Calibration()
    if opts.calibration == "auto":
        path = default_path(identity)
        if path.exists():
            return Calibration.load(path, identity, target.device)
        if target.name == EMBEDDED:
            with suppress(ValueError):      # with another head, or none, the shipped one does not apply
                return Calibration.load(embedded("calibration.safetensors"), identity, target.device)
        return Calibration()
    path = Path(opts.calibration)
    if not path.exists():
        raise ValueError(f"Calibration file {path} does not exist. Make it with `longgraft calibrate --out {path}`.")
    return Calibration.load(path, identity, target.device)


def identity_of(target: Target, tokenizer: Any, network: Eagle3Network | None) -> dict[str, str]:
    """What a calibration belongs to: ids mean nothing under another tokenizer or target, thresholds under another
    drafter.  Weights are told apart by a few of their values."""
    words = sorted(tokenizer.get_vocab().items()) if tokenizer is not None else "none"
    drafter = "none" if network is None else _digest([network.config, network.fc.weight[0].tolist()])
    return {"target": Path(target.name).name, "vocab_size": str(target.vocab_size), "tokenizer": _digest(words),
            "weights": _digest(target.head.weight[-1].tolist()), "drafter": drafter}


def _digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def embedded(part: str) -> Path:
    """A part of the pair that ships with the package."""
    return Path(str(importlib.resources.files("longgraft.yarn_drafters"))) / "embedded" / part
