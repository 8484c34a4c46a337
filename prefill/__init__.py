"""Chunked prefill, and prefixes that are kept in memory and in files."""
