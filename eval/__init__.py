"""Measurement: real prompts, acceptance tables, loops, losslessness reports."""
