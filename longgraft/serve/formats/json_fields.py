"""The base of all fields of requests."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from longgraft.config.options import options


class JsonFields(BaseModel):
    """An object of a body: values are not converted, and unknown fields are ignored unless a class says otherwise."""

    model_config = ConfigDict(extra="ignore", strict=True)


def described_by(group: type, name: str, more: str = "") -> Any:
    """Returns a field that may be null, described by an option, which is the place of its range.

    The range is checked when the request's `Sampling` is made, because a greedy request may say anything of
    the rest.

    Args:
        more: What only requests know of it.
    """
    description = f"{options(group)[name].help_text('')} {more}"
    return Field(None, description=description.rstrip())
