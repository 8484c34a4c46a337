"""The base of all fields of requests."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from longgraft.config.options import options


class JsonFields(BaseModel):
    """An object of a body: values are not converted, and unknown fields are ignored unless a class says otherwise."""

    model_config = ConfigDict(extra="ignore", strict=True)


class KnownFields(JsonFields):
    """An object of a body that has no unknown fields."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def with_one_unknown(cls, fields: Any) -> Any:
        """Drops unknown fields after the first, which is enough for the error: each costs a kilobyte there."""
        if not isinstance(fields, dict):
            return fields
        known = {field.alias or name for name, field in cls.model_fields.items()}
        unknown = [name for name in fields if name not in known]
        return {name: value for name, value in fields.items() if name in known or name == unknown[0]}


def described_by(group: type, name: str, more: str = "") -> Any:
    """Returns a field that may be null, described by an option, which is the place of its range.

    The range is checked when the request's `Sampling` is made, because a greedy request may say anything of
    the rest.

    Args:
        more: What only requests know of it.
    """
    description = f"{options(group)[name].help_text('')} {more}"
    return Field(None, description=description.rstrip())
