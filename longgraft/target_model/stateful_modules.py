"""A target's modules that carry a state from token to token, run over a tree: short convolutions, gated delta nets,
Mamba 2, and whatever else keeps its state in transformers' cache.

Each runs its own code on a batch: the paths from the root to the leaves, which all begin with the committed state.
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

INTERFACE = {"update_conv_state", "update_recurrent_state"}     # of a cache, by which a module keeps its state
UNLIMITED = (0.0, float("inf"))     # time steps of a Mamba 2 module without limits
TRIED = 8       # tokens before and after the state in the trial of a kind of modules
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}      # of the outputs' spread
HALF_TOLERANCE = 3e-2       # in 16 bits


def keeps_state(cls: type) -> bool:
    """Whether modules of this class keep a state in transformers' cache."""
    own = (inspect.unwrap(member) for member in vars(cls).values() if inspect.isfunction(member))
    return any(INTERFACE & set(function.__code__.co_names) for function in own)


@dataclass
class State:
    """What one module keeps of B sequences; to the module it is a cache of transformers (5.17 to 5.23).

    conv: index -> [B, C, K], the last inputs of a convolution; recurrent: index -> [B, ..]
    seen: index -> [B, C, K + n], what came before the last n inputs and those
    """

    conv: dict[int, Tensor] = field(default_factory=dict)
    recurrent: dict[int, Tensor] = field(default_factory=dict)
    seen: dict[int, Tensor] = field(default_factory=dict)

    record_past = False

    @property
    def conv_states(self) -> dict[int, Tensor]:
        return self.conv

    @property
    def recurrent_states(self) -> dict[int, Tensor]:
        return self.recurrent

    @property
    def layers(self) -> _Each:
        return _Each(self)

    def has_previous_state(self, *_: Any, **__: Any) -> bool:
        return bool(self.conv or self.recurrent)

    def is_recording_past(self, *_: Any) -> bool:
        return False

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self.conv.get(state_idx)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self.recurrent.get(state_idx)

    def update_conv_state(self, inputs: Tensor, layer_idx: int, state_idx: int = 0,
                          conv_kernel_size: int | None = None, **_: Any) -> Tensor:
        """inputs [B, C, n] -> [B, C, K + n], those before them first."""
        size = conv_kernel_size or inputs.shape[-1]
        before = self.conv.get(state_idx)
        seen = torch.cat([inputs.new_zeros(*inputs.shape[:-1], size) if before is None else before, inputs], dim=-1)
        self.seen[state_idx], self.conv[state_idx] = seen, seen[..., -size:].clone()
        return seen

    def update_recurrent_state(self, state: Tensor, layer_idx: int, state_idx: int = 0, **_: Any) -> Tensor:
        self.recurrent[state_idx] = state
        return state

    def tensors(self) -> list[Tensor]:
        return [*self.conv.values(), *self.recurrent.values()]

    def of_sequences(self, count: int) -> State:
        """Copies for sequences that begin alike: some modules write into what they are given."""
        conv, recurrent = tree_map(lambda one: one.expand(count, *one.shape[1:]).clone(), (self.conv, self.recurrent))
        return State(conv, recurrent)

    def after(self, path: int, tokens: int) -> State:
        """Of one path, after its first tokens; where there is no recurrent state, all that counts was seen."""
        return State({index: seen[path:path + 1, :, tokens:tokens + self.conv[index].shape[-1]].clone()
                      for index, seen in self.seen.items()})


class _Each:
    """A list of layers, all of which are this one."""

    def __init__(self, state: State) -> None:
        self._state = state

    def __getitem__(self, index: int) -> State:
        return self._state


@dataclass
class _Call:
    """A module's call in a pass.  given: its arguments; rows: of the pass."""

    module: nn.Module
    given: tuple
    rows: int

    def __call__(self, nodes: Tensor, state: State, singly: bool = False) -> Any:
        """On rows [B, L] int64 of the pass, after a state, which moves on; singly: token after token."""
        if singly:
            found = _joined([self(one, state) for one in nodes.split(1, dim=1)])
            state.seen.clear()      # of the last token alone
            return found

        def of_nodes(value: Any) -> Any:
            if isinstance(value, Cache):
                return state
            if isinstance(value, Tensor) and value.shape[:2] == (1, self.rows):
                return value[0, nodes]
            return value

        args, named = tree_map(of_nodes, self.given)
        with _limited(self.module) if nodes.shape[1] == 1 else nullcontext():
            return type(self.module).forward(self.module, *args, **named)


@contextmanager
def _limited(module: Any) -> Iterator[None]:
    """Keep a Mamba 2 module's time step, softplus(dt + dt_bias), within its limits.

    transformers does so in its code for several tokens, but not in that for one.
    """
    limits = tuple(getattr(module, "time_step_limit", UNLIMITED))
    if limits == UNLIMITED:
        yield
        return
    low, high = torch.tensor(limits, dtype=torch.float64).expm1().log().tolist()    # before the softplus

    def clamp(_: nn.Module, __: tuple, projected: Tensor) -> Tensor:
        rest, dt = projected.tensor_split([-len(module.dt_bias)], dim=-1)
        return torch.cat([rest, dt.clamp(low - module.dt_bias, high - module.dt_bias).to(dt.dtype)], dim=-1)

    handle = module.in_proj.register_forward_hook(clamp)
    try:
        yield
    finally:
        handle.remove()


@dataclass
class Share:
    """One segment of a pass.  paths [P, L] int64: rows of the pass; first: node -> where it stands first; found: number
    of a module -> (its call, None where all rows will be kept; the state after it)."""

    segment: Segment
    start: int
    paths: Tensor
    first: Sequence[tuple[int, int]]
    found: dict[int, tuple[_Call | None, State]] = field(default_factory=dict)

    def keep(self, path: Tensor, run: Callable[[_Call, Tensor, State], Any]) -> None:
        """Commit the states after a path [a] of nodes.  run: as `StatefulModules.run`."""
        states = self.segment.cache.states
        row, place = self.first[int(path[-1])]
        for number, (call, state) in self.found.items():
            if len(self.paths) == 1 and place + 1 == len(self.first):
                state.seen.clear()
            elif state.seen and not state.recurrent:
                state = state.after(row, place + 1)
            else:
                held = states.get(number)
                state = State() if held is None else held.of_sequences(1)
                assert call is not None, "of a prompt's chunk all rows are kept"
                run(call, sent(path, self.paths.device)[None] + self.start, state)
            states[number] = state


def paths_of(tree: ProposalTree) -> tuple[Tensor, list[tuple[int, int]]]:
    """([P, L] int64, the nodes from the root to each leaf, filled with the leaf; node -> where it stands first)."""
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
    return (torch.tensor([path + path[-1:] * (longest - len(path)) for path in paths]),
            [first[node] for node in range(len(tree))])


class StatefulModules:
    """Active inside a `with` block of a pass's segments, and only there; false where the model has none.

    Modules of a kind that cannot go on from a state with several tokens (Jamba's) read one token at a time there. A
    trial with fixed inputs before the first such pass finds these kinds.
    """

    def __init__(self, model: nn.Module) -> None:
        found = [module for module in model.modules() if keeps_state(type(module))]
        self._numbers = {module: number for number, module in enumerate(found)}
        self._override = ModuleOverride(model, self._replacement)
        self._shares: list[Share] = []
        self._singly: dict[type, bool] = {}

    def __bool__(self) -> bool:
        return bool(self._numbers)

    @contextmanager
    def __call__(self, segments: Sequence[Segment], device: torch.device) -> Iterator[list[Share]]:
        """Yields each segment's share, which commits the states."""
        self._shares, start = [], 0
        for segment in segments:
            paths, first = paths_of(segment.tree)
            self._shares.append(Share(segment, start, sent(paths + start, device), first))
            start += len(first)
        try:
            with self._override():
                yield self._shares
        finally:
            self._shares = []

    def _replacement(self, module: nn.Module) -> Forward | None:
        return partial(self._forward, module) if module in self._numbers else None

    def _forward(self, module: nn.Module, *args: Any, **named: Any) -> Any:
        """The module's outputs [1, n, ..] of all rows, each after its ancestors."""
        call = _Call(module, (args, named), sum(len(share.first) for share in self._shares))
        return _joined([self._outputs(call, share) for share in self._shares])

    def _outputs(self, call: _Call, share: Share) -> Any:
        number = self._numbers[call.module]
        held = share.segment.cache.states.get(number)
        state = State() if held is None else held.of_sequences(len(share.paths))
        found = self.run(call, share.paths, state)
        share.found[number] = None if share.segment.logits != "all" else call, state
        rows, places = torch.tensor(share.first).unbind(1)
        return tree_map(lambda one: one[rows, places][None], found)

    def run(self, call: _Call, nodes: Tensor, state: State) -> Any:
        """Outputs [B, L, ..] of rows [B, L] of the pass, after a state, which moves on."""
        if nodes.shape[1] == 1 or not state.has_previous_state():
            return call(nodes, state)
        kind = type(call.module)
        if kind not in self._singly:
            self._singly[kind] = not _continues(call)
        return call(nodes, state, self._singly[kind])


def _continues(call: _Call) -> bool:
    """Whether the call's module goes on from a state with several tokens as it reads all of them at once.

    It reads fixed random numbers, so that no request's tokens decide.
    """
    def fixed(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.shape[:2] != (1, call.rows):
            return value
        if value.is_floating_point():
            return numbers(1, 2 * TRIED, *value.shape[2:], dtype=value.dtype, seed=0).to(value.device)
        return value[:, nodes[0] % call.rows]

    nodes, state = torch.arange(2 * TRIED)[None], State()
    tried = _Call(call.module, tree_map(fixed, call.given), 2 * TRIED)
    whole, parts = tried(nodes, State()), [tried(part, state) for part in nodes.split(TRIED, dim=1)]
    return all(map(_alike, tree_leaves(_joined(parts)), tree_leaves(whole)))


def _alike(one: Tensor, other: Tensor) -> bool:
    apart = float((one - other).abs().max())
    return apart <= TOLERANCE.get(one.dtype, HALF_TOLERANCE) * max(float(other.float().std()), 1e-6)


def _joined(parts: Sequence[Any]) -> Any:
    """Outputs [B, n, ..] one after another; of each the same tuple of tensors, or one tensor."""
    return parts[0] if len(parts) == 1 else tree_map(lambda *some: torch.cat(some, dim=1), *parts)
