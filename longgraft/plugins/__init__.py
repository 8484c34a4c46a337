"""Longgraft's ranking of the text in other engines."""
