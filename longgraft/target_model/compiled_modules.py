"""A CPU's compiled kernels for an unmodified model's linear modules, norms and whole decoder layers, during a pass.

A decoder layer of the common form is one call.  It is recognised by its parts.  Before it is used, its
output for fixed random rows at near and far positions must equal the output of the layer's own code.  Other
layers keep their own code, and so does a layer whose parts have changed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from longgraft.attention.layout import Layout
from longgraft.kernels.cpu import DTYPES, CpuKernels, DecoderLayer, DescribedLayer, Linear, fits
from longgraft.kernels.module_override import Forward, ModuleOverride
from longgraft.runtime.kv_cache import KVCache
from longgraft.runtime.packed_cache import PackedCache
from longgraft.runtime.weight_state import address_and_version
from longgraft.target_model.attention_interface import RUNNING, PassContext, running
from longgraft.target_model.common_form import PROBED, CommonForm, Parts, Trial, common_form, usual_call
from longgraft.target_model.experts import is_router, router_forward
from longgraft.target_model.module_forms import cache_name, norm_of


class CompiledModules:
    """Replaces a model's modules inside a `with` block of this object, and only there.

    Only plain modules are replaced: those that other libraries quantized or wrapped keep their own forwards.
    """

    def __init__(self, model: nn.Module, kernels: CpuKernels) -> None:
        self.kernels = kernels
        self._model = model
        self._layers: list[_Layer] = []
        self._override = ModuleOverride(model, self._replacement)

    def _replacement(self, module: nn.Module) -> Callable[..., Any] | None:
        """Returns a replacement for the module's forward, which reads its parameters at each call, or None."""
        parameters: Any = module._parameters
        if type(module) is nn.Linear and type(module.weight) is nn.Parameter:
            return lambda x: self.kernels.product(x, parameters["weight"], parameters["bias"])
        if is_router(module):
            return router_forward(module, self.kernels)
        form = common_form(module)
        if (
            form is not None
            and form.dtype in DTYPES
            and form.device.type == "cpu"
            and form.size % self.kernels.lanes == 0
        ):
            layer = _Layer(module, form, self.kernels, cache_name(self._model.forward))
            self._layers.append(layer)
            return layer.forward
        norm = norm_of(module)
        return None if norm is None else self._norm(module, *norm)

    def _norm(self, module: nn.Module, kind: str, epsilon: float) -> Callable[..., Any]:
        """Returns the compiled forward of a norm.

        A call with more arguments, such as a gate (Mamba 2, gated delta nets), is not the norm that was
        recognised.
        """
        parameters: Any = module._parameters
        ordinary = type(module).forward

        def forward(x: Tensor, *more: Any, **named: Any) -> Any:
            if not more and not named and x.dtype in DTYPES:
                rows = x.contiguous()
                if fits(rows, parameters["weight"], dtype=x.dtype):
                    return self.kernels.norm(rows, parameters["weight"], epsilon, kind)
            return ordinary(module, x, *more, **named)

        return forward

    def forget_changed(self) -> None:
        """Drops packed copies of changed weights before an answer: see `CpuKernels.forget_changed`."""
        for parameter in self._model.parameters():
            self.kernels.forget_changed(parameter)
        for layer in self._layers:
            layer.forget()

    def __call__(self) -> AbstractContextManager[None]:
        """Replaces the modules until the block ends, in this thread only; one block at a time."""
        return self._override()


class _Layer:
    """One decoder layer's forward: the compiled one, if it gives the same as the layer's own code."""

    def __init__(self, module: nn.Module, form: CommonForm, kernels: CpuKernels, cache: str) -> None:
        """Takes the name of the argument that is the cache."""
        self.module = module
        self.form = form
        self.kernels = kernels
        self._cache_name = cache
        self._ordinary: Forward = type(module).forward
        self._parts = Parts(module)
        self._described: DescribedLayer | None = None
        self._state: list[tuple[int, int]] = []  # state of the tensors when they were described
        # True if the compiled code equals the layer's own; None: not tried yet.
        self._same: bool | None = None

    def forget(self) -> None:
        """Drops the description, because the weights may change."""
        self._described = None

    def forward(
        self,
        hidden_states: Tensor,
        *args: Any,
        attention_mask: Tensor | None = None,
        position_embeddings: Any = None,
        **named: Any,
    ) -> Any:
        """Computes the layer, with the signature of transformers' decoder layers."""
        run = running()
        cache = named.pop(self._cache_name, None)
        usual = (
            self._same is not False
            and not args
            and run.backend == self.kernels.attention
            and isinstance(run.layouts[0], Layout)
            and isinstance(cache, KVCache | PackedCache)
            and cache.rows is None
            and usual_call(self.form, hidden_states, attention_mask, position_embeddings, named)
            and fits(hidden_states, *position_embeddings, dtype=self.form.dtype)
            and self._parts.unchanged()
            and self._is_described()
        )
        if usual and self._same is None:
            self._same = self._tried(attention_mask, cache.dtype, named)
        if not (usual and self._same):
            return self._ordinary(
                self.module,
                hidden_states,
                *args,
                attention_mask=attention_mask,
                position_embeddings=position_embeddings,
                **named | {self._cache_name: cache},
            )
        return self._compiled(hidden_states, position_embeddings, cache, attention_mask)

    def _is_described(self) -> bool:
        """Describes the layer again if its tensors have changed; returns False if they no longer fit."""
        state = list(map(address_and_version, self.form.tensors()))
        if self._described is None or self._state != state:
            self._described = self._describe() if self.form.fits() else None
            self._state = state
        return self._described is not None

    def _compiled(self, x: Tensor, tables: tuple[Tensor, Tensor], cache: KVCache | PackedCache, mask: Any) -> Tensor:
        run: Any = running()
        assert self._described is not None
        shape = self._described.described
        parts = []
        for sequence, layout in zip(cache.parts, run.layouts, strict=True):
            buffers = sequence.rows_of(self.form.index, x[:, : layout.rows], shape.kv_heads, shape.size)
            parts.append((layout, *buffers))
        queries = x.new_empty(x.shape[1], shape.heads, shape.size) if run.last else None
        out = self.kernels.pass_layer(self._described, x, tables, parts, int(mask) or None, queries)
        if queries is not None:
            run.queries[run.calls] = queries[-run.last :].transpose(0, 1).contiguous()
        run.calls += 1
        return out

    def _describe(self) -> DescribedLayer:
        form = self.form
        linear: dict[str, Linear] = {name: (module.weight, module.bias) for name, module in form.linear.items()}
        norms: dict[str, Any] = {}
        for name, (norm, kind, epsilon) in form.norms.items():
            norms[name] = norm.weight, epsilon, kind
        return self.kernels.layer(DecoderLayer(linear, norms, form.size, form.activation, form.scale))

    def _tried(self, mask: Any, cache_dtype: torch.dtype | None, named: dict[str, Any]) -> bool:
        """Compares compiled and own code for random rows."""
        trial = Trial.of(self.form)
        arguments = dict(named, attention_mask=mask, position_embeddings=trial.tables)
        if "position_ids" in named:
            arguments["position_ids"] = trial.positions

        def ordinary(cache: KVCache) -> Any:
            return self._ordinary(self.module, trial.x, **arguments | {self._cache_name: cache})

        outputs = []
        for forward in (partial(self._compiled, trial.x, trial.tables, mask=mask), ordinary):
            # Each layer gets its own kind, so that buffers are made for this layer only.
            index = self.form.index
            cache = KVCache(index + 1, PROBED, [str(kind) for kind in range(index + 1)], cache_dtype)
            layout = Layout(0, torch.arange(PROBED), None, trial.x.device)
            token = RUNNING.set(PassContext([layout], self.kernels.attention))
            try:
                outputs.append(forward(cache))
            finally:
                RUNNING.reset(token)
        computed, expected = outputs
        return trial.agrees(computed, expected, self.form.blocks or cache_dtype is not None)
