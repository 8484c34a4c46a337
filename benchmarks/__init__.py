"""Times of single parts, compared with the least time that this machine allows.

Run from a checkout: python -m benchmarks.
"""
