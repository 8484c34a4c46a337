"""The base of all fields of requests."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class JsonFields(BaseModel):
    """An object of a body: values are not converted, and unknown fields are ignored unless a class says otherwise."""

    model_config = ConfigDict(extra="ignore", strict=True)
