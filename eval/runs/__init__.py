"""Sweeps: what is measured, by whom, and the rows that come of it."""
