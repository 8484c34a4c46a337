"""Immutable proposal trees, padded trees on the device, tree templates and tries."""
