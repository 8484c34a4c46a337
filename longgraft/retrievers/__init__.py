"""Proposers that run no network: they look tokens up in what was already seen."""
