"""Losslessness, calibration, quality, and whether things fit."""
