"""The fused modules and layers of a model, tried when it is loaded.

A layer's output for random rows must equal that of its own code, and on CUDA it must also be faster than its own code
with fused modules.  Passes do not try anything, because a host read within a recording would end it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from longgraft.attention.backends import fixed_backend
from longgraft.attention.layout import DeviceLayout
from longgraft.kernels.build import NotBuilt
from longgraft.kernels.module_override import Forward
from longgraft.runtime.cuda_graphs import Recorder, cuda_graphs
from longgraft.runtime.kv_cache import KVCache
from longgraft.target_model.attention_interface import PassContext, configs_of, engaged
from longgraft.target_model.checked_kernels import kernels_for
from longgraft.target_model.common_form import PROBED, Trial, common_form
from longgraft.target_model.fused_layers import FusedLayer, covered
from longgraft.target_model.fused_modules import FusedModules, Kernels
from longgraft.target_model.module_forms import cache_name

TIMED_ROWS = (1, 64)  # a plain step, and the largest tree
REPEATS = 20  # timed runs of a recorded layer
DIFFERS = "their results differ from the layers' own"
SLOWER = "they are slower here"


class LayerTrial:
    """Runs a layer as in a pass of fixed shape, with random rows after an empty prefix.

    Args:
        model: The model of the layer.
        layer: The layer.
        rows: Number of rows.
    """

    def __init__(self, model: nn.Module, layer: FusedLayer, rows: int = PROBED) -> None:
        self.layer = layer
        self.trial = Trial.of(layer.form, rows)
        self._model = model
        self._configs = configs_of(model)
        form = layer.form
        device = form.device
        depths = torch.arange(rows, device=device)
        visible = torch.ones(rows, rows, dtype=torch.bool, device=device).tril()
        self._layout = DeviceLayout.of(torch.zeros(1, device=device), depths, depths, visible)
        self._cache = KVCache(form.index + 1, rows, [str(kind) for kind in range(form.index + 1)])
        self._cache.rows_of(form.index, self.trial.x, form.linear["k"].out_features // form.size, form.size)
        self._rows = depths

    @contextmanager
    def _within_a_pass(self) -> Iterator[None]:
        run = PassContext([self._layout], fixed_backend(self.trial.x.device))
        write = self.layer.kernels.write
        with torch.no_grad(), engaged(self._model, self._configs, run), self._cache.at(self._rows, write):
            yield

    def agrees(self) -> bool:
        """Compares nine launches with the layer's own code, without fused modules."""
        mask = torch.tensor(self.layer.window).view(1, 1, 1, 1)
        with self._within_a_pass():
            computed = self.layer.compute(self.trial.x, self.trial.tables, self._cache, mask)
        return self.trial.agrees(computed, self.called(self.layer.module), rounds=False)

    def called(self, forward: Callable[..., Any]) -> Any:
        """Calls the layer, or its forward, as its model does."""
        mask = torch.tensor(self.layer.window).view(1, 1, 1, 1)
        named = {"position_ids": self.trial.positions, "use_cache": True, self.layer.cache_name: self._cache}
        with self._within_a_pass():
            return forward(self.trial.x, attention_mask=mask, position_embeddings=self.trial.tables, **named)


def fused_layers(model: nn.Module, kernels: Kernels) -> tuple[dict[nn.Module, Forward], tuple[str, ...]]:
    """Returns (the forwards of layers that nine launches compute, notes on recognised layers that they do not)."""
    name = cache_name(model.forward)
    layers: list[FusedLayer] = []
    reasons = Counter[str]()
    for module in model.modules():
        form = common_form(module)
        if form is None or not covered(form):
            continue
        layer = FusedLayer(module, form, kernels, name)
        reason = _why_not(model, layer)
        if reason:
            reasons[reason] += 1
        else:
            layers.append(layer)
    if layers and layers[0].form.device.type == "cuda":
        reason = _why_slower(model, layers[0], cuda_graphs(layers[0].form.device))
        if reason:
            reasons[reason] += len(layers)
            layers = []
    notes = [f"{count} decoder layers are not fused as a whole: {reason}" for reason, count in reasons.items()]
    return {layer.module: layer.forward for layer in layers}, tuple(notes)


def _why_not(model: nn.Module, layer: FusedLayer) -> str:
    try:
        if LayerTrial(model, layer).agrees():
            return ""
    except Exception as error:  # a layer of another interface, or kernels that this device cannot compile
        return _first_line(error)
    return DIFFERS


def _why_slower(model: nn.Module, layer: FusedLayer, recorder: Recorder) -> str:
    """Times recordings of the layer, its own code with fused modules against nine launches."""
    try:
        for rows in TIMED_ROWS:
            trial = LayerTrial(model, layer, rows)
            modules = FusedModules(layer.module, layer.kernels, {layer.module: layer.forward})

            def region(trial: LayerTrial = trial, modules: FusedModules = modules) -> Any:
                with modules():
                    return trial.called(layer.module)

            times = []
            for layer.used in (False, True):
                replay, _ = recorder(region)
                times.append(_milliseconds(replay))
            if times[1] > times[0]:
                return SLOWER
    except Exception as error:  # this device cannot record it
        return _first_line(error)
    return ""


def _milliseconds(replay: Callable[[], object]) -> float:
    """Returns the time of a replay on the device, after one that warms it up."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    replay()
    begin.record()
    for _ in range(REPEATS):
        replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / REPEATS


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def fused(model: nn.Module) -> FusedModules | NotBuilt:
    """Returns the fused modules and layers of this model on its device, or why there are none."""
    parameter = next(model.parameters())
    kernels = kernels_for(parameter.device, parameter.dtype)
    if isinstance(kernels, NotBuilt):
        return kernels
    return FusedModules(model, kernels, *fused_layers(model, kernels))
