"""Needs: what methods need besides the target.  Each has a name, its own loader and its own error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from longgraft.config.method_roles import DEFAULT, HEADLESS
from longgraft.config.settings import HeadOverrides
from longgraft.models.catalogue import EMBEDDED, embedded, shipped_head
from longgraft.yarn_drafters.known_heads import find_head, known_targets

if TYPE_CHECKING:
    from longgraft.target_model.model import Target
    from longgraft.yarn_drafters.network import Eagle3Network

AUTO = "auto"  # take the head that is known for the target

T = TypeVar("T")


class Missing(ValueError):
    """A method's need is not known for this target, or was not given."""


@dataclass(frozen=True)
class Sources:
    """Places from which a method's needs are loaded.

    Attributes:
        target: The loaded target.
        drafter: Hub id or folder of an EAGLE-3 head; AUTO: the one that is known for the target; None: no head.
        head: Overrides of the head's config.
        given: Hub ids, folders or files of other needs, by name.
        tokenizer: The target's tokenizer; None: there is none, and prompts are ids.
    """

    target: Target
    drafter: str | Path | None = AUTO
    head: HeadOverrides = field(default_factory=HeadOverrides)
    given: Mapping[str, str] = field(default_factory=dict)
    tokenizer: Any = None

    def path(self, name: str, part: str = "") -> str | Path:
        """Returns the place of a need; for the embedded target its embedded `part`.

        Raises:
            Missing: the need was not given.
        """
        if name in self.given:
            return self.given[name]
        if part and self.target.name == EMBEDDED and embedded(part).exists():
            return embedded(part)
        raise Missing(f"none is known for {self.target.name}.\nPass --with {name}=PATH.")


@dataclass(frozen=True)
class Need(Generic[T]):
    """One need of methods.

    Attributes:
        name: Its key.
        clause: Describes it, for people.
        load: Loads it from the given place; raises `Missing`, naming the option, if it was not given.
        flag: The option that gives it; "": `--with`.
    """

    name: str
    clause: str
    load: Callable[[Sources], T]
    flag: str = ""

    @property
    def switch(self) -> str:
        """The option that gives it on the command line."""
        return self.flag or f"--with {self.name}=PATH"


def check_given(given: Mapping[str, str], needs: Iterable[Need]) -> None:
    """Raises ValueError if something is given that is not among these needs."""
    known = dict.fromkeys(need.name for need in needs if not need.flag)
    if unknown := [name for name in given if name not in known]:
        raise ValueError(
            f"--with {unknown[0]} was given, and the methods in use need "
            f"{' and '.join(known) or 'nothing of that kind'}. See `longgraft methods`."
        )


def _head(sources: Sources) -> Eagle3Network:
    target, path = sources.target, head_path(sources.drafter, sources.target.name)
    if path is None and sources.drafter == AUTO:
        raise Missing(
            f"no EAGLE-3 head of {target.name} is known.\nPass --drafter; known targets: {', '.join(known_targets())}."
        )
    if path is None:
        raise Missing(
            "no drafter was given.\nPass --drafter PATH_OR_REPO, or use a method without one; see `longgraft methods`."
        )
    return head_of(path, target, sources.head)


def head_path(drafter: str | Path | None, target: str) -> str | Path | None:
    """Returns the place of a target's head; None if no head is wanted or known.

    drafter: AUTO, a place, or the name of a model of the catalogue, which stands for the head that ships for it
    """
    if drafter != AUTO:
        return shipped_head(str(drafter)) or drafter
    known = find_head(target)
    return embedded("drafter") if target == EMBEDDED else known.head if known else shipped_head(target)


def default_method(model: str, drafter: str | Path | None) -> str:
    """Returns the name of the method that a session of this model has by default.

    It drafts with a head if one is known or given.  The heads that ship made decoding no faster where they were
    measured (docs/results: qwen2.5-coder and smollm2 on CPUs, gpu/h100 the former's), so they are used only if they are
    named.

    Args:
        model: The target's name.
        drafter: AUTO, a place, the name of a model whose head ships, or None.
    """
    if drafter in (AUTO, None) and (head_path(drafter, model) is None or shipped_head(model) is not None):
        return HEADLESS
    return DEFAULT


def head_of(path: str | Path, target: Target, overrides: HeadOverrides) -> Eagle3Network:
    """Loads a head in the target's precision, on its device; a head without an embedding shares the target's.

    Beside a target in blocks of integers, its linear weights are rounded to bytes: a level reads less memory, and no
    draft changes the answer.
    """
    from longgraft.models.targets import round_weights  # imports torch
    from longgraft.yarn_drafters.checkpoint import load_head
    from longgraft.yarn_drafters.layouts import TargetShape

    shape = TargetShape(target.config.num_hidden_layers, target.config.hidden_size, target.vocab_size)
    network = load_head(path, shape, overrides, dtype=target.dtype, device=target.device)
    if target.weights != "float" and target.kernels:
        round_weights(network, target.kernels)
    if network.embed_tokens is None:
        network.share_embedding(target.model.get_input_embeddings())
    return network.eval()


HEAD: Need[Eagle3Network] = Need("head", "an EAGLE-3 drafter", _head, "--drafter PATH")
