"""Measurement: real rows, acceptance tables, loops, losslessness reports."""
