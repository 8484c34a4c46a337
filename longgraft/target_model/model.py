"""The target: an unmodified transformers causal LM that runs on trees and prompt chunks and reports what was wanted.

Nothing stays on the model: attention and hooks are installed for one `run` and removed when it ends, also after an
exception.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from longgraft.attention.backends import BACKENDS, choose, fixed_backend
from longgraft.kernels.block_weight import block_weights
from longgraft.kernels.cpu import CpuKernels
from longgraft.kernels.packed_weight import PackedWeight
from longgraft.protocol.observation import Wants
from longgraft.runtime.devices import sent
from longgraft.runtime.fingerprint import digest
from longgraft.runtime.kv_cache import KVCache
from longgraft.runtime.packed_cache import PackedCache
from longgraft.target_model.attention_interface import PassContext, configs_of, engaged, lock_of
from longgraft.target_model.cache_size import attention_layers, cache_bytes_per_token, head_size
from longgraft.target_model.compiled_modules import CompiledModules
from longgraft.target_model.fused_modules import FusedModules, Kernels
from longgraft.target_model.hooks import decoder_output, inputs_of
from longgraft.target_model.module_forms import cache_name
from longgraft.target_model.passes import SHARED, Report, Segment
from longgraft.target_model.positions import most_positions
from longgraft.target_model.stateful_modules import SegmentStates, StatefulModules
from longgraft.target_model.supported import refuse
from longgraft.target_model.topk import TopK, best
from longgraft.target_model.weight_identity import sample

UNBOUNDED = 1 << 30  # positions of a model whose configuration states no limit
TOPK_ROWS = 256  # rows of a prompt's logits that exist at the same time
# Fields of a configuration on which no cache row depends: paths, provenance, how the model is run, meanings of ids.
UNSEEN = re.compile(
    r"_.*|.*_token_id|.*_?dtype|architectures|transformers_version|use_cache|return_dict|output_.*"
    r"|id2label|label2id|problem_type|chunk_size_feed_forward|.*dropout|initializer_range"
)


@dataclass(eq=False)
class Target:
    """A model that decodes.

    Args:
        model: PreTrainedModel in eval mode.
        name: Name for people and for identities.
        attention: "auto" or a backend's name; resolved on construction.
        kernels: A CPU's compiled kernels; None: torch.
        fused: Modules that passes of fixed shape compute in one launch each.
        cache_dtype: Dtype of keys and values; None: the model's; int8: bytes with scales
            (`runtime.byte_rows`).
        packs: True if several sequences may share a pass; set to False when such a pass fails.

    Raises:
        ValueError: the model cannot be decoded, is in training mode, has no weights, or is spread over
            devices.
    """

    model: Any
    name: str = "target"
    attention: str = "auto"
    kernels: CpuKernels | None = None
    fused: FusedModules | None = None
    cache_dtype: torch.dtype | None = None
    packs: bool = True
    drafts: ClassVar[bool] = False
    _configs: list[Any] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        refuse(self.model.config, self.name, type(self.model))
        if self.model.training:
            raise ValueError(
                f"{self.name} is in training mode, where dropout makes its outputs random. Call model.eval() first."
            )
        if any(p.is_meta for p in self.model.parameters()):
            raise ValueError(f"{self.name} is on the meta device, so it has no weights. Load it onto a real one.")
        devices = {p.device for p in self.model.parameters()}
        if len(devices) > 1:
            raise ValueError(
                f"{self.name} is spread over {', '.join(sorted(map(str, devices)))}; longgraft "
                "needs it on one device. Load it without device_map, or in a smaller dtype."
            )
        self.attention = choose(self.attention, self.device, self.dtype)
        self._configs = configs_of(self.model)
        self._backend = BACKENDS[self.attention]
        self.fixed_backend = fixed_backend(self.device)
        self._compiled = None if self.kernels is None else CompiledModules(self.model, self.kernels)
        self.stateful = StatefulModules(self.model)
        self.cache_name = cache_name(self.model.forward)

    @cached_property
    def config(self) -> PretrainedConfig:
        return self.model.config.get_text_config(decoder=True)

    @property
    def device(self) -> torch.device:
        return self.model.get_input_embeddings().weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.get_input_embeddings().weight.dtype

    @property
    def fused_kernels(self) -> Kernels | None:
        """The fused kernels for passes of fixed shape, also of a drafter; None: the modules' own code is used."""
        return None if self.fused is None else self.fused.kernels

    @property
    def head(self) -> nn.Linear:
        """The output embedding, with weight [V, H]."""
        return self.model.get_output_embeddings()

    @property
    def vocab_size(self) -> int:
        return self.head.weight.shape[0]

    @cached_property
    def layers(self) -> nn.ModuleList:
        """The decoder layers."""
        lists = [
            m
            for m in self.model.get_decoder().modules()
            if isinstance(m, nn.ModuleList) and len(m) == self.config.num_hidden_layers
        ]
        if not lists:
            raise ValueError(f"{self.name}: no list of {self.config.num_hidden_layers} decoder layers was found.")
        return lists[0]

    @cached_property
    def attention_layers(self) -> int:
        """Number of layers that attend."""
        return attention_layers(self.config)

    @cached_property
    def costly_context(self) -> float:
        """Context length in tokens at which attention costs as many multiplications as the linear layers.

        Windows and inactive experts are not taken into account.
        """
        if not self.attention_layers:
            return math.inf
        shapes = [parameter.shape for parameter in self.layers.parameters()]
        shapes += [weight.shape for _, weight in block_weights(self.layers)]
        linear = sum(shape.numel() for shape in shapes if len(shape) > 1)
        return linear / (2 * self.attention_layers * self.config.num_attention_heads * head_size(self.config))

    @property
    def max_positions(self) -> int:
        """Positions that the model allows, as lengthened by its rotary scaling."""
        most = most_positions(self.config)
        return UNBOUNDED if most is None else most

    @property
    def weights(self) -> str:
        """Format of the linear layers' weights: float, or the kind of integer blocks (gguf, int8)."""
        packed = (weight.kind for _, weight in block_weights(self.model) if isinstance(weight, PackedWeight))
        return next(packed, "float")

    @property
    def identity(self) -> dict[str, str]:
        """All that the rows of its cache depend on besides the tokens, by name."""
        config = {name: value for name, value in self.config.to_dict().items() if not UNSEEN.fullmatch(name)}
        identity = {"dtype": str(self.dtype)[6:]}
        if self.weights != "float":
            identity["linear weights"] = self.weights
        if self.cache_dtype is not None:
            identity["cache"] = str(self.cache_dtype)[6:]
        identity["rope"] = json.dumps(config.pop("rope_parameters", None), sort_keys=True)
        identity["configuration"] = digest(json.dumps(config, sort_keys=True, default=str))
        identity["weights"] = digest(sample(self.model))
        return identity

    def cache(self, capacity: int) -> KVCache:
        """Returns an empty cache for this model's layers."""
        config = self.config
        layers = config.num_hidden_layers
        kinds = list(getattr(config, "layer_types", None) or [""] * layers)
        # Gemma 3n: the last layers write no rows.
        shared = getattr(config, "num_kv_shared_layers", None) or 0
        kinds = kinds[: len(kinds) - shared] + ["shared"] * shared
        cache = KVCache(layers, capacity, kinds, self.cache_dtype)
        cache.stateful = bool(self.stateful)
        return cache

    def cache_bytes_per_token(self) -> int:
        """Returns the bytes of one token's keys and values in all layers."""
        return cache_bytes_per_token(self.config, self.cache_dtype or self.dtype)

    def run(self, segments: Sequence[Segment], wants: Wants) -> list[Report]:
        """Returns one report per segment.

        It is one forward; inside `together`, one forward for all requests that wait for this target.
        """
        shared = SHARED.get()
        if shared is None:
            return self.forward(segments, wants)
        return shared(self, segments, wants)

    def turn(self, wants: Wants) -> int:
        """Returns 0: passes that want different reports run in any order."""
        return 0

    @torch.inference_mode()
    def forward(self, segments: Sequence[Segment], wants: Wants) -> list[Report]:
        """Does `run` for this caller alone.

        Rows see only their own cache, so a segment's result does not depend on the others: bit for bit if
        whole layers are compiled, otherwise up to rounding.

        If not all logits are returned, top-k is computed block by block, so that [n, V] never exists.  It
        is the top-k of the output embedding's product, whose order is the same as the logits': soft-caps
        and scales are monotone.
        """
        layouts = [segment.layout(self.device) for segment in segments]
        rows = [layout.rows for layout in layouts]
        starts = [end - n for end, n in zip(accumulate(rows), rows, strict=True)]
        # The compiled kernels fall back to split; any other backend was requested by name.
        backend = self._backend
        if self.kernels and self.attention == "split":
            backend = self.kernels.attention
        all_logits = all(segment.logits == "all" for segment in segments)
        query_rows = wants.queries
        if query_rows and (all_logits or len(rows) > 1):
            query_rows = sum(rows)
        run = PassContext(layouts, backend, query_rows)
        record = sent(torch.cat([segment.record for segment in segments], dim=1), self.device)
        # The nodes of each segment whose logits the model computes.
        wanted = [torch.arange(n)[segment.with_logits] for segment, n in zip(segments, rows, strict=True)]
        logits_to_keep: Any = 0  # in transformers 0 means all rows
        if not all_logits:
            # Indices are on the device: given a number, some models omit rows (Gemma 4).
            indices = [nodes + start for nodes, start in zip(wanted, starts, strict=True)]
            logits_to_keep = sent(torch.cat(indices), self.device)
        caches = [segment.cache for segment in segments]
        with ExitStack() as stack:
            stack.enter_context(self.engaged(run))
            self._enter_modules(stack, segments)
            hidden = stack.enter_context(self.inputs_of(wants.layers))
            needs_final = wants.final or (wants.topk and not all_logits)
            last = stack.enter_context(decoder_output(self.model)) if needs_final else {}
            cache: Any = caches[0] if len(caches) == 1 else PackedCache(caches, rows)
            out = self.model(
                input_ids=record[:1],
                position_ids=record[1:],
                attention_mask=None,  # the model's own mask, with its windows, through `interface.mask`
                use_cache=True,
                logits_to_keep=logits_to_keep,
                **{self.cache_name: cache},
            )
            self.check(run)
            logits = out.logits[0].split([len(nodes) for nodes in wanted])
            reports = []
            for segment, segment_logits, start, n in zip(segments, logits, starts, rows, strict=True):
                share = slice(start, start + n)
                final = last["hidden"][share] if last else None
                queries = run.queries
                if len(rows) > 1:
                    newest = n if segment.logits == "all" else wants.queries
                    queries = {layer: recorded[:, share][:, -newest:] for layer, recorded in queries.items()}
                topk = probabilities = None
                if wants.topk:
                    topk, probabilities = self._topk_of(segment, segment_logits, final, wants)
                inputs = {layer: states[0, share] for layer, states in hidden.items()}
                last_states = final if wants.final else None
                reports.append(Report(segment_logits, topk, inputs, last_states, queries, probabilities))
        return reports

    def _enter_modules(self, stack: ExitStack, segments: Sequence[Segment]) -> None:
        """Replaces the compiled and the stateful modules for a pass over these segments, until the stack is left."""
        if self._compiled is not None:
            if not all(segment.cache.length for segment in segments):
                self.forget_changed()
            stack.enter_context(self._compiled())
        if self.stateful:
            for states in stack.enter_context(self.stateful(segments, self.device)):
                states.segment.cache.pending = partial(self._keep_states, states)

    def forget_changed(self) -> None:
        """Drops the kernels' packed copies of weights that have changed."""
        if self._compiled is not None:
            self._compiled.forget_changed()

    @torch.inference_mode()
    def _keep_states(self, states: SegmentStates, path: Tensor) -> None:
        """Commits a segment's states after a path, with the code that its pass ran."""
        compiled = self._compiled() if self._compiled else nullcontext()
        with lock_of(self.model), compiled:
            states.keep(path, self.stateful.run)

    def _topk_of(self, segment: Segment, logits: Tensor, final: Tensor | None, wants: Wants) -> TopK:
        """Returns the ranked nodes' top-k, from the logits, or from the final states [n, H] if fewer logits exist."""
        ranked = slice(None) if segment.ranked is None else sent(segment.ranked, self.device)
        if segment.logits == "all":
            return best(logits[ranked], wants, self.fused_kernels)
        assert final is not None
        return self._topk(final[ranked], wants)

    def check(self, run: PassContext) -> None:
        """Raises ValueError if a layer did not use our attention."""
        if run.calls != self.attention_layers:
            raise ValueError(
                f"{self.name}: {run.calls} of {self.attention_layers} layers used the "
                "attention interface, so its tree mask would be ignored. This model cannot be "
                "used."
            )

    def logits(self, hidden: Tensor, ids: Tensor | None = None) -> Tensor:
        """Computes the model's logits [.., V] of final hidden states [.., H], soft-capped or scaled as in its family.

        Args:
            hidden: Final hidden states.
            ids: [n], to compute only the logits [.., n] of these ids; None: all.
        """
        head = self.head
        if ids is None:
            logits = head(hidden)
        else:
            bias = None if head.bias is None else head.bias[ids]
            logits = nn.functional.linear(hidden, head.weight[ids], bias)
        cap = getattr(self.config, "final_logit_softcapping", None)  # Gemma
        if cap:
            logits = cap * torch.tanh(logits / cap)
        # Other families skip two passes over the vocabulary.
        factor = getattr(self.config, "logit_scale", 1.0)  # Cohere
        if factor != 1.0:
            logits = logits * factor
        divisor = getattr(self.config, "logits_scaling", 1.0)  # Granite
        if divisor != 1.0:
            logits = logits / divisor
        return logits

    def _topk(self, hidden: Tensor, wants: Wants) -> TopK:
        """Returns the top-k of hidden states [n, H]."""
        # Soft-caps and scales keep the order, but not the probabilities.
        logits = self.logits if wants.probabilities else self.head
        parts = [best(logits(block), wants, self.fused_kernels) for block in hidden.split(TOPK_ROWS)]
        ids = torch.cat([part.ids for part in parts])
        probabilities = [part.probabilities for part in parts if part.probabilities is not None]
        return TopK(ids, torch.cat(probabilities) if probabilities else None)

    def engaged(self, run: PassContext) -> AbstractContextManager[None]:
        """Replaces the model's attention by ours until the block ends; one pass at a time per model."""
        return engaged(self.model, self._configs, run)

    def inputs_of(self, indices: tuple[int, ...]) -> AbstractContextManager[dict[int, Tensor]]:
        """Yields the inputs [B, n, H] of these layers: transformers' hidden_states[index]."""
        return inputs_of(self.layers if indices else nn.ModuleList(), indices, self.name)
