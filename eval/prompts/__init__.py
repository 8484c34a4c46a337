"""Prompts: suites, length buckets and recordings."""
