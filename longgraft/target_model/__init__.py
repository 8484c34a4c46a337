"""An unmodified transformers model as a target."""
