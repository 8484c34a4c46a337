"""Memories: what methods learn from observations."""
