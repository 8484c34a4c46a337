"""Other decoders, measured on the prompts of our sweeps."""
