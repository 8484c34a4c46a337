"""Makes a session from names, in three steps.

files_of(model)                         models/files.py         a model's name -> its files
load_target(files, settings)            models/targets.py       files and precision -> the target
with_method(target, method).session()   methods/assembly.py     target and method -> a session
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from longgraft.acceptance.sampling import Sampling
from longgraft.acceptance.sampling_defaults import SamplingDefaults
from longgraft.config.known_names import check_names
from longgraft.config.method_roles import DEFAULT, HEADLESS
from longgraft.config.settings import Settings
from longgraft.engine.encoder import Prompt
from longgraft.engine.predicted_output import Prediction
from longgraft.engine.session import Generation, Session
from longgraft.methods.assembly import Loaded, with_method
from longgraft.methods.chosen import chosen_method
from longgraft.methods.find import Method, find
from longgraft.methods.needs import AUTO
from longgraft.models.catalogue import shipped_head
from longgraft.models.files import files_of
from longgraft.models.targets import load_target


def load(model: Any = None, drafter: str | Path | None = AUTO, tell: bool = True, **options: Any) -> Session:
    """Loads a model with a method; then call `generate` and `stream` as often as you like.

    Args:
        model: A name of `longgraft models`, a folder, a GGUF file, a hub id, a loaded (model, tokenizer), or
            None for the embedded pair.
        drafter: Hub id or folder of an EAGLE-3 head; "auto": the known head of this model; None or "none": no
            drafter. Without a head, a method that needs one is replaced by its fallback.
        tell: Print the choices on stderr.
        **options: The fields of `Settings`, such as method, budget, device, dtype and weights.

    Returns:
        The session.

    Raises:
        ValueError: a name or setting is wrong, or model, drafter and settings do not fit each other.

    Examples:
        >>> import longgraft
        >>> session = longgraft.load(method="graft", tell=False)    # the embedded pair
        >>> session.generate("if __name__ ==", stop=":").text
        ' "__main__"'
    """
    check_names(options, (field.name for field in fields(Settings)), "load")
    return open_session(model, drafter, Settings(**options), tell)[0]


def generate(
    prompt: Prompt,
    model: Any = None,
    drafter: str | Path | None = "auto",
    max_new_tokens: int = 256,
    stop: Sequence[str] = (),
    *,
    prediction: Prediction | None = None,
    stop_token_ids: int | Sequence[int] = (),
    **options: Any,
) -> Generation:
    """Answers one prompt; loads the model for it.

    Args:
        prompt: Text, chat messages or token ids.
        model: As in `load`.
        drafter: As in `load`.
        max_new_tokens: Most tokens of the answer.
        stop: Stop strings.
        prediction: Text that the answer may repeat; the model does not read it.
        stop_token_ids: Ids of tokens that end the answer, too.
        **options: The fields of `Settings` and of `Sampling`.

    Returns:
        The answer, with the tokens that the model alone would give (see `Session.generate`).

    Raises:
        ValueError: a name or setting is wrong, or the prompt does not fit the model.

    Examples:
        >>> import longgraft
        >>> answer = longgraft.generate("if __name__ ==", stop=[":"])    # the embedded pair
        >>> answer.text, answer.finish_reason
        (' "__main__"', 'stop')
    """
    sampling = {}
    for field in fields(Sampling):
        if field.name in options:
            sampling[field.name] = options.pop(field.name)
    names = (field.name for kind in (Settings, Sampling) for field in fields(kind))
    check_names(options, [*names, "max_new_tokens", "prediction", "stop_token_ids"], "generate")
    SamplingDefaults().sampling(sampling)  # checked before a model is loaded
    session = load(model, drafter, tell=False, **options)
    return session.generate(
        prompt, max_new_tokens, stop, prediction=prediction, stop_token_ids=stop_token_ids, **sampling
    )


def open_session(
    model: Any, drafter: str | Path | None, settings: Settings, tell: bool = False
) -> tuple[Session, Loaded]:
    """Returns a session, and what it was made from; arguments as in `load`."""
    method, chosen = chosen_method(settings)
    files = files_of(model)
    method, notes = _without_slow_head(method, files.name, drafter)
    loaded = with_method(load_target(files, chosen), drafter, method, chosen)
    loaded = replace(loaded, notes=(*loaded.notes, *notes))
    session = loaded.session(chosen)
    if tell:
        print_choices(session)
    return session, loaded


def print_choices(session: Session) -> None:
    """Prints on stderr what was chosen for a session."""
    for line in session.about:
        print(f"longgraft: {line}", file=sys.stderr)


def _without_slow_head(method: Method, model: str, drafter: str | Path | None) -> tuple[Method, tuple[str, ...]]:
    """Returns the method, without a head that ships, and notes for people."""
    is_default = method.name == DEFAULT and not method.changed
    ships = drafter == AUTO and shipped_head(model) is not None
    if not is_default or not ships:
        return method, ()
    note = (
        f"the head of {model} made decoding no faster where it was measured, so method {HEADLESS} "
        f"replaces {DEFAULT} (--drafter {model} uses the head)"
    )
    return find(HEADLESS), (note,)


def assemble(model: Any, drafter: str | Path | None, settings: Settings) -> Loaded:
    """Loads a model and all that the method needs on it; sessions are made from it.  Arguments as in `load`."""
    method, settings = chosen_method(settings)
    return with_method(load_target(files_of(model), settings), drafter, method, settings)
