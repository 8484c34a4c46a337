"""Memories and proposers: the protocols that everything else is written against."""
