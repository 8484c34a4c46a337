"""Retrievers: proposers that run no network, but look tokens up in earlier text."""
