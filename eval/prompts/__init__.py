"""Suites, length buckets and recordings: what is asked."""
