"""Chunked prefill, and prefixes kept in memory and in files."""
