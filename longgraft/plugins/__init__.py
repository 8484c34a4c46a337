"""Longgraft's ranking of the text in other engines."""

from pathlib import Path

TRANSFORMERS = str(Path(__file__).with_name("transformers"))
"""Folder for transformers: `model.generate(..., custom_generate=TRANSFORMERS, trust_remote_code=True)`."""
