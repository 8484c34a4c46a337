"""Guesses as values: proposal trees, padded trees of the device, templates and tries."""
