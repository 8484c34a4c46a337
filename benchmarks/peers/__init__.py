"""Other decoders on the prompts of our sweeps."""
