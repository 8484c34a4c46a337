"""Values of an option in which commas stand between them."""

from __future__ import annotations


def listed(text: str) -> list[str]:
    return text.split(",")


def numbers(text: str) -> list[int]:
    return [int(each) for each in listed(text)]
