"""Methods: their type, the parts they are built from, and how they are found."""

from longgraft.methods.method import Method

__all__ = ["Method"]
