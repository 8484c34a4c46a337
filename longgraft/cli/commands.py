"""Makes commands from groups of options: flags override a --config file, which overrides the defaults."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from longgraft.config.options import Option, named, options
from longgraft.config.settings import Bounds, Machine, Pair, Settings
from longgraft.files.data_files import read_table

Run = Callable[..., Any]
Values = Mapping[str, Any]
Saved = Callable[[Values], Values]
FILE = typer.Option(help="TOML or JSON with any of the options below; flags win.", metavar="FILE")
ARGUMENT = "argument"  # the keyword of the option that may be given without its flag
METAVARS = {"dict": "NAME=VALUE", "tuple": "A,B,...", "int": "NUMBER", "float": "NUMBER", "str": "TEXT", "Any": "TEXT"}


def command(
    app: typer.Typer,
    name: str,
    example: str,
    panel: str | None = None,
    base: Values | None = None,
    without: Collection[str] = (),
    saved: Saved | None = None,
    argument: str = "",
) -> Callable[[Run], Run]:
    """Makes a function a command.

    A parameter that is a group of options becomes its options; others stay as they are.

    Args:
        app: What the command is added to.
        panel: Heading of the command in the list of commands.
        without: Options that it does not have.
        saved: Maps flags to the options of an earlier run, which override only the defaults.
        argument: Name of an option that may be given without its flag; "": none.
    """

    def register(function: Run) -> Run:
        app.command(name, epilog=f"Example: {example}", rich_help_panel=panel)(
            _adapted(function, base or {}, set(without), saved, argument)
        )
        return function

    return register


def _adapted(function: Run, base: Values, without: set[str], saved: Saved | None, argument: str) -> Run:
    """Returns the function in the form that typer needs: one keyword per option, each a text or nothing."""
    parameters = list(inspect.signature(function, eval_str=True).parameters.values())
    groups: dict[str, Any] = {p.name: p.annotation for p in parameters if is_dataclass(p.annotation)}
    wanted = set(groups)
    if Pair in groups.values():
        groups.setdefault("machine", Machine)
    if Settings in groups.values():
        groups.setdefault("bounds", Bounds)
    known: dict[str, Option] = {}
    titles: dict[str, str] = {}  # the heading of each option in --help
    for group in groups.values():
        present = {name: option for name, option in options(group).items() if name not in without}
        known |= present
        titles |= dict.fromkeys(present, (group.__doc__ or "").splitlines()[0].rstrip("."))
    # The others can only be set in a file.
    typed = {name: option for name, option in known.items() if option.help}

    def adapted(**arguments: Any) -> Any:
        path = arguments.pop("config", None)
        bare = arguments.pop(ARGUMENT, None)
        texts = {name: arguments.pop(name) for name in typed}
        if bare is not None:
            texts[argument] = _one_of(bare, texts[argument], typed[argument].switch)
        flags = {name: _flagged(typed[name], text) for name, text in texts.items() if text not in (None, [])}
        earlier = saved(flags) if saved else {}
        filed = {} if path is None else named(known, read_table(path), str(path))
        values = {**base, **earlier, **filed, **flags}
        for name, group in groups.items():
            made = _made(group, values)
            if group is Settings:
                made = replace(made, method=_made(Bounds, values).of(made.method))
            _prepare(made)
            if name in wanted:
                arguments[name] = made
        return function(**arguments)

    keywords = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters if p.name not in groups]
    if argument:
        about = typer.Argument(help=typed[argument].help_text(None), metavar=argument.upper())
        keywords.append(_keyword(ARGUMENT, Annotated[str | None, about]))
    if typed:
        keywords.append(_keyword("config", Annotated[Path | None, FILE]))
    for name, option in typed.items():
        keywords.append(_keyword(name, _annotation(option, base.get(name, option.default), titles[name])))
    adapted.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    adapted.__doc__ = function.__doc__
    return adapted


def _made(group: Any, values: Values) -> Any:
    """Makes a group of those of the values that it has."""
    return group(**{key: value for key, value in values.items() if key in options(group)})


def _one_of(bare: str, flagged: str | None, switch: str) -> str:
    """Returns the value that was given without its flag; raises ValueError if the flag gave another one."""
    if flagged not in (None, bare):
        raise ValueError(f"{bare!r} was given, and {switch} {flagged}. Leave one of the two out.")
    return bare


def _prepare(group: Any) -> None:
    """Checks the names in a group of options before the imports, which take seconds, and sets torch's threads."""
    if isinstance(group, Pair) and group.model is not None:
        from longgraft.models.catalogue import check_model_name

        check_model_name(group.model)
    elif isinstance(group, Settings):
        from longgraft.methods.summaries import check_method_name

        check_method_name(group.method)
    elif isinstance(group, Machine) and group.threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(group.threads)  # read when torch is loaded


def _keyword(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _annotation(option: Option, default: Any, panel: str) -> Any:
    """Returns the annotation for typer, which passes texts on; the option parses them."""
    about: dict[str, Any] = {"help": option.help_text(default), "rich_help_panel": panel}
    if option.kind is bool:
        return Annotated[bool | None, typer.Option(option.switch, **about)]
    kind = "str"
    if not option.many and (option.many_values or not option.choices):
        kind = next(name for name in METAVARS if name in str(option.kind))
    wanted: Any = list[str] | None if option.many else str | None
    if option.kind == tuple[str, str] | None:
        wanted = option.kind
    metavar = option.metavar or METAVARS[kind]
    if option.unit and default is None:  # otherwise, the default says the unit
        metavar = option.unit.upper() if option.unit.islower() else option.unit
    switches = [switch for switch in (option.switch, option.short) if switch]
    return Annotated[wanted, typer.Option(*switches, metavar=metavar, **about)]


def _flagged(option: Option, text: Any) -> Any:
    """Returns a flag's value, checked under the flag's name."""
    option = replace(option, name=option.switch)
    value = text
    if isinstance(text, list):  # a repeated flag
        value = option.parse(",".join(text)) if isinstance(option.default, dict) else tuple(text)
    elif isinstance(text, str):
        value = option.parse(text)
    option.check(value)
    return value
