"""Chunked prefill: a long prompt becomes observations, and never more than one chunk is held."""
