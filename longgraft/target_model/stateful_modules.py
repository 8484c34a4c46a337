"""Runs modules whose state goes from token to token over a token tree, and commits the state of the accepted path.

Such modules are short convolutions, gated delta nets, Mamba 2, and whatever else keeps its state in transformers'
cache.  Each runs its own code on a batch of the paths from the root to the leaves, all of which begin with the
committed state; the batch has as many entries as paths times the longest path.

Committing an accepted path: a chain that is kept whole already has its state; a convolution's state is cut out of the
inputs seen; any other module runs once more on the accepted path, from the committed state.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from transformers import Cache

from longgraft.kernels.module_override import Forward, ModuleOverride
from longgraft.runtime.devices import sent
from longgraft.target_model.module_forms import numbers
from longgraft.trees.tree import ProposalTree

if TYPE_CHECKING:
    from longgraft.target_model.passes import Segment

# Methods of a cache that keep a module's state.
INTERFACE = {"update_conv_state", "update_recurrent_state"}
UNLIMITED = (0.0, float("inf"))  # limits of the time step of a Mamba 2 module that has none
# The trial of a kind of modules reads 2 * TRIED tokens at once and in two halves, and the outputs must agree.
TRIED = 8
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}  # allowed difference, in standard deviations
HALF_TOLERANCE = 3e-2  # the same in 16 bits


def keeps_state(cls: type) -> bool:
    """True if modules of this class keep a state in transformers' cache.

    transformers marks no such classes, so the names that their functions use are looked up.
    """
    functions = (inspect.unwrap(member) for member in vars(cls).values() if inspect.isfunction(member))
    return any(INTERFACE & set(function.__code__.co_names) for function in functions)


@dataclass
class ModuleState:
    """The state of one module for B sequences; the module sees it as a cache of transformers (5.17 to 5.23).

    Attributes:
        conv: Index -> [B, C, K], the last inputs of a convolution.
        recurrent: Index -> [B, ..], a recurrent state.
        inputs: Index -> [B, C, K + n], the last n inputs and the K inputs before them, from which earlier
            states are cut.
    """

    conv: dict[int, Tensor] = field(default_factory=dict)
    recurrent: dict[int, Tensor] = field(default_factory=dict)
    inputs: dict[int, Tensor] = field(default_factory=dict)

    record_past = False

    @property
    def conv_states(self) -> dict[int, Tensor]:
        return self.conv

    @property
    def recurrent_states(self) -> dict[int, Tensor]:
        return self.recurrent

    @property
    def layers(self) -> _SameForEveryLayer:
        return _SameForEveryLayer(self)

    def has_previous_state(self, *_: Any, **__: Any) -> bool:
        return bool(self.conv or self.recurrent)

    def is_recording_past(self, *_: Any) -> bool:
        return False

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self.conv.get(state_idx)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self.recurrent.get(state_idx)

    def update_conv_state(
        self, inputs: Tensor, layer_idx: int, state_idx: int = 0, conv_kernel_size: int | None = None, **_: Any
    ) -> Tensor:
        """Appends inputs [B, C, n]; returns [B, C, K + n], which begins with the inputs before them."""
        size = conv_kernel_size or inputs.shape[-1]
        before = self.conv.get(state_idx)
        if before is None:
            before = inputs.new_zeros(*inputs.shape[:-1], size)
        whole = torch.cat([before, inputs], dim=-1)
        self.inputs[state_idx] = whole
        self.conv[state_idx] = whole[..., -size:].clone()
        return whole

    def update_recurrent_state(self, state: Tensor, layer_idx: int, state_idx: int = 0, **_: Any) -> Tensor:
        self.recurrent[state_idx] = state
        return state

    def tensors(self) -> list[Tensor]:
        return [*self.conv.values(), *self.recurrent.values()]

    def of_sequences(self, count: int) -> ModuleState:
        """Returns a copy for the `count` paths of a tree, which begin alike; some modules write into their state."""

        def repeated(tensor: Tensor) -> Tensor:
            return tensor.expand(count, *tensor.shape[1:]).clone()

        conv, recurrent = tree_map(repeated, (self.conv, self.recurrent))
        return ModuleState(conv, recurrent)

    def after(self, path: int, tokens: int) -> ModuleState:
        """Returns the state of the path of this index after its first `tokens` tokens; for convolution states only."""
        state = ModuleState()
        for index, inputs in self.inputs.items():
            size = self.conv[index].shape[-1]
            state.conv[index] = inputs[path : path + 1, :, tokens : tokens + size].clone()
        return state


class _SameForEveryLayer:
    """A list of layers that returns the same state for every index."""

    def __init__(self, state: ModuleState) -> None:
        self._state = state

    def __getitem__(self, index: int) -> ModuleState:
        return self._state


@dataclass
class _ModuleCall:
    """A module's call in a pass.

    Attributes:
        module: The module.
        arguments: Its positional arguments and its named ones.
        rows: Number of rows of the pass.
    """

    module: nn.Module
    arguments: tuple
    rows: int

    def __call__(self, nodes: Tensor, state: ModuleState, singly: bool = False) -> Any:
        """Runs the module on rows [B, L] int64 of the pass, after a state, which is updated.

        With `singly`, it reads one token after the other.
        """
        if singly:
            outputs = _joined([self(token, state) for token in nodes.split(1, dim=1)])
            state.inputs.clear()  # `inputs` covers only the last token
            return outputs

        def of_nodes(value: Any) -> Any:
            if isinstance(value, Cache):
                return state
            # An argument with an entry for each row of the pass.
            if isinstance(value, Tensor) and value.shape[:2] == (1, self.rows):
                return value[0, nodes]
            return value

        args, named = tree_map(of_nodes, self.arguments)
        limited = _limited(self.module) if nodes.shape[1] == 1 else nullcontext()
        with limited:
            return type(self.module).forward(self.module, *args, **named)


@contextmanager
def _limited(module: Any) -> Iterator[None]:
    """Keeps a Mamba 2 module's time step, softplus(dt + dt_bias), within its limits.

    transformers applies the limits in its code for several tokens, but not in its code for one token.
    """
    limits = tuple(getattr(module, "time_step_limit", UNLIMITED))
    if limits == UNLIMITED:
        yield
        return
    low, high = torch.tensor(limits, dtype=torch.float64).expm1().log().tolist()  # inverse of the softplus

    def clamp(_: nn.Module, __: tuple, projected: Tensor) -> Tensor:
        rest, dt = projected.tensor_split([-len(module.dt_bias)], dim=-1)
        return torch.cat([rest, dt.clamp(low - module.dt_bias, high - module.dt_bias).to(dt.dtype)], dim=-1)

    handle = module.in_proj.register_forward_hook(clamp)
    try:
        yield
    finally:
        handle.remove()


@dataclass
class SegmentStates:
    """The states of one segment of a pass.

    Attributes:
        segment: The segment.
        start: Its first row in the pass.
        paths: [P, L] int64, rows of the pass, one path per leaf.
        first: Node -> (path, index) of its first occurrence in the paths.
        results: Module number -> (its call, for running it again; its state after the pass).  The call is
            None for a prompt chunk, which is always kept whole.
    """

    segment: Segment
    start: int
    paths: Tensor
    first: Sequence[tuple[int, int]]
    results: dict[int, tuple[_ModuleCall | None, ModuleState]] = field(default_factory=dict)

    def committed(self, number: int, sequences: int) -> ModuleState:
        """Returns a copy of a module's committed state for this many sequences; an empty state if there is none."""
        state = self.segment.cache.states.get(number)
        if state is None:
            return ModuleState()
        return state.of_sequences(sequences)

    def keep(self, path: Tensor, run: Callable[[_ModuleCall, Tensor, ModuleState], Any]) -> None:
        """Commits the states after a path [a] of nodes; run: `StatefulModules.run`."""
        states = self.segment.cache.states
        row, place = self.first[int(path[-1])]
        for number, (call, state) in self.results.items():
            # Kept whole: this state is the one to keep.
            if len(self.paths) == 1 and place + 1 == len(self.first):
                state.inputs.clear()
            elif state.inputs and not state.recurrent:  # convolutions only: cut out of the inputs
                state = state.after(row, place + 1)
            else:  # run the path again from the committed state
                state = self.committed(number, 1)
                assert call is not None, "a prompt chunk is always kept whole"
                run(call, sent(path, self.paths.device)[None] + self.start, state)
            states[number] = state


def paths_of(tree: ProposalTree) -> tuple[Tensor, list[tuple[int, int]]]:
    """Returns the paths [P, L] int64 from the root to each leaf, padded with the leaf, and each node's first
    occurrence.

    An occurrence is (path, index in the path).
    """
    if tree.is_chain:
        return torch.arange(len(tree))[None], [(0, place) for place in range(len(tree))]
    parents = tree.parents.tolist()
    paths = []
    for leaf in sorted(set(range(len(tree))) - set(parents)):
        path = [leaf]
        while parents[path[-1]] >= 0:
            path.append(parents[path[-1]])
        paths.append(path[::-1])
    first: dict[int, tuple[int, int]] = {}
    for row, path in enumerate(paths):
        for place, node in enumerate(path):
            first.setdefault(node, (row, place))
    longest = max(map(len, paths))
    padded = [path + path[-1:] * (longest - len(path)) for path in paths]
    return torch.tensor(padded), [first[node] for node in range(len(tree))]


class StatefulModules:
    """Runs a model's stateful modules over the segments of a pass, inside a `with` block of this object.

    Its truth value is False if the model has no such modules.  Some modules (Jamba's) give wrong outputs if
    they continue a state with several tokens at once; these get one token at a time.  A trial with fixed
    random inputs finds them, before a module first continues a state with several tokens.
    """

    def __init__(self, model: nn.Module) -> None:
        modules = (module for module in model.modules() if keeps_state(type(module)))
        self._numbers = {module: number for number, module in enumerate(modules)}
        self._override = ModuleOverride(model, self._replacement)
        self._segments: list[SegmentStates] = []
        self._singly: dict[type, bool] = {}

    def __bool__(self) -> bool:
        return bool(self._numbers)

    @contextmanager
    def __call__(self, segments: Sequence[Segment], device: torch.device) -> Iterator[list[SegmentStates]]:
        """Yields one SegmentStates per segment.

        `KVCache.keep` calls its `keep` once the accepted path is known, after this block has ended.
        """
        self._segments = []
        start = 0
        for segment in segments:
            paths, first = paths_of(segment.tree)
            self._segments.append(SegmentStates(segment, start, sent(paths + start, device), first))
            start += len(first)
        try:
            with self._override():
                yield self._segments
        finally:
            self._segments = []

    def _replacement(self, module: nn.Module) -> Forward | None:
        if module in self._numbers:
            return partial(self._forward, module)
        return None

    def _forward(self, module: nn.Module, *args: Any, **named: Any) -> Any:
        """Returns the module's outputs [1, n, ..] of all rows, each computed after its ancestors."""
        rows = sum(len(states.first) for states in self._segments)
        call = _ModuleCall(module, (args, named), rows)
        return _joined([self._outputs(call, states) for states in self._segments])

    def _outputs(self, call: _ModuleCall, states: SegmentStates) -> Any:
        number = self._numbers[call.module]
        state = states.committed(number, len(states.paths))
        outputs = self.run(call, states.paths, state)
        # A prompt chunk is kept whole and never runs again, so its inputs need not be held.
        again = call if states.segment.logits == "all" else None
        states.results[number] = again, state
        rows, places = torch.tensor(states.first).unbind(1)
        return tree_map(lambda output: output[rows, places][None], outputs)

    def run(self, call: _ModuleCall, nodes: Tensor, state: ModuleState) -> Any:
        """Returns outputs [B, L, ..] of rows [B, L] of the pass, after a state, which is updated."""
        if nodes.shape[1] == 1 or not state.has_previous_state():
            return call(nodes, state)
        kind = type(call.module)
        if kind not in self._singly:
            self._singly[kind] = not _continues(call)
        return call(nodes, state, self._singly[kind])


def _continues(call: _ModuleCall) -> bool:
    """Tells if the module gives the same outputs from a state with several tokens as for all tokens at once.

    It reads fixed random numbers, so that the result does not depend on the first request.
    """

    def fixed(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.shape[:2] != (1, call.rows):
            return value
        if value.is_floating_point():
            return numbers(1, 2 * TRIED, *value.shape[2:], dtype=value.dtype, seed=0).to(value.device)
        return value[:, nodes[0] % call.rows]

    nodes = torch.arange(2 * TRIED)[None]
    trial = _ModuleCall(call.module, tree_map(fixed, call.arguments), 2 * TRIED)
    whole = trial(nodes, ModuleState())
    state = ModuleState()
    parts = [trial(part, state) for part in nodes.split(TRIED, dim=1)]
    return all(map(_alike, tree_leaves(_joined(parts)), tree_leaves(whole)))


def _alike(output: Tensor, expected: Tensor) -> bool:
    apart = float((output - expected).abs().max())
    return apart <= TOLERANCE.get(output.dtype, HALF_TOLERANCE) * max(float(expected.float().std()), 1e-6)


def _joined(parts: Sequence[Any]) -> Any:
    """Concatenates outputs [B, n, ..] along n; each part is a tuple of tensors of the same structure, or one tensor."""
    if len(parts) == 1:
        return parts[0]
    return tree_map(lambda *some: torch.cat(some, dim=1), *parts)
