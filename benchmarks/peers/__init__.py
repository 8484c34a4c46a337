"""Engines that `benchmarks.engines` times, longgraft and others, and what is measured with them.

Engines are imported where they are used, because each has an environment of its own.
"""
