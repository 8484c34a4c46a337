"""Sweeps: their plan, their workers, and the rows that they write."""
