"""What a method is, what it is built from, and where it is found."""

from longgraft.methods.method import Method

__all__ = ["Method"]
