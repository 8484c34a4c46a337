"""Checks of losslessness, calibration, prediction quality, and of whether models fit."""
