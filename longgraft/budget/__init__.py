"""A step's cost, its expected tokens, and how many nodes it verifies."""
