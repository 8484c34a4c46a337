"""Finds methods by name, in the registry, installed packages and files, and builds their proposers."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from longgraft.config.method_syntax import split
from longgraft.methods.combinators import WithinBudget
from longgraft.methods.method import BUDGET, Method
from longgraft.methods.needs import Missing
from longgraft.methods.parts import Parts
from longgraft.methods.registry import CORE
from longgraft.methods.summaries import ENTRY_POINTS, GROUP, INTERFACE, check_method_name, registered
from longgraft.protocol.proposer import Proposer
from longgraft.target_model.verifier import Verifier

__all__ = ["BUDGET", "CORE", "Method", "build", "find", "installed", "known", "verifies", "zoo"]

T = TypeVar("T")


def _loaded(points: Iterable[EntryPoint], before: Mapping[str, Method]) -> dict[str, Method]:
    found: dict[str, Method] = {}
    for point in points:
        if point.group != ENTRY_POINTS:
            version = point.group.removeprefix(GROUP).removeprefix(".v") or "1"
            raise ValueError(
                f"Method {point.name!r}, registered by an installed package as {point.value!r}, was made for version "
                f"{version} of the interface of methods, and this longgraft has version {INTERFACE}: install a release "
                f"for version {INTERFACE}, or change it as CHANGELOG.md says."
            )
        try:
            method = as_method(point.load(), point.name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(
                f"Method {point.name!r}, registered by an installed package as {point.value!r}, cannot be "
                f"loaded: {error}. Fix or uninstall that package."
            ) from error
        if method.name in before or method.name in found:
            raise ValueError(
                f"The installed package {point.value!r} registers method {method.name!r}, which exists "
                "already. Uninstall it, or give its method another name."
            )
        found[method.name] = method
    return found


@cache
def zoo() -> dict[str, Method]:
    """Returns the methods to compare with, which this package registers by entry points, by name; none without them."""
    if importlib.util.find_spec("longgraft.zoo") is None:
        return {}
    return _loaded(registered()[0], CORE)


@cache
def installed() -> dict[str, Method]:
    """Returns the methods of other installed packages, by name.

    Raises:
        ValueError: a method cannot be loaded, or has the name of another method.
    """
    return _loaded(registered()[1], CORE | zoo())


def known() -> dict[str, Method]:
    """Returns the core methods, those of the zoo and those of other installed packages."""
    return CORE | zoo() | installed()


def find(what: str | Method | Proposer, bounds: Mapping[str, Any] = MappingProxyType({})) -> Method:
    """Returns a method.

    Args:
        what: A method's name, `FILE.py:OBJECT`, `MODULE:OBJECT`, or the object itself: a `Method` or a `Proposer`.  A
            name may be followed by choices, `+name=value` each.
        bounds: Bounds of a step's tree, as in `Method.bounds`; those of the name win, and a method takes those it has.

    Raises:
        ValueError: there is no such method, or a choice is not allowed.
    """
    if not isinstance(what, str):
        return _over(as_method(what, type(what).__name__).within(bounds))
    name, settings = split(what)
    method = _over(_found(name).within(bounds).choosing(settings))
    _check_reach(method, settings)
    return method


def _over(method: Method) -> Method:
    """Gives a method that builds on another one the other's needs; raises ValueError unless the other is exact."""
    if not method.source:
        return method
    source = find(method.source)
    if source.promise != "exact":
        raise ValueError(
            f"{method.name} cannot be over {source.name!r}, whose acceptance rule is not the exact one "
            f"({source.promise}). Choose an exact method."
        )
    return replace(method, needs=source.needs, fallback="")


def _check_reach(method: Method, settings: Mapping[str, str]) -> None:
    """Raises ValueError if a setting of the name bounds a draft, and another method drafts that has no such bound."""
    if not method.source:
        return
    for name in method.bounds:
        if name in settings and name not in find(method.source).bounds:
            raise ValueError(
                f"{method.name} is over {method.source!r}, which does not read {name}. Leave +{name}="
                f"{settings[name]} out, or choose another +source."
            )


def _found(what: str) -> Method:
    if what in CORE:
        return CORE[what]
    if what in zoo():
        return zoo()[what]
    if ":" in what:
        return as_method(_named(what), what)
    check_method_name(what)
    found = installed().get(what)
    if found is None:  # a copy without the zoo, whose names are in a file of the core
        raise ModuleNotFoundError(f"Method {what!r} is in longgraft.zoo, which is not installed.", name="longgraft.zoo")
    return found


def as_method(found: object, name: str) -> Method:
    """Returns a `Method` unchanged, and a `Proposer` as a method of this name."""
    if isinstance(found, Method):
        return found
    if isinstance(found, Proposer) and not isinstance(found, type):
        return Method(name, f"an object of {type(found).__name__}", "-", lambda _: found)
    raise ValueError(
        f"{name!r} is a {type(found).__name__}. A method is a longgraft.methods.Method, or an object with "
        "`memories` and `propose`; see docs/adding-a-method.md."
    )


@cache
def _named(what: str) -> object:
    place, _, name = what.rpartition(":")
    try:
        if place.endswith(".py"):
            spec = importlib.util.spec_from_file_location(place, Path(place))
            assert spec is not None and spec.loader is not None
            module = sys.modules[place] = importlib.util.module_from_spec(spec)  # dataclasses look their module up
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
        return getattr(module, name)
    except (ImportError, AttributeError, OSError, SyntaxError, TypeError, ValueError) as error:
        raise ValueError(f"Method {what!r} cannot be loaded: {error}. Give FILE.py:OBJECT or MODULE:OBJECT.") from error


def build(what: str | Method | Proposer, parts: Parts, adaptive: bool = False) -> Proposer:
    """Builds the method's proposer.

    Args:
        what: The method, as in `find`.
        parts: Its parts.
        adaptive: Build a proposer that chooses its own budgets, if the method has one.

    Raises:
        Missing: something that the method needs was not given.
        ValueError: the method was made for another version of the interface.
    """
    method = find(what)
    if missing := [need.clause for need in method.needs if need.name not in parts.given]:
        raise Missing(
            f"Method {method.name!r} needs {' and '.join(missing)} for {parts.target.name}, and none was "
            f"given.\nMethods without one: {', '.join(m.name for m in known().values() if not m.needs)}."
        )
    source = None
    if method.source:
        other = find(method.source, method.bounds)
        source = WithinBudget(build(other, parts), other.budget)
    make = method.adaptive if adaptive and method.adaptive is not None else method.build
    return _made(method, make, replace(parts, choices=method.choices, source=source))


def verifies(what: str | Method | Proposer, parts: Parts) -> Callable[[Verifier], Verifier]:
    """Returns the function by which the method changes a request's verifier; parts: the parts of its proposer."""
    method = find(what)
    return _made(method, method.verifies, replace(parts, choices=method.choices))


def _made(method: Method, make: Callable[[Parts], T], parts: Parts) -> T:
    """Calls a method's function; raises ValueError if it was made for parts of another version."""
    try:
        return make(parts)
    except AttributeError as error:
        if error.obj is not parts:
            raise
        raise ValueError(
            f"Method {method.name!r} reads `parts.{error.name}`, which version {INTERFACE} of the interface of methods "
            "does not have; CHANGELOG.md says how to change a method that was made for version 1."
        ) from error
