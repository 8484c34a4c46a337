"""Proposers that run no network: they look tokens up in earlier text."""
